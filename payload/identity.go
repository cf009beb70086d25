// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

// Identity names a release: the version that its metadata must state, and where
// its content is. Desired, accepted and applied releases are compared by it.
type Identity struct {
	// Version is the semantic version.
	Version string `json:"version"`
	// Image is repository@sha256:<hex>. Path is a directory of the Git
	// repository that declared the release. One of them is set.
	Image string `json:"image,omitempty"`
	Path  string `json:"path,omitempty"`
}

// Named is an API type that names a release.
type Named interface {
	// ReleaseName returns the fields of an Identity.
	ReleaseName() (version, image, path string)
}

// IdentityOf returns the release that n names.
func IdentityOf(n Named) Identity {
	version, image, path := n.ReleaseName()
	return Identity{Version: version, Image: image, Path: path}
}

// Equal reports whether both name the same release. The revision of a Path isn't
// part of it: what is declared at a path changes with its version.
func (i Identity) Equal(other Identity) bool { return i == other }

// Empty reports whether no release is named.
func (i Identity) Empty() bool { return i.Image == "" && i.Path == "" }
