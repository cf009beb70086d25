// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// arm opens the trial of the operation's image; it's on disk before the boot
// switch.
func (t *step) arm() {
	op := t.s.Op
	if t.ofTrial(op) { // resumed after a crash: keep the deadline
		t.s.Trial.FromBootID = t.s.BootID
		return
	}
	request, err := nodeos.UnmarshalRequest(op.Request)
	r, ok := request.(nodeos.UpgradeRequest)
	if err != nil || !ok {
		return // only upgrade requests have this effect
	}
	window := r.CommitDeadline
	if window == 0 {
		window = nodeos.DefaultCommitDeadline
	}
	on := r.OnDeadline
	if on == "" {
		on = nodeos.DeadlineRollback
	}
	op.TrialID = op.ID
	t.s.Trial = &nodeos.Trial{
		OperationID: op.ID, Caller: op.Caller,
		Image:      nodeos.Image{Ref: r.Image, Product: r.Product, Version: r.Version},
		From:       t.s.Running,
		FromBootID: t.s.BootID, ArmedAt: t.now, Deadline: t.now.Add(window), Window: window, OnDeadline: on,
	}
	t.publishTrial("armed", "")
}

func (t *step) publishTrial(what, message string) {
	tr := t.s.Trial
	t.publish(tr.OperationID, nodeos.EventTrial{What: what, Digest: tr.Image.Ref.Digest, Deadline: tr.Deadline, Message: message})
}

// ofTrial reports whether the operation armed the open trial or ends it.
func (t *step) ofTrial(op *Operation) bool { return t.s.ofTrial(op) }

func (s State) ofTrial(op *Operation) bool {
	return op != nil && s.Trial != nil && s.Trial.OperationID == op.TrialID
}

// onTrial reports whether the OS on trial has booted.
func (t *step) onTrial() bool { return t.s.Trial != nil && t.s.Trial.BootID != "" }

// committed ends the trial successfully.
func (t *step) committed() {
	tr := t.s.Trial
	if tr == nil {
		return
	}
	t.publishTrial("committed", "")
	t.recordCommitted(tr.Image.Ref.Digest, tr.Image.Product, tr.Image.Version)
	t.s.Running.Confirmed = true
	t.s.Trial = nil
}

// recordCommitted records a committed OS; the high-water mark never decreases.
func (t *step) recordCommitted(digest, product, version string) {
	if n := len(t.s.Committed); n == 0 || t.s.Committed[n-1].Digest != digest {
		t.s.Committed = append(t.s.Committed, nodeos.Committed{Digest: digest, Product: product, Version: version, At: t.now})
	}
	if n := len(t.s.Committed) - maxCommitted; n > 0 {
		t.s.Committed = slices.Delete(t.s.Committed, 0, n)
	}
	high := t.s.HighWater[product]
	if high != "" {
		if c, err := nodeos.CompareVersions(version, high); err != nil || c <= 0 {
			return
		}
	}
	t.s.HighWater = maps.Clone(t.s.HighWater)
	if t.s.HighWater == nil {
		t.s.HighWater = map[string]string{}
	}
	t.s.HighWater[product] = version
}

// restored ends the trial with the previous OS running.
func (t *step) restored() {
	tr := t.s.Trial
	if tr == nil {
		return // a rollback from a committed OS denies nothing
	}
	why := t.s.Op.Message
	if why == "" {
		why = "rolled back"
	}
	t.publishTrial("rolled-back", why)
	if tr.BootID == "" { // it never ran, so it isn't denied
		t.s.Trial = nil
		return
	}
	t.deny(tr, why)
}

// deny closes the trial and denies its digest on this host.
func (t *step) deny(tr *nodeos.Trial, why string) {
	t.s.Trial = nil
	digest := tr.Image.Ref.Digest
	t.s.Denied = slices.DeleteFunc(t.s.Denied, func(d nodeos.Denial) bool { return d.Digest == digest })
	t.s.Denied = append(t.s.Denied, nodeos.Denial{Digest: digest, Why: why, At: t.now, OperationID: tr.OperationID})
	if n := len(t.s.Denied) - maxDenied; n > 0 {
		t.s.Denied = slices.Delete(t.s.Denied, 0, n)
	}
}

