// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestTreeIsAFileSystem(t *testing.T) {
	b := NewBuilder(Limits{})
	for name, content := range map[string]string{"a/b/c.yaml": "c", "a/d": "d", "./e": "e"} {
		if err := b.File(name, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Dir("a/"); err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(b.Tree(), "a/b/c.yaml", "a/d", "e"); err != nil {
		t.Fatal(err)
	}
}

func TestT9RejectsEntries(t *testing.T) {
	for name, tc := range map[string]struct {
		entries []string
		limits  Limits
		reason  string
	}{
		"outside the tree":                {[]string{"../x"}, Limits{}, "ForbiddenContent"},
		"outside the tree, nested":        {[]string{"a/../../x"}, Limits{}, "ForbiddenContent"},
		"with absolute paths":             {[]string{"/etc/passwd"}, Limits{}, "ForbiddenContent"},
		"with backslashes":                {[]string{`a\b`}, Limits{}, "ForbiddenContent"},
		"with control characters":         {[]string{"a\nb"}, Limits{}, "ForbiddenContent"},
		"that aren't UTF-8":               {[]string{"a\xff"}, Limits{}, "ForbiddenContent"},
		"that are duplicates":             {[]string{"a", "a"}, Limits{}, "ForbiddenContent"},
		"that are duplicates, with a dot": {[]string{"a", "./a"}, Limits{}, "ForbiddenContent"},
		"that differ in case":             {[]string{"a/x", "A/y"}, Limits{}, "ForbiddenContent"},
		"that are file and directory":     {[]string{"a", "a/b"}, Limits{}, "ForbiddenContent"},
		"that are directory and file":     {[]string{"a/b", "a"}, Limits{}, "ForbiddenContent"},
		"that are empty":                  {[]string{""}, Limits{}, "ForbiddenContent"},
		"with empty parts":                {[]string{"a//b"}, Limits{}, "ForbiddenContent"},
		"over the count":                  {[]string{"a", "b", "c"}, Limits{Entries: 2}, "LimitExceeded"},
		"over the bytes":                  {[]string{"a", "b"}, Limits{Bytes: 5}, "LimitExceeded"},
		"over the depth":                  {[]string{"a/b/c"}, Limits{Depth: 1}, "LimitExceeded"},
		"over the length of a part":       {[]string{strings.Repeat("a", 256)}, Limits{}, "LimitExceeded"},
		"over the length of a path":       {[]string{strings.Repeat("a/", 600) + "a"}, Limits{}, "LimitExceeded"},
		"that case folding makes equal":   {[]string{"ſ", "s"}, Limits{}, "ForbiddenContent"},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBuilder(tc.limits)
			var err error
			for _, e := range tc.entries {
				if err == nil {
					err = b.File(e, strings.NewReader("four"))
				}
			}
			var e *Error
			if !errors.As(err, &e) || e.Reason() != tc.reason {
				t.Errorf("got %v, want reason %s", err, tc.reason)
			}
		})
	}
}

func TestDigestDependsOnNamesAndContentOnly(t *testing.T) {
	of := func(files fstest.MapFS) string {
		tree, err := Copy(files, "p", Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return tree.Digest().String()
	}
	base := of(fstest.MapFS{"p/a": {Data: []byte("1")}, "p/b/c": {Data: []byte("2")}})
	if got := of(fstest.MapFS{"p/b/c": {Data: []byte("2")}, "p/a": {Data: []byte("1"), Mode: 0o755}, "q": {}}); got != base {
		t.Error("mode, order or a file outside the tree changed the digest")
	}
	for name, files := range map[string]fstest.MapFS{
		"another name":    {"p/A": {Data: []byte("1")}, "p/b/c": {Data: []byte("2")}},
		"another content": {"p/a": {Data: []byte("1\n")}, "p/b/c": {Data: []byte("2")}},
		"one more file":   {"p/a": {Data: []byte("1")}, "p/b/c": {Data: []byte("2")}, "p/d": {}},
	} {
		if of(files) == base {
			t.Errorf("%s has the same digest", name)
		}
	}
}

func TestWithoutRemovesOneFile(t *testing.T) {
	tree, err := Copy(fstest.MapFS{"a": {Data: []byte("1")}, "b": {Data: []byte("2")}}, ".", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	less := tree.Without("b")
	if err := fstest.TestFS(less, "a"); err != nil {
		t.Error(err)
	}
	if len(tree.Files()) != 2 || len(less.Files()) != 1 {
		t.Errorf("have %v and %v", tree.Files(), less.Files())
	}
}
