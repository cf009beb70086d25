// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Input is everything that a plan is made from.
type Input struct {
	Pool Pool
	// Members are the hosts that the pool selects, and those that hold one of
	// its slots though it doesn't select them any more. A slot of the pool
	// without a member is that of a deleted Node: the caller has made sure.
	Members []Member
	Ledger  ledger.Document
	// Epoch is the fence under which the caller leads.
	Epoch uint64
	// Pools are the UIDs of the pools that exist, this one among them; nil:
	// not known. What's remembered of others is forgotten.
	Pools map[string]bool
	// ClusterNodes is how many nodes the cluster has.
	ClusterNodes int
	Quorum       Quorum
}

// Member is all that's known of one host.
type Member struct {
	Node Node
	// Selected says that the pool selects the node now.
	Selected bool
	Agent    Agent
	// Hold says why a person keeps rollouts away from the host.
	Hold string
	// Nonce is the rerun nonce of the host.
	Nonce string
	// Conflict names another pool that selects the node too.
	Conflict string
	// RunsReconciler says that a pod of the reconciler itself runs there.
	RunsReconciler bool
	// LastError says why the last step on the host didn't succeed; "" if it did.
	LastError string
	// Pods is what a drain has left; only looked at while draining.
	Pods Pods
	// Health is what the gates say; only looked at while verifying.
	Health Health
}

// Node is what the Kubernetes object says.
type Node struct {
	Name, UID string
	Created   time.Time
	Labels    map[string]string
	Ready     bool
	// ReadySince is when Ready last changed.
	ReadySince    time.Time
	Unschedulable bool
	// CordonedBy is what our annotation says, a slot's Owner; empty: none.
	CordonedBy   string
	BootID       string
	ControlPlane bool
}

// cordonedFor says that the node is cordoned and says it's for that slot.
func (n Node) cordonedFor(s ledger.Slot) bool {
	return n.Unschedulable && n.CordonedBy == s.Owner()
}

// owner reads the attempt and the epoch out of our annotation.
func (n Node) owner() (attempt string, epoch uint64) {
	return ledger.ParseOwner(n.CordonedBy)
}

// Agent is what the host's agent says. Facts is nil while it can't be reached.
type Agent struct {
	Facts *nodeos.HostFacts
	// Problem says why there are no facts, or why they can't be used:
	// Unreachable, IdentityMismatch, …
	Problem string
	// CertificateExpires ends the agent's certificate; zero: not known.
	CertificateExpires time.Time
}

// Pods is what is left on a node that is being drained.
type Pods struct {
	Observed  bool
	Remaining int
	// Blocking says what keeps them, for people.
	Blocking string
}

// Health is the verdict of the gates.
type Health struct {
	Observed bool
	OK       bool
	// Blocking says what isn't level yet, for people.
	Blocking string
}

// Quorum is what's known of the control plane's voters.
type Quorum struct {
	// None asks for no quorum.
	None bool
	// Observed says that the numbers were observed; else no claim is made.
	Observed        bool
	Voters, Healthy int
	// HealthyOn holds the names of the nodes that carry a healthy voter.
	HealthyOn map[string]bool
	// Problem says why it isn't known, or which API server lags behind.
	Problem string
}

// Allows says whether the quorum survives the loss of that node, and if not, why.
func (q Quorum) Allows(node string) (bool, string) {
	switch {
	case q.None:
		return true, ""
	case !q.Observed:
		return false, "the quorum isn't known: " + orDefault(q.Problem, "set spec.controlPlane.quorum")
	case q.Problem != "":
		return false, q.Problem
	}
	left, need := q.Healthy, q.Voters/2+1
	if q.HealthyOn[node] {
		left--
	}
	if left < need {
		return false, fmt.Sprintf("%d of %d voters are healthy; without %s %d would be left, %d are needed", q.Healthy, q.Voters, node, left, need)
	}
	return true, ""
}

// StepKind is what a step does.
type StepKind string

// The steps. Each may be done twice without harm.
const (
	// StepStage has the agent write the image to its inactive slot.
	StepStage StepKind = "Stage"
	// StepCordon marks the node unschedulable, in the attempt's name.
	StepCordon StepKind = "Cordon"
	// StepEvict asks the pods that are left to go, once.
	StepEvict StepKind = "Evict"
	// StepActivate has the agent boot the staged image, on trial.
	StepActivate StepKind = "Activate"
	// StepCommit has the agent keep what it booted.
	StepCommit StepKind = "Commit"
	// StepRollback has the agent boot what ran before.
	StepRollback StepKind = "Rollback"
	// StepUncordon makes the node schedulable again if the cordon is ours.
	StepUncordon StepKind = "Uncordon"
)

// Step is one thing to do to one host, once the plan's ledger is written.
type Step struct {
	Kind          StepKind
	Node, NodeUID string
	// Attempt is the try that the step belongs to, OperationID the run on the
	// agent that it starts or continues.
	Attempt, OperationID string
	// Slot is the slot under which it's done; zero for StepStage.
	Slot ledger.Slot
	// Force deletes pods whatever their budgets say (StepEvict).
	Force bool
	// Drain says whether the node must be cordoned by us (StepActivate).
	Drain bool
	// AutoCommit leaves the commit to the host's own checks: the reconciler
	// itself goes down with it (StepActivate).
	AutoCommit bool
	// Rollback marks an order that goes back to an older, committed version.
	Rollback bool
}

// Waiting says why a host that isn't at its target gets no further now.
type Waiting struct {
	Host    string
	Reason  string
	Message string
}
