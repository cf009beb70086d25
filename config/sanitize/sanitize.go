// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sanitize makes untrusted strings safe to display.
//
// A string from an agent, a registry, a Git server or a cluster object is
// untrusted. It must pass one function of this package before it is written to a
// status, commit, page, terminal or log, so that it can't forge lines, trailers,
// links or escape sequences. Typed values (digests, versions, enumerations) need
// no sanitizing.
package sanitize

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLine is the maximum length of Line's result, in bytes, ellipsis included.
const MaxLine = 256

// mark ends a truncated string.
const mark = "…"

// Line returns s as one line of printable, valid UTF-8 of at most MaxLine
// bytes. White space collapses to single blanks; control, bidirectional and
// zero-width characters are removed; an ellipsis marks a truncation.
func Line(s string) string { return Clip(s, MaxLine) }

// Clip is Line with another limit, in bytes; it returns "" if the limit is shorter
// than the ellipsis.
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

// Text sanitizes s line by line and returns at most the first lines lines, for
// multi-line texts such as logs in a terminal.
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

// Markdown returns s as a code span that s can't terminate, also inside a table:
// the fence is longer than any run of backquotes in s, and the table separator is
// escaped. It returns "" for "".
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

// hidden reports whether r must be removed: control characters other than
// white space, formats (bidirectional overrides, zero-width characters, the
// byte-order mark), private use and surrogates.
func hidden(r rune) bool {
	if unicode.IsSpace(r) {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs) || !unicode.IsPrint(r)
}

// trimTo truncates s to at most limit bytes at a rune boundary.
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
