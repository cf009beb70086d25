// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import "time"

// Profile selects the components of a control plane.
type Profile int

// The profiles, from the cheapest to the most expensive.
const (
	// Light is etcd, the API server and the controller-manager: objects are
	// admitted, owned and garbage-collected, but pods aren't scheduled.
	Light Profile = iota
	// Bare is etcd and the API server, for measurements without controllers:
	// namespaces are never fully deleted and service accounts aren't created.
	Bare
	// Full is Light with the scheduler and fake kubelets: pods run.
	Full
)

// String names the profile.
func (p Profile) String() string {
	switch p {
	case Light:
		return "light"
	case Bare:
		return "bare"
	case Full:
		return "full"
	}
	return "unknown"
}

// NodeLabel marks nodes whose kubelet kwok simulates: it writes their status
// and lease. On every other node kwok simulates only pods, because a host
// under test owns its Node object.
const NodeLabel = "controlplane.test/kubelet"

// Options configure a control plane. The zero value is a Light one in a
// temporary directory.
type Options struct {
	Profile Profile
	// Dir is for data, certificates and logs. Empty means a temporary
	// directory, removed by Stop; any other directory must be empty or
	// missing, and is kept.
	Dir string
	// Nodes is the number of nodes with NodeLabel at the start of a Full
	// control plane. Zero means none: hosts under test register their own.
	Nodes int
	// AuditLog is a file that receives a JSON line per request (level
	// Metadata). Empty means no audit log.
	AuditLog string
	// APIServerFlags are added to the API server's flags; the last one wins.
	APIServerFlags []string
	// ReadyTimeout bounds the start of the control plane. Zero means two
	// minutes, more than a loaded machine with two cores needs.
	ReadyTimeout time.Duration
}

// defaultReadyTimeout is fifty times the start on an idle machine.
const defaultReadyTimeout = 2 * time.Minute
