// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"pgregory.net/rapid"
)

// Between the precondition and the prune, the objects of the new release are
// added to the inventory.
func TestAnAllowedPruneStaysAllowedAfterTheReleaseIsApplied(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := PruneCount{Kept: rapid.IntRange(0, 50).Draw(t, "kept"), Total: rapid.IntRange(0, 50).Draw(t, "total")}
		before.Deleted = rapid.IntRange(0, before.Total).Draw(t, "deleted")
		maxPercent := rapid.IntRange(0, 100).Draw(t, "maxPercent")
		after := before
		after.Total += rapid.IntRange(0, before.Kept).Draw(t, "new") // only objects of the release
		_, checked := MayPrune(before, maxPercent)
		if _, done := MayPrune(after, maxPercent); checked && !done {
			t.Fatalf("prune of %+v is allowed at %d %%, of %+v isn't", before, maxPercent, after)
		}
	})
}
