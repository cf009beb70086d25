// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
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

func TestWriteReplacesAtomicallyAndKeepsTheMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"old", "new"} {
		if err := Write(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v, want 0640", info.Mode(), err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
		t.Errorf("content %q, %v, want new", b, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d entries in the directory, want 1: temporary files must not remain (%v)", len(entries), err)
	}
	if err := Write(filepath.Join(dir, "missing", "f"), nil, 0o600); err == nil {
		t.Error("a write into a missing directory succeeded")
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
