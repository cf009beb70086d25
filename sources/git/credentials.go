// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"github.com/lockstep-dev/lockstep/config/outbound"
)

// Credentials give access to a repository. Empty fields aren't used. They are read
// for each connection, so that a rotated Secret takes effect automatically.
type Credentials struct {
	Username, Password string // HTTP basic authentication
	BearerToken        string // instead of Username and Password
	CA                 []byte // PEM, in addition to the system's roots
	ClientCert         []byte // PEM, with ClientKey
	ClientKey          []byte
	Identity           []byte // SSH private key, PEM
	IdentityPassphrase string
	KnownHosts         []byte // required for SSH
	Proxy              string // URL of an HTTP or SOCKS5 proxy; for HTTP remotes
}

// CredentialsFromSecret reads the keys of a Secret: identity (with password as its
// passphrase) and known_hosts, or username and password, or bearerToken; and
// optionally ca.crt, tls.crt, tls.key and proxy.
func CredentialsFromSecret(data map[string][]byte) Credentials {
	text := func(key string) string { return strings.TrimSpace(string(data[key])) }
	c := Credentials{
		Username: text("username"), Password: text("password"), BearerToken: text("bearerToken"),
		CA: data["ca.crt"], ClientCert: data["tls.crt"], ClientKey: data["tls.key"],
		Identity: data["identity"], KnownHosts: data["known_hosts"], Proxy: text("proxy"),
	}
	if len(c.Identity) > 0 {
		c.IdentityPassphrase, c.Password = c.Password, ""
	}
	return c
}

// checkURL parses and checks the URL of a repository.
func checkURL(raw string, insecure bool) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" {
		return nil, refuse(ReasonInvalid, "url can't be parsed; want https://host/path or ssh://user@host/path (not user@host:path)")
	}
	if _, has := u.User.Password(); has {
		return nil, refuse(ReasonInvalid, "url contains a password; put it into the Secret in secretRef")
	}
	switch u.Scheme {
	case "https", "ssh":
		if u.Hostname() == "" {
			return nil, refuse(ReasonInvalid, "url has no host")
		}
	case "http", "file":
		if !insecure {
			return nil, refuse(ReasonInsecureTransport, fmt.Sprintf(
				"url has scheme %s, which requires the insecure option for sources; use https or ssh", u.Scheme))
		}
	default:
		return nil, refuse(ReasonInvalid, fmt.Sprintf("url has scheme %.16q; want https or ssh", u.Scheme))
	}
	return u, nil
}

// httpAuth returns the authentication for HTTP, or nil.
func (c Credentials) httpAuth() transport.AuthMethod {
	switch {
	case c.BearerToken != "":
		return &githttp.TokenAuth{Token: c.BearerToken}
	case c.Username != "" || c.Password != "":
		return &githttp.BasicAuth{Username: c.Username, Password: c.Password}
	}
	return nil
}

// httpClient returns a client for one session. Sources share no client.
func (c Credentials) httpClient(via outbound.Settings, limit int64) (*http.Client, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: via.Roots()}
	if len(c.CA) > 0 {
		roots, err := outbound.WithCAs(via.Roots(), c.CA)
		if err != nil {
			return nil, refuse(ReasonInvalid, "ca.crt contains no PEM certificate")
		}
		conf.RootCAs = roots
	}
	if len(c.ClientCert) > 0 || len(c.ClientKey) > 0 {
		pair, err := tls.X509KeyPair(c.ClientCert, c.ClientKey)
		if err != nil {
			// The error may quote the key, so it isn't wrapped.
			return nil, refuse(ReasonInvalid, "tls.crt and tls.key must be a PEM certificate and its key")
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	proxy := via.Proxy
	if c.Proxy != "" {
		u, err := url.Parse(c.Proxy)
		if err != nil {
			return nil, refuse(ReasonInvalid, "proxy must be a URL")
		}
		proxy = http.ProxyURL(u)
	}
	return &http.Client{Transport: &limitTransport{limit: limit, base: &http.Transport{
		Proxy: proxy, TLSClientConfig: conf, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		TLSHandshakeTimeout: 20 * time.Second, MaxResponseHeaderBytes: 1 << 20,
	}}}, nil
}

// sshConfig returns the client configuration for an SSH connection to host:port.
// The host key must be in KnownHosts; no key is trusted on first use.
func (c Credentials) sshConfig(user, hostPort string, timeout time.Duration) (*ssh.ClientConfig, error) {
	if len(c.Identity) == 0 || len(c.KnownHosts) == 0 {
		return nil, refuse(ReasonInvalid, "ssh requires the keys identity and known_hosts in the Secret in secretRef; "+
			"create known_hosts with ssh-keyscan and compare it with the keys that the server's operator publishes")
	}
	signer, err := parseIdentity(c.Identity, c.IdentityPassphrase)
	if err != nil {
		return nil, err
	}
	db, err := knownHosts(c.KnownHosts)
	if err != nil {
		return nil, err
	}
	if user == "" {
		user = "git"
	}
	return &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: timeout,
		HostKeyAlgorithms: db.HostKeyAlgorithms(hostPort),
		HostKeyCallback:   hostKeyCallback(db.HostKeyCallback()),
	}, nil
}

func parseIdentity(pem []byte, passphrase string) (ssh.Signer, error) {
	var signer ssh.Signer
	var err error
	if passphrase == "" {
		signer, err = ssh.ParsePrivateKey(pem)
	} else {
		signer, err = ssh.ParsePrivateKeyWithPassphrase(pem, []byte(passphrase))
	}
	if err == nil {
		return signer, nil
	}
	if _, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return nil, refuse(ReasonInvalid, "the SSH key is encrypted; set its passphrase as password")
	}
	// The cause may quote the key, so it isn't wrapped.
	return nil, refuse(ReasonInvalid, "identity isn't an SSH private key in PEM, or its passphrase is wrong")
}

// knownHosts parses a known_hosts file; the library requires a file on disk.
func knownHosts(content []byte) (db *knownhosts.HostKeyDB, err error) {
	f, err := os.CreateTemp("", "lockstep-known-hosts-*")
	if err != nil {
		return nil, wrap(ReasonFetchFailed, "known_hosts", err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if _, err := f.Write(content); err != nil {
		return nil, wrap(ReasonFetchFailed, "known_hosts", errors.Join(err, f.Close()))
	}
	if err := f.Close(); err != nil {
		return nil, wrap(ReasonFetchFailed, "known_hosts", err)
	}
	db, err = knownhosts.NewDB(f.Name())
	if err != nil {
		return nil, refuse(ReasonInvalid, "known_hosts isn't a valid known_hosts file")
	}
	return db, nil
}

// hostKeyCallback adds the offered host key to a mismatch.
func hostKeyCallback(next ssh.HostKeyCallback) ssh.HostKeyCallback {
	return func(hostname string, remote net.Addr, key ssh.PublicKey) error {
		err := next(hostname, remote, key)
		if err == nil {
			return nil
		}
		what := "is not in known_hosts"
		if knownhosts.IsHostKeyChanged(err) {
			what = "differs from the one in known_hosts"
		}
		return refuse(ReasonHostKey, fmt.Sprintf("the host key of %s (%s %s) %s; if it was changed, update known_hosts",
			hostname, key.Type(), ssh.FingerprintSHA256(key), what))
	}
}
