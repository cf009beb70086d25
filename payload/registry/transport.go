// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// Timeouts and limits of a connection. Transfers that make progress are limited
// only by the caller's context.
const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	stallTimeout  = 60 * time.Second
	idleTimeout   = 60 * time.Second
	maxRedirects  = 5
	maxHeader     = 64 << 10
)

// metadataAddresses are the metadata services of clouds, which serve credentials,
// in addition to the link-local addresses.
func metadataAddresses() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("192.0.0.192"),     // Oracle
	}
}

// checkAddress checks a resolved address when it is dialled, so that names,
// redirects and realms can't reach forbidden addresses.
func (o Options) checkAddress(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: invalid address", address)
	}
	a := ap.Addr().Unmap()
	switch {
	case a.IsLoopback():
		if !o.AllowLoopback {
			return fmt.Errorf("dial %s: loopback addresses require the insecure option for loopback registries", a)
		}
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a.IsUnspecified(), slices.Contains(metadataAddresses(), a):
		return fmt.Errorf("dial %s: link-local, metadata and multicast addresses aren't allowed", a)
	}
	return nil
}

// guard is the innermost transport of a registry host. It rejects HTTP unless that
// is allowed, and credentials for other hosts.
type guard struct {
	// direct and proxied are the transports of requests without and with a proxy.
	direct, proxied http.RoundTripper
	proxyFor        func(*url.URL) (*url.URL, error)
	// checkHost rejects forbidden addresses in URLs of proxied requests.
	checkHost       func(host string) error
	host            string
	authHosts       []string
	allowsPlainHTTP func(host string) bool
}

// RoundTrip sends the request, or rejects it before anything is sent.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(r.URL.Scheme == "http" && g.allowsPlainHTTP(r.URL.Host)) {
		return nil, fmt.Errorf("registry %s: %s isn't allowed for %s; use https", g.host, r.URL.Scheme, r.URL.Host)
	}
	own := r.URL.Host == g.host || slices.Contains(g.authHosts, r.URL.Host)
	secret := strings.HasPrefix(r.Header.Get("Authorization"), "Basic ") || r.Method == http.MethodPost
	if !own && secret {
		return nil, fmt.Errorf("registry %s requests its credentials for %s; if this is correct, add that host to authHosts in the registries file", g.host, r.URL.Host)
	}
	proxy, err := g.proxyFor(r.URL)
	if err != nil {
		return nil, fmt.Errorf("registry %s: proxy: %w", g.host, err)
	}
	if proxy == nil {
		return g.direct.RoundTrip(r)
	}
	if err := g.checkHost(r.URL.Hostname()); err != nil {
		return nil, err
	}
	return g.proxied.RoundTrip(r)
}

// checkHost checks an address in a URL that a proxy connects to. Names are resolved by
// the proxy, which must itself restrict what it connects to.
func (o Options) checkHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		return o.checkAddress(netip.AddrPortFrom(a, 0).String())
	}
	return nil
}

func (c *Client) newGuard(h Host) (*guard, error) {
	pool, err := h.pool()
	if err != nil {
		return nil, err
	}
	if pool == nil {
		pool = c.opts.Outbound.Roots()
	}
	d := &net.Dialer{
		Timeout: dialTimeout,
		Control: func(_, address string, _ syscall.RawConn) error { return c.opts.checkAddress(address) },
	}
	direct := c.transport(d, pool)
	// The address of the proxy is the administrator's choice; it alone is dialled.
	proxied := c.transport(&net.Dialer{Timeout: dialTimeout}, pool)
	proxied.Proxy = c.opts.Outbound.Proxy
	return &guard{
		direct: direct, proxied: proxied, proxyFor: c.opts.Outbound.ProxyFor, checkHost: c.opts.checkHost,
		host: h.Host, authHosts: h.AuthHosts, allowsPlainHTTP: c.allowsPlainHTTP,
	}, nil
}

// transport returns a transport that dials with d.
func (c *Client) transport(d *net.Dialer, pool *x509.CertPool) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &stallConn{Conn: conn, now: c.opts.Now}, nil
		},
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: maxHeader,
		ForceAttemptHTTP2:      true,
	}
}

// allowsPlainHTTP reports whether HTTP without TLS is allowed for a host.
func (c *Client) allowsPlainHTTP(host string) bool {
	if c.opts.AllowLoopback && isLoopback(host) {
		return true
	}
	return c.opts.AllowPlainHTTP && c.cfg.host(host).PlainHTTP
}

// isLoopback reports whether a host, with or without port, is localhost or a
// loopback address. Resolved addresses are checked when they are dialled.
func isLoopback(host string) bool {
	h := host
	if only, _, err := net.SplitHostPort(host); err == nil {
		h = only
	}
	a, err := netip.ParseAddr(strings.Trim(h, "[]"))
	return h == "localhost" || (err == nil && a.IsLoopback())
}

// checkRedirect limits the number of redirects and rejects redirects from https to
// other schemes.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	if via[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return errors.New("redirect from https to " + next.URL.Scheme + " isn't allowed")
	}
	return nil
}

// stallConn is a connection that fails if nothing arrives for stallTimeout.
type stallConn struct {
	net.Conn
	now func() time.Time
}

// Read resets the deadline for each read.
func (c *stallConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(c.now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// withoutURL removes the URL from errors of net/http, since a query may contain a
// signature or a token.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
