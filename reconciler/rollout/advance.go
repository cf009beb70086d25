// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Reasons why an attempt was aborted, rolled back or quarantined.
const (
	ReasonTargetChanged      = "TargetChanged"
	ReasonDeleting           = "Deleting"
	ReasonPaused             = "Paused"
	ReasonHeld               = "Held"
	ReasonLeftPool           = "LeftPool"
	ReasonHalted             = "Halted"
	ReasonDenied             = "Denied"
	ReasonCordonedExternally = "CordonedExternally"
	ReasonUncordoned         = "Uncordoned"
	ReasonDrainTimeout       = "DrainTimeout"
	ReasonUnreachable        = "Unreachable"
	ReasonNotStaged          = "NotStaged"
	ReasonQuorum             = "QuorumAtRisk"
	ReasonActivateFailed     = "ActivateFailed"
	// ReasonActivateRefused means that the agent never accepted the order.
	ReasonActivateRefused = "ActivateRefused"
	ReasonBootTimeout     = "BootTimeout"
	ReasonFellBack        = "FellBack"
	ReasonGatesFailed     = "GatesFailed"
	ReasonCommitFailed    = "CommitFailed"
	ReasonUnhealthy       = "Unhealthy"
	ReasonAdopted         = "Adopted"
	ReasonConflict        = "PoolConflict"
	ReasonRerun           = "Rerun"
)

// orderGrace is how long after the boot deadline a delayed Activate order, of
// this or an earlier leader, may still reach the agent.
const orderGrace = 2 * time.Minute

// maxTransitions bounds the state changes of a slot in one plan.
const maxTransitions = 16

// view is the input of one slot's transitions.
type view struct {
	pool *Pool
	m    *Member
	// abortReason is why an attempt that isn't activated yet is aborted; "" if
	// it isn't.
	abortReason, abortMessage string
	drain, rollback           bool
	quorum                    Quorum
	now                       time.Time
	epoch                     uint64
}

// advance applies transitions until the state no longer changes, and returns
// the slot and the states that it left. A slot in state Idle must be freed.
func (v view) advance(s ledger.Slot) (ledger.Slot, []ledger.State) {
	var left []ledger.State
	for range maxTransitions {
		next := v.transition(s)
		if next.State == s.State {
			return next, left
		}
		left = append(left, s.State)
		if next.State == ledger.Idle {
			return next, left
		}
		s = next
	}
	return s, left
}

// transition returns the next state of the slot: one case per state.
func (v view) transition(s ledger.Slot) ledger.Slot {
	if next, ahead := v.resumeTrial(s); ahead {
		return next
	}
	switch s.State {
	case ledger.Claimed:
		return v.claimed(s)
	case ledger.Draining:
		return v.draining(s)
	case ledger.Drained:
		return v.drained(s)
	case ledger.Rebooting:
		return v.rebooting(s)
	case ledger.Verifying:
		return v.verifying(s)
	case ledger.Committing:
		return v.committing(s)
	case ledger.Releasing, ledger.Aborted:
		return v.releasing(s)
	case ledger.RollingBack:
		return v.rollingBack(s)
	case ledger.RolledBack:
		return v.rolledBack(s)
	case ledger.Lost:
		return v.lost(s)
	case ledger.Quarantined:
		return v.quarantined(s)
	default:
		return v.to(s, ledger.Aborted, "UnknownState", fmt.Sprintf("unknown state %q in the ledger", s.State))
	}
}

// resumeTrial moves the slot to Rebooting if its host already runs the
// attempt's trial. This happens when an older etcd is restored during an
// attempt.
func (v view) resumeTrial(s ledger.Slot) (ledger.Slot, bool) {
	switch s.State {
	case ledger.Claimed, ledger.Draining, ledger.Drained, ledger.Aborted:
	default:
		return s, false
	}
	if !onTrial(v.m) || v.m.Agent.Facts.Trial.OperationID != activateID(s) {
		return s, false
	}
	s.PrevBootID, s.PrevDigest = beforeTrial(v.m.Agent.Facts)
	s.ActivatedAt = v.now
	return v.to(s, ledger.Rebooting, "", ""), true
}

// beforeTrial returns the boot ID and the digest that ran before a trial.
// Agents don't report that boot ID: before the trial boots it is the current
// one; after that, any value other than the current one is sufficient.
func beforeTrial(f *nodeos.HostFacts) (bootID, digest string) {
	if f.Trial.BootID == "" {
		return f.BootID, f.Trial.From.Digest
	}
	return cmp.Or(f.Trial.FromBootID, "before "+f.Trial.BootID), f.Trial.From.Digest
}

