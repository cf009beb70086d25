// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

// AlwaysPruned is the number of objects that may always be deleted at once,
// unless the limit is 0 %. It keeps small releases from exceeding their limit
// with a single object.
const AlwaysPruned = 5

// PruneCount counts the objects of an inventory before a prune.
type PruneCount struct {
	// Deleted is the number of objects that the prune would delete.
	Deleted int
	// Kept is the number of objects in the release.
	Kept int
	// Total is the size of the inventory.
	Total int
}

// MayPrune reports whether a prune is within the limit, in percent of the
// inventory, and how many deletions are allowed. A release without objects is
// never allowed to prune. The check is monotonic: a prune that passes the
// precondition also passes the check before the first deletion, since applying
// the release only adds to the inventory.
func MayPrune(l PruneCount, maxPercent int) (allowed int, ok bool) {
	const all = 100
	if maxPercent > 0 {
		allowed = max(AlwaysPruned, l.Total*maxPercent/all)
	}
	if l.Kept == 0 && l.Total > 0 {
		return 0, false
	}
	return allowed, l.Deleted <= allowed
}
