// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Decide applies a verdict to an operation. It's idempotent. With an error the
// state is unchanged.
func Decide(s State, d nodeos.Decision, p Policy, now time.Time) (State, []Action, error) {
	fence, err := checkFence(s.Fence, d.Fence, p.ClusterUID)
	if err != nil {
		return s, nil, err
	}
	t := stepOf(s, now)
	t.s.Fence = fence
	switch d.Verdict {
	case nodeos.VerdictCommit:
		err = t.decideCommit(d)
	case nodeos.VerdictRollback:
		err = t.decideRollback(d)
	case nodeos.VerdictResume, nodeos.VerdictAbort:
		err = t.decidePaused(d)
	default:
		err = nodeos.Refuse("InvalidVerdict", "verdict %q is not commit, rollback, resume or abort", d.Verdict)
	}
	if err != nil {
		return s, nil, err
	}
	return t.s, t.out, nil
}

func (t *step) decideCommit(d nodeos.Decision) error {
	op := t.s.Op
	switch {
	case t.s.Trial == nil || t.s.Trial.OperationID != d.OperationID:
		return t.alreadyDecided(d, nodeos.OperationSucceeded)
	case op == nil && t.onTrial():
		t.startCommit()
		return nil
	case op != nil && op.RollingBack:
		return nodeos.Refuse("RollingBack", "operation %s is rolling back: %s", op.ID, op.Message)
	case t.ofTrial(op) && op.State == nodeos.OperationOnTrial:
		t.startCommit()
		return nil
	case t.ofTrial(op) && op.phase().Effect == nodeos.EffectCommit:
		return nil
	default:
		return nodeos.Refuse("NotVerified", "the OS of operation %s is not verified yet; commit it when its state is %s", d.OperationID, nodeos.OperationOnTrial)
	}
}

func (t *step) decideRollback(d nodeos.Decision) error {
	op := t.s.Op
	message := d.Why
	if message == "" {
		message = "rolled back by " + d.Caller
	}
	switch {
	case t.s.Trial == nil || t.s.Trial.OperationID != d.OperationID:
		if t.cancelEarly(d, message) {
			return nil
		}
		return t.alreadyDecided(d, nodeos.OperationRolledBack)
	case op != nil && (op.RollingBack || op.Stop != nil && !op.Stop.Takeover):
		return nil
	case t.ofTrial(op) && op.phase().Effect == nodeos.EffectCommit && op.State == nodeos.OperationRunning:
		return nodeos.Refuse("Committing", "operation %s is being committed; roll back with a separate operation", op.ID)
	case op != nil && !t.ofTrial(op):
		return &nodeos.LockedError{By: op.ID, Sequence: op.Sequence, Since: op.Started, Wanted: nodeos.SequenceRollback}
	case op != nil && op.State == nodeos.OperationRebooting:
		return nodeos.Refuse("Rebooting", "operation %s is rebooting; retry after the host has rebooted", op.ID)
	default:
		t.startRollback("RolledBackByOrder", message)
		return nil
	}
}

// cancelEarly stops an operation that hasn't armed a trial.
func (t *step) cancelEarly(d nodeos.Decision, message string) bool {
	op := t.s.Op
	if op == nil || op.ID != d.OperationID || op.RollingBack || op.State == nodeos.OperationRebooting {
		return false
	}
	if op.Stop == nil && op.State != nodeos.OperationUndoing {
		op.Stop = &Stop{Reason: "CanceledByOrder", Message: message}
	}
	return true
}

// alreadyDecided accepts a verdict that already applies.
func (t *step) alreadyDecided(d nodeos.Decision, want nodeos.OperationState) error {
	st, ok := t.s.Status(d.OperationID)
	switch {
	case !ok:
		return nodeos.Refuse("NotFound", "operation %s not found", d.OperationID)
	case st.State == want, want == nodeos.OperationRolledBack && st.State == nodeos.OperationCanceled:
		return nil
	default:
		return nodeos.Refuse("NoTrial", "operation %s has no OS on trial; its state is %s%s", d.OperationID, st.State, because(st.Message))
	}
}

func because(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}

func (t *step) decidePaused(d nodeos.Decision) error {
	op := t.s.Op
	if op == nil || op.ID != d.OperationID || op.State != nodeos.OperationPaused {
		return nodeos.Refuse("NotPaused", "operation %s is not paused", d.OperationID)
	}
	if d.Verdict == nodeos.VerdictResume {
		t.enter(op.Index)
		return nil
	}
	message := op.Message
	if d.Why != "" {
		message = fmt.Sprintf("%s; aborted: %s", message, d.Why)
	}
	switch {
	case !op.RollingBack:
		t.abort(op.Reason, message)
	case t.s.Trial != nil && t.s.Running.Digest == t.s.Trial.Image.Ref.Digest:
		// The rollback restored nothing: the trial stays open without a deadline.
		t.s.Trial.OnDeadline, t.s.Trial.Deadline = nodeos.DeadlineHold, time.Time{}
		t.finish(nodeos.OperationFailed, op.Reason, message)
	default:
		t.restored()
		t.finish(nodeos.OperationRolledBack, op.Reason, message)
	}
	return nil
}

// Extend moves the commit deadline of the OS on trial and returns it.
func Extend(s State, e nodeos.Extension, p Policy, now time.Time) (State, []Action, time.Time, error) {
	fence, err := checkFence(s.Fence, e.Fence, p.ClusterUID)
	if err != nil {
		return s, nil, time.Time{}, err
	}
	t := stepOf(s, now)
	t.s.Fence = fence
	tr := t.s.Trial
	if tr == nil || tr.OperationID != e.OperationID {
		return s, nil, time.Time{}, nodeos.Refuse("NoTrial", "operation %s has no OS on trial", e.OperationID)
	}
	if tr.Deadline.IsZero() {
		return t.s, nil, time.Time{}, nil
	}
	until := e.Until
	if until.IsZero() {
		until = now.Add(tr.Window)
	}
	if last := tr.ArmedAt.Add(maxTrial); until.After(last) {
		until = last
	}
	if until.After(tr.Deadline) {
		tr.Deadline = until
		t.publishTrial("extended", "")
	}
	return t.s, t.out, tr.Deadline, nil
}

// ResetFence clears the stored fence, so that any next fence is accepted. It lets
// an administrator recover from a wrong epoch.
func ResetFence(s State) State {
	s = s.clone()
	s.Fence = nodeos.Fence{}
	return s
}
