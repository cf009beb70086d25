// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sanitize makes strings that others wrote safe to show.
//
// A foreign string is any text that this project did not write itself: from
// agents, registries, Git servers and the objects of the cluster. Before such
// a string reaches a status, a commit, a page, a terminal or a log it passes
// one function of this package, so that it can forge no line, no trailer, no
// link and no escape sequence. Values with a type of their own (digests,
// versions, enumerations) need no cleaning.
package sanitize

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLine is the longest line that Line returns, in bytes, mark included.
const MaxLine = 256

// mark ends a string that was cut.
const mark = "…"

// Line returns s as one line of printable, valid UTF-8 of at most MaxLine
// bytes. Line breaks, tabs and runs of blanks become one blank; control,
// bidirectional and zero-width characters are dropped; what was cut off is
// marked by an ellipsis.
func Line(s string) string { return Clip(s, MaxLine) }

// Clip is Line with a limit of its own, in bytes; limits below the length of
// the mark give the empty string.
func Clip(s string, limit int) string {
	if limit < len(mark) {
		return ""
	}
	var b strings.Builder
	blank, cut := false, false
	for _, r := range s {
		if r == utf8.RuneError || hidden(r) {
			continue
		}
		if unicode.IsSpace(r) {
			blank = b.Len() > 0
			continue
		}
		need := utf8.RuneLen(r)
		if blank {
			need++
		}
		if b.Len()+need > limit {
			cut = true
			break
		}
		if blank {
			b.WriteByte(' ')
			blank = false
		}
		b.WriteRune(r)
	}
	if !cut {
		return b.String()
	}
	return trimTo(b.String(), limit-len(mark)) + mark
}

// Text cleans s line by line and keeps at most lines of them; it's for bodies
// that are shown as they are, such as a log's tail in a terminal.
func Text(s string, lines int) string {
	var out []string
	for line := range strings.Lines(s) {
		if len(out) == lines {
			out = append(out, mark)
			break
		}
		out = append(out, Line(line))
	}
	return strings.Join(out, "\n")
}

// Markdown returns s as a code span that no content of s can end or leave,
// also inside a table: the fence is longer than any run of backquotes in s and
// the table separator is escaped. An empty string gives an empty span's worth
// of nothing: "".
func Markdown(s string) string {
	s = Line(s)
	if s == "" {
		return ""
	}
	fence := strings.Repeat("`", longestRun(s, '`')+1)
	pad := ""
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		pad = " "
	}
	return fence + pad + strings.ReplaceAll(s, "|", `\|`) + pad + fence
}

// hidden reports whether r must not be shown: control characters other than
// white space, formats (bidirectional overrides, zero-width characters, the
// byte-order mark), private use and surrogates.
func hidden(r rune) bool {
	if unicode.IsSpace(r) {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs) || !unicode.IsPrint(r)
}

// trimTo cuts s to at most limit bytes at the border of a rune.
func trimTo(s string, limit int) string {
	for limit < len(s) {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

func longestRun(s string, c byte) int {
	best, run := 0, 0
	for i := range len(s) {
		if s[i] != c {
			run = 0
			continue
		}
		run++
		best = max(best, run)
	}
	return best
}
