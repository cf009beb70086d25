// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"net/http"
	"slices"
	"testing"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/outbound/outboundtest"
)

// Sources and the status branch use the proxy and the authorities of the process, and
// the authorities of a Secret in addition.
func TestAServerBehindAProxyAndAPrivateAuthorityIsReached(t *testing.T) {
	t.Setenv("NO_PROXY", "")
	address, caFile := outboundtest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	proxy := outboundtest.NewProxy(t, address)
	get := func(o outbound.Options, credentials Credentials) error {
		t.Helper()
		via, err := o.Load()
		if err != nil {
			t.Fatal(err)
		}
		client, err := credentials.httpClient(via, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+outboundtest.Host+"/fleet.git", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(r)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
	other := newAuthority(t).pem()
	for name, o := range map[string]Credentials{"of the process": {}, "of a Secret too": {CA: other}} {
		if err := get(outbound.Options{Proxy: proxy.URL, CAFile: caFile}, o); err != nil {
			t.Errorf("with authorities %s: %v", name, err)
		}
	}
	if !slices.Contains(proxy.Seen(), "CONNECT "+outboundtest.Host+":443") {
		t.Errorf("the proxy saw %v", proxy.Seen())
	}
	if err := get(outbound.Options{Proxy: proxy.URL}, Credentials{}); err == nil {
		t.Error("an unknown authority is trusted")
	}
	if err := get(outbound.Options{Proxy: "http://127.0.0.1:1", CAFile: caFile}, Credentials{Proxy: proxy.URL}); err != nil {
		t.Errorf("the proxy of a Secret doesn't replace that of the process: %v", err)
	}
}
