// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package files reads and writes files within limits, and has the rules for
// paths in trees of untrusted content: Git repositories and release payloads.
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

// LimitError reports content that is larger than allowed. Its reason is
// LimitExceeded.
type LimitError struct {
	// What was read: a path or "the answer".
	What string
	// Limit in bytes, and the number of bytes found; Limit+1 when reading
	// stopped there.
	Limit, Value int64
}

// Error names what was read, the limit and the size found.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%s has %d bytes or more, at most %d are allowed", e.What, e.Value, e.Limit)
}

// Reason returns the reason of a condition.
func (e *LimitError) Reason() string { return "LimitExceeded" }

// ReadAll reads r to its end. Content of more than limit bytes is a
// *LimitError about what; it's never read into memory.
func ReadAll(r io.Reader, limit int64, what string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, &LimitError{What: what, Limit: limit, Value: int64(len(b))}
	}
	return b, nil
}

// Read reads a file of at most limit bytes. It follows symbolic links.
func Read(path string, limit int64) (b []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err = ReadAll(f, limit, path)
	if limited := (*LimitError)(nil); err != nil && !errors.As(err, &limited) {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, err
}

// Write atomically replaces a file: readers, and the file after a power loss,
// have either the old or the new content. When Write returns nil, the content and
// the directory are synced to disk. The file gets mode regardless of the umask.
func Write(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, renameio.WithStaticPermissions(mode))
}

// WriteKeepMode is Write, except that an existing file keeps its permissions.
func WriteKeepMode(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, renameio.WithPermissions(mode), renameio.IgnoreUmask(), renameio.WithExistingPermissions())
}

func write(path string, data []byte, opts ...renameio.Option) (err error) {
	dir := filepath.Dir(path)
	// The temporary file is in the same directory: the content may be secret.
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
