// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import "time"

// Profile says which components a control plane has.
type Profile int

// The profiles, by rising cost.
const (
	// Light is etcd, the API server and the controller-manager: objects are
	// admitted, owned and garbage collected, but no pod is ever scheduled.
	Light Profile = iota
	// Bare is etcd and the API server alone, for measurements that no
	// controller may disturb: namespaces never finish their deletion and
	// service accounts aren't made.
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

// NodeLabel marks the nodes whose kubelet kwok plays wholly: it keeps their
// status and lease. On every other node kwok plays the pods only, because a
// host under test owns its Node object.
const NodeLabel = "controlplane.test/kubelet"

// Options choose a control plane. The zero value is a Light one in a temporary
// directory.
type Options struct {
	Profile Profile
	// Dir holds data, certificates and logs. Empty means a temporary directory,
	// removed by Stop; another one must not exist or be empty, and stays.
	Dir string
	// Nodes is how many nodes labelled NodeLabel a Full control plane has at
	// its start. Zero means none: hosts under test register their own.
	Nodes int
	// AuditLog is a file that receives a JSON line a request (level Metadata).
	// Empty means no audit log.
	AuditLog string
	// APIServerFlags are added to the API server's flags; the last one wins.
	APIServerFlags []string
	// ReadyTimeout bounds the start of the whole control plane. Zero means two
	// minutes, which a loaded machine with two cores doesn't reach.
	ReadyTimeout time.Duration
}

// defaultReadyTimeout is fifty times what an idle machine takes.
const defaultReadyTimeout = 2 * time.Minute
