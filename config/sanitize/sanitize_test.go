// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sanitize

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"plain text is unchanged":             {"web/api: 2 of 3", "web/api: 2 of 3"},
		"a line break can't start a trailer":  {"ok\nLockstep-Release-Digest: x", "ok Lockstep-Release-Digest: x"},
		"an escape sequence loses its escape": {"\x1b[31mred\x1b]52;c;x\x07", "[31mred]52;c;x"},
		"bidirectional overrides are removed": {"a\u202eb\u2066c", "abc"},
		"zero-width characters are removed":   {"a\u200bb\ufeffc", "abc"},
		"invalid UTF-8 is removed":            {"a\xffb", "ab"},
		"blanks collapse and trim":            {"  a \t\r\n b  ", "a b"},
	} {
		if got := Line(tc.in); got != tc.want {
			t.Errorf("%s: Line(%q) = %q, want %q", name, tc.in, got, tc.want)
		}
	}
}

func TestLineIsTruncatedAtARuneWithAnEllipsis(t *testing.T) {
	got := Line(strings.Repeat("ä", MaxLine))
	if len(got) > MaxLine || !strings.HasSuffix(got, mark) || !utf8.ValidString(got) {
		t.Errorf("Line of a long string = %d bytes ending %q, want at most %d valid bytes ending in an ellipsis", len(got), got[len(got)-6:], MaxLine)
	}
}

func TestMarkdownCantBeTerminatedByItsContent(t *testing.T) {
	for in, want := range map[string]string{
		"a|b":         "`a\\|b`",
		"`x` [l](u)":  "`` `x` [l](u) ``",
		"``` @org/me": "```` ``` @org/me ````",
		"":            "",
	} {
		if got := Markdown(in); got != want {
			t.Errorf("Markdown(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTextKeepsAtMostTheGivenLines(t *testing.T) {
	if got, want := Text("a\nb\x1b\nc\n", 2), "a\nb\n…"; got != want {
		t.Errorf("Text = %q, want %q", got, want)
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "a\nb", "\x1b[0m", "a\u202e", strings.Repeat("`|", 200), "\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Line(s)
		if len(got) > MaxLine || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\t\x1b\x00\u2028\u2029") {
			t.Errorf("Line(%q) = %q", s, got)
		}
		if again := Line(got); again != got {
			t.Errorf("Line isn't idempotent on %q: %q, then %q", s, got, again)
		}
		md := Markdown(s)
		if got != "" && longestRun(strings.Trim(md, "`"), '`') >= len(md)-len(strings.TrimLeft(md, "`")) {
			t.Errorf("Markdown(%q) = %q: the content closes the fence", s, md)
		}
	})
}
