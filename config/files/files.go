// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package files reads and writes files within limits, and has the rules for
// paths in trees of untrusted content: Git repositories and release payloads.
package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/renameio/v2"
)

// LimitError reports content that is larger than allowed. Its reason is
// LimitExceeded.
type LimitError struct {
	// What was read, as the user knows it: a path or "the answer".
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

// Write replaces a file atomically: readers see the old or the new content, and
// a crash leaves one of them. The content is synced before the rename. The
// directory must exist; mode isn't changed by the umask.
func Write(path string, data []byte, mode os.FileMode) error {
	if err := renameio.WriteFile(path, data, mode, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
