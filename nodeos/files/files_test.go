// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReadIsLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Read(path, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := Read(path, 4); err != nil || string(data) != "four" {
		t.Errorf("at the limit: %q, %v", data, err)
	}
	if data, err := Read(path, 3); !errors.Is(err, ErrTooLarge) || data != nil {
		t.Errorf("over the limit: %q, %v", data, err)
	}
}

func TestWriteReplacesAtomicallyAndLeavesNoOtherFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, tc := range []struct {
		content string
		write   func(string, []byte, fs.FileMode) error
		mode    fs.FileMode
		want    fs.FileMode
	}{
		{"new", WriteKeepMode, 0o640, 0o640},
		{"existing", WriteKeepMode, 0o600, 0o640},
		{"exact", Write, 0o600, 0o600},
		{"exact again", Write, 0o644, 0o644},
	} {
		if err := tc.write(path, []byte(tc.content), tc.mode); err != nil {
			t.Fatal(err)
		}
		data, err := Read(path, 64)
		if err != nil || string(data) != tc.content {
			t.Errorf("%s: content %q, %v", tc.content, data, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != tc.want {
			t.Errorf("%s: mode %v, want %v (%v)", tc.content, info.Mode(), tc.want, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func TestWriteToAMissingDirectoryFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "f")
	if err := Write(path, nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write = %v", err)
	}
	if err := SyncDir(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SyncDir = %v", err)
	}
}
