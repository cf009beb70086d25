// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestASuccessorInheritsCapabilitiesAndPools(t *testing.T) {
	s := New(configMaps(t))
	accepted := Accepted{Identity: payload.Identity{Version: "1.0.0"}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Inherit(t.Context(), "new", "unknown"))
	if len(s.Releases()) != 0 {
		t.Error("an unknown release left a record")
	}
	must(s.SetAccepted(t.Context(), "old", accepted, []string{"console", "storage"}))
	must(s.SetPool(t.Context(), "old", "workers", "sha256:aa"))
	must(s.SetAccepted(t.Context(), "new", accepted, []string{"console", "logs"}))
	for range 2 {
		must(s.Inherit(t.Context(), "new", "old"))
	}
	got := s.Release("new")
	if diff := cmp.Diff([]string{"console", "logs", "storage"}, got.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"workers": "sha256:aa"}, got.Pools); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

func TestAnObjectThatLeftGitIsNoLongerDeclared(t *testing.T) {
	s := New(configMaps(t))
	record := Source{Objects: map[string]string{"NodeOS/a": "1", "NodeOS/b": "2", "ClusterRelease/a": "3"}, Removed: []string{"NodeOS/b"}}
	if err := s.SetSource(t.Context(), "fleet", record); err != nil {
		t.Fatal(err)
	}
	if !s.Removed("NodeOS", "b") || s.Removed("NodeOS", "a") {
		t.Error("removed: want only NodeOS/b")
	}
	if diff := cmp.Diff(map[string]string{"a": "fleet"}, s.Declared("NodeOS")); diff != "" {
		t.Errorf("declared (-want +got):\n%s", diff)
	}
	// Another source declares it.
	if err := s.SetSource(t.Context(), "other", Source{Objects: map[string]string{"NodeOS/b": "4"}}); err != nil {
		t.Fatal(err)
	}
	if source, _, _ := s.Owner("NodeOS", "b"); source != "other" || s.Removed("NodeOS", "b") {
		t.Errorf("owner %s, removed %t; want the source that declares it", source, s.Removed("NodeOS", "b"))
	}
}
