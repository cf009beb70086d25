// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tiny is a compilation of a module with nothing in it.
func tiny(t *testing.T, source string) compilation {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module tiny\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return compilation{
		name: "tiny", target: filepath.Join(t.TempDir(), "cache", "tiny"), packages: 1, dir: dir,
		args: func(out string) []string { return []string{"build", "-v", "-o", filepath.Join(out, "tiny"), "."} },
	}
}

// output collects lines of several goroutines.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

func TestTwoThatAskAtOnceCompileOnce(t *testing.T) {
	c := tiny(t, "package main\n\nfunc main() {}\n")
	var progress output
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := build(t.Context(), &progress, c); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := strings.Count(progress.String(), "compiling tiny"); got != 1 {
		t.Errorf("compiled %d times, want once:\n%s", got, progress.String())
	}
	if ok, err := exists(c.target); !ok || err != nil {
		t.Errorf("the binary isn't in the cache (%v)", err)
	}
}

func TestAFailedCompilationLeavesNothingAndReportsWhy(t *testing.T) {
	c := tiny(t, "package main\n\nfunc main() { undefinedName() }\n")
	var progress output
	err := build(t.Context(), &progress, c)
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") {
		t.Errorf("got error %v, want the compiler's own words", err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(c.target), "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "lock" {
		t.Errorf("left behind %v (%v), want the lock alone", left, err)
	}
}

func TestWaitingForAnotherBuildEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, path); err == nil {
		t.Error("a second lock was taken while the first is held")
	}
}

func TestTheKeyOfTheCacheFollowsTheSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	names := []string{write("go.mod", "a"), write("go.sum", "b"), write("main.go", "c")}
	before, err := cachePath(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{before: "nothing"}
	for _, name := range names {
		write(name, "changed")
		path, err := cachePath(dir)
		if err != nil {
			t.Fatal(err)
		}
		if old, ok := seen[path]; ok {
			t.Errorf("a change of %s gives the key of a change of %s", name, old)
		}
		seen[path] = name
	}
}

func TestASweepRemovesOnlyUnlockedOldDirectories(t *testing.T) {
	tmp := t.TempDir()
	old := time.Now().Add(-time.Hour)
	place := func(name string, at time.Time) string {
		dir := filepath.Join(tmp, dirPrefix+name)
		path := filepath.Join(dir, "lock")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	place("left", old)
	place("young", time.Now())
	unlock, err := lock(t.Context(), place("held", old))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	sweep(tmp)
	entries, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), dirPrefix))
	}
	if got := strings.Join(names, " "); got != "held young" {
		t.Errorf("after the sweep there are %q, want the held and the young one", got)
	}
}

func TestOnlyImportPathsCountAsProgress(t *testing.T) {
	for line, want := range map[string]bool{
		"k8s.io/kubernetes/cmd/kube-apiserver/app": true,
		"internal/abi":                    true,
		"go: downloading k8s.io/api v0.1": false,
		"# k8s.io/kubernetes":             false,
		"./main.go:3:2: undefined: x":     false,
		"":                                false,
	} {
		if got := isPackage(line); got != want {
			t.Errorf("isPackage(%q) = %v, want %v", line, got, want)
		}
	}
}
