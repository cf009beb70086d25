// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := Write(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := Read(path, 5); err != nil || string(b) != "12345" {
		t.Errorf("Read with the exact limit = %q, %v", b, err)
	}
	b, err := Read(path, 4)
	limited := (*LimitError)(nil)
	if b != nil || !errors.As(err, &limited) || limited.What != path || limited.Limit != 4 || limited.Value != 5 {
		t.Errorf("Read above the limit = %q, %v, want a LimitError about %s", b, err, path)
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

func TestPathsThatCouldBeMisreadAreRefused(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "/a", "a/../b", "a//b", "./a", "a/", "a\\b", "a\nb", "a\x00b", "a\x7fb", "\xff",
		".git/config", "a/.GIT/b", "git~1", ".git. ", strings.Repeat("a", 256), strings.Repeat("a/", 512) + "a",
	} {
		if err := CheckPath(name); err == nil {
			t.Errorf("CheckPath(%q) accepted it", name)
		}
	}
	for _, name := range []string{"a", "a/b.yaml", "ünicode/ß", ".github/x", "a b", ".gitignore", strings.Repeat("a", 255)} {
		if err := CheckPath(name); err != nil {
			t.Errorf("CheckPath(%q): %v", name, err)
		}
	}
}

func TestPathsThatSomeFileSystemsTakeForTheSameFoldTogether(t *testing.T) {
	for _, pair := range [][2]string{{"A/b", "a/B"}, {"e\u0301", "\u00e9"}, {"stra\u00dfe", "STRASSE"}} {
		same := Fold(pair[0]) == Fold(pair[1])
		if want := pair[0] != "stra\u00dfe"; same != want {
			t.Errorf("Fold(%q) == Fold(%q) is %t, want %t", pair[0], pair[1], same, want)
		}
	}
}
