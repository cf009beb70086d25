// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package tree holds a small file tree in memory: regular files in
// directories, nothing else, within limits.
//
// What others packed (an archive in a registry, a folder in Git) is poured
// into a Builder, which refuses all that could lead outside, replace what was
// there or look different on another file system. The Tree that comes out is
// an immutable fs.FS with a digest of its own.
package tree

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// Limits bound a tree. Zero fields take the defaults.
type Limits struct {
	// Bytes is the sum of the sizes of all files.
	Bytes int64
	// Entries counts files and directories.
	Entries int
	// Depth is how many directories may contain each other.
	Depth int
}

// The default limits: those of a release payload.
const (
	DefaultBytes   = files.MaxTreeBytes
	DefaultEntries = 25_000
	DefaultDepth   = files.MaxTreeDepth
)

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	if l.Entries == 0 {
		l.Entries = DefaultEntries
	}
	if l.Depth == 0 {
		l.Depth = DefaultDepth
	}
	return l
}

// Error says what was refused and why.
type Error struct {
	// Cause is trust.LimitExceeded or trust.ForbiddenContent.
	Cause trust.Reason
	// Path is the entry as it was named, cleaned for showing.
	Path string
	// Text says what is wrong with it.
	Text string
}

// Error names the entry and what is wrong with it.
func (e *Error) Error() string { return fmt.Sprintf("entry %q: %s", e.Path, e.Text) }

// Reason returns the word for the condition.
func (e *Error) Reason() string { return string(e.Cause) }

func forbidden(name, format string, args ...any) error {
	return &Error{Cause: trust.ForbiddenContent, Path: sanitize.Line(name), Text: fmt.Sprintf(format, args...)}
}

func exceeded(name, format string, args ...any) error {
	return &Error{Cause: trust.LimitExceeded, Path: sanitize.Line(name), Text: fmt.Sprintf(format, args...)}
}

// Builder collects entries. It isn't safe for concurrent use.
type Builder struct {
	limits Limits
	nodes  map[string]*node
	folded map[string]string // case-folded path → path
	bytes  int64
}

type node struct {
	name     string // last element
	data     []byte
	dir      bool
	explicit bool // named itself, not only as a parent
	children []string
}

// NewBuilder returns an empty builder.
func NewBuilder(l Limits) *Builder {
	return &Builder{
		limits: l.withDefaults(),
		nodes:  map[string]*node{".": {name: ".", dir: true, explicit: true}},
		folded: map[string]string{},
	}
}

// Dir adds a directory. A leading "./" and a trailing "/" are dropped; the
// root itself is allowed.
func (b *Builder) Dir(name string) error {
	p := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if p == "" || p == "." {
		return nil
	}
	if err := b.checkPath(name, p); err != nil {
		return err
	}
	n, err := b.parent(name, p)
	if err != nil {
		return err
	}
	if n.explicit {
		return forbidden(name, "it's there twice")
	}
	n.explicit = true
	return nil
}

// File adds a regular file with what r holds, counting the real bytes.
func (b *Builder) File(name string, r io.Reader) error {
	p := strings.TrimPrefix(name, "./")
	if err := b.checkPath(name, p); err != nil {
		return err
	}
	if _, err := b.parent(name, path.Dir(p)); err != nil {
		return err
	}
	if _, twice := b.nodes[p]; twice {
		return forbidden(name, "it's there twice")
	}
	left := b.limits.Bytes - b.bytes
	data, err := files.ReadAll(r, left, "the tree")
	if limited := (*files.LimitError)(nil); errors.As(err, &limited) {
		return exceeded(name, "the tree has more than %d bytes", b.limits.Bytes)
	}
	if err != nil {
		return fmt.Errorf("entry %q: %w", sanitize.Line(name), err)
	}
	b.bytes += int64(len(data))
	return b.insert(name, p, &node{name: path.Base(p), data: data, explicit: true})
}

// Has reports whether a path was added.
func (b *Builder) Has(name string) bool {
	_, ok := b.nodes[strings.TrimPrefix(name, "./")]
	return ok
}

