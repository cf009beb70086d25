// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestARestartContinuesWithTheReleaseThatBegan(t *testing.T) {
	client := configMaps(t)
	s := New(client)
	first, next := Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}, Accepted{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}
	accepted := func() Accepted {
		t.Helper()
		again := New(client)
		if err := again.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c := again.Release("platform").Accepted; c != nil {
			return *c
		}
		return Accepted{}
	}
	for _, want := range []Accepted{first, next, next, first} {
		if err := s.BeginRelease(t.Context(), "platform", want); err != nil {
			t.Fatal(err)
		}
		if got := accepted(); got.Version != want.Version || got.Image != want.Image {
			t.Errorf("after a restart: %+v, want %+v", got, want)
		}
	}
	// A rollback to a completed release is incomplete, and keeps its waits.
	rollback := first
	rollback.State = "RollingBack"
	waiting := rollback
	waiting.Waits = []Wait{{Object: Object{Kind: "Pod", Name: "web"}}}
	for _, step := range []struct {
		name  string
		write func() error
		want  Accepted
	}{
		{"started", func() error { return s.BeginRelease(t.Context(), "platform", rollback) }, rollback},
		{"waiting", func() error { return s.SetAccepted(t.Context(), "platform", waiting, nil) }, waiting},
		{"started by the next process", func() error { return s.BeginRelease(t.Context(), "platform", rollback) }, waiting},
		{"complete", func() error { return s.SetAccepted(t.Context(), "platform", first, nil) }, first},
		{"unchanged by the next process", func() error { return s.BeginRelease(t.Context(), "platform", first) }, first},
	} {
		if err := step.write(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, accepted()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