// to returns the slot in the given state. An empty reason keeps the previous
// one, except in the states of a successful attempt.
func (v view) to(s ledger.Slot, state ledger.State, reason, message string) ledger.Slot {
	s.State, s.Since = state, v.now
	switch {
	case reason != "":
		s.Reason, s.Message = reason, sanitize.Line(message)
	case state == ledger.Verifying, state == ledger.Committing, state == ledger.Releasing:
		s.Reason, s.Message = "", "" // the attempt succeeds again
	}
	return s
}

// claimed: the slot is written; the cordon isn't observed yet.
func (v view) claimed(s ledger.Slot) ledger.Slot {
	if v.abortReason != "" {
		return v.to(s, ledger.Aborted, v.abortReason, v.abortMessage)
	}
	n := v.m.Node
	switch {
	case !v.drain:
		return v.to(s, ledger.Drained, "", "")
	case n.cordonedFor(s):
		return v.to(s, ledger.Draining, "", "")
	case n.Unschedulable:
		return v.to(s, ledger.Aborted, ReasonCordonedExternally, "the node was cordoned externally")
	case v.late(s.ClaimedAt, v.pool.DrainTimeout):
		return v.to(s, ledger.Aborted, ReasonDrainTimeout, "cordoning the node timed out")
	}
	return s
}

// draining: pods are evicted until none is left or the drain times out.
func (v view) draining(s ledger.Slot) ledger.Slot {
	if next, left := v.aborts(s); left {
		return next
	}
	if v.m.Pods.Observed && v.m.Pods.Remaining == 0 {
		return v.to(s, ledger.Drained, "", "")
	}
	if !v.late(s.ClaimedAt, v.pool.DrainTimeout) {
		return s
	}
	switch v.pool.DrainDeadline {
	case DeadlineForce:
		return s
	case DeadlineQuarantine:
		return v.to(s, ledger.Quarantined, ReasonDrainTimeout, v.m.Pods.Blocking)
	default:
		return v.to(s, ledger.Aborted, ReasonDrainTimeout, v.m.Pods.Blocking)
	}
}

// drained: the preconditions are checked again, then the image is activated.
// From the next state on only a rollback ends the attempt.
func (v view) drained(s ledger.Slot) ledger.Slot {
	if next, left := v.aborts(s); left {
		return next
	}
	if problem, message := v.activationBlocker(s); problem != "" {
		if v.late(s.ClaimedAt, v.pool.DrainTimeout+v.pool.BootDeadline) {
			return v.to(s, ledger.Aborted, problem, message)
		}
		return s
	}
	f := v.m.Agent.Facts
	s.AutoCommit = v.m.RunsReconciler && !v.drain
	s.PrevBootID, s.PrevDigest, s.ActivatedAt = f.BootID, f.Booted.Digest, v.now
	return v.to(s, ledger.Rebooting, "", "")
}

// activationBlocker returns why a drained host can't be activated yet; "" if
// it can.
func (v view) activationBlocker(s ledger.Slot) (reason, message string) {
	f := v.m.Agent.Facts
	if v.drain && !(v.m.Pods.Observed && v.m.Pods.Remaining == 0) {
		return ReasonDrainTimeout, v.m.Pods.Blocking
	}
	if f == nil {
		return ReasonUnreachable, v.m.Agent.Problem
	}
	if !hasStaged(f, s.Target.Digest) {
		return ReasonNotStaged, "the agent has not verified the image in its inactive slot"
	}
	if f.Operation != nil && !f.Operation.State.Done() {
		return "Busy", fmt.Sprintf("the agent is running %s (%s)", f.Operation.Sequence, f.Operation.ID)
	}
	if s.ControlPlane {
		if ok, cause := v.quorum.Allows(v.m.Node.Name); !ok {
			return ReasonQuorum, cause
		}
	}
	return "", ""
}

// aborts reports whether an attempt that isn't activated yet must be aborted,
// and returns the aborted slot.
func (v view) aborts(s ledger.Slot) (ledger.Slot, bool) {
	n := v.m.Node
	switch {
	case v.abortReason != "":
		return v.to(s, ledger.Aborted, v.abortReason, v.abortMessage), true
	case v.drain && !n.Unschedulable:
		return v.to(s, ledger.Aborted, ReasonUncordoned, "the node was uncordoned externally"), true
	case v.drain && n.CordonedBy != s.Owner():
		return v.to(s, ledger.Aborted, ReasonCordonedExternally, "the cordon is no longer owned by the attempt"), true
	}
	return s, false
}

