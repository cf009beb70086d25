// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func build(t *testing.T, files map[string]string, links map[string]string) (*Tree, error) {
	t.Helper()
	b := NewTreeBuilder(Limits{})
	for name, data := range files {
		if err := b.Add(name, []byte(data), false); err != nil {
			return nil, err
		}
	}
	for name, target := range links {
		if err := b.AddLink(name, target); err != nil {
			return nil, err
		}
	}
	return b.Build()
}

func TestTreeIsAFileSystem(t *testing.T) {
	tree, err := build(t, map[string]string{"a.yaml": "a", "base/b.yaml": "b", "base/deep/c": ""}, map[string]string{"l": "base/b.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(tree, "a.yaml", "base/b.yaml", "base/deep/c", "l"); err != nil {
		t.Error(err)
	}
	if got, err := tree.ReadFile("l"); err != nil || string(got) != "b" {
		t.Errorf("ReadFile of a link = %q, %v, want its target's content", got, err)
	}
}

func TestTreeRejects(t *testing.T) {
	for name, tc := range map[string]struct {
		files, links map[string]string
		want         string
	}{
		"a path that leaves the source":         {files: map[string]string{"../x": ""}, want: "isn't a clean path"},
		"an absolute path":                      {files: map[string]string{"/x": ""}, want: "isn't a clean path"},
		"a .git directory in any case":          {files: map[string]string{"a/.GIT/config": ""}, want: "reserved by Git"},
		"a .git directory with a trailing dot":  {files: map[string]string{".git./config": ""}, want: "reserved by Git"},
		"two names that differ in case":         {files: map[string]string{"a.yaml": "", "A.yaml": ""}, want: "clashes with"},
		"two directories that differ in case":   {files: map[string]string{"d/a": "", "D/b": ""}, want: "clashes with"},
		"two names that differ in Unicode form": {files: map[string]string{"\u00e4": "", "a\u0308": ""}, want: "clashes with"},
		"a file that is also a directory":       {files: map[string]string{"a": "", "a/b": ""}, want: "clashes with"},
		"a link that leaves the source":         {links: map[string]string{"d/l": "../../etc/passwd"}, want: "leaves the source"},
		"an absolute link":                      {links: map[string]string{"l": "/etc/passwd"}, want: "leaves the source"},
		"a link to a directory":                 {files: map[string]string{"d/a": ""}, links: map[string]string{"l": "d"}, want: "isn't a regular file"},
		"a loop of links":                       {links: map[string]string{"l": "m", "m": "l"}, want: "more than"},
		"a backslash, a separator on Windows":   {files: map[string]string{`a\b`: ""}, want: "separator"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t, tc.files, tc.links)
			var te *TreeError
			if !errors.As(err, &te) || te.Reason() != "InvalidTree" || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want InvalidTree with %q", err, tc.want)
			}
		})
	}
}

func TestTreeEnforcesItsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		limits Limits
		files  []string
	}{
		"bytes": {Limits{Bytes: 3}, []string{"a", "b"}},
		"files": {Limits{Files: 1}, []string{"a", "b"}},
		"depth": {Limits{Depth: 1}, []string{"a/b/c"}},
	} {
		b := NewTreeBuilder(tc.limits)
		var err error
		for _, f := range tc.files {
			err = b.Add(f, []byte("xx"), false)
		}
		var te *TreeError
		if !errors.As(err, &te) || te.Reason() != "LimitExceeded" {
			t.Errorf("%s: err = %v, want LimitExceeded", name, err)
		}
	}
}

func TestSumDependsOnlyOnPathsKindsAndBytes(t *testing.T) {
	sum := func(b *TreeBuilder) string {
		tree, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return tree.Sum()
	}
	add := func(name, data string, x bool) string {
		b := NewTreeBuilder(Limits{})
		if err := b.Add(name, []byte(data), x); err != nil {
			t.Fatal(err)
		}
		return sum(b)
	}
	base := add("ab", "c", false)
	for what, other := range map[string]string{
		"another border between path and content": add("a", "bc", false),
		"executable": add("ab", "c", true),
		"content":    add("ab", "d", false),
	} {
		if other == base {
			t.Errorf("%s: the sum is still %s", what, base)
		}
	}
	// A format change would make every recorded sum look like an equivocation.
	if want := "sha256:"; !strings.HasPrefix(base, want) || add("ab", "c", false) != base {
		t.Errorf("sum %s isn't stable", base)
	}
}

func TestRevisionsRoundTrip(t *testing.T) {
	hex40, hex64 := strings.Repeat("0a", 20), strings.Repeat("0b", 32)
	for _, s := range []string{"main@sha1:" + hex40, "sha1:" + hex40, "dir@sha256:" + hex64, "refs/pull/1/head@sha1:" + hex40, "a@b@sha1:" + hex40} {
		r, err := ParseRevision(s)
		if err != nil || r.String() != s {
			t.Errorf("ParseRevision(%q) = %+v (%q), %v", s, r, r.String(), err)
		}
	}
	for _, s := range []string{"", "main", "main@sha1:abc", "main@sha1:" + strings.ToUpper(hex40), "main@md5:" + hex40} {
		if r, err := ParseRevision(s); err == nil {
			t.Errorf("ParseRevision(%q) = %+v, want an error", s, r)
		}
	}
}

func TestLFSPointersAreDetected(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12\n"
	if !IsLFSPointer([]byte(pointer)) || IsLFSPointer([]byte("# "+pointer)) {
		t.Error("IsLFSPointer returned the wrong result")
	}
}
