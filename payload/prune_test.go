// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"pgregory.net/rapid"
)

// Between the precondition and the prune the inventory takes in the objects of
// the new release. That must not turn a yes into a no.
func TestWhatMayBePrunedStaysSoWhenTheReleaseIsApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := Leaving{Kept: rapid.IntRange(0, 50).Draw(t, "kept"), Total: rapid.IntRange(0, 50).Draw(t, "total")}
		before.Deleted = rapid.IntRange(0, before.Total).Draw(t, "deleted")
		fraction := rapid.IntRange(0, 100).Draw(t, "fraction")
		after := before
		after.Total += rapid.IntRange(0, before.Kept).Draw(t, "new") // only what the release names
		_, asked := MayPrune(before, fraction)
		if _, done := MayPrune(after, fraction); asked && !done {
			t.Fatalf("%+v may be pruned at %d %%, and %+v not", before, fraction, after)
		}
	})
}
