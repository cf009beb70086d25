// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package mtls

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/lockstep-dev/lockstep/config/files"
)

// maxFile limits each certificate and key file, in bytes.
const maxFile = 256 << 10

// Files are the certificate files of one end of a connection.
type Files struct {
	// Cert and Key are this end's certificate (PEM) and private key (PKCS #8).
	Cert, Key string
	// PeerCA is the authority of the peer's certificates.
	PeerCA string
	// UntrustedCAs are authorities that must not be PeerCA, such as the API server's
	// client authority: an approver of certificate requests there would be an
	// administrator of hosts. Usually empty.
	UntrustedCAs []string
}

// InDir returns the files in the layout of lockstep pki and Kubernetes Secrets.
func InDir(dir string) Files {
	return Files{
		Cert:   filepath.Join(dir, "tls.crt"),
		Key:    filepath.Join(dir, "tls.key"),
		PeerCA: filepath.Join(dir, "ca.crt"),
	}
}

// material is one consistent read of the files.
type material struct {
	cert  tls.Certificate
	peers *x509.CertPool
}

// Store holds one end's certificate, key and peer authority, and reloads them when
// the files change. It's safe for concurrent use.
type Store struct {
	files   Files
	now     func() time.Time
	current atomic.Pointer[material]
}

// Open reads and validates the files. Run reloads them; without it the Store keeps
// the initial certificates. now is the clock for certificate validity, here and in
// every handshake.
func Open(files Files, now func() time.Time) (*Store, error) {
	s := &Store{files: files, now: now}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. After an error the Store keeps the previous
// certificates, so that an incomplete rotation doesn't break connections.
func (s *Store) Reload() error {
	m, err := load(s.files)
	if err != nil {
		return err
	}
	s.current.Store(m)
	return nil
}

// NotAfter returns the end of this certificate's validity.
func (s *Store) NotAfter() time.Time { return s.current.Load().cert.Leaf.NotAfter }

// RenewalDue reports whether two thirds of the certificate's lifetime have passed.
// Users are warned from then on: an expired certificate disconnects the host.
func (s *Store) RenewalDue() bool {
	leaf := s.current.Load().cert.Leaf
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return s.now().After(leaf.NotBefore.Add(life * 2 / 3))
}

// Leaf returns this end's certificate; it must not be modified.
func (s *Store) Leaf() *x509.Certificate { return s.current.Load().cert.Leaf }

// Run reloads the files when they change, until ctx ends; then it returns nil. It
// watches directories, because Kubernetes and atomic writers replace files by
// rename. report, if not nil, is called after each reload (nil: new certificates are
// in use) and must not block.
func (s *Store) Run(ctx context.Context, report func(error)) error {
	if report == nil {
		report = func(error) {}
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch certificates: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	for _, dir := range s.dirs() {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("watch certificates in %s: %w", dir, err)
		}
	}
	// The files may have changed between Open and Add.
	s.reloadIfChanged(report)
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return nil
			}
			s.reloadIfChanged(report)
		case err, ok := <-watcher.Errors:
			if !ok {
				return nil
			}
			report(fmt.Errorf("watch certificates: %w", err))
			s.reloadIfChanged(report) // an overflow may have dropped a change
		}
	}
}

// reloadIfChanged reports only changes: one rename causes several events.
func (s *Store) reloadIfChanged(report func(error)) {
	before := s.current.Load()
	if err := s.Reload(); err != nil {
		report(err)
		return
	}
	after := s.current.Load()
	if !bytes.Equal(before.cert.Leaf.Raw, after.cert.Leaf.Raw) || !before.peers.Equal(after.peers) {
		report(nil)
	}
}

// dirs returns the unique directories of the files.
func (s *Store) dirs() []string {
	var dirs []string
	seen := map[string]bool{}
	for _, file := range []string{s.files.Cert, s.files.Key, s.files.PeerCA} {
		if dir := filepath.Dir(file); !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func load(files Files) (*material, error) {
	chain, err := readCerts(files.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readKey(files.Key)
	if err != nil {
		return nil, err
	}
	leaf := chain[0]
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("private key %s does not match certificate %s", files.Key, files.Cert)
	}
	peers, err := readPeers(files)
	if err != nil {
		return nil, err
	}
	// With one authority each end could impersonate the other.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: peers, CurrentTime: leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		return nil, fmt.Errorf("certificate %s is issued by the peer authority %s: want two authorities, created by lockstep pki init", files.Cert, files.PeerCA)
	}
	raw := make([][]byte, 0, len(chain))
	for _, cert := range chain {
		raw = append(raw, cert.Raw)
	}
	return &material{cert: tls.Certificate{Certificate: raw, PrivateKey: key, Leaf: leaf}, peers: peers}, nil
}

// readPeers reads the peer authority and rejects one of UntrustedCAs.
func readPeers(files Files) (*x509.CertPool, error) {
	peers, err := readCerts(files.PeerCA)
	if err != nil {
		return nil, err
	}
	var untrusted []*x509.Certificate
	for _, file := range files.UntrustedCAs {
		certs, err := readCerts(file)
		if err != nil {
			return nil, err
		}
		untrusted = append(untrusted, certs...)
	}
	pool := x509.NewCertPool()
	for _, cert := range peers {
		if !cert.IsCA {
			return nil, fmt.Errorf("%s contains %s, which is not a certificate authority", files.PeerCA, cert.Subject.CommonName)
		}
		for _, other := range untrusted {
			if bytes.Equal(cert.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo) {
				return nil, fmt.Errorf("%s contains %s, which is also used for another purpose: want a separate authority, created by lockstep pki init",
					files.PeerCA, cert.Subject.CommonName)
			}
		}
		pool.AddCert(cert)
	}
	return pool, nil
}

// readCerts reads the certificates of a PEM file; at least one.
func readCerts(path string) ([]*x509.Certificate, error) {
	data, err := files.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	certs, err := ParseCerts(data)
	if err != nil {
		return nil, fmt.Errorf("certificates in %s: %w", path, err)
	}
	return certs, nil
}

// ParseCerts parses PEM certificates; at least one and no other blocks.
func ParseCerts(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("unexpected PEM block %q, want CERTIFICATE", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return certs, nil
}

// readKey reads a private key; the file must not be world-readable.
func readKey(path string) (crypto.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("private key %s is world-readable (mode %04o): run chmod 600 %s", path, info.Mode().Perm(), path)
	}
	data, err := files.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	return ParseKey(path, data)
}

// ParseKey parses a PKCS #8 private key in PEM. Errors never contain key bytes.
func ParseKey(name string, data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s contains no PEM block of type PRIVATE KEY", name)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s contains no PKCS #8 private key", name)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s contains a key of type %T, which cannot sign", name, key)
	}
	return signer, nil
}
