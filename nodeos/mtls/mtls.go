// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package mtls reports who is at the other end of a connection between the
// reconciler and a host, and keeps this end's certificate fresh.
//
// There are two certificate authorities. Hosts carry certificates of the hosts
// authority, good for serverAuth only, with the URI name
// spiffe://<cluster-uid>/host/<host-id>. Callers (the reconciler and people)
// carry certificates of the callers authority, good for clientAuth only, with
// the URI name spiffe://<cluster-uid>/caller/<name> and exactly one role as a
// second URI, for example lockstep:reconciler. Each end trusts the other's
// authority only, so that a stolen host key opens no agent and a caller can't
// play a host. Nothing is read from Subject fields: they name nothing here.
//
// The package does not decide what a role may do (package agent has the table)
// and does not dial or listen.
package mtls

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Role is what a caller's certificate allows its holder to be. The agent's
// table of methods reports which methods each role may call.
type Role string

// The roles, from the most to the least powerful. A reconciler is no lesser
// operator: it may stage and activate but never reset or shut down.
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

// Roles returns all roles, the most powerful first.
func Roles() []Role {
	return []Role{RoleAdmin, RoleOperator, RoleReconciler, RoleReader}
}

// ParseRole returns the role with the given name; the prefix "lockstep:" may
// be left out.
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

// Caller is who calls an agent, as its certificate says.
type Caller struct {
	// ClusterUID names the cluster that the caller belongs to.
	ClusterUID string
	// Name is the caller's own name, for example "reconciler".
	Name string
	// Role is the caller's one role.
	Role Role
}

// String returns the caller's SPIFFE identity; journals and operations record
// a caller by it.
func (c Caller) String() string {
	return spiffeID(c.ClusterUID, "caller", c.Name).String()
}

// Host is whose machine answers, as its certificate says.
type Host struct {
	// ClusterUID names the cluster that the host belongs to.
	ClusterUID string
	// HostID is the identity that was minted at installation.
	HostID string
}

// String returns the host's SPIFFE identity.
func (h Host) String() string {
	return spiffeID(h.ClusterUID, "host", h.HostID).String()
}

// idPattern is the form of cluster UIDs, host ids and caller names: a DNS
// label in lower case, so that an id is also a server name, a file name and a
// part of a URI without any escaping.
var idPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckID returns an error unless id is a lower-case DNS label of at most 63
// bytes. What says what the id is for and stands in the error.
func CheckID(what, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s %.80q is not a lower-case DNS label of 1 to 63 letters, digits and hyphens", what, id)
	}
	return nil
}

func spiffeID(cluster, kind, name string) *url.URL {
	return &url.URL{Scheme: spiffeScheme, Host: cluster, Path: "/" + kind + "/" + name}
}

// IdentityError says why a certificate, though its chain may be good, gives
// its holder no identity here.
type IdentityError struct {
	// Serial is the certificate's serial number in decimal.
	Serial string
	// Why says what was found and what was wanted.
	Why string
}

// Error implements error.
func (e *IdentityError) Error() string {
	return fmt.Sprintf("certificate %s: %s", e.Serial, e.Why)
}

// Reason implements the condition reason of this error.
func (e *IdentityError) Reason() string { return "IdentityMismatch" }

func refuse(cert *x509.Certificate, format string, args ...any) error {
	serial := "without a serial number"
	if cert.SerialNumber != nil {
		serial = cert.SerialNumber.String()
	}
	return &IdentityError{Serial: serial, Why: fmt.Sprintf(format, args...)}
}

// CallerOf returns the caller that a leaf certificate names. The chain must
// have been verified; CallerOf checks what chains don't say: a leaf, clientAuth
// and nothing else, one SPIFFE identity of a caller, and exactly one role.
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
		return Caller{}, refuse(leaf, "a caller has exactly one role, this one has %d %v", len(roles), roles)
	}
	return Caller{ClusterUID: cluster, Name: name, Role: roles[0]}, nil
}

// HostOf returns the host that a leaf certificate names. The chain must have
// been verified; HostOf checks what chains don't say: a leaf, serverAuth and
// nothing else, one SPIFFE identity of a host, and no role.
func HostOf(leaf *x509.Certificate) (Host, error) {
	cluster, id, err := identityOf(leaf, x509.ExtKeyUsageServerAuth, "host")
	if err != nil {
		return Host{}, err
	}
	for _, uri := range leaf.URIs {
		if uri.Scheme == roleScheme {
			return Host{}, refuse(leaf, "a host has no role, this one has %s", uri.Redacted())
		}
	}
	return Host{ClusterUID: cluster, HostID: id}, nil
}

// identityOf returns the cluster and the name of the one SPIFFE identity of a
// kind that a leaf carries.
func identityOf(leaf *x509.Certificate, use x509.ExtKeyUsage, kind string) (cluster, name string, err error) {
	if leaf.IsCA {
		return "", "", refuse(leaf, "it is an authority's own, want a leaf")
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
		return "", "", refuse(leaf, "it has %d SPIFFE identities, want exactly one spiffe://<cluster-uid>/%s/<name>", found, kind)
	}
	return cluster, name, nil
}

// parseSPIFFE takes an identity apart; only the canonical spelling passes.
func parseSPIFFE(uri *url.URL, kind string) (cluster, name string, err error) {
	rest, ok := strings.CutPrefix(uri.Path, "/"+kind+"/")
	if !ok {
		return "", "", fmt.Errorf("SPIFFE identity %.200q is not of a %s", uri.String(), kind)
	}
	if err := CheckID("cluster UID", uri.Host); err != nil {
		return "", "", err
	}
	if err := CheckID(kind+" name", rest); err != nil {
		return "", "", err
	}
	if want := spiffeID(uri.Host, kind, rest).String(); uri.String() != want {
		return "", "", fmt.Errorf("SPIFFE identity %.200q is not written as %s", uri.String(), want)
	}
	return uri.Host, rest, nil
}
