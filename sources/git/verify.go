// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"crypto/rsa"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/lockstep-dev/lockstep/sources"
)

// Authority is one key that may sign revisions. Exactly one of SSH and OpenPGP
// is set.
type Authority struct {
	// Name of the key in conditions.
	Name string
	// SSH is a public key as in authorized_keys: "ssh-ed25519 AAAA… comment".
	SSH string
	// OpenPGP is an armored public key block.
	OpenPGP string
}

// minRSA is the minimum length of an RSA key, in bits.
const minRSA = 2048

// sshNamespace is the SSHSIG namespace of Git; see ssh-keygen(1).
const sshNamespace = "git"

// authorities are the parsed keys. One valid signature by any of them suffices.
type authorities struct {
	ssh []sshAuthority
	pgp []pgpAuthority
}

type sshAuthority struct {
	name string
	key  ssh.PublicKey
}

type pgpAuthority struct {
	name string
	keys openpgp.EntityList
}

// CheckAuthorities returns an error if the list is empty or a key is invalid.
func CheckAuthorities(list []Authority) error {
	_, err := parseAuthorities(list)
	return err
}

func parseAuthorities(list []Authority) (*authorities, error) {
	if len(list) == 0 {
		return nil, errors.New("no authorities: an empty list would verify nothing")
	}
	var out authorities
	for _, a := range list {
		switch {
		case a.Name == "":
			return nil, errors.New("an authority has no name")
		case (a.SSH == "") == (a.OpenPGP == ""):
			return nil, fmt.Errorf("authority %q must have exactly one of an SSH and an OpenPGP key", a.Name)
		case a.SSH != "":
			key, err := parseSSHKey(a.SSH)
			if err != nil {
				return nil, fmt.Errorf("authority %q: %w", a.Name, err)
			}
			out.ssh = append(out.ssh, sshAuthority{a.Name, key})
		default:
			keys, err := openpgp.ReadArmoredKeyRing(strings.NewReader(a.OpenPGP))
			if err != nil {
				return nil, fmt.Errorf("authority %q: OpenPGP key: %w", a.Name, err)
			}
			if len(keys) != 1 || keys[0].PrivateKey != nil {
				return nil, fmt.Errorf("authority %q: want one public key, found a block with %d (or a private one)", a.Name, len(keys))
			}
			out.pgp = append(out.pgp, pgpAuthority{a.Name, keys})
		}
	}
	return &out, nil
}

func parseSSHKey(line string) (ssh.PublicKey, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, fmt.Errorf("SSH key: %w", err)
	}
	if len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("SSH key: options and further lines aren't supported; set one plain public key")
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return nil, errors.New("SSH key: certificates aren't supported; set the public key")
	}
	if c, ok := key.(ssh.CryptoPublicKey); ok {
		if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < minRSA {
			return nil, fmt.Errorf("SSH key: RSA key of %d bits; want at least %d, or an ed25519 key", r.N.BitLen(), minRSA)
		}
	}
	return key, nil
}

// The headers that identify the signature format.
const (
	armorSSH  = "-----BEGIN SSH SIGNATURE-----"
	armorPGP  = "-----BEGIN PGP SIGNATURE-----"
	armorX509 = "-----BEGIN SIGNED MESSAGE-----"
)

// verify returns the authority that signed the commit. It ignores the identities
// in the commit.
func (a *authorities) verify(c *commit, now time.Time) (*sources.Signer, *Error) {
	if c.signature == nil {
		return nil, refuse(ReasonUnsigned, "the commit isn't signed; sign it with a key of the role git: git commit -S")
	}
	armor := strings.TrimSpace(string(c.signature))
	if n := strings.Count(armor, "-----BEGIN "); n != 1 || !strings.HasPrefix(armor, "-----BEGIN ") {
		return nil, refuse(ReasonInvalidSignature, fmt.Sprintf("the signature header contains %d blocks; want exactly one", n))
	}
	switch {
	case strings.HasPrefix(armor, armorSSH):
		return a.verifySSH(c, []byte(armor))
	case strings.HasPrefix(armor, armorPGP):
		return a.verifyPGP(c, armor, now)
	case strings.HasPrefix(armor, armorX509):
		return nil, refuse(ReasonWrongAuthority, "the commit is signed with X.509 (gitsign, smimesign), which isn't supported; sign it with SSH or OpenPGP")
	}
	return nil, refuse(ReasonInvalidSignature, "the commit's signature has an unknown format; want SSH or OpenPGP")
}

func (a *authorities) verifySSH(c *commit, armor []byte) (*sources.Signer, *Error) {
	sig, err := sshsig.Unarmor(armor)
	if err != nil {
		return nil, wrap(ReasonInvalidSignature, "the commit's SSH signature is unreadable", err)
	}
	found := ssh.FingerprintSHA256(sig.PublicKey)
	for _, auth := range a.ssh {
		if !bytes.Equal(auth.key.Marshal(), sig.PublicKey.Marshal()) {
			continue
		}
		if err := sshsig.Verify(bytes.NewReader(c.payload), sig, auth.key, sig.HashAlgorithm, sshNamespace); err != nil {
			return nil, wrap(ReasonInvalidSignature, fmt.Sprintf("the signature by %s (%s) isn't valid for this commit", auth.name, found), err)
		}
		return &sources.Signer{Name: auth.name, Fingerprint: found, Format: "ssh"}, nil
	}
	return nil, refuse(ReasonWrongAuthority, fmt.Sprintf("the commit is signed by SSH key %s, which isn't an authority; want one of: %s", found, a.names()))
}

func (a *authorities) verifyPGP(c *commit, armor string, now time.Time) (*sources.Signer, *Error) {
	// Keys expire by the local clock, not by the time in the commit.
	config := &packet.Config{Time: func() time.Time { return now }}
	for _, auth := range a.pgp {
		signer, err := openpgp.CheckArmoredDetachedSignature(auth.keys, bytes.NewReader(c.payload), strings.NewReader(armor), config)
		switch {
		case err == nil:
			fingerprint := strings.ToUpper(hex.EncodeToString(signer.PrimaryKey.Fingerprint))
			return &sources.Signer{Name: auth.name, Fingerprint: fingerprint, Format: "openpgp"}, nil
		case errors.Is(err, pgperrors.ErrUnknownIssuer):
			continue
		default:
			return nil, wrap(ReasonInvalidSignature, fmt.Sprintf("the OpenPGP signature by %s isn't valid for this commit", auth.name), err)
		}
	}
	return nil, refuse(ReasonWrongAuthority, "the commit's OpenPGP signature is by no authority; want one of: "+a.names())
}

// names returns the authorities for messages.
func (a *authorities) names() string {
	var out []string
	for _, s := range a.ssh {
		out = append(out, fmt.Sprintf("%s (%s)", s.name, ssh.FingerprintSHA256(s.key)))
	}
	for _, p := range a.pgp {
		out = append(out, fmt.Sprintf("%s (%s)", p.name, strings.ToUpper(hex.EncodeToString(p.keys[0].PrimaryKey.Fingerprint))))
	}
	if len(out) > 8 {
		out = append(out[:8], fmt.Sprintf("and %d more", len(out)-8))
	}
	return strings.Join(out, ", ")
}
