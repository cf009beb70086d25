// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	ggcrregistry "github.com/google/go-containerregistry/pkg/registry"
)

// Registry is an OCI registry on loopback, with the referrers API.
type Registry struct {
	// Host is its address, host:port; the proxy's.
	Host string
	// Proxy is in front of the server.
	Proxy *Proxy

	server  *http.Server
	tamper  atomic.Pointer[string]
	stopped chan struct{}
}

func newRegistry(ctx context.Context) (*Registry, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	proxy, err := NewProxy(ctx, l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	r := &Registry{Host: proxy.Address(), Proxy: proxy, stopped: make(chan struct{})}
	handler := ggcrregistry.New(ggcrregistry.WithReferrersSupport(true), ggcrregistry.Logger(log.New(io.Discard, "", 0)))
	r.server = &http.Server{Handler: r.tampering(handler), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(r.stopped)
		_ = r.server.Serve(l)
	}()
	return r, nil
}

// Tamper makes the registry serve other bytes than it was given for the blob
// with this digest; "" ends it.
func (r *Registry) Tamper(digest string) { r.tamper.Store(&digest) }

func (r *Registry) tampering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if d := r.tamper.Load(); d != nil && *d != "" && req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/blobs/"+*d) {
			w = &flipper{ResponseWriter: w}
		}
		next.ServeHTTP(w, req)
	})
}

// flipper changes the first byte of a body.
type flipper struct {
	http.ResponseWriter
	done bool
}

func (f *flipper) Write(b []byte) (int, error) {
	if f.done || len(b) == 0 {
		return f.ResponseWriter.Write(b)
	}
	f.done = true
	changed := append([]byte{b[0] ^ 0xff}, b[1:]...)
	return f.ResponseWriter.Write(changed)
}

func (r *Registry) close() {
	r.Proxy.Close()
	_ = r.server.Close()
	<-r.stopped
}
