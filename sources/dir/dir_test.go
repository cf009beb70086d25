// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package dir

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// put replaces the content of dir.
func put(t *testing.T, dir string, files, links map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		t.Helper()
		dir := t.TempDir()
		s, err := New(Config{Path: dir})
		if err != nil {
			t.Fatal(err)
		}
		return sourcetest.Fixture{Source: s, Put: func(t *testing.T, files, links map[string]string) {
			t.Helper()
			put(t, dir, files, links)
		}}
	})
}

func TestTheGitDirectoryIsExcluded(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{".git/config": "x", "a": "1"}, nil)
	tree, err := Read(t.Context(), dir, sources.Limits{})
	if err != nil || tree.Len() != 1 {
		t.Errorf("%v, %v, want a alone", tree, err)
	}
}

func TestSpecialFilesAndExceededLimitsAreRejected(t *testing.T) {
	dir := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = Read(t.Context(), dir, sources.Limits{})
	var r interface{ Reason() string }
	if !errors.As(err, &r) || r.Reason() != "InvalidTree" {
		t.Errorf("a socket: %v, want InvalidTree", err)
	}
	other := t.TempDir()
	put(t, other, map[string]string{"a": "12345"}, nil)
	if _, err = Read(t.Context(), other, sources.Limits{Bytes: 4}); !errors.As(err, &r) || r.Reason() != "LimitExceeded" {
		t.Errorf("five bytes with a limit of four: %v, want LimitExceeded", err)
	}
	if _, err = Read(t.Context(), filepath.Join(other, "none"), sources.Limits{}); !errors.As(err, &r) || r.Reason() != ReasonFetchFailed {
		t.Errorf("a missing directory: %v, want FetchFailed", err)
	}
}

func TestWatchDetectsEditsReplacementsAndNewDirectories(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "desired")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, dir, map[string]string{"a": "1"}, nil)
	s, err := New(Config{Path: dir, Debounce: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 100)
	done := make(chan error)
	go func() { done <- s.Watch(ctx, func() { changed <- struct{}{} }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	}()
	// until waits until Fetch returns the content; it fetches only after a
	// notification.
	until := func(what, name, want string) {
		t.Helper()
		deadline := time.NewTimer(20 * time.Second)
		defer deadline.Stop()
		for {
			select {
			case <-changed:
			case <-deadline.C:
				t.Fatalf("%s wasn't detected", what)
			}
			snap, err := s.Fetch(t.Context(), sources.Request{})
			if err != nil {
				continue
			}
			if got, err := snap.FS.ReadFile(name); err == nil && string(got) == want {
				return
			}
		}
	}
	write := func(name, data string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	// The watch may not be active yet: write until it notifies.
	tick := time.NewTicker(5 * time.Millisecond)
	for i := 0; len(changed) == 0; i++ {
		write(filepath.Join(dir, "start"), time.Duration(i).String())
		for range 8 { // longer than the debounce time
			<-tick.C
		}
	}
	tick.Stop()
	write(filepath.Join(dir, "a"), "2")
	until("an edit", "a", "2")
	write(filepath.Join(parent, "tmp"), "3")
	rename(filepath.Join(parent, "tmp"), filepath.Join(dir, "a"))
	until("a replaced file", "a", "3")
	write(filepath.Join(dir, "new", "deep", "b"), "1")
	until("a new directory", "new/deep/b", "1")
	write(filepath.Join(dir, "new", "deep", "b"), "2")
	until("an edit in the new directory", "new/deep/b", "2")
	write(filepath.Join(parent, "next", "a"), "4")
	rename(dir, filepath.Join(parent, "old"))
	rename(filepath.Join(parent, "next"), dir)
	until("a replaced directory", "a", "4")
	write(filepath.Join(dir, "a"), "5")
	until("an edit in the replaced directory", "a", "5")
}