// rebooting: the order is sent; the boot ID and the digest that the agent
// reports decide the next state.
func (v view) rebooting(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	switch {
	case f == nil:
		if v.late(s.ActivatedAt, v.pool.BootDeadline) {
			return v.to(s, ledger.Lost, ReasonBootTimeout, v.m.Agent.Problem)
		}
		return s
	case f.BootID != s.PrevBootID && f.Booted.Digest == s.Target.Digest:
		s.TrialBootID, s.VerifyingSince = f.BootID, v.now
		return v.to(s, ledger.Verifying, "", "")
	case f.BootID != s.PrevBootID:
		return v.to(s, ledger.RollingBack, ReasonFellBack, "the host booted "+describe(f.Booted)+" instead")
	}
	if last, failed := failedOperation(f, activateID(s)); failed {
		return v.to(s, ledger.RollingBack, ReasonActivateFailed, last.Message)
	}
	switch {
	case !v.late(s.ActivatedAt, v.pool.BootDeadline):
	case isRunning(f, activateID(s)) || f.Trial != nil:
		return v.to(s, ledger.RollingBack, ReasonBootTimeout, "the host did not reboot")
	case v.late(s.ActivatedAt, v.pool.BootDeadline+orderGrace):
		// The agent never accepted the order, and none is in transit any more:
		// the image isn't at fault.
		return v.to(s, ledger.Aborted, ReasonActivateRefused, v.m.LastError)
	}
	return s
}

// verifying: the gates must pass without interruption for the soak time, as
// observed by one leader. An unexpected boot restarts the soak.
func (v view) verifying(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	if f == nil {
		s.HealthySince = time.Time{}
		if v.late(s.ActivatedAt, v.pool.BootDeadline+v.pool.CommitDeadline) {
			return v.to(s, ledger.Lost, ReasonUnreachable, v.m.Agent.Problem)
		}
		return s
	}
	if f.Booted.Digest != s.Target.Digest {
		return v.to(s, ledger.RollingBack, ReasonFellBack, "the host booted "+describe(f.Booted)+" instead")
	}
	if f.BootID != s.TrialBootID {
		s.TrialBootID, s.HealthySince = f.BootID, time.Time{}
	}
	if last, failed := failedOperation(f, activateID(s)); failed {
		return v.to(s, ledger.RollingBack, ReasonUnhealthy, last.Message)
	}
	if !v.m.Health.Observed || !v.m.Health.OK {
		s.HealthySince = time.Time{}
		return v.gatesFailing(s)
	}
	if s.HealthySince.IsZero() || s.HealthyEpoch != v.epoch {
		s.HealthySince, s.HealthyEpoch = v.now, v.epoch
	}
	if v.now.Sub(s.HealthySince) >= v.pool.Soak {
		return v.to(s, ledger.Committing, "", "")
	}
	return s
}

func (v view) gatesFailing(s ledger.Slot) ledger.Slot {
	if !v.late(s.VerifyingSince, v.pool.GateTimeout+v.pool.Soak) {
		return s
	}
	if v.pool.HaltOnFailure || v.m.Agent.Facts.Booted.Confirmed {
		return v.to(s, ledger.Quarantined, ReasonGatesFailed, v.m.Health.Blocking)
	}
	return v.to(s, ledger.RollingBack, ReasonGatesFailed, v.m.Health.Blocking)
}

// committing: the commit order is repeated until the agent confirms it.
func (v view) committing(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	switch {
	case f == nil:
		if v.late(s.ActivatedAt, v.pool.BootDeadline+v.pool.CommitDeadline) {
			return v.to(s, ledger.Lost, ReasonUnreachable, v.m.Agent.Problem)
		}
	case f.Booted.Digest != s.Target.Digest:
		return v.to(s, ledger.RollingBack, ReasonCommitFailed, "the host booted "+describe(f.Booted)+" instead")
	case f.Booted.Confirmed:
		return v.to(s, ledger.Releasing, "", "")
	case v.late(s.Since, v.pool.CommitDeadline):
		return v.to(s, ledger.RollingBack, ReasonCommitFailed, "the commit timed out")
	}
	return s
}

// releasing: the node is uncordoned if the attempt owns the cordon; the slot
// is freed only after that.
func (v view) releasing(s ledger.Slot) ledger.Slot {
	if v.m.Node.CordonedBy == s.Owner() {
		return s
	}
	if v.m.Agent.Facts == nil && !v.m.Node.Ready {
		// The host may be ahead of the ledger; an unready node counts against
		// the budget with or without a slot.
		return s
	}
	return v.to(s, ledger.Idle, "", "")
}

