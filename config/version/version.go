// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package version compares the versions of releases and operating systems, so
// that preconditions, the sync worker, the ledger and the status agree on what is
// an update and what is a rollback. Signed documents and payload metadata are
// stricter: their versions must be exactly semantic.
package version

import (
	"fmt"

	"github.com/blang/semver/v4"
)

// MaxLength is the longest version in bytes.
const MaxLength = 128

// Parse reads a semantic version (semver.org). A leading "v", a missing minor
// or patch number and leading zeros are accepted, as in Kubernetes' versions.
func Parse(s string) (semver.Version, error) {
	if len(s) > MaxLength {
		return semver.Version{}, fmt.Errorf("version of %d bytes: at most %d are allowed", len(s), MaxLength)
	}
	v, err := semver.ParseTolerant(s)
	if err != nil {
		return semver.Version{}, fmt.Errorf("version %q: %w", s, err)
	}
	return v, nil
}

// IsRollback reports whether moving from one version to the other lowers it. A
// version that isn't semantic can't be compared: it is never a rollback.
func IsRollback(from, to string) bool {
	a, errA := Parse(from)
	b, errB := Parse(to)
	return errA == nil && errB == nil && b.LT(a)
}
