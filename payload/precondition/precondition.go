// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package precondition contains the checks that can block an update. They are
// pure functions.
//
// The caller gathers Facts and authorizes waivers. Evaluate runs all checks and
// returns all violations before the first write. Each waiver names one check;
// nothing waives all of them.
package precondition

import "slices"

// Violation is a failed check.
type Violation struct {
	// Name of the check, as in waivers.
	Name string
	// Reason is the condition reason, in CamelCase.
	Reason string
	// Message describes the state, its cause and the fix.
	Message string
	// Blocking violations block the update unless they are waived.
	Blocking bool
	// Retriable violations may resolve automatically.
	Retriable bool
	// Waived is true for blocking violations with a waiver.
	Waived bool
}

// The names of the checks.
const (
	Rollback          = "Rollback"
	GiantHop          = "GiantHop"
	Upgradeable       = "Upgradeable"
	RecommendedUpdate = "RecommendedUpdate"
	VersionFloor      = "VersionFloor"
	HostSkew          = "HostSkew"
	APIRemoval        = "APIRemoval"
	StoredVersions    = "StoredVersions"
	OwnedByOther      = "OwnedByOther"
	PruneGuard        = "PruneGuard"
	UnpinnedImage     = "UnpinnedImage"
	ManifestOrder     = "ManifestOrder"
)

// Waivable returns the names of the checks that a waiver may waive. The floor is the
// trust policy's, and the engine or the API server enforces the other checks again.
func Waivable() []string {
	return []string{APIRemoval, GiantHop, HostSkew, ManifestOrder, Rollback, Upgradeable}
}

// Blocks reports whether a violation blocks the update.
func Blocks(violations []Violation) bool {
	return slices.ContainsFunc(violations, func(v Violation) bool { return v.Blocking && !v.Waived })
}
