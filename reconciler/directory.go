// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/dir"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// reader reads a source: a Git repository or, for development, a directory.
type reader interface {
	sources.Source
	// Close ends the reader before another one takes its place.
	Close() error
}

// open makes the reader of a source.
func (s *sourceRuntimes) open(obj *v1alpha1.GitSource) (reader, error) {
	path, ok := plainDirectory(obj.Spec.URL)
	if !ok || !s.opts.AllowInsecureSources {
		cfg, err := s.config(obj)
		if err != nil {
			return nil, err
		}
		return git.New(cfg)
	}
	if obj.Spec.Verify != nil {
		return nil, &reasonError{git.ReasonInvalid, false, errors.New("spec.verify asks for signed commits, and a plain directory has none; make it a Git repository, or leave spec.verify out")}
	}
	return s.openDirectory(obj.Name, path)
}

// plainDirectory returns the path of a file URL that names a directory without
// a Git repository in it.
func plainDirectory(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	info, err := os.Stat(u.Path)
	if err != nil || !info.IsDir() {
		return "", false
	}
	for _, mark := range []string{".git", "HEAD"} {
		if _, err := os.Stat(filepath.Join(u.Path, mark)); err == nil {
			return "", false
		}
	}
	return u.Path, true
}

// openDirectory reads a directory and has its source looked at whenever the
// directory changed and then kept still.
func (s *sourceRuntimes) openDirectory(name, path string) (reader, error) {
	source, err := dir.New(dir.Config{Path: path})
	if err != nil {
		return nil, err
	}
	log := s.opts.Log.WithName("directory").WithValues("gitsource", name, "path", path)
	stop, ok := s.goWith(func(ctx context.Context) {
		err := source.Watch(ctx, func() {
			select {
			case s.edits <- event.TypedGenericEvent[string]{Object: name}:
			default: // a look is due already
			}
		})
		logOnce(log, err, "the directory isn't watched any more; it is read at spec.interval")
	})
	if !ok {
		return nil, fmt.Errorf("directory %s: the process isn't leading yet", path)
	}
	return &watchedDirectory{Source: source, stop: stop}, nil
}

// watchedDirectory is a directory with its watch.
type watchedDirectory struct {
	*dir.Source
	stop func()
}

// Close implements reader.
func (d *watchedDirectory) Close() error {
	d.stop()
	return nil
}
