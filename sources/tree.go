// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/files"
)

// Limits bound a tree. A zero field means the default.
type Limits struct {
	Files int   // default 20,000
	Bytes int64 // all files together; default 64 MiB
	Depth int   // nested directories; default 32
}

// WithDefaults returns l with defaults for its zero fields.
func (l Limits) WithDefaults() Limits {
	if l.Files == 0 {
		l.Files = 20_000
	}
	if l.Bytes == 0 {
		l.Bytes = files.MaxTreeBytes
	}
	if l.Depth == 0 {
		l.Depth = files.MaxTreeDepth
	}
	return l
}

// maxHops is the maximum length of a chain of symlinks.
const maxHops = 8

// TreeError describes why a tree is rejected.
type TreeError struct {
	Path    string
	Problem string
	reason  string
}

// Error implements error.
func (e *TreeError) Error() string { return fmt.Sprintf("tree entry %q: %s", e.Path, e.Problem) }

// Reason returns the condition reason, InvalidTree or LimitExceeded.
func (e *TreeError) Reason() string { return e.reason }

// NewTreeError returns a TreeError with reason InvalidTree.
func NewTreeError(name, format string, args ...any) *TreeError {
	return &TreeError{Path: name, Problem: fmt.Sprintf(format, args...), reason: "InvalidTree"}
}

// NewLimitError returns a TreeError with reason LimitExceeded.
func NewLimitError(name, format string, args ...any) *TreeError {
	return &TreeError{Path: name, Problem: fmt.Sprintf(format, args...), reason: "LimitExceeded"}
}

// TreeBuilder collects the files of a tree. It checks each one when it is added,
// so that it never exceeds its limits. It isn't safe for concurrent use.
type TreeBuilder struct {
	limits Limits
	bytes  int64
	files  map[string]*file
	links  map[string]string
	folded map[string]string // case- and NFC-folded path of files and directories → as written
}

// NewTreeBuilder returns an empty builder.
func NewTreeBuilder(l Limits) *TreeBuilder {
	return &TreeBuilder{
		limits: l.WithDefaults(), files: map[string]*file{},
		links: map[string]string{}, folded: map[string]string{},
	}
}

// Add adds a regular file at the slash-separated path name. The builder retains
// data, which the caller must not change.
func (b *TreeBuilder) Add(name string, data []byte, executable bool) error {
	if err := b.admit(name, int64(len(data))); err != nil {
		return err
	}
	mode := fs.FileMode(0o444)
	if executable {
		mode = 0o555
	}
	b.files[name] = &file{name: path.Base(name), data: data, mode: mode}
	return nil
}

// AddLink adds a symlink, which must resolve to a regular file of the same tree.
// Build checks that.
func (b *TreeBuilder) AddLink(name, target string) error {
	if err := b.admit(name, int64(len(target))); err != nil {
		return err
	}
	b.links[name] = target
	return nil
}

// Room returns how many bytes may still be added.
func (b *TreeBuilder) Room() int64 { return b.limits.Bytes - b.bytes }

func (b *TreeBuilder) admit(name string, size int64) error {
	if err := CheckPath(name); err != nil {
		return err
	}
	if d := files.Depth(name); d > b.limits.Depth {
		return NewLimitError(name, "is %d directories deep; the limit is %d", d, b.limits.Depth)
	}
	if n := len(b.files) + len(b.links); n >= b.limits.Files {
		return NewLimitError(name, "is one file more than the limit of %d", b.limits.Files)
	}
	if size > b.Room() {
		return NewLimitError(name, "brings the tree to %d bytes; the limit is %d", b.bytes+size, b.limits.Bytes)
	}
	if err := b.unique(name); err != nil {
		return err
	}
	b.bytes += size
	return nil
}

// unique rejects a name that equals another one, also on a file system that
// ignores case or Unicode form.
func (b *TreeBuilder) unique(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		key := files.Fold(dir)
		if was, ok := b.folded[key]; ok && was != dir+"/" {
			return NewTreeError(name, "its directory clashes with %q", strings.TrimSuffix(was, "/"))
		}
		b.folded[key] = dir + "/"
	}
	key := files.Fold(name)
	if was, ok := b.folded[key]; ok {
		return NewTreeError(name, "clashes with %q: names must differ in more than letter case or Unicode form",
			strings.TrimSuffix(was, "/"))
	}
	b.folded[key] = name
	return nil
}

// CheckPath checks a path by the rules of files.CheckPath. The error is a
// TreeError.
func CheckPath(name string) error { return PathError(name, files.CheckPath(name)) }

// PathError returns a TreeError for an error of package files about name, with
// reason LimitExceeded for a *files.LimitError; nil for nil.
func PathError(name string, err error) error {
	if err == nil {
		return nil
	}
	name = strings.ToValidUTF8(name, "?")
	if limited := (*files.LimitError)(nil); errors.As(err, &limited) {
		return NewLimitError(name, "%v", err)
	}
	return NewTreeError(name, "%v", err)
}

