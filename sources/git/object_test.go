// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"strings"
	"testing"
)

func entry(mode, name string) string { return mode + " " + name + "\x00" + strings.Repeat("\x01", 20) }

func TestTreesAreCheckedLikeStrictFsck(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"sorted files":                     {entry("100644", "a") + entry("100755", "b"), ""},
		"a directory sorts with its slash": {entry("100644", "a.b") + entry("40000", "a") + entry("100644", "a0"), ""},
		"a directory sorted as a file":     {entry("40000", "a") + entry("100644", "a.b"), "sorted"},
		"the same entry twice":             {entry("100644", "a") + entry("100644", "a"), "unique"},
		"not sorted":                       {entry("100644", "b") + entry("100644", "a"), "sorted"},
		"a parent":                         {entry("40000", ".."), "not allowed"},
		"the Git directory":                {entry("40000", ".Git"), "reserved"},
		"the Git directory, short name":    {entry("40000", "GIT~1"), "reserved"},
		"a slash":                          {entry("100644", "a/b"), "separator"},
		"no name":                          {entry("100644", ""), "not allowed"},
		"a submodule":                      {entry("160000", "s"), "submodule"},
		"a padded mode":                    {entry("040000", "d"), "mode"},
		"a group-writable mode":            {entry("100664", "d"), "mode"},
		"a name that isn't UTF-8":          {entry("100644", "\xff"), "UTF-8"},
		"the zero object":                  {"100644 a\x00" + strings.Repeat("\x00", 20), "zero"},
		"a truncated entry":                {entry("100644", "a")[:20], "truncated"},
	} {
		_, err := parseTree("dir", []byte(tc.raw))
		if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: err = %v, want %q", name, err, tc.want)
		}
	}
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte(entry("100644", "a") + entry("40000", "b")))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := parseTree("", raw)
		if err != nil {
			return
		}
		var back bytes.Buffer
		for _, e := range entries {
			back.WriteString(e.mode + " " + e.name + "\x00")
			back.Write(e.hash[:])
		}
		if !bytes.Equal(back.Bytes(), raw) {
			t.Errorf("tree %q reads as %q", raw, back.Bytes())
		}
	})
}

func FuzzParseCommit(f *testing.F) {
	h := strings.Repeat("1", 40)
	plain := "tree " + h + "\nparent " + h + "\nauthor A <a> 1 +0000\ncommitter C <c> 2 +0000\n\nsubject\n"
	f.Add([]byte(plain))
	f.Add([]byte(strings.Replace(plain, "\n\n", "\ngpgsig -----BEGIN SSH SIGNATURE-----\n x\n\n", 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseCommit(raw)
		if err != nil {
			return
		}
		if c.signature == nil && !bytes.Equal(c.payload, raw) {
			t.Errorf("an unsigned commit has payload %q, want %q", c.payload, raw)
		}
		again, err := parseCommit(c.payload)
		if err != nil || again.tree != c.tree || len(again.parents) != len(c.parents) || again.signature != nil {
			t.Errorf("the signed bytes parse differently: %v %+v, %+v", err, again, c)
		}
	})
}
