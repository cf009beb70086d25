// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// clockSlack is the maximum age of a deadline before its times are attributed to
// a wrong clock.
const clockSlack = 30 * 24 * time.Hour

// started applies the state of the machine after a start of the agent, then
// resumes.
func (t *step) started(inv nodeos.Inventory) {
	booted := t.s.BootID != inv.BootID
	if booted {
		t.s.BootID, t.s.Starts = inv.BootID, 0
	}
	t.s.Starts++
	t.s.Running = inv.Booted
	if len(t.s.Committed) == 0 && inv.Booted.Confirmed && inv.Booted.Digest != "" {
		t.recordCommitted(inv.Booted.Digest, inv.Booted.Product, inv.Booted.Version)
	}
	t.rebase()
	t.settle(inv)
	t.resume(booted)
}

// rebase corrects times that a clock jump invalidated: a restart in the future,
// a trial that was armed in the future or expired long ago. The boot limit of a
// trial still applies, so this can't keep one open forever.
func (t *step) rebase() {
	if t.s.LastRestart.At.After(t.now) {
		t.s.LastRestart.At = t.now
	}
	if tr := t.s.Trial; tr != nil && !tr.Deadline.IsZero() &&
		(t.now.Before(tr.ArmedAt.Add(-5*time.Minute)) || t.now.After(tr.Deadline.Add(clockSlack))) {
		tr.ArmedAt, tr.Deadline = t.now, t.now.Add(tr.Window)
	}
}

// settle compares the trial with the running OS.
func (t *step) settle(inv nodeos.Inventory) {
	tr := t.s.Trial
	if tr == nil {
		return
	}
	if inv.Booted.Digest != tr.Image.Ref.Digest {
		t.settleOtherOS(inv)
		return
	}
	switch {
	case inv.Booted.Confirmed: // committed; the agent crashed before it was journaled
		t.committed()
	case tr.BootID == "":
		tr.BootID, tr.Boots = inv.BootID, 1
	case tr.BootID != inv.BootID:
		tr.BootID = inv.BootID
		tr.Boots++
		if !t.s.Op.takesDown() {
			tr.Unordered++
			t.publishTrial("unordered-reboot", fmt.Sprintf("boot %d of the OS on trial", tr.Boots))
		}
	}
}

// takesDown reports whether the operation is in the phase that restarts the machine.
func (o *Operation) takesDown() bool { return o != nil && o.Index == o.bootIndex() }

// settleOtherOS handles a running OS other than the one on trial.
func (t *step) settleOtherOS(inv nodeos.Inventory) {
	tr, op := t.s.Trial, t.s.Op
	if inv.BootID == tr.FromBootID {
		return // not activated yet
	}
	if op != nil && op.RollingBack {
		return // expected: the rollback ends the trial
	}
	slot, known := inv.SlotOf(tr.Image.Ref.Digest)
	tried := tr.BootID != "" || (known && slot.State == nodeos.SlotBad) ||
		!t.ofTrial(op) || op.Index >= op.bootIndex()
	if !tried {
		return // power was lost before the boot switch
	}
	why := fmt.Sprintf("%s %s failed to boot or crashed: the machine fell back to %s", tr.Image.Product, tr.Image.Version, inv.Booted.Version)
	t.publishTrial("fell-back", why)
	ours := t.ofTrial(op)
	t.deny(tr, why)
	if ours {
		t.finish(nodeos.OperationRolledBack, "FellBack", why)
	}
}

// resume continues the open operation.
func (t *step) resume(booted bool) {
	op := t.s.Op
	if op == nil || op.Stop != nil && op.State != nodeos.OperationRebooting {
		return
	}
	if ours := t.onTrial() && t.ofTrial(op); ours && t.s.Trial.Boots > maxTrialBoots && !op.RollingBack {
		t.rollBack("TooManyBoots", fmt.Sprintf("the OS on trial booted %d times", t.s.Trial.Boots))
		return
	} else if ours && op.RollingBack && op.bootIndex() < 0 {
		t.rollBack(op.Reason, op.Message) // the OS booted during the disarm phase
		return
	}
	switch op.State {
	case nodeos.OperationPaused, nodeos.OperationWaiting:
	case nodeos.OperationUndoing:
		if t.onTrial() && t.ofTrial(op) { // the OS booted during the compensations
			t.rollBack(op.Reason, op.Message)
		}
	case nodeos.OperationOnTrial:
		t.resumeTrial(booted)
	default:
		t.resumeRunning(booted || op.PhaseBootID != t.s.BootID)
	}
}

// resumeTrial verifies an OS on trial again after a boot.
func (t *step) resumeTrial(booted bool) {
	switch {
	case t.s.Trial == nil: // committed; the agent crashed before it was journaled
		t.succeed()
	case booted:
		t.enter(t.s.Op.bootIndex() + 1)
	}
}

// resumeRunning resumes a phase that a crash or a boot interrupted.
func (t *step) resumeRunning(booted bool) {
	op := t.s.Op
	boot := op.bootIndex()
	op.Restarts++
	t.publish(op.ID, nodeos.EventSequenceStart{Sequence: op.Sequence, Phases: len(op.Plan), Resumed: true})
	switch {
	case booted && op.Index == boot: // the ordered boot
		op.Restarts--
		t.arrive(boot + 1)
	case op.phase().Effect == nodeos.EffectCommit && t.s.Trial == nil:
		t.enter(op.Index + 1)
	case op.Restarts > maxRestarts && !op.RollingBack: // a rollback is never aborted
		op.Stop = nil
		t.abort("TooManyRestarts", fmt.Sprintf("phase %s was interrupted %d times", op.Phase, op.Restarts))
	case booted && op.Index > boot && boot >= 0:
		t.enter(boot + 1)
	case booted && boot >= 0 && t.arrived():
		t.enter(boot + 1)
	case booted && op.Sequence != nodeos.SequenceReset:
		t.enter(0)
	default:
		op.State, op.NotBefore, op.PhaseBootID = nodeos.OperationRunning, time.Time{}, t.s.BootID
		op.Try = max(op.Try, 1)
	}
}

// arrive enters the phase after the boot, or lets a waiting operation start.
func (t *step) arrive(i int) {
	op := t.s.Op
	if stop := op.Stop; stop != nil && stop.Takeover {
		op.State, op.Index = nodeos.OperationRunning, min(i, len(op.Plan)-1)
		return // Stopped follows
	}
	op.Stop = nil
	t.enter(i)
}

// arrived reports whether a boot before the reboot phase had the same result as
// that phase.
func (t *step) arrived() bool {
	op := t.s.Op
	switch {
	case op.Sequence == nodeos.SequenceReset:
		return false
	case op.RollingBack:
		return t.s.Trial == nil || t.s.Running.Digest != t.s.Trial.Image.Ref.Digest
	case t.ofTrial(op):
		return t.onTrial()
	case op.Sequence == nodeos.SequenceRollback:
		return t.s.Running.Digest != op.From
	case op.Sequence == nodeos.SequenceUpgrade || op.Sequence == nodeos.SequenceInstall:
		return false
	default: // reboot, shutdown: the machine was down
		return true
	}
}
