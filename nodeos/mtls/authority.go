// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package mtls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

// The lifetimes of certificates. A stolen certificate is valid until it expires, so
// the most powerful role has the shortest lifetime.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	HostLife      = 90 * 24 * time.Hour
	CallerLife    = 30 * 24 * time.Hour
	AdminLife     = 8 * time.Hour

	// backdate tolerates clocks that are slightly behind.
	backdate = 5 * time.Minute
)

// Authority is one of the two certificate authorities, with its key. It's never
// stored in the cluster: its holder can impersonate any host, or any caller.
type Authority struct {
	// Cert is the authority's own certificate.
	Cert *x509.Certificate
	// Key is the authority's private key.
	Key crypto.Signer
	// use is the only extended key usage of its leaves.
	use x509.ExtKeyUsage
	// cluster is the UID of its cluster.
	cluster string
}

// Leaf is an issued certificate.
type Leaf struct {
	// DER is the certificate.
	DER []byte
	// NotAfter is the end of its validity.
	NotAfter time.Time
}

// NewHostsAuthority creates the authority of a cluster's hosts.
func NewHostsAuthority(clusterUID string, now time.Time) (*Authority, error) {
	return newAuthority("hosts", clusterUID, x509.ExtKeyUsageServerAuth, now)
}

// NewCallersAuthority creates the authority of a cluster's callers.
func NewCallersAuthority(clusterUID string, now time.Time) (*Authority, error) {
	return newAuthority("callers", clusterUID, x509.ExtKeyUsageClientAuth, now)
}

// NewKey generates a private key for a certificate or an authority.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a P-256 key: %w", err)
	}
	return key, nil
}

func newAuthority(kind, clusterUID string, use x509.ExtKeyUsage, now time.Time) (*Authority, error) {
	if err := CheckID("cluster UID", clusterUID); err != nil {
		return nil, err
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "lockstep " + kind + " " + clusterUID},
		URIs:                  []*url.URL{spiffeID(clusterUID, "authority", kind)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(AuthorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // no intermediates
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		// Extended key usages nest: leaves can have no other usage.
		ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create the %s authority of %s: %w", kind, clusterUID, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the %s authority: %w", kind, err)
	}
	return &Authority{Cert: cert, Key: key, use: use, cluster: clusterUID}, nil
}

// NewAuthority returns the authority of a stored certificate and key.
func NewAuthority(cert *x509.Certificate, key crypto.Signer) (*Authority, error) {
	if !cert.IsCA || len(cert.ExtKeyUsage) != 1 || len(cert.URIs) != 1 {
		return nil, fmt.Errorf("certificate %s is not a Lockstep authority", cert.SerialNumber)
	}
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("private key does not match authority %s", cert.Subject.CommonName)
	}
	if err := CheckID("cluster UID", cert.URIs[0].Host); err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, use: cert.ExtKeyUsage[0], cluster: cert.URIs[0].Host}, nil
}

// ClusterUID returns the UID of the authority's cluster.
func (a *Authority) ClusterUID() string { return a.cluster }

// IssueHost issues a certificate for a host's key, valid for HostLife. The addresses
// (IP addresses or DNS names) are for other tools; peers check the identity.
func (a *Authority) IssueHost(hostID string, public crypto.PublicKey, addresses []string, now time.Time) (Leaf, error) {
	if err := CheckID("host id", hostID); err != nil {
		return Leaf{}, err
	}
	if a.use != x509.ExtKeyUsageServerAuth {
		return Leaf{}, fmt.Errorf("issue a certificate for host %s: want the hosts authority, got %s", hostID, a.Cert.Subject.CommonName)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: hostID},
		URIs:    []*url.URL{spiffeID(a.cluster, "host", hostID)},
		// The id is also a DNS name, so that standard server name verification
		// always applies.
		DNSNames: []string{hostID},
	}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if address == "" || len(address) > 253 {
			return Leaf{}, fmt.Errorf("host %s: address %.80q is neither an IP address nor a DNS name", hostID, address)
		}
		template.DNSNames = append(template.DNSNames, address)
	}
	return a.issue(template, public, now, HostLife)
}

// IssueCaller issues a certificate for a caller's key with one role, valid for
// AdminLife or CallerLife.
func (a *Authority) IssueCaller(name string, role Role, public crypto.PublicKey, now time.Time) (Leaf, error) {
	if err := CheckID("caller name", name); err != nil {
		return Leaf{}, err
	}
	if _, err := ParseRole(string(role)); err != nil {
		return Leaf{}, err
	}
	if a.use != x509.ExtKeyUsageClientAuth {
		return Leaf{}, fmt.Errorf("issue a certificate for caller %s: want the callers authority, got %s", name, a.Cert.Subject.CommonName)
	}
	short := strings.TrimPrefix(string(role), roleScheme+":")
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name},
		URIs:    []*url.URL{spiffeID(a.cluster, "caller", name), {Scheme: roleScheme, Opaque: short}},
	}
	life := CallerLife
	if role == RoleAdmin {
		life = AdminLife
	}
	return a.issue(template, public, now, life)
}

func (a *Authority) issue(template *x509.Certificate, public crypto.PublicKey, now time.Time, life time.Duration) (Leaf, error) {
	serial, err := newSerial()
	if err != nil {
		return Leaf{}, err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-backdate)
	template.NotAfter = now.Add(life)
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{a.use}
	if template.NotAfter.After(a.Cert.NotAfter) {
		return Leaf{}, fmt.Errorf("authority %s expires at %s, before the certificate would: create new authorities with lockstep pki init",
			a.Cert.Subject.CommonName, a.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, public, a.Key)
	if err != nil {
		return Leaf{}, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return Leaf{DER: der, NotAfter: template.NotAfter}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
