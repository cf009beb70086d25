// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Reasons why an attempt left the good path.
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
	// ReasonActivateRefused says that the agent never took the order.
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

// settle is how long after the last order it's waited for one that may still
// be on its way, from us or from a leader that was stopped.
const orderGrace = 2 * time.Minute

// maxTransitions bounds how many states a slot passes in one plan.
const maxTransitions = 16

// view is what the transitions of one slot look at.
type view struct {
	pool *Pool
	m    *Member
	// stop says why what hasn't been activated is taken back; "" if nothing.
	abortReason, abortMessage string
	drain, rollback           bool
	quorum                    Quorum
	now                       time.Time
	epoch                     uint64
}

// advance follows the state table until the slot stays where it is, and
// returns the states that it left on the way. The state Idle means: free it.
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

// transition is the table: one row a state.
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
		return v.to(s, ledger.Aborted, "UnknownState", fmt.Sprintf("the ledger says %q", s.State))
	}
}

// hostIsAhead takes the host's word where the ledger is older than the host:
// an older etcd was restored while the attempt was under way.
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

// before returns the boot and the digest that a trial came from. The wire
// doesn't carry that boot: where the trial hasn't booted yet it's the present
// one, else any other than the present one serves.
func beforeTrial(f *nodeos.HostFacts) (bootID, digest string) {
	if f.Trial.BootID == "" {
		return f.BootID, f.Trial.From.Digest
	}
	return orDefault(f.Trial.FromBootID, "before "+f.Trial.BootID), f.Trial.From.Digest
}

// to moves the slot to a state.
func (v view) to(s ledger.Slot, state ledger.State, reason, message string) ledger.Slot {
	s.State, s.Since = state, v.now
	switch {
	case reason != "":
		s.Reason, s.Message = reason, sanitize.Line(message)
	case state == ledger.Verifying, state == ledger.Committing, state == ledger.Releasing:
		s.Reason, s.Message = "", "" // back on the good path
	}
	return s
}

// claimed: the slot is written, the cordon isn't seen yet.
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
		return v.to(s, ledger.Aborted, ReasonCordonedExternally, "someone else cordoned the node")
	case v.late(s.ClaimedAt, v.pool.DrainTimeout):
		return v.to(s, ledger.Aborted, ReasonDrainTimeout, "the node couldn't be cordoned in time")
	}
	return s
}

// draining: pods are asked to go until none is left or the time is up.
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

// drained: nothing is left to protect; look once more, then activate. From
// the next state on there's no way back but a rollback.
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

// notYet says what keeps a drained host from being activated.
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
		return "Busy", fmt.Sprintf("the agent runs %s (%s)", f.Operation.Sequence, f.Operation.ID)
	}
	if s.ControlPlane {
		if ok, why := v.quorum.Allows(v.m.Node.Name); !ok {
			return ReasonQuorum, why
		}
	}
	return "", ""
}

// stillOurs says, before activation, whether the attempt must be given up, and
// returns the slot then.
func (v view) aborts(s ledger.Slot) (ledger.Slot, bool) {
	n := v.m.Node
	switch {
	case v.abortReason != "":
		return v.to(s, ledger.Aborted, v.abortReason, v.abortMessage), true
	case v.drain && !n.Unschedulable:
		return v.to(s, ledger.Aborted, ReasonUncordoned, "someone made the node schedulable again"), true
	case v.drain && n.CordonedBy != s.Owner():
		return v.to(s, ledger.Aborted, ReasonCordonedExternally, "the cordon isn't ours any more"), true
	}
	return s, false
}

// rebooting: the order is out; what counts is which boot the agent reports.
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
		// The agent never took the order, and no order is on its way any more:
		// nothing has failed but the asking.
		return v.to(s, ledger.Aborted, ReasonActivateRefused, v.m.LastError)
	}
	return s
}

// verifying: the gates must hold without a break for the soak, seen by one
// leader; a boot that nobody ordered starts it again.
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

