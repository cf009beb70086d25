// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/hiddeco/sshsig"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"golang.org/x/crypto/ssh"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// The PEM types of keys: those of cosign, the standard ones, and OpenSSH's.
const (
	pemSigstore = "ENCRYPTED SIGSTORE PRIVATE KEY"
	pemCosign   = "ENCRYPTED COSIGN PRIVATE KEY"
	pemPKCS8    = "PRIVATE KEY"
	pemEC       = "EC PRIVATE KEY"
	pemRSA      = "RSA PRIVATE KEY"
	pemOpenSSH  = "OPENSSH PRIVATE KEY"
	pemPublic   = "PUBLIC KEY"
)

// MaxKeyFile is the maximum size of a key file, in bytes.
const MaxKeyFile = 64 << 10

// Key is a private key. It implements trust.SigningKey: OpenSSH keys create SSHSIG
// signatures, all others raw signatures.
type Key struct {
	signer      crypto.Signer
	ssh         ssh.Signer // only for OpenSSH keys
	fingerprint string
}

// Password returns the password of a key. It is called only for encrypted keys.
type Password func() ([]byte, error)

// GenerateKey generates an ECDSA P-256 key, as cosign does.
func GenerateKey() (*Key, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return newKey(k)
}

// ParseKey parses a private key: cosign's encrypted format, PKCS #8, SEC 1,
// PKCS #1 or OpenSSH. Errors don't contain the key.
func ParseKey(b []byte, password Password) (*Key, error) {
	block, rest := pem.Decode(b)
	if block == nil || len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("read private key: must be a single PEM block")
	}
	var parsed any
	var err error
	switch block.Type {
	case pemSigstore, pemCosign:
		parsed, err = decrypt(block.Bytes, password)
	case pemPKCS8:
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case pemEC:
		parsed, err = x509.ParseECPrivateKey(block.Bytes)
	case pemRSA:
		parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case pemOpenSSH:
		return parseOpenSSH(b, password)
	default:
		return nil, fmt.Errorf("read private key: unsupported PEM block %q", block.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read private key: %T can't sign", parsed)
	}
	return newKey(signer)
}

// decrypt decrypts cosign's format: PKCS #8 in scrypt and secretbox.
func decrypt(b []byte, password Password) (any, error) {
	pass, err := readPassword(password)
	if err != nil {
		return nil, err
	}
	der, err := encrypted.Decrypt(b, pass)
	if err != nil {
		return nil, errors.New("wrong password or corrupt key")
	}
	return x509.ParsePKCS8PrivateKey(der)
}

func parseOpenSSH(b []byte, password Password) (*Key, error) {
	raw, err := ssh.ParseRawPrivateKey(b)
	if _, missing := errors.AsType[*ssh.PassphraseMissingError](err); missing {
		pass, perr := readPassword(password)
		if perr != nil {
			return nil, perr
		}
		raw, err = ssh.ParseRawPrivateKeyWithPassphrase(b, pass)
	}
	if err != nil {
		return nil, fmt.Errorf("read OpenSSH key: %w", err)
	}
	if p, ok := raw.(*ed25519.PrivateKey); ok {
		raw = *p
	}
	signer, ok := raw.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("read OpenSSH key: %T can't sign", raw)
	}
	k, err := newKey(signer)
	if err != nil {
		return nil, err
	}
	if k.ssh, err = ssh.NewSignerFromKey(signer); err != nil {
		return nil, fmt.Errorf("read OpenSSH key: %w", err)
	}
	return k, nil
}

// readPassword calls password, or fails if it is nil.
func readPassword(password Password) ([]byte, error) {
	if password == nil {
		return nil, errors.New("key is encrypted, but no password is available")
	}
	return password()
}

func newKey(s crypto.Signer) (*Key, error) {
	pub, err := ssh.NewPublicKey(s.Public())
	if err != nil {
		return nil, fmt.Errorf("compute key fingerprint: %w", err)
	}
	return &Key{signer: s, fingerprint: ssh.FingerprintSHA256(pub)}, nil
}

// Fingerprint returns the key's fingerprint, as trust.Key.Fingerprint does.
func (k *Key) Fingerprint() string { return k.fingerprint }

// Sign signs a message for a trust document. It implements trust.SigningKey.
func (k *Key) Sign(message []byte) ([]byte, error) {
	if k.ssh == nil {
		return k.signRaw(message)
	}
	sig, err := sshsig.Sign(bytes.NewReader(message), k.ssh, sshsig.HashSHA512, trust.Namespace)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return sig.Marshal(), nil
}

// signRaw signs as cosign does: SHA-256 for ECDSA and RSA, the message itself
// for Ed25519.
func (k *Key) signRaw(message []byte) ([]byte, error) {
	digest, hash := message, crypto.Hash(0)
	switch k.signer.Public().(type) {
	case *ecdsa.PublicKey, *rsa.PublicKey:
		sum := sha256.Sum256(message)
		digest, hash = sum[:], crypto.SHA256
	}
	sig, err := k.signer.Sign(rand.Reader, digest, hash)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return sig, nil
}

// PublicPEM returns the public key as a PKIX block, the format of trust documents.
func (k *Key) PublicPEM() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.signer.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der}), nil
}

// PublicSSH returns the public key in authorized_keys format, without a newline.
func (k *Key) PublicSSH() (string, error) {
	pub, err := ssh.NewPublicKey(k.signer.Public())
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	return string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(pub))), nil
}

// PrivatePEM returns the private key in cosign's encrypted format, or as PKCS #8
// if password is empty.
func (k *Key) PrivatePEM(password []byte) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.signer)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	if len(password) == 0 {
		return pem.EncodeToMemory(&pem.Block{Type: pemPKCS8, Bytes: der}), nil
	}
	box, err := encrypted.Encrypt(der, password)
	if err != nil {
		return nil, fmt.Errorf("encrypt private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemSigstore, Bytes: box}), nil
}

// GenerateSSHKey generates an Ed25519 OpenSSH key, for signing commits, tags and
// trust documents.
func GenerateSSHKey() (*Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	k, err := newKey(private)
	if err != nil {
		return nil, err
	}
	if k.ssh, err = ssh.NewSignerFromKey(private); err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	return k, nil
}

// IsSSH reports whether the key is an OpenSSH key.
func (k *Key) IsSSH() bool { return k.ssh != nil }

// PrivateSSH returns the private key in OpenSSH format, encrypted unless password
// is empty.
func (k *Key) PrivateSSH(comment string, password []byte) ([]byte, error) {
	var block *pem.Block
	var err error
	if len(password) == 0 {
		block, err = ssh.MarshalPrivateKey(k.signer, comment)
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(k.signer, comment, password)
	}
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}
