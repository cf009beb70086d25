// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

// AlwaysPruned is how many objects may be deleted at once whatever the
// fraction, unless that is zero: a small release can lose one of its few.
const AlwaysPruned = 5

// Leaving counts the objects that a release leaves out, of those that its set
// holds.
type Leaving struct {
	// Deleted would be deleted: the set made them, and nothing protects them.
	Deleted int
	// Kept are named by the release.
	Kept int
	// Total is the size of the set's inventory.
	Total int
}

// MayPrune decides whether so many objects may be deleted when the fraction, in
// percent of the inventory, may be; allowed is how many may. A release that
// keeps nothing is never meant. The precondition asks before the first write,
// and the engine before the first deletion; the inventory has only grown by
// then, so what the one accepts the other does.
func MayPrune(l Leaving, fraction int) (allowed int, ok bool) {
	const all = 100
	if fraction > 0 {
		allowed = max(AlwaysPruned, l.Total*fraction/all)
	}
	if l.Kept == 0 && l.Total > 0 {
		return 0, false
	}
	return allowed, l.Deleted <= allowed
}