// rollingBack: the host is ordered to roll back unless its booted digest shows
// that it already has.
func (v view) rollingBack(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	switch {
	case f == nil:
		if v.late(s.Since, 2*v.pool.BootDeadline) {
			return v.to(s, ledger.Lost, s.Reason, v.m.Agent.Problem)
		}
	case f.Booted.Digest == s.Target.Digest && f.Booted.Confirmed && s.PrevDigest != s.Target.Digest:
		// The agent committed it: at its own deadline, or by an earlier order.
		return v.to(s, ledger.Releasing, "", "")
	case f.Booted.Digest != s.Target.Digest && f.Trial == nil && !isRunning(f, activateID(s)):
		return v.to(s, ledger.RolledBack, "", "")
	case v.late(s.Since, v.pool.BootDeadline+v.pool.CommitDeadline):
		return v.to(s, ledger.Quarantined, s.Reason, s.Message)
	}
	return s
}

// rolledBack: the digest is denied on the host; the node is released once it
// is Ready in the boot that the agent reports.
func (v view) rolledBack(s ledger.Slot) ledger.Slot {
	f, n := v.m.Agent.Facts, v.m.Node
	if f != nil && f.Trial == nil && n.Ready && n.BootID == f.BootID {
		return v.releasing(s)
	}
	if v.late(s.Since, v.pool.BootDeadline+v.pool.GateTimeout) {
		return v.to(s, ledger.Quarantined, s.Reason, s.Message)
	}
	return s
}

// lost: the slot is kept and the node counts as unavailable. Once the agent
// reports again, the booted digest decides the next state.
func (v view) lost(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	switch {
	case f == nil:
		return s
	case f.Booted.Digest == s.Target.Digest && f.Booted.Confirmed:
		return v.to(s, ledger.Releasing, "", "")
	case f.Booted.Digest == s.Target.Digest:
		s.TrialBootID, s.VerifyingSince, s.HealthySince = f.BootID, v.now, time.Time{}
		return v.to(s, ledger.Verifying, "", "")
	default:
		return v.to(s, ledger.RollingBack, cmp.Or(s.Reason, ReasonFellBack), s.Message)
	}
}

// quarantined: the slot is kept until an operator sets a new rerun nonce on
// the Host.
func (v view) quarantined(s ledger.Slot) ledger.Slot {
	if v.m.Nonce == s.Nonce {
		return s
	}
	s.Nonce = v.m.Nonce
	f := v.m.Agent.Facts
	switch {
	case s.ActivatedAt.IsZero():
		return v.to(s, ledger.Aborted, ReasonRerun, "rerun requested")
	case f != nil && f.Booted.Digest == s.Target.Digest && !f.Booted.Confirmed:
		s.TrialBootID, s.VerifyingSince, s.HealthySince = f.BootID, v.now, time.Time{}
		return v.to(s, ledger.Verifying, "", "")
	default:
		return v.to(s, ledger.RollingBack, s.Reason, s.Message)
	}
}

// late reports whether more than limit has passed since a stored time. It is
// false for a time in the future, as after a clock was set back.
func (v view) late(since time.Time, limit time.Duration) bool {
	return v.now.Sub(since) > limit
}

// hasStaged reports whether a slot other than the booted one contains digest,
// complete and verified by the agent.
func hasStaged(f *nodeos.HostFacts, digest string) bool {
	s, ok := f.SlotOf(digest)
	return ok && s.Name != f.Booted.Slot && s.State != nodeos.SlotBad && s.State != nodeos.SlotEmpty
}

// failedOperation returns the last operation and true if it has that ID and
// failed, was rolled back or was canceled.
func failedOperation(f *nodeos.HostFacts, id string) (nodeos.OperationStatus, bool) {
	if f.Last == nil || f.Last.ID != id {
		return nodeos.OperationStatus{}, false
	}
	return *f.Last, f.Last.State == nodeos.OperationFailed || f.Last.State == nodeos.OperationRolledBack || f.Last.State == nodeos.OperationCanceled
}

func describe(b nodeos.Booted) string {
	return cmp.Or(b.Version, cmp.Or(b.Digest, "an unknown image"))
}

// activateID is the ID of the operation that boots the target. The orders that
// commit or roll back its trial use the same ID.
func activateID(s ledger.Slot) string { return s.Attempt + "-activate" }
