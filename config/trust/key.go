// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Namespace is the SSHSIG namespace of signatures over trust documents, so that
// SSH signatures for Git or for files don't count.
const Namespace = "lockstep-trust"

// minRSABits is the minimum length of an RSA key.
const minRSABits = 2048

// The formats of key material.
const (
	MaterialPEM = "pem"
	MaterialSSH = "ssh"
	MaterialPGP = "pgp"
)

// Key is a named public key: exactly one of PEM (PKIX), SSH (a line as in
// authorized_keys) or PGP (armoured, for the git role only).
type Key struct {
	Name string `yaml:"name"`
	PEM  string `yaml:"pem,omitempty"`
	SSH  string `yaml:"ssh,omitempty"`
	PGP  string `yaml:"pgp,omitempty"`
	// NotBefore and NotAfter bound the proven time of a signature or, without
	// one, the time at which it was first seen. Zero: no bound.
	NotBefore time.Time `yaml:"notBefore,omitempty"`
	NotAfter  time.Time `yaml:"notAfter,omitempty"`

	fingerprint string
	algorithm   string
}

// Fingerprint identifies the key material: "SHA256:…" as ssh-keygen prints it for
// PEM and SSH keys, the same in both forms; "PGP-SHA256:…" over the armoured block
// for OpenPGP.
func (k Key) Fingerprint() string { return k.fingerprint }

// Algorithm returns the algorithm, such as "ecdsa-p256" or "ed25519".
func (k Key) Algorithm() string { return k.algorithm }

// Short returns name, algorithm and end of the fingerprint, for messages.
func (k Key) Short() string {
	return fmt.Sprintf("%s (%s …%s)", k.Name, k.algorithm, tail(k.fingerprint))
}

// Covers reports whether t is in the key's validity period.
func (k Key) Covers(t time.Time) bool {
	return (k.NotBefore.IsZero() || !t.Before(k.NotBefore)) && (k.NotAfter.IsZero() || !t.After(k.NotAfter))
}

// tail returns the last characters of a fingerprint.
func tail(fingerprint string) string {
	const shown = 4
	return fingerprint[max(0, len(fingerprint)-shown):]
}

// publicKey is parsed key material.
type publicKey struct {
	material    string
	algorithm   string
	fingerprint string
	crypto      crypto.PublicKey // of PEM keys
	ssh         ssh.PublicKey    // of SSH keys
}

// parse returns the key material, which must be of exactly one format.
func (k Key) parse() (publicKey, error) {
	n := 0
	for _, m := range []string{k.PEM, k.SSH, k.PGP} {
		if m != "" {
			n++
		}
	}
	if n != 1 {
		return publicKey{}, fmt.Errorf("key %q has %d of pem, ssh and pgp, must have exactly one", k.Name, n)
	}
	var p publicKey
	var err error
	switch {
	case k.PEM != "":
		p, err = parsePEM(k.PEM)
	case k.SSH != "":
		p, err = parseSSH(k.SSH)
	default:
		p, err = parsePGP(k.PGP)
	}
	if err != nil {
		return publicKey{}, fmt.Errorf("key %q: %w", k.Name, err)
	}
	return p, nil
}

// parsePEM reads exactly one PKIX public key.
func parsePEM(s string) (publicKey, error) {
	block, rest := pem.Decode([]byte(s))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) != 0 {
		return publicKey{}, errors.New("pem must be exactly one block of type PUBLIC KEY")
	}
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return publicKey{}, fmt.Errorf("parse public key: %w", err)
	}
	p, err := describe(pub)
	if err != nil {
		return publicKey{}, err
	}
	p.material, p.crypto = MaterialPEM, pub
	return p, nil
}

// parseSSH reads one line as in authorized_keys, without options.
func parseSSH(s string) (publicKey, error) {
	pub, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(s))
	if err != nil {
		return publicKey{}, fmt.Errorf("parse ssh key: %w", err)
	}
	if len(options) != 0 || len(bytes.TrimSpace(rest)) != 0 {
		return publicKey{}, errors.New("ssh must be exactly one public key without options")
	}
	p := publicKey{algorithm: strings.TrimPrefix(pub.Type(), "ssh-"), fingerprint: ssh.FingerprintSHA256(pub)}
	if c, ok := pub.(ssh.CryptoPublicKey); ok {
		if p, err = describe(c.CryptoPublicKey()); err != nil {
			return publicKey{}, err
		}
	}
	p.material, p.ssh = MaterialSSH, pub
	return p, nil
}

// parsePGP checks only the armour; sources/git parses the content.
func parsePGP(s string) (publicKey, error) {
	s = strings.TrimSpace(s)
	const head, foot = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
	if !strings.HasPrefix(s, head) || !strings.HasSuffix(s, foot) || strings.Count(s, "-----BEGIN ") != 1 {
		return publicKey{}, errors.New("pgp must be exactly one armoured public key block")
	}
	sum := sha256.Sum256([]byte(s))
	return publicKey{
		material:    MaterialPGP,
		algorithm:   "openpgp",
		fingerprint: "PGP-SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:]),
	}, nil
}

// describe returns algorithm and fingerprint of a key; weak and unsupported keys
// are errors. The fingerprint is that of the SSH form, so that one key in two
// forms counts once.
func describe(pub crypto.PublicKey) (publicKey, error) {
	var p publicKey
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		p.algorithm = "ecdsa-" + strings.ToLower(strings.ReplaceAll(k.Curve.Params().Name, "-", ""))
	case ed25519.PublicKey:
		p.algorithm = "ed25519"
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return publicKey{}, fmt.Errorf("rsa key has %d bits, must have at least %d", k.N.BitLen(), minRSABits)
		}
		p.algorithm = fmt.Sprintf("rsa-%d", k.N.BitLen())
	default:
		return publicKey{}, fmt.Errorf("keys of type %T aren't supported", pub)
	}
	s, err := ssh.NewPublicKey(pub)
	if err != nil {
		return publicKey{}, fmt.Errorf("fingerprint of %s key: %w", p.algorithm, err)
	}
	p.fingerprint = ssh.FingerprintSHA256(s)
	return p, nil
}

// verify reports whether sig is this key's signature over message.
func (p publicKey) verify(message, sig []byte) bool {
	if p.ssh != nil {
		return p.verifySSH(message, sig)
	}
	sum := sha256.Sum256(message)
	switch k := p.crypto.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(k, sum[:], sig)
	case ed25519.PublicKey:
		return ed25519.Verify(k, message, sig)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], sig) == nil
	default:
		return false
	}
}

// verifySSH checks an SSHSIG blob, armoured or not, in Namespace.
func (p publicKey) verifySSH(message, raw []byte) bool {
	sig, err := sshsig.Unarmor(raw)
	if err != nil {
		if sig, err = sshsig.ParseSignature(raw); err != nil {
			return false
		}
	}
	return sshsig.Verify(bytes.NewReader(message), sig, p.ssh, sig.HashAlgorithm, Namespace) == nil
}

// PublicKey returns the key as a type of Go's crypto packages, and false for SSH
// and OpenPGP keys.
func (d *Document) PublicKey(name string) (crypto.PublicKey, bool) {
	p := d.keys[name]
	return p.crypto, p.crypto != nil
}
