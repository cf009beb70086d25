// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/url"
	"strings"
	"testing"
)

func TestTheProxyIsAFlagOrAStandardVariable(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://env.example.com:3128")
	t.Setenv("NO_PROXY", "")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"variable": {nil, "http://env.example.com:3128"},
		"flag":     {[]string{"--proxy", "http://flag.example.com:3128"}, "http://flag.example.com:3128"},
		"excluded": {[]string{"--no-proxy", ".example.com"}, ""},
	} {
		f, err := parse(append([]string{"--state-dir", t.TempDir()}, tc.args...), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if p, err := f.options.Outbound.ProxyFor(&url.URL{Scheme: "https", Host: "registry.example.com"}); err != nil {
			t.Error(err)
		} else if p != nil {
			got = p.String()
		}
		if got != tc.want {
			t.Errorf("%s: proxy %q, want %q", name, got, tc.want)
		}
	}
	if _, err := parse([]string{"--ca-file", "/does/not/exist.crt"}, io.Discard); err == nil || !strings.Contains(err.Error(), "--ca-file: ") {
		t.Errorf("a missing file of authorities: %v", err)
	}
}
