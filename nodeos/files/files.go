// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package files reads files with a size limit and replaces files atomically.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// ErrTooLarge means that a file is larger than the limit of Read.
var ErrTooLarge = errors.New("file too large")

// Read returns the content of a file of at most limit bytes. A larger file is an
// error that wraps ErrTooLarge, a missing one an error that wraps fs.ErrNotExist.
func Read(path string, limit int64) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: %w: larger than %d bytes", path, ErrTooLarge, limit)
	}
	return data, nil
}

// Write atomically replaces a file: readers, and the file after a power loss, have
// either the old or the new content. When Write returns nil, the content and the
// directory are synced to disk. The file gets the given mode, regardless of the umask.
func Write(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, renameio.WithStaticPermissions(mode))
}

// WriteKeepMode is Write, except that an existing file keeps its permissions.
func WriteKeepMode(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, renameio.WithPermissions(mode), renameio.IgnoreUmask(), renameio.WithExistingPermissions())
}

func write(path string, data []byte, opts ...renameio.Option) (err error) {
	dir := filepath.Dir(path)
	// The temporary file stays in the directory: the content may be secret.
	f, err := renameio.NewPendingFile(path, append(opts, renameio.WithTempDir(dir))...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil { // it syncs the file
		return err
	}
	return SyncDir(dir)
}

// SyncDir syncs a directory, which persists the renames in it.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
