// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

// State is what the engine does with a payload; it decides the order of the
// task graph and whether each object is waited for.
type State int

// The states, as the task graph's table has them.
const (
	// Initializing applies a first release: nothing runs yet, so all
	// components go at once, only kinds that others need go first.
	Initializing State = iota
	// Updating moves from one release to another, run level by run level.
	Updating
	// RollingBack is Updating to an older release.
	RollingBack
	// Reconciling keeps a level release level.
	Reconciling
)

// String returns the name that status shows.
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

// Waits reports whether the state waits for each object to become level before
// what depends on it is applied. Initializing waits in this way for Jobs alone,
// and for all others once everything is applied; Reconciling doesn't wait.
func (s State) Waits() bool { return s == Updating || s == RollingBack }

// WaitsFor reports whether the state waits for the object before it applies
// what depends on it.
func (s State) WaitsFor(id ObjectID) bool { return s.Waits() || s == Initializing && id.IsJob() }
