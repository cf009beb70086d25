// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

// State is the state of the sync worker. It determines the order of the task
// graph and which objects are waited for.
type State int

// The states.
const (
	// Initializing installs the first release: all components in parallel, with
	// required kinds first.
	Initializing State = iota
	// Updating updates to another release, run level by run level.
	Updating
	// RollingBack is Updating to an older release.
	RollingBack
	// Reconciling keeps a complete release in sync.
	Reconciling
)

// String returns the name shown in status.
func (s State) String() string {
	switch s {
	case Initializing:
		return "Initializing"
	case Updating:
		return "Updating"
	case RollingBack:
		return "RollingBack"
	case Reconciling:
		return "Reconciling"
	default:
		return "Unknown"
	}
}

// ParseState is the inverse of String; ok is false for anything else.
func ParseState(name string) (s State, ok bool) {
	for s := Initializing; s <= Reconciling; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}
