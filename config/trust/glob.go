// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// glob reports whether s matches pattern: "*" stands for any run of characters
// but "/", "**" for any run. There is no other special character, so that a
// pattern in a policy reads as what it admits.
func glob(pattern, s string) bool {
	for pattern != "" {
		if rest, ok := strings.CutPrefix(pattern, "**"); ok {
			return globRest(rest, s, true)
		}
		if rest, ok := strings.CutPrefix(pattern, "*"); ok {
			return globRest(rest, s, false)
		}
		if s == "" || s[0] != pattern[0] {
			return false
		}
		pattern, s = pattern[1:], s[1:]
	}
	return s == ""
}

// globRest tries pattern at each place that a star may reach in s.
func globRest(pattern, s string, slashes bool) bool {
	for i := 0; ; i++ {
		if glob(pattern, s[i:]) {
			return true
		}
		if i == len(s) || (!slashes && s[i] == '/') {
			return false
		}
	}
}

// maxStars bounds the work of glob, which grows with each star.
const maxStars = 4

// checkGlob refuses patterns that are empty, too long or too costly.
func checkGlob(pattern string) error {
	switch {
	case pattern == "":
		return fmt.Errorf("a pattern is empty: write \"*\" to match everything")
	case len(pattern) > maxString:
		return fmt.Errorf("a pattern has %d bytes, at most %d are allowed", len(pattern), maxString)
	case strings.Count(strings.ReplaceAll(pattern, "**", "*"), "*") > maxStars:
		return fmt.Errorf("pattern %q has more than %d stars", pattern, maxStars)
	}
	return nil
}

// AllowsSource reports whether a source with this URL lies inside one of the
// URL prefixes that the document lists. A prefix ends at a path element:
// "https://h/a" admits "https://h/a/b" and not "https://h/ab".
func (d *Document) AllowsSource(raw string) bool {
	u, ok := canonicalURL(raw)
	if !ok {
		return false
	}
	for _, prefix := range d.Sources {
		p, ok := canonicalURL(prefix)
		if ok && (u == p || strings.HasPrefix(u, strings.TrimSuffix(p, "/")+"/")) {
			return true
		}
	}
	return false
}

// canonicalURL drops the user, lower-cases scheme and host, and refuses paths
// that climb or hide something behind an escape.
func canonicalURL(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	if strings.ContainsAny(u.EscapedPath(), "%\\") || path.Clean("/"+u.Path) != "/"+strings.Trim(u.Path, "/") {
		return "", false
	}
	return strings.ToLower(u.Scheme) + "://" + strings.ToLower(u.Host) + u.Path, true
}
