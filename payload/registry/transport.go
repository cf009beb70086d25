// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The times that a connection may take; a transfer that goes on has no end but
// the caller's context.
const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	stallTimeout  = 60 * time.Second
	idleTimeout   = 60 * time.Second
	maxRedirects  = 5
	maxHeader     = 64 << 10
)

// metadataAddresses are where clouds serve credentials to whoever asks, beside
// the link-local addresses.
func metadataAddresses() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("192.0.0.192"),     // Oracle
	}
}

// checkAddress decides on a resolved address at the moment of dialling, so
// that neither a name, a redirect nor a realm reaches what it must not.
func (o Options) checkAddress(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: not an address", address)
	}
	a := ap.Addr().Unmap()
	switch {
	case a.IsLoopback():
		if !o.AllowLoopback {
			return fmt.Errorf("dial %s: loopback addresses need the option that allows them", a)
		}
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), slices.Contains(metadataAddresses(), a):
		return fmt.Errorf("dial %s: link-local, metadata and multicast addresses are refused", a)
	}
	for _, p := range o.Deny {
		if p.Contains(a) {
			return fmt.Errorf("dial %s: %s is denied", a, p)
		}
	}
	return nil
}

// guard is the lowest transport of one registry host. It refuses plain HTTP
// where that isn't allowed and keeps credentials on the hosts they're for.
type guard struct {
	inner     http.RoundTripper
	host      string
	authHosts []string
	plain     func(host string) bool
}

// RoundTrip sends the request, or refuses it without sending anything.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(r.URL.Scheme == "http" && g.plain(r.URL.Host)) {
		return nil, fmt.Errorf("registry %s: %s isn't allowed for %s: it's reached over https only", g.host, r.URL.Scheme, r.URL.Host)
	}
	own := r.URL.Host == g.host || slices.Contains(g.authHosts, r.URL.Host)
	secret := strings.HasPrefix(r.Header.Get("Authorization"), "Basic ") || r.Method == http.MethodPost
	if !own && secret {
		return nil, fmt.Errorf("registry %s wants its credentials sent to %s: list that under authHosts if it's right", g.host, r.URL.Host)
	}
	return g.inner.RoundTrip(r)
}

// newGuard makes the transport of one host.
func (c *Client) newGuard(h Host) (*guard, error) {
	pool, err := h.pool()
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{
		Timeout: dialTimeout,
		Control: func(_, address string, _ syscall.RawConn) error { return c.opts.checkAddress(address) },
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stallConn{Conn: conn, now: c.opts.Now}, nil
		},
		Proxy:                  c.opts.Proxy,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: maxHeader,
		ForceAttemptHTTP2:      true,
	}
	return &guard{inner: t, host: h.Host, authHosts: h.AuthHosts, plain: c.plainAllowed}, nil
}

// plainAllowed says whether HTTP without TLS may be spoken with a host.
func (c *Client) plainAllowed(host string) bool {
	if c.opts.AllowLoopback && isLoopback(host) {
		return true
	}
	return c.opts.AllowPlainHTTP && c.cfg.host(host).PlainHTTP
}

// isLoopback reports whether a host, with or without port, is this machine by
// name; what it resolves to is checked at dialling.
func isLoopback(host string) bool {
	h := host
	if only, _, err := net.SplitHostPort(host); err == nil {
		h = only
	}
	a, err := netip.ParseAddr(strings.Trim(h, "[]"))
	return h == "localhost" || (err == nil && a.IsLoopback())
}

// checkRedirect bounds redirects and never steps down from TLS.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	if via[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return errors.New("redirect from https to " + next.URL.Scheme + " refused")
	}
	return nil
}

// stallConn ends a connection on which nothing arrives for stallTimeout.
type stallConn struct {
	net.Conn
	now func() time.Time
}

// Read sets the deadline anew for each read.
func (c *stallConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(c.now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// plainError hides the URL that net/http puts into its errors: a query may
// hold a signature or a token.
func plainError(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
