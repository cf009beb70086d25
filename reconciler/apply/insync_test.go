// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "testing"

func TestInSyncReportsWhetherAnApplySendsARequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	inSync := func() bool {
		t.Helper()
		is, err := env.engine.InSync(t.Context(), &ms[0])
		must(t, err)
		return is
	}
	if inSync() {
		t.Error("an object that was never applied is in sync")
	}
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	if !inSync() {
		t.Error("an applied object isn't in sync")
	}
	changed := ms[0]
	changed.Hash[0] ^= 1
	if is, err := env.engine.InSync(t.Context(), &changed); is || err != nil {
		t.Errorf("a changed manifest is in sync: %t %v", is, err)
	}
}
