// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package dir reads declared content from a local directory, an insecure option
// for development and demonstrations. A directory has neither commits nor
// signatures: the digest of its canonical tree names a revision, and snapshots
// have no signer.
package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// Ref is Revision.Ref of all revisions of a directory.
const Ref = "dir"

// The condition reasons of an Error.
const (
	ReasonFetchFailed = "FetchFailed"
	ReasonNotFound    = "RevisionNotFound"
)

// Error describes why a directory can't be read.
type Error struct {
	reason  string
	message string
	err     error
}

// Error implements error.
func (e *Error) Error() string {
	if e.err == nil {
		return e.message
	}
	return e.message + ": " + sanitize.Line(e.err.Error())
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the condition reason.
func (e *Error) Reason() string { return e.reason }

// Config declares a Source.
type Config struct {
	// Path of the directory. It may be a symlink, and it may be replaced or
	// deleted and recreated.
	Path string
	// Limits bound the files.
	Limits sources.Limits
	// Debounce is how long Watch waits after the last change before it
	// notifies; default 200 ms.
	Debounce time.Duration
}

// Source is a directory. It is safe for concurrent use.
type Source struct {
	cfg Config

	mu   sync.Mutex
	last *sources.Snapshot
}

var _ sources.Source = (*Source)(nil)

// New returns the Source of a directory, which need not exist yet.
func New(cfg Config) (*Source, error) {
	if cfg.Path == "" {
		return nil, &Error{reason: ReasonFetchFailed, message: "a directory source needs a path"}
	}
	if cfg.Debounce <= 0 {
		cfg.Debounce = 200 * time.Millisecond
	}
	return &Source{cfg: cfg}, nil
}

// Fetch implements sources.Source. It ignores the request, because a directory has
// no history.
func (s *Source) Fetch(ctx context.Context, _ sources.Request) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(ctx)
}

// At implements sources.Source for the current content and the last one that this
// process read.
func (s *Source) At(ctx context.Context, rev sources.Revision) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && s.last.Revision.Same(rev) {
		return s.last, nil
	}
	snap, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if !snap.Revision.Same(rev) {
		return nil, &Error{reason: ReasonNotFound, message: fmt.Sprintf("revision %s isn't available; the directory is at %s", sanitize.Line(rev.String()), snap.Revision)}
	}
	return snap, nil
}

func (s *Source) read(ctx context.Context) (*sources.Snapshot, error) {
	tree, err := Read(ctx, s.cfg.Path, s.cfg.Limits)
	if err != nil {
		return nil, err
	}
	if s.last != nil && s.last.Revision.Tree == tree.Sum() {
		return s.last, nil
	}
	s.last = &sources.Snapshot{Revision: sources.Revision{Ref: Ref, Tree: tree.Sum()}, FS: tree}
	return s.last, nil
}

// Read returns the files below path, without .git. Symlinks out of path are
// errors.
func Read(ctx context.Context, path string, limits sources.Limits) (*sources.Tree, error) {
	return ReadWithout(ctx, path, limits, func(string, bool) bool { return false })
}

// ReadWithout is Read without the files and directories for which skip returns
// true; their names are slash-separated and relative to path.
func ReadWithout(ctx context.Context, path string, limits sources.Limits, skip func(name string, isDir bool) bool) (_ *sources.Tree, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, &Error{ReasonFetchFailed, "open the directory", err}
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	b := sources.NewTreeBuilder(limits)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case name != "." && skip(name, d.IsDir()):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() || d.Name() == ".git": // .git is a file in a worktree
			return nil
		}
		return add(b, root, name, d)
	})
	if err != nil {
		var known interface{ Reason() string }
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, &Error{ReasonFetchFailed, "read the directory", err}
	}
	return b.Build()
}

func add(b *sources.TreeBuilder, root *os.Root, name string, d fs.DirEntry) (err error) {
	switch d.Type() {
	case fs.ModeSymlink:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		return b.AddLink(name, target)
	case 0:
	default:
		return sources.NewTreeError(name, "is neither a regular file nor a symlink")
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return sources.NewTreeError(name, "is no longer a regular file")
	}
	room := b.Room()
	data, err := io.ReadAll(io.LimitReader(f, room+1))
	if err != nil {
		return err
	}
	return b.Add(name, data, info.Mode()&0o111 != 0)
}
