// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package mtls

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lockstep-dev/lockstep/config/files"
)

// Directory is the PKI of one cluster on an administrator's disk; it's never stored
// in the cluster:
//
//	hosts-ca.crt   hosts-ca.key     the hosts authority
//	callers-ca.crt callers-ca.key   the callers authority
//	hosts/<id>/{tls.crt,tls.key,ca.crt}
//	callers/<name>/{tls.crt,tls.key,ca.crt}
//
// InDir of the peer reads a leaf directory; its ca.crt is the authority of the
// peers. It's not safe for concurrent writers.
type Directory struct {
	path           string
	hosts, callers *Authority
}

// InitDirectory creates both authorities in a directory without any. It never
// overwrites an authority, which would invalidate all its certificates.
func InitDirectory(path, clusterUID string, now time.Time) (*Directory, error) {
	for _, name := range []string{"hosts-ca", "callers-ca"} {
		if _, err := os.Lstat(filepath.Join(path, name+".key")); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s already has an authority %s.key: choose another directory, or remove it if no host uses it", path, name)
		}
	}
	hosts, err := NewHostsAuthority(clusterUID, now)
	if err != nil {
		return nil, err
	}
	callers, err := NewCallersAuthority(clusterUID, now)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the PKI directory: %w", err)
	}
	for name, a := range map[string]*Authority{"hosts-ca": hosts, "callers-ca": callers} {
		if err := writeKey(filepath.Join(path, name+".key"), a.Key); err != nil {
			return nil, err
		}
		if err := writeCert(filepath.Join(path, name+".crt"), a.Cert.Raw); err != nil {
			return nil, err
		}
	}
	return &Directory{path: path, hosts: hosts, callers: callers}, nil
}

// OpenDirectory reads the authorities of InitDirectory.
func OpenDirectory(path string) (*Directory, error) {
	read := func(name string) (*Authority, error) {
		certs, err := readCerts(filepath.Join(path, name+".crt"))
		if err != nil {
			return nil, err
		}
		key, err := readKey(filepath.Join(path, name+".key"))
		if err != nil {
			return nil, err
		}
		return NewAuthority(certs[0], key)
	}
	hosts, err := read("hosts-ca")
	if err != nil {
		return nil, err
	}
	callers, err := read("callers-ca")
	if err != nil {
		return nil, err
	}
	if hosts.ClusterUID() != callers.ClusterUID() {
		return nil, fmt.Errorf("%s contains authorities of two clusters: %s and %s", path, hosts.ClusterUID(), callers.ClusterUID())
	}
	return &Directory{path: path, hosts: hosts, callers: callers}, nil
}

// IssueHost issues a certificate for a host and returns its directory. If public is
// set, the private key stays on the host and only certificates are written. An
// existing certificate is replaced.
func (d *Directory) IssueHost(hostID string, addresses []string, public crypto.PublicKey, now time.Time) (string, Leaf, error) {
	return d.write("hosts", hostID, d.callers, public, func(key crypto.PublicKey) (Leaf, error) {
		return d.hosts.IssueHost(hostID, key, addresses, now)
	})
}

// IssueCaller generates a key and issues a certificate for a caller and returns their
// directory. An existing certificate is replaced.
func (d *Directory) IssueCaller(name string, role Role, now time.Time) (string, Leaf, error) {
	return d.write("callers", name, d.hosts, nil, func(key crypto.PublicKey) (Leaf, error) {
		return d.callers.IssueCaller(name, role, key, now)
	})
}

// write issues before it creates the directory, so that an invalid name leaves none.
func (d *Directory) write(kind, name string, peers *Authority, public crypto.PublicKey, issue func(crypto.PublicKey) (Leaf, error)) (string, Leaf, error) {
	var key crypto.Signer
	if public == nil {
		made, err := NewKey()
		if err != nil {
			return "", Leaf{}, err
		}
		key, public = made, made.Public()
	}
	leaf, err := issue(public)
	if err != nil {
		return "", Leaf{}, err
	}
	dir := filepath.Join(d.path, kind, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", Leaf{}, fmt.Errorf("create the directory of %s: %w", name, err)
	}
	files := InDir(dir)
	if key != nil {
		if err := writeKey(files.Key, key); err != nil {
			return "", Leaf{}, err
		}
	}
	if err := writeCert(files.Cert, leaf.DER); err != nil {
		return "", Leaf{}, err
	}
	if err := writeCert(files.PeerCA, peers.Cert.Raw); err != nil {
		return "", Leaf{}, err
	}
	return dir, leaf, nil
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the private key for %s: %w", path, err)
	}
	return writePEM(path, "PRIVATE KEY", der, 0o600)
}

func writeCert(path string, der []byte) error {
	return writePEM(path, "CERTIFICATE", der, 0o644)
}

// writePEM replaces the file atomically, for readers that reload it.
func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := files.WriteKeepMode(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