// Build resolves the links and returns the tree. The builder must not be used
// afterwards.
func (b *TreeBuilder) Build() (*Tree, error) {
	t := &Tree{files: b.files, dirs: map[string][]fs.DirEntry{".": nil}, sum: ""}
	t.sum = canonicalSum(b.files, b.links)
	for _, name := range slices.Sorted(maps.Keys(b.links)) {
		f, err := b.resolve(name)
		if err != nil {
			return nil, err
		}
		t.files[name] = &file{name: path.Base(name), data: f.data, mode: f.mode}
	}
	seen := map[string]bool{}
	for name, f := range t.files {
		dir := path.Dir(name)
		t.dirs[dir] = append(t.dirs[dir], f)
		for ; dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				break
			}
			seen[dir] = true
			t.dirs[path.Dir(dir)] = append(t.dirs[path.Dir(dir)], &file{name: path.Base(dir), mode: fs.ModeDir | 0o555})
		}
	}
	for _, entries := range t.dirs {
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return t, nil
}

func (b *TreeBuilder) resolve(name string) (*file, error) {
	at := name
	for range maxHops {
		target, ok := b.links[at]
		if !ok {
			if f, ok := b.files[at]; ok {
				return f, nil
			}
			return nil, NewTreeError(name, "is a symlink to %q, which isn't a regular file of this source", at)
		}
		next := path.Join(path.Dir(at), target)
		if path.IsAbs(target) || !fs.ValidPath(next) || strings.Contains(target, "\\") {
			return nil, NewTreeError(name, "is a symlink that leaves the source")
		}
		at = next
	}
	return nil, NewTreeError(name, "is a symlink that leads over more than %d others", maxHops)
}

// canonicalSum is the SHA-256 over all entries in the order of their paths: the
// kind ("f", "x" for executable, "l" for a symlink), then path and content, each
// preceded by its length as eight big-endian bytes. A Git tree and a directory
// with the same content have the same sum.
func canonicalSum(files map[string]*file, links map[string]string) string {
	h := sha256.New()
	write := func(s []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.Write(s)
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(files)), maps.Keys(links))
	slices.Sort(names)
	for _, name := range names {
		kind, data := "l", []byte(links[name])
		if f, ok := files[name]; ok {
			kind, data = "f", f.data
			if f.mode&0o111 != 0 {
				kind = "x"
			}
		}
		_, _ = h.Write([]byte(kind))
		write([]byte(name))
		write(data)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Tree contains the files of a snapshot, in memory and read-only: an fs.FS that
// also implements fs.ReadFileFS, fs.ReadDirFS and fs.StatFS. Symlinks appear as
// the regular files that they point to. It is safe for concurrent use.
type Tree struct {
	files map[string]*file
	dirs  map[string][]fs.DirEntry
	sum   string
}

// Sum returns the digest of the canonical tree, "sha256:<hex>".
func (t *Tree) Sum() string { return t.sum }

// Len returns the number of files.
func (t *Tree) Len() int { return len(t.files) }

// Open implements fs.FS.
func (t *Tree) Open(name string) (fs.File, error) {
	f, err := t.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if f.IsDir() {
		return &openDir{file: f, path: name, entries: t.dirs[name]}, nil
	}
	return &openFile{file: f, Reader: bytes.NewReader(f.data)}, nil
}

// ReadFile implements fs.ReadFileFS; it returns a copy.
func (t *Tree) ReadFile(name string) ([]byte, error) {
	f, err := t.lookup("read", name)
	if err != nil {
		return nil, err
	}
	if f.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: is a directory", fs.ErrInvalid)}
	}
	return bytes.Clone(f.data), nil
}

// ReadDir implements fs.ReadDirFS.
func (t *Tree) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := t.lookup("readdir", name)
	if err != nil {
		return nil, err
	}
	if !f.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("%w: not a directory", fs.ErrInvalid)}
	}
	return slices.Clone(t.dirs[name]), nil
}

// Stat implements fs.StatFS.
func (t *Tree) Stat(name string) (fs.FileInfo, error) { return t.lookup("stat", name) }

func (t *Tree) lookup(op, name string) (*file, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if f, ok := t.files[name]; ok {
		return f, nil
	}
	if _, ok := t.dirs[name]; ok {
		return &file{name: path.Base(name), mode: fs.ModeDir | 0o555}, nil
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// file is a file's content; it implements fs.FileInfo and fs.DirEntry.
type file struct {
	name string
	data []byte
	mode fs.FileMode
}

func (f *file) Name() string               { return f.name }
func (f *file) Size() int64                { return int64(len(f.data)) }
func (f *file) Mode() fs.FileMode          { return f.mode }
func (f *file) ModTime() time.Time         { return time.Time{} }
func (f *file) IsDir() bool                { return f.mode.IsDir() }
func (f *file) Sys() any                   { return nil }
func (f *file) Type() fs.FileMode          { return f.mode.Type() }
func (f *file) Info() (fs.FileInfo, error) { return f, nil }
func (f *file) String() string             { return fs.FormatFileInfo(f) }

type openFile struct {
	*file
	*bytes.Reader
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.file, nil }
func (f *openFile) Close() error               { return nil }
func (f *openFile) Size() int64                { return f.file.Size() }

type openDir struct {
	*file
	path    string
	entries []fs.DirEntry
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.file, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: fmt.Errorf("%w: is a directory", fs.ErrInvalid)}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		out := d.entries
		d.entries = nil
		return slices.Clone(out), nil
	}
	if len(d.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	out := d.entries[:n]
	d.entries = d.entries[n:]
	return slices.Clone(out), nil
}
