// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package mtls identifies the peers of connections between the reconciler and hosts,
// and reloads this end's certificate.
//
// There are two certificate authorities. Hosts have certificates of the hosts
// authority, valid for serverAuth only, with the URI
// spiffe://<cluster-uid>/host/<host-id>. Callers (the reconciler and users) have
// certificates of the callers authority, valid for clientAuth only, with the URI
// spiffe://<cluster-uid>/caller/<name> and exactly one role as a second URI, for
// example lockstep:reconciler. Each end trusts only the other's authority, so that a
// stolen host key can't call an agent and a caller can't impersonate a host. Subject
// fields are ignored.
//
// The package doesn't authorize roles (package agent does) and doesn't dial or
// listen.
package mtls

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Role is the role of a caller, from its certificate. The role table of the agent
// lists the methods of each role.
type Role string

// The roles, most powerful first. A reconciler is not a restricted operator: it may
// stage and activate but not reboot or shut down.
const (
	RoleAdmin      Role = "lockstep:admin"
	RoleOperator   Role = "lockstep:operator"
	RoleReconciler Role = "lockstep:reconciler"
	RoleReader     Role = "lockstep:reader"
)

const (
	roleScheme   = "lockstep"
	spiffeScheme = "spiffe"
)

// Roles returns all roles, most powerful first.
func Roles() []Role {
	return []Role{RoleAdmin, RoleOperator, RoleReconciler, RoleReader}
}

// ParseRole returns the role with the given name; the prefix "lockstep:" is
// optional.
func ParseRole(name string) (Role, error) {
	role := Role(name)
	if !strings.Contains(name, ":") {
		role = Role(roleScheme + ":" + name)
	}
	if !slices.Contains(Roles(), role) {
		return "", fmt.Errorf("unknown role %q, want one of admin, operator, reconciler, reader", name)
	}
	return role, nil
}

// Caller is the caller of an agent, from its certificate.
type Caller struct {
	// ClusterUID is the UID of the caller's cluster.
	ClusterUID string
	// Name is the caller's name, for example "reconciler".
	Name string
	// Role is the caller's role.
	Role Role
}

// String returns the caller's SPIFFE identity, which journals and operations
// record.
func (c Caller) String() string {
	return spiffeID(c.ClusterUID, "caller", c.Name).String()
}

// Host is the host that serves a connection, from its certificate.
type Host struct {
	// ClusterUID is the UID of the host's cluster.
	ClusterUID string
	// HostID is the identity generated at installation.
	HostID string
}

// String returns the host's SPIFFE identity.
func (h Host) String() string {
	return spiffeID(h.ClusterUID, "host", h.HostID).String()
}

// idPattern is the format of cluster UIDs, host ids and caller names: a lower-case
// DNS label, valid as a server name, a file name and a part of a URI without
// escaping.
var idPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckID returns an error unless id is a lower-case DNS label of at most 63 bytes.
// what describes the id in the error.
func CheckID(what, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s %.80q is not a lower-case DNS label of 1 to 63 letters, digits and hyphens", what, id)
	}
	return nil
}

func spiffeID(cluster, kind, name string) *url.URL {
	return &url.URL{Scheme: spiffeScheme, Host: cluster, Path: "/" + kind + "/" + name}
}

// IdentityError means that a certificate, even one with a valid chain, gives its
// holder no identity.
type IdentityError struct {
	// Serial is the certificate's serial number in decimal.
	Serial string
	// Why states the actual and the expected value.
	Why string
}

// Error implements error.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("certificate %s: %s", e.Serial, e.Why)
}

// Reason is the condition reason.
func (e *IdentityError) Reason() string { return "IdentityMismatch" }

func refuse(cert *x509.Certificate, format string, args ...any) error {
	serial := "without a serial number"
	if cert.SerialNumber != nil {
		serial = cert.SerialNumber.String()
	}
	return &IdentityError{Serial: serial, Why: fmt.Sprintf(format, args...)}
}

// CallerOf returns the caller of a leaf certificate, whose chain must be verified. It
// checks that the certificate is a leaf, is valid for clientAuth only, and has one
// SPIFFE identity of a caller and exactly one role.
func CallerOf(leaf *x509.Certificate) (Caller, error) {
	cluster, name, err := identityOf(leaf, x509.ExtKeyUsageClientAuth, "caller")
	if err != nil {
		return Caller{}, err
	}
	var roles []Role
	for _, uri := range leaf.URIs {
		if uri.Scheme != roleScheme {
			continue
		}
		role, err := ParseRole(uri.String())
		if err != nil {
			return Caller{}, refuse(leaf, "%v", err)
		}
		roles = append(roles, role)
	}
	if len(roles) != 1 {
		return Caller{}, refuse(leaf, "caller has %d roles %v, want exactly one", len(roles), roles)
	}
	return Caller{ClusterUID: cluster, Name: name, Role: roles[0]}, nil
}

// HostOf returns the host of a leaf certificate, whose chain must be verified. It
// checks that the certificate is a leaf, is valid for serverAuth only, and has one
// SPIFFE identity of a host and no role.
func HostOf(leaf *x509.Certificate) (Host, error) {
	cluster, id, err := identityOf(leaf, x509.ExtKeyUsageServerAuth, "host")
	if err != nil {
		return Host{}, err
	}
	for _, uri := range leaf.URIs {
		if uri.Scheme == roleScheme {
			return Host{}, refuse(leaf, "host has role %s, want none", uri.Redacted())
		}
	}
	return Host{ClusterUID: cluster, HostID: id}, nil
}

// identityOf returns the cluster and the name of the only SPIFFE identity of a leaf,
// which must be of that kind.
func identityOf(leaf *x509.Certificate, use x509.ExtKeyUsage, kind string) (cluster, name string, err error) {
	if leaf.IsCA {
		return "", "", refuse(leaf, "is a certificate authority, want a leaf")
	}
	if len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != use || len(leaf.UnknownExtKeyUsage) != 0 {
		return "", "", refuse(leaf, "extended key usage is %v, want only %v for a %s", leaf.ExtKeyUsage, use, kind)
	}
	found := 0
	for _, uri := range leaf.URIs {
		switch uri.Scheme {
		case roleScheme:
		case spiffeScheme:
			found++
			cluster, name, err = parseSPIFFE(uri, kind)
			if err != nil {
				return "", "", refuse(leaf, "%v", err)
			}
		default:
			return "", "", refuse(leaf, "unexpected URI scheme %.32q, want spiffe and lockstep only", uri.Scheme)
		}
	}
	if found != 1 {
		return "", "", refuse(leaf, "has %d SPIFFE identities, want exactly one spiffe://<cluster-uid>/%s/<name>", found, kind)
	}
	return cluster, name, nil
}

// parseSPIFFE parses an identity; only the canonical form is accepted.
func parseSPIFFE(uri *url.URL, kind string) (cluster, name string, err error) {
	rest, ok := strings.CutPrefix(uri.Path, "/"+kind+"/")
	if !ok {
		return "", "", fmt.Errorf("SPIFFE identity %.200q is not a %s", uri.String(), kind)
	}
	if err := CheckID("cluster UID", uri.Host); err != nil {
		return "", "", err
	}
	if err := CheckID(kind+" name", rest); err != nil {
		return "", "", err
	}
	if want := spiffeID(uri.Host, kind, rest).String(); uri.String() != want {
		return "", "", fmt.Errorf("SPIFFE identity %.200q is not in the canonical form %s", uri.String(), want)
	}
	return uri.Host, rest, nil
}