// rollBack starts the rollback in the open operation, or in a new operation of the
// agent if the trial has none.
func (t *step) rollBack(reason, message string) {
	plan := nodeos.RollbackPhases()
	if t.s.Op == nil {
		t.openOwn("rollback", nodeos.SequenceRollback, nodeos.RollbackRequest{}, plan)
	}
	op := t.s.Op
	op.Plan, op.RollingBack, op.Stop, op.Reason, op.Message = plan, true, nil, reason, message
	t.enter(0)
}

// openOwn opens an operation of the agent for the trial.
func (t *step) openOwn(what string, seq nodeos.Sequence, r nodeos.Request, plan []nodeos.Phase) {
	id := t.s.Trial.OperationID + "/" + what
	order := nodeos.Order{OperationID: id, Caller: agentCaller}
	switch r.(type) {
	case nodeos.RollbackRequest:
		r = nodeos.RollbackRequest{Order: order}
	default:
		r = nodeos.PlainRequest{Order: order}
	}
	hash, _ := nodeos.Digest(seq, r)
	op, err := newOperation(Order{Sequence: seq, Request: r, Plan: plan}, hash, t.now)
	if err != nil {
		return
	}
	op.From, op.Digest, op.TrialID = t.s.Running.Digest, t.s.Trial.Image.Ref.Digest, t.s.Trial.OperationID
	t.s.Op = op
	t.publish(op.ID, nodeos.EventSequenceStart{Sequence: seq, Phases: len(plan)})
}

// deadlineApplies reports whether the commit deadline is active; it isn't while
// an operation is about to end the trial.
func (s State) deadlineApplies() bool {
	if s.Trial == nil || s.Trial.Deadline.IsZero() {
		return false
	}
	op := s.Op
	if op == nil {
		return true
	}
	switch {
	case op.RollingBack, op.Stop != nil, op.State == nodeos.OperationUndoing, op.State == nodeos.OperationRebooting:
		return false
	case !s.ofTrial(op): // the deadline applies after it ends
		return false
	case op.Decided, op.State == nodeos.OperationRunning && op.phase().Effect == nodeos.EffectCommit:
		return false
	}
	return s.Trial.OnDeadline != nodeos.DeadlineCommit || op.State == nodeos.OperationOnTrial
}

// deadline applies OnDeadline if the deadline passed without a commit.
func (t *step) deadline() {
	tr := t.s.Trial
	if !t.s.deadlineApplies() || t.now.Before(tr.Deadline) {
		return
	}
	message := fmt.Sprintf("%s %s was not committed before %s", tr.Image.Product, tr.Image.Version, tr.Deadline.UTC().Format(time.RFC3339))
	switch {
	case tr.OnDeadline == nodeos.DeadlineHold:
		t.publishTrial("expired", message+"; holding")
		tr.Deadline = time.Time{}
	case tr.OnDeadline == nodeos.DeadlineCommit && t.onTrial():
		t.publishTrial("expired", message+"; committing")
		t.startCommit()
	default:
		t.publishTrial("expired", message+"; rolling back")
		t.startRollback("DeadlineExceeded", message)
	}
}

// startCommit enters the commit phase, which suspends the deadline.
func (t *step) startCommit() {
	if op := t.s.Op; op != nil {
		op.Decided = true
		t.enter(op.Index + 1)
		return
	}
	// The trial has no operation; the OS may not be verified.
	t.openOwn("commit", nodeos.SequenceUpgrade, nodeos.PlainRequest{}, nodeos.CommitPhases())
	t.s.Op.Decided = true
	t.enter(0)
}

// startRollback ends the trial with a rollback or, before the boot, by undoing
// the boot switch.
func (t *step) startRollback(reason, message string) {
	op := t.s.Op
	switch {
	case op == nil && t.onTrial():
		t.rollBack(reason, message)
	case op == nil:
		t.openOwn("disarm", nodeos.SequenceRollback, nodeos.RollbackRequest{}, nodeos.DisarmPhases())
		t.s.Op.RollingBack, t.s.Op.Reason, t.s.Op.Message = true, reason, message
		t.enter(0)
	case op.State == nodeos.OperationOnTrial:
		t.rollBack(reason, message)
	default: // stop the running phase first
		op.Stop = &Stop{Reason: reason, Message: message}
	}
}
