// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/version"
)

// ImageRef is an OS image by repository and digest.
type ImageRef struct {
	// Repository is the image's repository, without tag and digest.
	Repository string `json:"repository"`
	// Digest is the signed digest: "sha256:" and 64 hex digits.
	Digest string `json:"digest"`
}

// String returns repository@digest.
func (r ImageRef) String() string { return r.Repository + "@" + r.Digest }

// ParseImageRef parses repository@sha256:…; a tag reference is an error.
func ParseImageRef(s string) (ImageRef, error) {
	repository, digest, ok := strings.Cut(s, "@")
	if !ok {
		return ImageRef{}, fmt.Errorf("parse image %q: no digest; want repository@sha256:…", s)
	}
	r := ImageRef{Repository: repository, Digest: digest}
	return r, r.Validate()
}

// Validate returns an error if the reference is malformed.
func (r ImageRef) Validate() error {
	if r.Repository == "" || len(r.Repository) > maxID || strings.ContainsAny(r.Repository, " \t\n@") {
		return fmt.Errorf("image repository %q is empty, too long or contains blanks", r.Repository)
	}
	return ValidateDigest(r.Digest)
}

// ValidateDigest checks that d is "sha256:" and 64 lower-case hex digits.
func ValidateDigest(d string) error {
	hexa, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(hexa) != 64 || strings.Trim(hexa, "0123456789abcdef") != "" {
		return fmt.Errorf("digest %q is not sha256: and 64 lower-case hex digits", d)
	}
	return nil
}

// Image is an OS image whose signature was verified, as its own bytes describe it.
type Image struct {
	// Ref is the source of the image; Ref.Digest is the signed digest.
	Ref ImageRef `json:"ref"`
	// Product is read from bytes under the verified digest.
	Product string `json:"product"`
	// Version is a semantic version, read from bytes under the verified digest.
	Version string `json:"version"`
	// ContentDigest is the digest of the bytes that are written to a slot. It
	// differs from Ref.Digest, which is the digest of a manifest.
	ContentDigest string `json:"contentDigest"`
	// Size is the content's length in bytes.
	Size int64 `json:"size"`
}

// CompareVersions returns -1, 0 or 1 if a is older than, equal to or newer
// than b. Build metadata is ignored, as semver specifies.
func CompareVersions(a, b string) (int, error) {
	va, err := version.Parse(a)
	if err != nil {
		return 0, err
	}
	vb, err := version.Parse(b)
	if err != nil {
		return 0, err
	}
	return va.Compare(vb), nil
}

// MajorMinor returns the major and the minor number of a version.
func MajorMinor(of string) (major, minor uint64, err error) {
	v, err := version.Parse(of)
	return v.Major, v.Minor, err
}
