// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package mtls

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const cluster = "0b5e1c4a-uid"

var start = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func fixed(now time.Time) func() time.Time { return func() time.Time { return now } }

// leafFrom signs any template with an authority, without its checks.
func leafFrom(t *testing.T, a *Authority, template *x509.Certificate) (*x509.Certificate, crypto.Signer) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = start.Add(-time.Minute), start.Add(time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func uris(t *testing.T, texts ...string) []*url.URL {
	t.Helper()
	var out []*url.URL
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

func callersAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := NewCallersAuthority(cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestT5CallerHasOneIdentityAndOneRole(t *testing.T) {
	a := callersAuthority(t)
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	id := "spiffe://" + cluster + "/caller/ci"
	for name, tc := range map[string]struct {
		uris []string
		use  []x509.ExtKeyUsage
		isCA bool
		want string // part of the error; empty: accepted
	}{
		"one identity, one role":     {[]string{id, "lockstep:reconciler"}, client, false, ""},
		"no role":                    {[]string{id}, client, false, "want exactly one"},
		"two roles":                  {[]string{id, "lockstep:reader", "lockstep:admin"}, client, false, "want exactly one"},
		"the same role twice":        {[]string{id, "lockstep:admin", "lockstep:admin"}, client, false, "want exactly one"},
		"an unknown role":            {[]string{id, "lockstep:root"}, client, false, "unknown role"},
		"a role in capitals":         {[]string{id, "lockstep:Admin"}, client, false, "unknown role"},
		"no identity":                {[]string{"lockstep:admin"}, client, false, "0 SPIFFE identities"},
		"two identities":             {[]string{id, id + "2", "lockstep:admin"}, client, false, "2 SPIFFE identities"},
		"a host's identity":          {[]string{"spiffe://" + cluster + "/host/ci", "lockstep:admin"}, client, false, "is not a caller"},
		"a longer path":              {[]string{id + "/more", "lockstep:admin"}, client, false, "DNS label"},
		"an escaped name":            {[]string{"spiffe://" + cluster + "/caller/c%69", "lockstep:admin"}, client, false, "canonical form"},
		"a query":                    {[]string{id + "?x=1", "lockstep:admin"}, client, false, "canonical form"},
		"a port in the trust domain": {[]string{"spiffe://" + cluster + ":1/caller/ci", "lockstep:admin"}, client, false, "DNS label"},
		"another scheme":             {[]string{id, "lockstep:admin", "https://example.com/"}, client, false, "unexpected URI scheme"},
		"serverAuth too":             {[]string{id, "lockstep:admin"}, append(client, x509.ExtKeyUsageServerAuth), false, "extended key usage"},
		"serverAuth only":            {[]string{id, "lockstep:admin"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, false, "extended key usage"},
		"no usage":                   {[]string{id, "lockstep:admin"}, nil, false, "extended key usage"},
		"an authority":               {[]string{id, "lockstep:admin"}, client, true, "is a certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, _ := leafFrom(t, a, &x509.Certificate{URIs: uris(t, tc.uris...), ExtKeyUsage: tc.use, IsCA: tc.isCA, BasicConstraintsValid: true})
			got, err := CallerOf(cert)
			if tc.want != "" {
				var identity *IdentityError
				if err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, &identity) {
					t.Fatalf("CallerOf = %v, %v; want an IdentityError with %q", got, err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Caller{ClusterUID: cluster, Name: "ci", Role: RoleReconciler}, got); diff != "" {
				t.Errorf("CallerOf (-want +got):\n%s", diff)
			}
		})
	}
}

func TestT5HostCertificateHasNoRoleAndNoClientAuth(t *testing.T) {
	a, err := NewHostsAuthority(cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	id := "spiffe://" + cluster + "/host/h1"
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for name, tc := range map[string]struct {
		uris []string
		use  []x509.ExtKeyUsage
		want string
	}{
		"a host":            {[]string{id}, server, ""},
		"a role":            {[]string{id, "lockstep:admin"}, server, "host has role"},
		"clientAuth":        {[]string{id}, append(server, x509.ExtKeyUsageClientAuth), "extended key usage"},
		"a caller's name":   {[]string{"spiffe://" + cluster + "/caller/h1"}, server, "is not a host"},
		"a name with a dot": {[]string{"spiffe://" + cluster + "/host/h1.example"}, server, "DNS label"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, _ := leafFrom(t, a, &x509.Certificate{URIs: uris(t, tc.uris...), ExtKeyUsage: tc.use})
			got, err := HostOf(cert)
			switch {
			case tc.want == "" && (err != nil || got != Host{ClusterUID: cluster, HostID: "h1"}):
				t.Errorf("HostOf = %v, %v", got, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("HostOf = %v, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// pki returns a directory with one host and one reconciler.
func pki(t *testing.T) (d *Directory, host, caller string) {
	t.Helper()
	d, err := InitDirectory(filepath.Join(t.TempDir(), "pki"), cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err = d.IssueHost("h1", []string{"127.0.0.1", "h1.example.com"}, nil, start)
	if err != nil {
		t.Fatal(err)
	}
	caller, _, err = d.IssueCaller("reconciler", RoleReconciler, start)
	if err != nil {
		t.Fatal(err)
	}
	return d, host, caller
}

func open(t *testing.T, files Files, now time.Time) *Store {
	t.Helper()
	s, err := Open(files, fixed(now))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shake makes one handshake over loopback and returns the errors of both ends.
func shake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	done := make(chan error, 1)
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		conn := tls.Server(raw, server)
		_, err = conn.Write([]byte("x"))
		_ = conn.Close()
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{Config: client}).DialContext(ctx, "tcp", listener.Addr().String())
	if err == nil {
		// In TLS 1.3 the client receives the server's rejection with its first read.
		_, err = io.ReadFull(conn, make([]byte, 1))
		_ = conn.Close()
	}
	return <-done, err
}

func configs(t *testing.T, host, caller string, now time.Time) (server, client *tls.Config) {
	t.Helper()
	server, err := open(t, InDir(host), now).ServerConfig(cluster)
	if err != nil {
		t.Fatal(err)
	}
	client, err = open(t, InDir(caller), now).ClientConfig(Host{ClusterUID: cluster, HostID: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func TestHandshakeUsesTLS13(t *testing.T) {
	_, host, caller := pki(t)
	server, client := configs(t, host, caller, start)
	if serverErr, clientErr := shake(t, server, client); serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v; client: %v", serverErr, clientErr)
	}
}

func TestOlderTLSVersionsAreRejected(t *testing.T) {
	_, host, caller := pki(t)
	server, client := configs(t, host, caller, start)
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if serverErr, clientErr := shake(t, server, client); serverErr == nil || clientErr == nil {
		t.Fatalf("TLS 1.2 was accepted: server: %v; client: %v", serverErr, clientErr)
	}
}

func TestT5HandshakeRequiresACallerCertificate(t *testing.T) {
	d, host, caller := pki(t)
	server, client := configs(t, host, caller, start)
	hostKeys := open(t, Files{Cert: filepath.Join(host, "tls.crt"), Key: filepath.Join(host, "tls.key"), PeerCA: filepath.Join(host, "ca.crt")}, start)
	roleless, key := leafFrom(t, d.callers, &x509.Certificate{
		URIs: uris(t, "spiffe://"+cluster+"/caller/x"), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	other, otherKey := leafFrom(t, d.callers, &x509.Certificate{
		URIs: uris(t, "spiffe://other-uid/caller/x", "lockstep:admin"), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	for name, certs := range map[string][]tls.Certificate{
		"none":                 nil,
		"a host's certificate": {hostKeys.current.Load().cert},
		"without a role":       {{Certificate: [][]byte{roleless.Raw}, PrivateKey: key}},
		"of another cluster":   {{Certificate: [][]byte{other.Raw}, PrivateKey: otherKey}},
	} {
		t.Run(name, func(t *testing.T) {
			bad := client.Clone()
			bad.Certificates = nil
			// Send it even if the server's list of authorities excludes it.
			bad.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(certs) == 0 {
					return &tls.Certificate{}, nil
				}
				return &certs[0], nil
			}
			if serverErr, clientErr := shake(t, server, bad); serverErr == nil || clientErr == nil {
				t.Fatalf("accepted: server: %v; client: %v", serverErr, clientErr)
			}
		})
	}
}

func TestT5CertificateOfAnotherHostIsRejected(t *testing.T) {
	d, _, caller := pki(t)
	// It has h1 as a DNS name, but only the SPIFFE identity counts.
	other, _, err := d.IssueHost("h2", []string{"h1"}, nil, start)
	if err != nil {
		t.Fatal(err)
	}
	server, client := configs(t, other, caller, start)
	_, clientErr := shake(t, server, client)
	if _, ok := errors.AsType[*IdentityError](clientErr); !ok {
		t.Fatalf("client: %v, want an IdentityError", clientErr)
	}
}

func TestExpiredCertificateIsRejected(t *testing.T) {
	_, host, caller := pki(t)
	for name, now := range map[string]time.Time{"after its end": start.Add(CallerLife + time.Second), "before its start": start.Add(-time.Hour)} {
		server, client := configs(t, host, caller, now)
		if serverErr, clientErr := shake(t, server, client); serverErr == nil && clientErr == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCertificateLifetimeDependsOnTheRole(t *testing.T) {
	d, host, caller := pki(t)
	admin, _, err := d.IssueCaller("ada", RoleAdmin, start)
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]time.Duration{host: 90 * 24 * time.Hour, caller: 30 * 24 * time.Hour, admin: 8 * time.Hour} {
		if got := open(t, InDir(dir), start).NotAfter().Sub(start); got != want {
			t.Errorf("%s: lifetime is %s, want %s", filepath.Base(dir), got, want)
		}
	}
}

func TestRenewalIsDueAfterTwoThirdsOfTheLifetime(t *testing.T) {
	_, host, _ := pki(t)
	for now, want := range map[time.Time]bool{
		start: false, start.Add(59 * 24 * time.Hour): false, start.Add(61 * 24 * time.Hour): true, start.Add(91 * 24 * time.Hour): true,
	} {
		if got := open(t, InDir(host), now).RenewalDue(); got != want {
			t.Errorf("at %s renewal is due: %v, want %v", now, got, want)
		}
	}
}

func TestPrivateKeysMustNotBeWorldReadable(t *testing.T) {
	d, host, _ := pki(t)
	for _, file := range []string{filepath.Join(d.path, "hosts-ca.key"), filepath.Join(d.path, "callers-ca.key"), filepath.Join(host, "tls.key")} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o, want 0600", file, info.Mode().Perm())
		}
	}
	if err := os.Chmod(filepath.Join(host, "tls.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(InDir(host), fixed(start)); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("Open with a world-readable key = %v, want the command to fix it", err)
	}
}

func TestInitNeverOverwritesAnAuthority(t *testing.T) {
	d, _, _ := pki(t)
	if _, err := InitDirectory(d.path, cluster, start); err == nil {
		t.Error("a second init succeeded")
	}
	again, err := OpenDirectory(d.path)
	if err != nil {
		t.Fatal(err)
	}
	if again.hosts.ClusterUID() != cluster {
		t.Errorf("cluster UID = %q, want %q", again.hosts.ClusterUID(), cluster)
	}
}

func TestSharedAuthorityIsRejected(t *testing.T) {
	d, host, _ := pki(t)
	files := InDir(host)
	files.PeerCA = filepath.Join(d.path, "hosts-ca.crt")
	if _, err := Open(files, fixed(start)); err == nil || !strings.Contains(err.Error(), "two authorities") {
		t.Errorf("Open = %v", err)
	}
	files = InDir(host)
	files.UntrustedCAs = []string{filepath.Join(d.path, "callers-ca.crt")}
	if _, err := Open(files, fixed(start)); err == nil || !strings.Contains(err.Error(), "another purpose") {
		t.Errorf("Open with the API server's client authority = %v", err)
	}
}

func TestAuthorityIssuesOnlyItsOwnKind(t *testing.T) {
	d, _, _ := pki(t)
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.hosts.IssueCaller("x", RoleAdmin, key.Public(), start); err == nil {
		t.Error("the hosts authority issued a caller")
	}
	if _, err := d.callers.IssueHost("x", key.Public(), nil, start); err == nil {
		t.Error("the callers authority issued a host")
	}
	for _, id := range []string{"", "../x", "UPPER", "a.b", strings.Repeat("a", 64), "-a", "a-"} {
		if _, _, err := d.IssueHost(id, nil, nil, start); err == nil {
			t.Errorf("host id %q was accepted", id)
		}
	}
}

func TestRotatedCertificateIsLoadedWithoutARestart(t *testing.T) {
	d, host, _ := pki(t)
	s := open(t, InDir(host), start)
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan error, 64)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func(err error) { reports <- err }) }()

	later := start.Add(24 * time.Hour)
	first := s.NotAfter()
	wait := func(what string, ok func(error) bool) {
		t.Helper()
		deadline := time.NewTimer(10 * time.Second)
		defer deadline.Stop()
		for {
			select {
			case err := <-reports:
				if ok(err) {
					return
				}
			case <-deadline.C:
				t.Fatalf("%s: not reported in 10 s", what)
			}
		}
	}
	// A change before Run watches is detected by its initial reload.
	if _, _, err := d.IssueHost("h1", nil, nil, later); err != nil {
		t.Fatal(err)
	}
	wait("rotation", func(err error) bool { return err == nil && s.NotAfter().After(first) })

	good := s.NotAfter()
	if err := os.WriteFile(filepath.Join(host, "tls.crt"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	wait("garbage", func(err error) bool { return err != nil })
	if !s.NotAfter().Equal(good) {
		t.Error("an invalid file replaced a valid certificate")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func FuzzParseKeyAndCerts(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte("nothing"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if certs, err := ParseCerts(data); err == nil && len(certs) == 0 {
			t.Error("no certificate and no error")
		}
		if key, err := ParseKey("fuzz", data); err == nil && key == nil {
			t.Error("no key and no error")
		}
	})
}
