// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package outboundtest has a proxy and a server for tests of connections to Git
// servers and registries.
package outboundtest

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Host is the host of a Server. No name service has it: only a Proxy reaches it.
const Host = "server.example.com"

// Proxy is an HTTP proxy on loopback that connects every host to one server.
type Proxy struct {
	// URL is the proxy's.
	URL string

	target string
	mu     sync.Mutex
	seen   []string
	auth   []string
}

// NewProxy starts a proxy whose CONNECT requests reach target, host:port. It ends with
// the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{target: target}
	srv := httptest.NewServer(p)
	tb.Cleanup(srv.Close)
	p.URL = srv.URL
	return p
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.Host)
	p.auth = append(p.auth, r.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	var d net.Dialer
	server, err := d.DialContext(r.Context(), "tcp", p.target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = server.Close()
		return
	}
	_, _ = io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
	var pipes sync.WaitGroup
	pipes.Go(func() { _, _ = io.Copy(server, buffered); _ = server.Close() })
	pipes.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	pipes.Wait()
}

// Seen returns the requests to the proxy as "METHOD host".
func (p *Proxy) Seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// Authorized reports whether a request had the proxy's credentials.
func (p *Proxy) Authorized() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.auth, func(a string) bool { return strings.HasPrefix(a, "Basic ") })
}

// NewServer serves handler over TLS as Host under a private authority. It returns the
// server's address and the authority's file.
func NewServer(tb testing.TB, handler http.Handler) (address, caFile string) {
	tb.Helper()
	srv := httptest.NewTLSServer(handler)
	tb.Cleanup(srv.Close)
	caFile = filepath.Join(tb.TempDir(), "ca.crt")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(caFile, raw, 0o600); err != nil {
		tb.Fatal(err)
	}
	return srv.Listener.Addr().String(), caFile
}
