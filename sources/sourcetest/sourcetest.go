// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sourcetest contains the conformance tests of sources.Source, which
// sources/git and sources/dir run.
package sourcetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/lockstep-dev/lockstep/sources"
)

// Fixture is a source and a function that changes its content.
type Fixture struct {
	Source sources.Source
	// Put replaces all content with files and links (path → target).
	Put func(t *testing.T, files, links map[string]string)
}

// goldenSum is the canonical sum of {"a.yaml": "a: 1\n", "d/b": ""}. Accepted
// revisions record such sums, so it must not change.
const goldenSum = "sha256:6cb0715c25c6e09e1c51597b56aa878e75b186391787fae35ff8644530449f35"

// Run tests a source; each subtest gets a new fixture.
func Run(t *testing.T, fixture func(t *testing.T) Fixture) {
	t.Helper()
	for _, tc := range []struct {
		name  string
		check func(t *testing.T, f Fixture)
	}{
		{"the content is unchanged and has the canonical sum", content},
		{"an unchanged source returns the same snapshot", unchanged},
		{"a change returns another revision and keeps the old snapshot", change},
		{"a fetched snapshot is available by its revision", at},
		{"an unknown revision is rejected", unknown},
		{"links inside the source are followed", linksInside},
		{"links out of the source are rejected", linksOutside},
		{"names that differ only in case are rejected", clash},
		{"a canceled context ends the call", canceled},
		{"calls may be concurrent", concurrent},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.check(t, fixture(t)) })
	}
}

func fetch(t *testing.T, f Fixture) *sources.Snapshot {
	t.Helper()
	snap, err := f.Source.Fetch(t.Context(), sources.Request{})
	if err != nil {
		t.Fatalf("Fetch: %v", err)
	}
	return snap
}

func wantReason(t *testing.T, err error, want string) {
	t.Helper()
	var r interface{ Reason() string }
	if !errors.As(err, &r) || r.Reason() != want {
		t.Errorf("err = %v, want reason %s", err, want)
	}
}

func content(t *testing.T, f Fixture) {
	t.Helper()
	files := map[string]string{"a.yaml": "a: 1\n", "d/b": ""}
	f.Put(t, files, nil)
	snap := fetch(t, f)
	if err := fstest.TestFS(snap.FS, slices.Collect(maps.Keys(files))...); err != nil {
		t.Error(err)
	}
	if snap.FS.Len() != len(files) {
		t.Errorf("%d files, want %d", snap.FS.Len(), len(files))
	}
	for name, want := range files {
		if got, err := snap.FS.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	if snap.Revision.Tree != goldenSum {
		t.Errorf("sum %s, want %s", snap.Revision.Tree, goldenSum)
	}
	if _, err := sources.ParseRevision(snap.Revision.String()); err != nil {
		t.Error(err)
	}
}

func unchanged(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1"}, nil)
	first := fetch(t, f)
	again, err := f.Source.Fetch(t.Context(), sources.Request{Accepted: first.Revision})
	if err != nil || again != first {
		t.Errorf("Fetch = %p, %v, want the same snapshot %p", again, err, first)
	}
}

func change(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1", "gone": "x"}, nil)
	first := fetch(t, f)
	f.Put(t, map[string]string{"a": "2"}, nil)
	second, err := f.Source.Fetch(t.Context(), sources.Request{Accepted: first.Revision})
	if err != nil {
		t.Fatal(err)
	}
	if second.Revision.Same(first.Revision) || second.Revision.Tree == first.Revision.Tree {
		t.Errorf("revision is still %s", second.Revision)
	}
	if _, err := second.FS.Stat("gone"); err == nil {
		t.Error("a removed file still exists")
	}
	if got, err := first.FS.ReadFile("a"); err != nil || string(got) != "1" {
		t.Errorf("the old snapshot changed: %q, %v", got, err)
	}
}

func at(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1"}, nil)
	first := fetch(t, f)
	rev, err := sources.ParseRevision(first.Revision.String())
	if err != nil {
		t.Fatal(err)
	}
	snap, err := f.Source.At(t.Context(), rev)
	if err != nil || snap.Revision.Tree != first.Revision.Tree {
		t.Errorf("At = %v, %v, want tree %s", snap, err, first.Revision.Tree)
	}
}

func unknown(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1"}, nil)
	rev := fetch(t, f).Revision
	if rev.Hash != "" {
		rev.Hash = "0123456789012345678901234567890123456789"
	}
	rev.Tree = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	_, err := f.Source.At(t.Context(), rev)
	wantReason(t, err, "RevisionNotFound")
}

func linksInside(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"d/a": "1"}, map[string]string{"d/l": "a", "m": "d/l"})
	if got, err := fetch(t, f).FS.ReadFile("m"); err != nil || string(got) != "1" {
		t.Errorf("a link reads %q, %v, want its target", got, err)
	}
}

func linksOutside(t *testing.T, f Fixture) {
	t.Helper()
	for _, target := range []string{"../../etc/passwd", "/etc/passwd"} {
		f.Put(t, map[string]string{"a": "1"}, map[string]string{"l": target})
		_, err := f.Source.Fetch(t.Context(), sources.Request{})
		wantReason(t, err, "InvalidTree")
	}
}

func clash(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"Release.yaml": "1", "release.yaml": "2"}, nil)
	_, err := f.Source.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, "InvalidTree")
}

func canceled(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Source.Fetch(ctx, sources.Request{}); err == nil {
		t.Error("Fetch succeeded with a canceled context")
	}
}

func concurrent(t *testing.T, f Fixture) {
	t.Helper()
	f.Put(t, map[string]string{"a": "1"}, nil)
	want := fetch(t, f).Revision
	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			snap, err := f.Source.Fetch(t.Context(), sources.Request{})
			if err == nil && snap.Revision != want {
				err = errors.New("another revision " + snap.Revision.String())
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
