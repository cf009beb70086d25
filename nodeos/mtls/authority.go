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

// How long certificates live. A compromised caller does harm for at most its
// certificate's life, so that the most powerful one lives shortest.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	HostLife      = 90 * 24 * time.Hour
	CallerLife    = 30 * 24 * time.Hour
	AdminLife     = 8 * time.Hour

	// backdate makes room for clocks that lag a little.
	backdate = 5 * time.Minute
)

// Authority is one of the two certificate authorities, with its key. It stays
// out of the cluster: whoever holds it can be any host, or any caller.
type Authority struct {
	// Cert is the authority's own certificate.
	Cert *x509.Certificate
	// Key signs with it.
	Key crypto.Signer
	// use is the one extended key usage that this authority may give.
	use x509.ExtKeyUsage
	// cluster is the UID of the cluster that it serves.
	cluster string
}

// Leaf is a certificate that was issued.
type Leaf struct {
	// DER is the certificate.
	DER []byte
	// NotAfter is when it ends.
	NotAfter time.Time
}

// NewHostsAuthority makes the authority of a cluster's hosts.
func NewHostsAuthority(clusterUID string, now time.Time) (*Authority, error) {
	return newAuthority("hosts", clusterUID, x509.ExtKeyUsageServerAuth, now)
}

// NewCallersAuthority makes the authority of those who call a cluster's hosts.
func NewCallersAuthority(clusterUID string, now time.Time) (*Authority, error) {
	return newAuthority("callers", clusterUID, x509.ExtKeyUsageClientAuth, now)
}

// NewKey makes a private key for a certificate or an authority.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a P-256 key: %w", err)
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
		MaxPathLenZero:        true, // no intermediate may be made
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		// Usages nest: a leaf under this authority can have no other.
		ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the %s authority of %s: %w", kind, clusterUID, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the %s authority back: %w", kind, err)
	}
	return &Authority{Cert: cert, Key: key, use: use, cluster: clusterUID}, nil
}

// NewAuthority returns the authority with a stored certificate and key.
func NewAuthority(cert *x509.Certificate, key crypto.Signer) (*Authority, error) {
	if !cert.IsCA || len(cert.ExtKeyUsage) != 1 || len(cert.URIs) != 1 {
		return nil, fmt.Errorf("certificate %s is no authority of lockstep", cert.SerialNumber)
	}
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("the key does not belong to authority %s", cert.Subject.CommonName)
	}
	if err := CheckID("cluster UID", cert.URIs[0].Host); err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, use: cert.ExtKeyUsage[0], cluster: cert.URIs[0].Host}, nil
}

// ClusterUID returns the UID of the cluster that the authority serves.
func (a *Authority) ClusterUID() string { return a.cluster }

// IssueHost certifies the key of a host for HostLife. The addresses (IP
// addresses or DNS names) are for people's tools: peers check the identity.
func (a *Authority) IssueHost(hostID string, public crypto.PublicKey, addresses []string, now time.Time) (Leaf, error) {
	if err := CheckID("host id", hostID); err != nil {
		return Leaf{}, err
	}
	if a.use != x509.ExtKeyUsageServerAuth {
		return Leaf{}, fmt.Errorf("host %s needs the hosts authority, this is %s", hostID, a.Cert.Subject.CommonName)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: hostID},
		URIs:    []*url.URL{spiffeID(a.cluster, "host", hostID)},
		// The id is also a DNS name, so that standard verification by server
		// name holds on every dial and is never switched off.
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

// IssueCaller certifies the key of a caller with one role, for AdminLife or
// CallerLife by the role.
func (a *Authority) IssueCaller(name string, role Role, public crypto.PublicKey, now time.Time) (Leaf, error) {
	if err := CheckID("caller name", name); err != nil {
		return Leaf{}, err
	}
	if _, err := ParseRole(string(role)); err != nil {
		return Leaf{}, err
	}
	if a.use != x509.ExtKeyUsageClientAuth {
		return Leaf{}, fmt.Errorf("caller %s needs the callers authority, this is %s", name, a.Cert.Subject.CommonName)
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
		return Leaf{}, fmt.Errorf("authority %s ends at %s, before the certificate would: make new authorities with lockstep pki init",
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
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
