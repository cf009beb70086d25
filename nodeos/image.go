// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"errors"
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
)

// ImageRef is an OS image by repository and digest.
type ImageRef struct {
	// Repository is where the image is, without tag and digest.
	Repository string `json:"repository"`
	// Digest is what is signed and wanted: "sha256:" and 64 hex digits.
	Digest string `json:"digest"`
}

// String returns repository@digest.
func (r ImageRef) String() string { return r.Repository + "@" + r.Digest }

// ParseImageRef reads repository@sha256:…; a reference by tag is an error.
func ParseImageRef(s string) (ImageRef, error) {
	repository, digest, ok := strings.Cut(s, "@")
	if !ok {
		return ImageRef{}, fmt.Errorf("image %q has no digest, want repository@sha256:…", s)
	}
	r := ImageRef{Repository: repository, Digest: digest}
	return r, r.Validate()
}

// Validate says what is wrong with the reference, if anything is.
func (r ImageRef) Validate() error {
	if r.Repository == "" || len(r.Repository) > maxID || strings.ContainsAny(r.Repository, " \t\n@") {
		return fmt.Errorf("image repository %q is empty, too long or has blanks", r.Repository)
	}
	return ValidateDigest(r.Digest)
}

// ValidateDigest says whether d is "sha256:" and 64 lower-case hex digits.
func ValidateDigest(d string) error {
	hexa, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(hexa) != 64 || strings.Trim(hexa, "0123456789abcdef") != "" {
		return fmt.Errorf("digest %q is not sha256: and 64 hex digits", d)
	}
	return nil
}

// Image is an OS image whose signature was checked: what its own bytes say.
type Image struct {
	// Ref is where it's from; Ref.Digest is what was signed.
	Ref ImageRef `json:"ref"`
	// Product and Version are read from bytes under the verified digest.
	Product string `json:"product"`
	// Version is a semantic version.
	Version string `json:"version"`
	// ContentDigest is the digest of the bytes that are written to a slot; an
	// image in a registry is a manifest and has another digest than its
	// content.
	ContentDigest string `json:"contentDigest"`
	// Size is the content's length in bytes.
	Size int64 `json:"size"`
}

// CompareVersions returns -1, 0 or 1 as a is older than, equal to or newer
// than b. Build metadata counts for nothing, as in the semver specification.
func CompareVersions(a, b string) (int, error) {
	va, err := parseVersion(a)
	if err != nil {
		return 0, err
	}
	vb, err := parseVersion(b)
	if err != nil {
		return 0, err
	}
	return va.Compare(vb), nil
}

// parseVersion reads a version, with or without a leading v.
func parseVersion(s string) (semver.Version, error) {
	if len(s) > 128 {
		return semver.Version{}, errors.New("version is longer than 128 bytes")
	}
	v, err := semver.ParseTolerant(s)
	if err != nil {
		return semver.Version{}, fmt.Errorf("version %q is not a semantic one: %w", s, err)
	}
	return v, nil
}
