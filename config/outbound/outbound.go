// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package outbound has the proxy and the certificate authorities for connections
// to Git servers and registries. All programs take them from the same flags and
// the same variables of the environment.
//
// Neither is trusted: content is verified by signature and digest, whatever
// server or proxy delivered it.
package outbound

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/lockstep-dev/lockstep/config/files"
)

// maxCA limits the file of certificate authorities, in bytes.
const maxCA = 1 << 20

// Options are the flags of a program.
type Options struct {
	// Proxy is the URL of the proxy for http and https, with the scheme http, https
	// or socks5; "" for HTTP_PROXY and HTTPS_PROXY of the environment.
	Proxy string
	// NoProxy lists hosts, domains and CIDRs that are accessed directly; "" for
	// NO_PROXY of the environment.
	NoProxy string
	// CAFile has PEM certificates that are trusted besides those of the system, which
	// SSL_CERT_FILE and SSL_CERT_DIR replace; "" for none.
	CAFile string
}

// FlagSet is a set of flags of the standard library or of pflag.
type FlagSet interface {
	StringVar(p *string, name, value, usage string)
}

// AddFlags adds the flags --proxy, --no-proxy and --ca-file.
func (o *Options) AddFlags(flags FlagSet) {
	flags.StringVar(&o.Proxy, "proxy", "", "proxy for Git servers and registries: http, https or socks5 URL (default: $HTTPS_PROXY, $HTTP_PROXY)")
	flags.StringVar(&o.NoProxy, "no-proxy", "", "comma-separated hosts, domains and CIDRs to access without the proxy (default: $NO_PROXY)")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM file with CAs of Git servers and registries, besides the system's ($SSL_CERT_FILE)")
}

// Settings are loaded Options. The zero value uses no proxy and the system's
// certificates. They are safe for concurrent use.
type Settings struct {
	proxy func(*url.URL) (*url.URL, error)
	roots *x509.CertPool
}

// Load reads the environment and the file of certificate authorities. Errors don't
// contain the user and the password of a proxy.
func (o Options) Load() (Settings, error) {
	env := httpproxy.FromEnvironment()
	env.CGI = false // programs of this project don't run as CGI scripts
	if o.Proxy != "" {
		env.HTTPProxy, env.HTTPSProxy = o.Proxy, o.Proxy
	}
	if o.NoProxy != "" {
		env.NoProxy = o.NoProxy
	}
	for name, raw := range map[string]string{"HTTP_PROXY": env.HTTPProxy, "HTTPS_PROXY": env.HTTPSProxy} {
		if o.Proxy != "" {
			name = "--proxy"
		}
		if err := checkProxy(raw); err != nil {
			return Settings{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	s := Settings{}
	if env.HTTPProxy != "" || env.HTTPSProxy != "" {
		s.proxy = env.ProxyFunc()
	}
	if o.CAFile == "" {
		return s, nil
	}
	raw, err := files.Read(o.CAFile, maxCA)
	if err != nil {
		return Settings{}, fmt.Errorf("--ca-file: %w", err)
	}
	if s.roots, err = WithCAs(nil, raw); err != nil {
		return Settings{}, fmt.Errorf("--ca-file: %s %w", o.CAFile, err)
	}
	return s, nil
}

// checkProxy checks the URL of a proxy. A host without scheme is an http proxy.
func checkProxy(raw string) error {
	if raw == "" {
		return nil
	}
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return errors.New("the proxy isn't a URL; want http://host:port") // the value may have a password
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return nil
	}
	return fmt.Errorf("the proxy has scheme %.16q; want http, https or socks5", u.Scheme)
}

// WithCAs returns the certificates of roots, or of the system if it is nil, and those
// of a PEM file.
func WithCAs(roots *x509.CertPool, pem []byte) (*x509.CertPool, error) {
	if roots != nil {
		roots = roots.Clone()
	} else {
		var err error
		if roots, err = x509.SystemCertPool(); err != nil {
			roots = x509.NewCertPool()
		}
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("contains no PEM certificate")
	}
	return roots, nil
}

// ProxyFor returns the proxy for a URL, nil for a direct connection. Loopback
// addresses are always accessed directly.
func (s Settings) ProxyFor(u *url.URL) (*url.URL, error) {
	if s.proxy == nil {
		return nil, nil
	}
	return s.proxy(u)
}

// Proxy is ProxyFor as an http.Transport has it.
func (s Settings) Proxy(r *http.Request) (*url.URL, error) { return s.ProxyFor(r.URL) }

// Roots returns the trusted certificate authorities, nil for those of the system. The
// result must not be changed.
func (s Settings) Roots() *x509.CertPool { return s.roots }
