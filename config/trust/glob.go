// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// glob reports whether s matches pattern: "*" matches any characters except "/",
// "**" any characters. There are no other special characters.
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

// globRest tries pattern at each position of s that a star may reach.
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

// maxStars bounds the cost of glob, which grows with each star.
const maxStars = 4

// checkGlob rejects empty, too long and too costly patterns.
func checkGlob(pattern string) error {
	switch {
	case pattern == "":
		return fmt.Errorf("pattern is empty: use \"*\" to match everything")
	case len(pattern) > maxString:
		return fmt.Errorf("pattern has %d bytes, at most %d are allowed", len(pattern), maxString)
	case strings.Count(strings.ReplaceAll(pattern, "**", "*"), "*") > maxStars:
		return fmt.Errorf("pattern %q has more than %d stars", pattern, maxStars)
	}
	return nil
}

// AllowsSource reports whether the URL has one of the document's prefixes. A
// prefix matches whole path elements: "https://h/a" allows "https://h/a/b", but
// not "https://h/ab".
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

// canonicalURL removes the user, lower-cases scheme and host, and rejects paths
// with "..", escapes or backslashes.
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
