// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockstep-dev/lockstep/config/outbound/outboundtest"
)

// The registry has no name in any name service and a private authority.
func TestRegistriesAreReadThroughTheProxyAndItsAuthority(t *testing.T) {
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	var requests atomic.Int64
	address, caFile := outboundtest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	proxy := outboundtest.NewProxy(t, address)
	d := newDesk(t)
	ref := outboundtest.Host + "/platform@sha256:" + strings.Repeat("a", 64)
	for name, args := range map[string][]string{
		"flag": {"--proxy", proxy.URL}, "variable": nil,
	} {
		if args == nil {
			t.Setenv("HTTPS_PROXY", proxy.URL)
		}
		before := requests.Load()
		_, out := d.run(append([]string{"release", "inspect", ref, "--ca-file", caFile}, args...)...)
		if requests.Load() == before || !slices.Contains(proxy.Seen(), "CONNECT "+outboundtest.Host+":443") || !strings.Contains(out, "404 Not Found") {
			t.Errorf("%s: the registry wasn't asked through the proxy: %s", name, out)
		}
	}
	if code, out := d.run("release", "inspect", ref, "--proxy", "ftp://proxy"); code == 0 || !strings.Contains(out, `--proxy: the proxy has scheme "ftp"`) {
		t.Errorf("an invalid proxy: %d %s", code, out)
	}
}
