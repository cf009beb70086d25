// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

func pkiRun(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newPKICommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage = true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHostsAndCallersLoadIssuedCertificates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	for _, args := range [][]string{
		{"init", "--dir", dir, "--cluster-uid", "uid-1"},
		{"issue", "host", "h1", "--dir", dir, "--address", "127.0.0.1"},
		{"issue", "caller", "reconciler", "--dir", dir, "--role", "reconciler"},
	} {
		if out, err := pkiRun(t, args...); err != nil {
			t.Fatalf("pki %v: %v\n%s", args, err, out)
		}
	}
	host, err := mtls.Open(mtls.InDir(filepath.Join(dir, "hosts", "h1")), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.ServerConfig("uid-1"); err != nil {
		t.Error(err)
	}
	caller, err := mtls.Open(mtls.InDir(filepath.Join(dir, "callers", "reconciler")), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := caller.ClientConfig(mtls.Host{ClusterUID: "uid-1", HostID: "h1"}); err != nil {
		t.Error(err)
	}
}

func TestPKIWithARequestTheKeyStaysOnTheHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if out, err := pkiRun(t, "init", "--dir", dir, "--cluster-uid", "uid-1"); err != nil {
		t.Fatal(err, out)
	}
	key, err := mtls.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"evil.example.com"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "h1.csr")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := pkiRun(t, "issue", "host", "h1", "--dir", dir, "--csr", file); err != nil {
		t.Fatal(err, out)
	}
	files := mtls.InDir(filepath.Join(dir, "hosts", "h1"))
	if _, err := os.Stat(files.Key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key was written beside the certificate: %v", err)
	}
	data, err := os.ReadFile(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := mtls.ParseCerts(data)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(certs[0].PublicKey) || strings.Contains(strings.Join(certs[0].DNSNames, " "), "evil") {
		t.Errorf("certificate has names %v or another key", certs[0].DNSNames)
	}
}

func TestPKIRefusesUnknownRolesAndIds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if out, err := pkiRun(t, "init", "--dir", dir, "--cluster-uid", "uid-1"); err != nil {
		t.Fatal(err, out)
	}
	for _, args := range [][]string{
		{"issue", "caller", "x", "--dir", dir, "--role", "root"},
		{"issue", "caller", "x", "--dir", dir},
		{"issue", "host", "../x", "--dir", dir},
		{"init", "--dir", dir, "--cluster-uid", "uid-2"},
	} {
		if out, err := pkiRun(t, args...); err == nil {
			t.Errorf("pki %v passed:\n%s", args, out)
		}
	}
}
