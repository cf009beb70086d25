// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// testKey is a key pair.
type testKey struct {
	name   string
	signer crypto.Signer
	ssh    ssh.Signer
}

func ecdsaKey(tb testing.TB, name string) testKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return testKey{name: name, signer: k}
}

func edKey(tb testing.TB, name string) testKey {
	tb.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return testKey{name: name, signer: k}
}

func sshKey(tb testing.TB, name string) testKey {
	tb.Helper()
	k := edKey(tb, name)
	s, err := ssh.NewSignerFromSigner(k.signer)
	if err != nil {
		tb.Fatal(err)
	}
	k.ssh = s
	return k
}

// Sign implements SigningKey.
func (k testKey) Sign(message []byte) ([]byte, error) { return k.signAs(message, Namespace) }

func (k testKey) signAs(message []byte, namespace string) ([]byte, error) {
	if k.ssh != nil {
		sig, err := sshsig.Sign(bytes.NewReader(message), k.ssh, sshsig.HashSHA512, namespace)
		if err != nil {
			return nil, err
		}
		return sshsig.Armor(sig), nil
	}
	if _, ok := k.signer.(ed25519.PrivateKey); ok {
		return k.signer.Sign(rand.Reader, message, crypto.Hash(0))
	}
	sum := sha256.Sum256(message)
	return k.signer.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// Fingerprint implements SigningKey.
func (k testKey) Fingerprint() string {
	pub, err := ssh.NewPublicKey(k.signer.Public())
	if err != nil {
		return err.Error()
	}
	return ssh.FingerprintSHA256(pub)
}

// yaml returns the key's entry in a document.
func (k testKey) yaml() string {
	if k.ssh != nil {
		return fmt.Sprintf("- {name: %s, ssh: %q}\n", k.name, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.ssh.PublicKey()))))
	}
	return fmt.Sprintf("- {name: %s, pem: %q}\n", k.name, k.pem())
}

func (k testKey) pem() string {
	der, err := x509.MarshalPKIXPublicKey(k.signer.Public())
	if err != nil {
		return err.Error()
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// source is a document that text encodes.
type source struct {
	name    string
	version int
	expires string
	keys    []testKey
	roles   string
	rest    string
}

func (s source) text() []byte {
	if s.name == "" {
		s.name = "root"
	}
	if s.expires == "" {
		s.expires = "2027-11-29T00:00:00Z"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nversion: %d\nexpires: %s\nclusters: [\"prod-*\"]\nkeys:\n", s.name, s.version, s.expires)
	for _, k := range s.keys {
		b.WriteString(k.yaml())
	}
	b.WriteString("roles:\n" + s.roles + s.rest)
	return []byte(b.String())
}

func (s source) document(tb testing.TB) *Document {
	tb.Helper()
	d, err := Decode(s.text())
	if err != nil {
		tb.Fatalf("%v in\n%s", err, s.text())
	}
	return d
}

// seal signs a document, which needn't decode.
func seal(tb testing.TB, text []byte, keys ...testKey) []byte {
	tb.Helper()
	var signers []SigningKey
	for _, k := range keys {
		signers = append(signers, k)
	}
	raw, err := SealAs(PayloadType, text, nil, signers...)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// requireRefusal returns err as a refusal.
func requireRefusal(tb testing.TB, err error) *Refusal {
	tb.Helper()
	var r *Refusal
	if !errors.As(err, &r) {
		tb.Fatalf("got error %v, want a refusal", err)
	}
	return r
}
