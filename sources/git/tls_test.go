// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

// authority is a CA for one test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: realNow().Add(-time.Hour), NotAfter: realNow().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue returns a certificate and key in PEM, for server and client.
func (a *authority) issue() (cert, key []byte) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: realNow().Add(-time.Hour), NotAfter: realNow().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// front is an HTTPS proxy of the Git server that requires a client certificate and
// a bearer token.
func (s *server) front(ca *authority, token string) string {
	s.t.Helper()
	behind, err := url.Parse(strings.TrimSuffix(s.http(), "/fleet.git"))
	if err != nil {
		s.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	cert, key := ca.issue()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	front.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	front.Config.ErrorLog = nil
	front.StartTLS()
	s.t.Cleanup(front.Close)
	return front.URL + "/fleet.git"
}

func TestHTTPSWithOwnCAClientCertificateAndToken(t *testing.T) {
	s, c := newServer(t), &clock{}
	want := s.commit(map[string]string{"a": "1"})
	ca := newAuthority(t)
	target := s.front(ca, "t0ken-s3cr3t")
	cert, key := ca.issue()
	good := Credentials{CA: ca.pem(), ClientCert: cert, ClientKey: key, BearerToken: "t0ken-s3cr3t"}
	with := func(change func(*Credentials)) *Source {
		cr := good
		change(&cr)
		return s.source(target, c, func(cfg *Config) { cfg.AllowInsecure, cfg.Credentials = false, creds(cr) })
	}
	if got := fetch(t, with(func(*Credentials) {}), sources.Request{}).Revision.Hash; got != want {
		t.Errorf("revision %s, want %s", got, want)
	}
	p := s.publisher(target, func(cfg *PublisherConfig) { cfg.Credentials, cfg.AllowInsecure = creds(good), false })
	publish(t, p, status("over https"))
	for name, tc := range map[string]struct {
		change func(*Credentials)
		want   string
	}{
		"without the CA":   {func(cr *Credentials) { cr.CA = nil }, ReasonFetchFailed},
		"another CA":       {func(cr *Credentials) { cr.CA = newAuthority(t).pem() }, ReasonFetchFailed},
		"an invalid CA":    {func(cr *Credentials) { cr.CA = []byte("x") }, ReasonInvalid},
		"no certificate":   {func(cr *Credentials) { cr.ClientCert, cr.ClientKey = nil, nil }, ReasonFetchFailed},
		"an invalid key":   {func(cr *Credentials) { cr.ClientKey = []byte("t0ken-s3cr3t") }, ReasonInvalid},
		"another token":    {func(cr *Credentials) { cr.BearerToken = "0ther-s3cr3t" }, ReasonAuthFailed},
		"an invalid proxy": {func(cr *Credentials) { cr.Proxy = ":" }, ReasonInvalid},
	} {
		_, err := with(tc.change).Fetch(t.Context(), sources.Request{})
		if reason(err) != tc.want || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v (%s), want %s without secrets", name, err, reason(err), tc.want)
		}
	}
}

func TestCredentialsAreNotSentToARedirectedHost(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	leaked := false
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked = leaked || r.Header.Get("Authorization") != ""
		w.WriteHeader(http.StatusNotFound)
	}))
	defer other.Close()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	defer front.Close()
	src := s.source(front.URL+"/fleet.git", c, func(cfg *Config) { cfg.Credentials = creds(Credentials{Username: "u", Password: "p"}) })
	if _, err := src.Fetch(t.Context(), sources.Request{}); err == nil || leaked {
		t.Errorf("err = %v, credentials sent to another host: %v", err, leaked)
	}
}

func TestFileURLsWorkForDevelopment(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"a": "1"})
	src := s.source("file://"+s.bare, c)
	snap := fetch(t, src, sources.Request{})
	second := s.commit(map[string]string{"a": "2"})
	if next := fetch(t, src, sources.Request{Accepted: snap.Revision}); snap.Revision.Hash != first || next.Revision.Hash != second {
		t.Errorf("%s, %s, want %s, %s", snap.Revision, next.Revision, first, second)
	}
	publish(t, s.publisher("file://"+s.bare), status("by file"))
}

func TestALostMirrorFetchesTheAcceptedCommitByHash(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"a": "1"})
	s.commit(map[string]string{"a": "2"})
	s.run(s.bare, "config", "uploadpack.allowAnySHA1InWant", "true")
	url := s.http()
	accepted := fetch(t, s.source(url, c), sources.Request{}).Revision
	s.run(s.work, "reset", "-q", "--hard", first)
	s.commit(map[string]string{"a": "3"}) // rewound
	fresh := s.source(url, c)
	snap, err := fresh.At(t.Context(), accepted)
	if err != nil || snap.Revision != accepted {
		t.Errorf("At = %v, %v, want %s", snap, err, accepted)
	}
	s.run(s.bare, "config", "uploadpack.allowAnySHA1InWant", "false")
	_, err = s.source(url, c).At(t.Context(), accepted)
	wantReason(t, err, ReasonNotFound)
}
