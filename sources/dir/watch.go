// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package dir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// maxWatched bounds the watched directories, which use kernel memory.
const maxWatched = 4096

// rescan is the interval of the checks for directories that were created or
// deleted without an event.
const rescan = 5 * time.Second

// Watch calls changed once the directory has changed and then stayed unchanged
// for Config.Debounce, until ctx ends. It watches directories, not files, to
// detect files and directories that are replaced by renaming. It calls changed on
// its own goroutine, sometimes without a change. It returns nil when ctx ends.
func (s *Source) Watch(ctx context.Context, changed func()) (err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return &Error{ReasonFetchFailed, "watch the directory", err}
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	s.watchAll(w)
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	again := time.NewTicker(rescan)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if e.Op == fsnotify.Chmod || filepath.Base(e.Name) == ".git" {
				continue
			}
			quiet.Reset(s.cfg.Debounce)
		case _, ok := <-w.Errors: // events were lost
			if !ok {
				return nil
			}
			quiet.Reset(s.cfg.Debounce)
		case <-quiet.C:
			s.watchAll(w)
			changed()
		case <-again.C:
			if s.watchAll(w) {
				quiet.Reset(s.cfg.Debounce)
			}
		}
	}
}

// watchAll watches every directory below the source and the source's parent. It
// reports whether it found a new directory.
func (s *Source) watchAll(w *fsnotify.Watcher) bool {
	before := map[string]bool{}
	for _, p := range w.WatchList() {
		before[p] = true
	}
	fresh := false
	watch := func(p string) {
		if !before[p] && len(w.WatchList()) < maxWatched && w.Add(p) == nil {
			fresh = true
		}
	}
	watch(filepath.Dir(filepath.Clean(s.cfg.Path)))
	root := s.cfg.Path
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // deleted or unreadable; Fetch reports it
		}
		if !d.IsDir() {
			return nil
		}
		if d.Name() == ".git" {
			return fs.SkipDir
		}
		watch(p)
		return nil
	})
	for p := range before {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			_ = w.Remove(p)
		}
	}
	return fresh
}
