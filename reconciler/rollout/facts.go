// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Input is the input of Plan.
type Input struct {
	Pool Pool
	// Members are the hosts that the pool selects and those that hold one of
	// its slots. A slot without a member belongs to a deleted Node; the caller
	// must have checked this with the API server.
	Members []Member
	Ledger  ledger.Document
	// Epoch is that of the caller's fence.
	Epoch uint64
	// Pools are the UIDs of all existing pools, this one included; nil if they
	// weren't listed. The ledger's records of other pools are dropped.
	Pools map[string]bool
	// ClusterNodes is how many nodes the cluster has.
	ClusterNodes int
	Quorum       Quorum
}

// Member is the observed state of one host.
type Member struct {
	Node Node
	// Selected reports whether the pool selects the node.
	Selected bool
	Agent    Agent
	// Hold is why an operator excluded the host from rollouts; "" if it isn't.
	Hold string
	// Nonce is the rerun nonce of the host.
	Nonce string
	// Conflict is the name of another pool that also selects the node.
	Conflict string
	// RunsReconciler reports whether the reconciler's own pod runs on the node.
	RunsReconciler bool
	// LastError is the error of the last step on the host; "" if it succeeded.
	LastError string
	// Pods are the pods left to drain; observed only until activation.
	Pods Pods
	// Health is the result of the gates; observed only after activation.
	Health Health
}

// Node is the part of a Kubernetes Node that a plan depends on.
type Node struct {
	Name, UID string
	Created   time.Time
	Labels    map[string]string
	Ready     bool
	// ReadySince is when Ready last changed.
	ReadySince    time.Time
	Unschedulable bool
	// CordonedBy is the value of the cordoned-by annotation: a slot's Owner;
	// empty if there is none.
	CordonedBy   string
	BootID       string
	ControlPlane bool
}

// cordonedFor reports whether the slot owns the node's cordon.
func (n Node) cordonedFor(s ledger.Slot) bool {
	return n.Unschedulable && n.CordonedBy == s.Owner()
}

// owner parses the attempt and the epoch of the cordoned-by annotation.
func (n Node) owner() (attempt string, epoch uint64) {
	return ledger.ParseOwner(n.CordonedBy)
}

// Agent is the report of a host's agent. Facts is nil while the agent is
// unreachable.
type Agent struct {
	Facts *nodeos.HostFacts
	// Problem is why there are no facts, or why they can't be used.
	Problem string
	// CertificateExpires is when the agent's certificate expires; zero if
	// unknown.
	CertificateExpires time.Time
}

// Pods are the pods left on a node that is being drained.
type Pods struct {
	Observed  bool
	Remaining int
	// Blocking is a message that names the blocking pods.
	Blocking string
}

// Health is the result of the gates.
type Health struct {
	Observed bool
	OK       bool
	// Blocking is a message that names the gate that fails.
	Blocking string
}

// Quorum is the observed state of the control plane's voters.
type Quorum struct {
	// None disables the quorum check.
	None bool
	// Observed reports whether the counts were read; if not, nothing is claimed.
	Observed        bool
	Voters, Healthy int
	// HealthyOn is the set of the nodes, by name, that run a healthy voter.
	HealthyOn map[string]bool
	// Problem is why the quorum couldn't be observed.
	Problem string
}

// Allows reports whether the quorum survives the loss of that node, and if not,
// why.
func (q Quorum) Allows(node string) (bool, string) {
	switch {
	case q.None:
		return true, ""
	case !q.Observed:
		return false, "quorum unknown: " + cmp.Or(q.Problem, "set spec.controlPlane.quorum")
	}
	left, need := q.Healthy, q.Voters/2+1
	if q.HealthyOn[node] {
		left--
	}
	if left < need {
		return false, fmt.Sprintf("%d of %d voters healthy; without %s %d would remain, %d required", q.Healthy, q.Voters, node, left, need)
	}
	return true, ""
}

// StepKind is the kind of a step.
type StepKind string

// The kinds of steps. All are idempotent.
const (
	// StepStage orders the agent to write the image to its inactive slot.
	StepStage StepKind = "Stage"
	// StepCordon cordons the node, with the attempt as the cordon's owner.
	StepCordon StepKind = "Cordon"
	// StepEvict requests the eviction of the remaining pods once.
	StepEvict StepKind = "Evict"
	// StepActivate orders the agent to boot the staged image on trial.
	StepActivate StepKind = "Activate"
	// StepCommit orders the agent to commit the booted image.
	StepCommit StepKind = "Commit"
	// StepRollback orders the agent to boot the previous image.
	StepRollback StepKind = "Rollback"
	// StepUncordon uncordons the node if the attempt owns the cordon.
	StepUncordon StepKind = "Uncordon"
)

// Step is one action on one host, performed after the plan's ledger is written.
type Step struct {
	Kind          StepKind
	Node, NodeUID string
	// Attempt is the attempt that the step belongs to, OperationID the agent's
	// operation that it starts or continues.
	Attempt, OperationID string
	// Slot is the slot that permits the step. For StepStage it isn't in the
	// ledger and only contains the node, the attempt and the target.
	Slot ledger.Slot
	// Force deletes pods regardless of their disruption budgets (StepEvict).
	Force bool
	// Drain requires that the attempt owns the node's cordon (StepActivate).
	Drain bool
	// AutoCommit makes the agent commit after its own checks, because the
	// reconciler runs on this node (StepActivate).
	AutoCommit bool
	// Rollback marks an order that installs an older, committed version.
	Rollback bool
}

// Waiting is why a host that doesn't run the target isn't updated now.
type Waiting struct {
	Host    string
	Reason  string
	Message string
}