// committing: the order to keep the system is out until the agent says so.
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
		return v.to(s, ledger.RollingBack, ReasonCommitFailed, "the agent has not committed in time")
	}
	return s
}

// releasing: uncordon if it's ours, then free; never the other way round.
func (v view) releasing(s ledger.Slot) ledger.Slot {
	if v.m.Node.CordonedBy == s.Owner() {
		return s
	}
	if v.m.Agent.Facts == nil && !v.m.Node.Ready {
		// Nobody can say that the host isn't further than the ledger, and a
		// node that's away uses up the budget with or without a slot.
		return s
	}
	return v.to(s, ledger.Idle, "", "")
}

// rollingBack: the host goes back, or has gone back by itself; what it booted
// says which.
func (v view) rollingBack(s ledger.Slot) ledger.Slot {
	f := v.m.Agent.Facts
	switch {
	case f == nil:
		if v.late(s.Since, 2*v.pool.BootDeadline) {
			return v.to(s, ledger.Lost, s.Reason, v.m.Agent.Problem)
		}
	case f.Booted.Digest == s.Target.Digest && f.Booted.Confirmed && s.PrevDigest != s.Target.Digest:
		// The agent kept it, by its own deadline or a commit that came through.
		return v.to(s, ledger.Releasing, "", "")
	case f.Booted.Digest != s.Target.Digest && f.Trial == nil && !isRunning(f, activateID(s)):
		return v.to(s, ledger.RolledBack, "", "")
	case v.late(s.Since, v.pool.BootDeadline+v.pool.CommitDeadline):
		return v.to(s, ledger.Quarantined, s.Reason, s.Message)
	}
	return s
}

// rolledBack: the digest is denied by now; the host goes back to work when
// Kubernetes says that it's well.
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

// lost: the slot is kept, the node counts as unavailable; when it's back, what
// it booted says where to go on.
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
		return v.to(s, ledger.RollingBack, orDefault(s.Reason, ReasonFellBack), s.Message)
	}
}

// quarantined: a person decides; a new rerun nonce on the host is the word.
func (v view) quarantined(s ledger.Slot) ledger.Slot {
	if v.m.Nonce == s.Nonce {
		return s
	}
	s.Nonce = v.m.Nonce
	f := v.m.Agent.Facts
	switch {
	case s.ActivatedAt.IsZero():
		return v.to(s, ledger.Aborted, ReasonRerun, "a person asked for another try")
	case f != nil && f.Booted.Digest == s.Target.Digest && !f.Booted.Confirmed:
		s.TrialBootID, s.VerifyingSince, s.HealthySince = f.BootID, v.now, time.Time{}
		return v.to(s, ledger.Verifying, "", "")
	default:
		return v.to(s, ledger.RollingBack, s.Reason, s.Message)
	}
}

// late says whether more than limit has passed since a stored time. A stored
// time ahead of now (a clock went back) is never late.
func (v view) late(since time.Time, limit time.Duration) bool {
	return v.now.Sub(since) > limit
}

// hasStaged says whether a slot that isn't the running one holds digest, whole
// and verified by the agent.
func hasStaged(f *nodeos.HostFacts, digest string) bool {
	s, ok := f.SlotOf(digest)
	return ok && s.Name != f.Booted.Slot && s.State != nodeos.SlotBad && s.State != nodeos.SlotEmpty
}

// failedOperation returns the last operation if it's the one with that id and
// it ended badly.
func failedOperation(f *nodeos.HostFacts, id string) (nodeos.OperationStatus, bool) {
	if f.Last == nil || f.Last.ID != id {
		return nodeos.OperationStatus{}, false
	}
	return *f.Last, f.Last.State == nodeos.OperationFailed || f.Last.State == nodeos.OperationRolledBack || f.Last.State == nodeos.OperationCanceled
}

func describe(b nodeos.Booted) string {
	return orDefault(b.Version, orDefault(b.Digest, "an unknown system"))
}

// activateID is the operation that boots the target; commit and rollback end
// its trial and carry the same id.
func activateID(s ledger.Slot) string { return s.Attempt + "-activate" }
