// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "testing"

func TestLevelTellsWhatAnApplyWouldCost(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	level := func() bool {
		t.Helper()
		is, err := r.engine.InSync(t.Context(), &ms[0])
		must(t, err)
		return is
	}
	if level() {
		t.Error("an object that was never applied is level")
	}
	r.apply(ms, Updating)
	r.seen(ms)
	if !level() {
		t.Error("an object that was just applied isn't level")
	}
	changed := ms[0]
	changed.Hash[0] ^= 1
	if is, err := r.engine.InSync(t.Context(), &changed); is || err != nil {
		t.Errorf("another manifest is level: %t %v", is, err)
	}
}
