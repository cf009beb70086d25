// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// clean removes the variables of the environment that tests set.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
}

func TestFlagsReplaceTheEnvironment(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		want map[string]string // the proxy by URL, "" for none
	}{
		"nothing": {nil, nil, map[string]string{"https://r.example.com": "", "http://r.example.com": ""}},
		"the environment": {
			map[string]string{"HTTPS_PROXY": "http://env:3128", "NO_PROXY": "internal.example.com,10.0.0.0/8"},
			nil,
			map[string]string{"https://r.example.com": "http://env:3128", "http://r.example.com": "", "https://a.internal.example.com": "", "https://10.1.2.3": ""},
		},
		"lower case": {map[string]string{"https_proxy": "env:3128"}, nil, map[string]string{"https://r.example.com": "http://env:3128"}},
		"flags": {
			map[string]string{"HTTPS_PROXY": "http://env:3128", "NO_PROXY": "r.example.com"},
			[]string{"--proxy", "socks5://flag:1080", "--no-proxy", "git.example.com"},
			map[string]string{"https://r.example.com": "socks5://flag:1080", "http://r.example.com": "socks5://flag:1080", "https://git.example.com": ""},
		},
		"a flag and NO_PROXY": {
			map[string]string{"NO_PROXY": "r.example.com"},
			[]string{"--proxy", "http://flag:3128"},
			map[string]string{"https://r.example.com": "", "https://git.example.com": "http://flag:3128"},
		},
		"loopback is direct": {nil, []string{"--proxy", "http://flag:3128"}, map[string]string{"https://127.0.0.1:5000": "", "https://localhost": "", "https://[::1]:1": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			var o Options
			flags := flag.NewFlagSet("test", flag.ContinueOnError)
			o.AddFlags(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			s, err := o.Load()
			if err != nil {
				t.Fatal(err)
			}
			for raw, want := range tc.want {
				u, err := url.Parse(raw)
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				if p, err := s.ProxyFor(u); err != nil {
					t.Errorf("%s: %v", raw, err)
				} else if p != nil {
					got = p.String()
				}
				if got != want {
					t.Errorf("proxy for %s is %q, want %q", raw, got, want)
				}
			}
		})
	}
}

func TestAnInvalidProxyOrFileIsRejectedWithoutItsPassword(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.crt")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		o    Options
		env  string
		want string
	}{
		"scheme":           {Options{Proxy: "ftp://me:hunter2@proxy"}, "", `--proxy: the proxy has scheme "ftp"`},
		"no URL":           {Options{Proxy: "http://me:hunter2@pro xy"}, "", "--proxy: the proxy isn't a URL"},
		"no host":          {Options{Proxy: "http://:3128"}, "", "--proxy: the proxy isn't a URL"},
		"the environment":  {Options{}, "gopher://me:hunter2@proxy", `HTTPS_PROXY: the proxy has scheme "gopher"`},
		"a missing file":   {Options{CAFile: filepath.Join(dir, "none.crt")}, "", "--ca-file: "},
		"no certificate":   {Options{CAFile: empty}, "", "contains no PEM certificate"},
		"an https proxy":   {Options{Proxy: "https://me:hunter2@proxy:3129"}, "", ""},
		"without a scheme": {Options{Proxy: "proxy.example.com:3128"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			t.Setenv("HTTPS_PROXY", tc.env)
			_, err := tc.o.Load()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}
