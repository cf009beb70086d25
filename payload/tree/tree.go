// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package tree contains an in-memory file tree of regular files and directories,
// within limits.
//
// A Builder collects untrusted content, such as an archive from a registry or a
// directory in Git. It rejects entries that leave the tree, replace others or are
// ambiguous on other file systems. The resulting Tree is an immutable fs.FS with
// a digest.
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

// Limits of a tree. Zero fields mean the defaults.
type Limits struct {
	// Bytes is the total size of all files.
	Bytes int64
	// Entries is the number of files and directories.
	Entries int
	// Depth is the nesting depth of directories.
	Depth int
}

// The default limits, which are those of a release payload.
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

// Error reports a rejected entry.
type Error struct {
	// Cause is trust.LimitExceeded or trust.ForbiddenContent.
	Cause trust.Reason
	// Path of the entry, sanitized.
	Path string
	// Text describes the problem.
	Text string
}

// Error returns the entry and the problem.
func (e *Error) Error() string { return fmt.Sprintf("entry %q: %s", e.Path, e.Text) }

// Reason returns the condition reason.
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
	explicit bool // added itself, not only as a parent
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

// Dir adds a directory. It ignores a leading "./" and a trailing "/", and accepts
// the root.
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
		return forbidden(name, "duplicate entry")
	}
	n.explicit = true
	return nil
}

// File adds a regular file with the content of r. Limits apply to the bytes read.
func (b *Builder) File(name string, r io.Reader) error {
	p := strings.TrimPrefix(name, "./")
	if err := b.checkPath(name, p); err != nil {
		return err
	}
	if _, err := b.parent(name, path.Dir(p)); err != nil {
		return err
	}
	if _, twice := b.nodes[p]; twice {
		return forbidden(name, "duplicate entry")
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

// Has reports whether a path exists.
func (b *Builder) Has(name string) bool {
	_, ok := b.nodes[strings.TrimPrefix(name, "./")]
	return ok
}

// Remove removes a file, for layers that replace it. It ignores directories and
// missing files.
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

// Tree returns the tree. The builder must not be used afterwards.
func (b *Builder) Tree() *Tree {
	for _, n := range b.nodes {
		slices.Sort(n.children)
	}
	return &Tree{nodes: b.nodes}
}

// checkPath rejects names that leave the tree or are ambiguous on other systems. p
// is the name without "./".
func (b *Builder) checkPath(name, p string) error {
	if err := files.CheckPath(p); err != nil {
		if limited := (*files.LimitError)(nil); errors.As(err, &limited) {
			return exceeded(name, "%v", err)
		}
		return forbidden(name, "%v", err)
	}
	if d := files.Depth(p); d > b.limits.Depth {
		return exceeded(name, "nested in %d directories, at most %d are allowed", d, b.limits.Depth)
	}
	return nil
}

// parent returns the directory p, which it creates with its parents if absent.
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
		return forbidden(name, "differs from %q only in case", sanitize.Line(other))
	}
	b.folded[files.Fold(p)] = p
	b.nodes[p] = n
	dir := b.nodes[path.Dir(p)]
	dir.children = append(dir.children, n.name)
	return nil
}

// Copy reads all regular files in dir of fsys, recursively. Other types of files
// are an error.
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
			return forbidden(p, "must be a regular file, is %s", e.Type())
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

// Digest returns the SHA-256 of the sorted list of all files, each on a line
// "<sha256 of the content>  <size>  <path>". Signatures of a tree cover it. Empty
// directories are ignored.
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

// Without returns a copy of the tree without one file.
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
