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

// maxWatched bounds the directories that are watched; each costs the kernel
// memory.
const maxWatched = 4096

// rescan is how often a directory that isn't there is looked for, and how
// often directories that came or went unnoticed are found.
const rescan = 5 * time.Second

// Watch calls changed after the directory changed and then kept still for
// Config.Debounce, until ctx ends. Directories are watched, never files, so
// editors and tools that replace files, or the directory itself, by renaming
// are seen. changed is called on Watch's goroutine; calls that hint at nothing
// new do happen. The error is nil after a stop.
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
		case _, ok := <-w.Errors: // events were lost: look
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

// watchAll watches every directory below the source, and its parent, so that
// the directory itself may be replaced. It reports whether there was a new one.
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
			return fs.SkipDir // it's gone or closed to us; Fetch says so
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