// Remove drops a file, for layers in which a later one replaces it. Removing
// what isn't there, or a directory, does nothing.
func (b *Builder) Remove(name string) {
	p := strings.TrimPrefix(name, "./")
	n, ok := b.nodes[p]
	if !ok || n.dir {
		return
	}
	b.bytes -= int64(len(n.data))
	delete(b.nodes, p)
	delete(b.folded, files.Fold(p))
	dir := b.nodes[path.Dir(p)]
	dir.children = slices.DeleteFunc(dir.children, func(c string) bool { return c == n.name })
}

// Tree returns what was collected; the builder must not be used afterwards.
func (b *Builder) Tree() *Tree {
	for _, n := range b.nodes {
		slices.Sort(n.children)
	}
	return &Tree{nodes: b.nodes}
}

// checkPath refuses names that could lead outside or mean different things on
// different systems. p is the name without "./".
func (b *Builder) checkPath(name, p string) error {
	if err := files.CheckPath(p); err != nil {
		if limited := (*files.LimitError)(nil); errors.As(err, &limited) {
			return exceeded(name, "%v", err)
		}
		return forbidden(name, "%v", err)
	}
	if d := files.Depth(p); d > b.limits.Depth {
		return exceeded(name, "it lies in %d directories, at most %d are allowed", d, b.limits.Depth)
	}
	return nil
}

// parent returns the directory p, making it and those above it.
func (b *Builder) parent(name, p string) (*node, error) {
	if n, ok := b.nodes[p]; ok {
		if !n.dir {
			return nil, forbidden(name, "%q is both a file and a directory", sanitize.Line(p))
		}
		return n, nil
	}
	if _, err := b.parent(name, path.Dir(p)); err != nil {
		return nil, err
	}
	n := &node{name: path.Base(p), dir: true}
	return n, b.insert(name, p, n)
}

// insert adds a node whose parent exists.
func (b *Builder) insert(name, p string, n *node) error {
	if len(b.nodes) > b.limits.Entries {
		return exceeded(name, "the tree has more than %d entries", b.limits.Entries)
	}
	if other, clash := b.folded[files.Fold(p)]; clash {
		return forbidden(name, "it differs from %q in case only", sanitize.Line(other))
	}
	b.folded[files.Fold(p)] = p
	b.nodes[p] = n
	dir := b.nodes[path.Dir(p)]
	dir.children = append(dir.children, n.name)
	return nil
}

// Copy reads all regular files below dir in fsys; anything else but a
// directory is an error.
func Copy(fsys fs.FS, dir string, l Limits) (*Tree, error) {
	b := NewBuilder(l)
	err := fs.WalkDir(fsys, dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, dir), "/")
		if dir == "." {
			rel = p
		}
		switch {
		case rel == "" || rel == ".":
			return nil
		case e.IsDir():
			return b.Dir(rel)
		case !e.Type().IsRegular():
			return forbidden(p, "it's no regular file (%s)", e.Type())
		}
		return b.copyFile(fsys, p, rel)
	})
	if err != nil {
		return nil, err
	}
	return b.Tree(), nil
}

func (b *Builder) copyFile(fsys fs.FS, from, to string) (err error) {
	f, err := fsys.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return b.File(to, f)
}

// Digest returns the SHA-256 over the sorted list of all files, each line
// "<sha256 of the content>  <size>  <path>": what a signature of a tree
// covers. Empty directories don't count.
func (t *Tree) Digest() trust.Digest {
	h := sha256.New()
	_, _ = io.WriteString(h, "lockstep tree v1\n") // a hash's Write never fails
	for _, p := range t.Files() {
		data := t.nodes[p].data
		fmt.Fprintf(h, "%x  %d  %s\n", sha256.Sum256(data), len(data), p)
	}
	return trust.DigestOfSum([sha256.Size]byte(h.Sum(nil)))
}

// Files returns the paths of all files, sorted.
func (t *Tree) Files() []string {
	var out []string
	for p, n := range t.nodes {
		if !n.dir {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// Without returns a tree that lacks one file.
func (t *Tree) Without(name string) *Tree {
	b := NewBuilder(Limits{})
	for p, n := range t.nodes {
		c := *n
		c.children = slices.Clone(n.children)
		b.nodes[p] = &c
		b.folded[files.Fold(p)] = p
	}
	b.Remove(name)
	return b.Tree()
}
