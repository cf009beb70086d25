// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package precondition holds the pure checks that may hold an update back.
//
// Facts are gathered by the caller; Evaluate runs every check over them and
// returns all violations at once, so that people see the whole list before
// the first write. A blocking violation is waived by its name only; there is
// no force that waives everything. Who may waive is decided by the caller.
package precondition

import "slices"

// Violation is one reason against an update.
type Violation struct {
	// Name is the check's name, as a waiver has to give it.
	Name string
	// Reason is the condition reason, in CamelCase.
	Reason string
	// Message says what was found and wanted, and what would help.
	Message string
	// Blocking violations hold the update back unless they are waived.
	Blocking bool
	// Retriable violations may go away by themselves.
	Retriable bool
	// Waived is set by Evaluate on a blocking violation that a waiver names.
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
)

// Blocks reports whether a violation holds the update back.
func Blocks(violations []Violation) bool {
	return slices.ContainsFunc(violations, func(v Violation) bool { return v.Blocking && !v.Waived })
}
