// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package accepted

import "testing"

func TestAReleaseThatBeginsIsWhatTheNextProcessGoesOnWith(t *testing.T) {
	client := configMaps(t)
	s := New(client)
	first, next := Chosen{Version: "1.0.0", Image: "a"}, Chosen{Version: "1.1.0", Image: "b"}
	chosen := func() Chosen {
		t.Helper()
		again := New(client)
		if err := again.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c := again.Release("platform").Chosen; c != nil {
			return *c
		}
		return Chosen{}
	}
	for _, want := range []Chosen{first, next, next, first} {
		if err := s.BeginRelease(t.Context(), "platform", want); err != nil {
			t.Fatal(err)
		}
		if got := chosen(); got.Version != want.Version || got.Image != want.Image {
			t.Errorf("a new process goes on with %+v, want %+v", got, want)
		}
	}
}
