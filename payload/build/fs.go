// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/lockstep-dev/lockstep/payload/tree"
)

// sourceFS is the source as kustomize reads it, at the root directory. Unlike
// kustomize's own file system in memory it takes all file names that are legal in
// a source. It can't be written.
type sourceFS struct {
	in *tree.Tree
	// replaced are files with other content than in the source.
	replaced map[string][]byte
}

var _ filesys.FileSystem = sourceFS{}

// errReadOnly is returned by all methods that write.
var errReadOnly = errors.New("the source can't be changed during a build")

// name converts a path of kustomize to one of the tree.
func (f sourceFS) name(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+filepath.ToSlash(p)), "/")
	if p == "" {
		return "."
	}
	return p
}

// Create implements filesys.FileSystem.
func (f sourceFS) Create(string) (filesys.File, error) { return nil, errReadOnly }

// Mkdir implements filesys.FileSystem.
func (f sourceFS) Mkdir(string) error { return errReadOnly }

// MkdirAll implements filesys.FileSystem.
func (f sourceFS) MkdirAll(string) error { return errReadOnly }

// RemoveAll implements filesys.FileSystem.
func (f sourceFS) RemoveAll(string) error { return errReadOnly }

// WriteFile implements filesys.FileSystem.
func (f sourceFS) WriteFile(string, []byte) error { return errReadOnly }

// Open implements filesys.FileSystem.
func (f sourceFS) Open(p string) (filesys.File, error) {
	opened, err := f.in.Open(f.name(p))
	if err != nil {
		return nil, err
	}
	return readOnly{opened}, nil
}

// readOnly is an open file.
type readOnly struct{ fs.File }

// Write implements filesys.File.
func (readOnly) Write([]byte) (int, error) { return 0, errReadOnly }

// IsDir implements filesys.FileSystem.
func (f sourceFS) IsDir(p string) bool {
	info, err := fs.Stat(f.in, f.name(p))
	return err == nil && info.IsDir()
}

// Exists implements filesys.FileSystem.
func (f sourceFS) Exists(p string) bool {
	_, err := fs.Stat(f.in, f.name(p))
	return err == nil
}

// ReadDir implements filesys.FileSystem.
func (f sourceFS) ReadDir(p string) ([]string, error) {
	entries, err := f.in.ReadDir(f.name(p))
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

// CleanedAbs implements filesys.FileSystem.
func (f sourceFS) CleanedAbs(p string) (filesys.ConfirmedDir, string, error) {
	name := f.name(p)
	info, err := fs.Stat(f.in, name)
	if err != nil {
		return "", "", fmt.Errorf("%s isn't in the source: %w", name, err)
	}
	if info.IsDir() {
		return filesys.ConfirmedDir(path.Clean("/" + name)), "", nil
	}
	return filesys.ConfirmedDir(path.Dir("/" + name)), path.Base(name), nil
}

// Glob implements filesys.FileSystem.
func (f sourceFS) Glob(pattern string) ([]string, error) {
	found, err := fs.Glob(f.in, f.name(pattern))
	for i := range found {
		found[i] = "/" + found[i]
	}
	return found, err
}

// ReadFile implements filesys.FileSystem.
func (f sourceFS) ReadFile(p string) ([]byte, error) {
	name := f.name(p)
	if b, ok := f.replaced[name]; ok {
		return bytes.Clone(b), nil
	}
	return f.in.ReadFile(name)
}

// Walk implements filesys.FileSystem.
func (f sourceFS) Walk(p string, walk filepath.WalkFunc) error {
	return fs.WalkDir(f.in, f.name(p), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return walk("/"+name, nil, err)
		}
		info, err := d.Info()
		return walk("/"+name, info, err)
	})
}
