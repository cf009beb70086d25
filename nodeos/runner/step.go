// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Event is an input of the core: Started, PhaseEnded, UndoEnded, Stopped or
// Ticked.
type Event interface{ event() }

// Started is the start of the agent's process.
type Started struct {
	// Inventory is the current state of the machine.
	Inventory nodeos.Inventory
}

// PhaseEnded is the end of an attempt at a phase.
type PhaseEnded struct {
	// OperationID is the operation of the phase.
	OperationID string
	// Index is the index of the phase, from 0.
	Index int
	// Try is the attempt, from 1.
	Try int
	// Failure is nil after a success.
	Failure *Failure
	// Restart is set when the machine goes down.
	Restart *nodeos.RebootCommand
	// Took is the duration of the attempt.
	Took time.Duration
}

// UndoEnded is the end of the compensations.
type UndoEnded struct {
	// OperationID is the operation that was undone.
	OperationID string
	// Failure is the first failure, or nil.
	Failure *Failure
}

// Stopped means that the activity ended after a Stop.
type Stopped struct {
	// OperationID is the stopped operation.
	OperationID string
}

// Ticked means that a deadline may have passed.
type Ticked struct{}

func (Started) event()    {}
func (PhaseEnded) event() {}
func (UndoEnded) event()  {}
func (Stopped) event()    {}
func (Ticked) event()     {}

// Failure is an error as data.
type Failure struct {
	// Reason is the condition reason.
	Reason string `json:"reason"`
	// Message is the error text.
	Message string `json:"message"`
	// Permanent means that a retry can't succeed.
	Permanent bool `json:"permanent,omitempty"`
}

// Action is an effect to apply once the state is on disk: Publish or Exit.
type Action interface{ action() }

// Publish publishes an event.
type Publish struct {
	// OperationID is the operation of the event.
	OperationID string
	// Payload is the event.
	Payload nodeos.Payload
}

// Exit ends the agent's process because the machine goes down.
type Exit struct {
	// Cmd is the reboot command.
	Cmd nodeos.RebootCommand
}

func (Publish) action() {}
func (Exit) action()    {}

// step is one step of the core: a private copy of the state and the actions.
type step struct {
	s   State
	now time.Time
	out []Action
}

func stepOf(s State, now time.Time) *step { return &step{s: s.clone(), now: now} }

// Step returns the state after an event and the actions to apply once it's on
// disk. An event that doesn't fit the state has no effect.
func Step(s State, e Event, now time.Time) (State, []Action) {
	t := stepOf(s, now)
	switch e := e.(type) {
	case Started:
		t.started(e.Inventory)
	case PhaseEnded:
		t.phaseEnded(e)
	case UndoEnded:
		t.undoEnded(e)
	case Stopped:
		t.stopped(e)
	case Ticked:
		t.ticked()
	}
	return t.s, t.out
}

func (t *step) publish(id string, p nodeos.Payload) {
	t.out = append(t.out, Publish{OperationID: id, Payload: p})
}

func (t *step) stateOf(id string) nodeos.OperationState {
	st, _ := t.s.Status(id)
	return st.State
}

// begin starts the open operation from its first phase.
func (t *step) begin(resumed bool) {
	op := t.s.Op
	op.StopBy = time.Time{}
	t.publish(op.ID, nodeos.EventSequenceStart{Sequence: op.Sequence, Phases: len(op.Plan), Resumed: resumed})
	t.enter(0)
}

// enter starts the phase with that index; past the last one the operation
// succeeds.
func (t *step) enter(i int) {
	op := t.s.Op
	if i >= len(op.Plan) {
		t.succeed()
		return
	}
	op.Index, op.Try, op.NotBefore, op.State = i, 1, time.Time{}, nodeos.OperationRunning
	op.PhaseBootID = t.s.BootID
	if !op.RollingBack { // a rollback keeps its cause
		op.Reason, op.Message = "", ""
	}
	p := op.phase()
	op.Phase, op.PhaseIndex, op.PhaseCount = p.Name, i+1, len(op.Plan)
	op.Tasks = make([]string, len(p.Tasks))
	for n, task := range p.Tasks {
		op.Tasks[n] = task.Name
	}
	if p.Effect == nodeos.EffectArm {
		t.arm()
	}
	if p.Ends == nodeos.EndBoot {
		t.s.LastRestart = Restart{At: t.now, Sequence: op.Sequence, Remote: op.Remote}
	}
}

// succeed ends an operation whose phases are all done.
func (t *step) succeed() {
	if t.s.Op.RollingBack {
		t.finish(nodeos.OperationRolledBack, t.s.Op.Reason, t.s.Op.Message)
		return
	}
	t.finish(nodeos.OperationSucceeded, "", "")
}

// finish ends the open operation and starts the waiting one.
func (t *step) finish(state nodeos.OperationState, reason, message string) {
	st := t.s.Op.OperationStatus
	st.State, st.Reason, st.Message, st.Ended, st.Tasks = state, reason, message, t.now, nil
	t.s.Op = nil
	t.remember(st)
	if t.s.Next != nil {
		t.s.Op, t.s.Next = t.s.Next, nil
		t.begin(false)
	}
}

// remember stores and publishes the result of an operation.
func (t *step) remember(st nodeos.OperationStatus) {
	t.s.Recent = append(t.s.Recent, st)
	if n := len(t.s.Recent) - maxRecent; n > 0 {
		t.s.Recent = slices.Delete(t.s.Recent, 0, n)
	}
	t.publish(st.ID, nodeos.EventSequenceStop{
		Sequence: st.Sequence, State: st.State, Reason: st.Reason, Error: st.Message, Duration: t.now.Sub(st.Started),
	})
}

// phaseEnded applies the result of an attempt.
func (t *step) phaseEnded(e PhaseEnded) {
	op := t.s.Op
	if op == nil || op.ID != e.OperationID || op.Index != e.Index || op.Try != e.Try || op.State != nodeos.OperationRunning {
		return
	}
	p := op.phase()
	t.publishEnd(p, e)
	switch {
	case e.Restart != nil:
		op.State = nodeos.OperationRebooting
		t.publish(op.ID, nodeos.EventRestart{Cmd: *e.Restart})
		t.out = append(t.out, Exit{Cmd: *e.Restart})
	case e.Failure == nil && p.Ends == nodeos.EndBoot:
		t.failed(Failure{Reason: "RestartFailed", Message: "the machine did not go down after the restart command"})
	case e.Failure == nil:
		t.phaseDone()
	case op.Stop != nil: // interrupted; Stopped follows
	default:
		t.failed(*e.Failure)
	}
}

func (t *step) publishEnd(p nodeos.Phase, e PhaseEnded) {
	ev := nodeos.EventPhase{
		Sequence: t.s.Op.Sequence, Phase: p.Name, Index: e.Index + 1, Count: len(t.s.Op.Plan),
		Try: e.Try, Action: nodeos.ActionStop, Duration: e.Took,
	}
	if e.Failure != nil {
		ev.Error = e.Failure.Message
	}
	t.publish(t.s.Op.ID, ev)
}

// phaseDone continues after a phase that succeeded.
func (t *step) phaseDone() {
	op := t.s.Op
	switch op.phase().Effect {
	case nodeos.EffectCommit:
		t.committed()
	case nodeos.EffectRestore:
		t.restored()
	case nodeos.EffectNone, nodeos.EffectArm:
	}
	if op.Stop != nil {
		return // Stopped follows
	}
	if op.phase().Ends == nodeos.EndDecision && t.s.Trial != nil && !op.Decided {
		op.State = nodeos.OperationOnTrial
		return
	}
	t.enter(op.Index + 1)
}

// maxBackoff limits the delay between two tries of a phase.
const maxBackoff = time.Minute

// failed applies the phase's failure policy.
func (t *step) failed(f Failure) {
	op := t.s.Op
	policy := op.phase().OnFailure
	if op.Try <= policy.Retries && !f.Permanent {
		op.NotBefore = t.now.Add(backoff.Delay(policy.Backoff, maxBackoff, op.Try-1))
		op.Try++
		op.Reason, op.Message = f.Reason, f.Message
		return
	}
	switch policy.Then {
	case nodeos.BestEffort:
		message := fmt.Sprintf("phase %s failed and was skipped: %s", op.Phase, f.Message)
		t.enter(op.Index + 1)
		if !op.RollingBack && !op.State.Done() {
			op.Reason, op.Message = f.Reason, message
		}
	case nodeos.Pause:
		op.State, op.Reason, op.Message = nodeos.OperationPaused, f.Reason, fmt.Sprintf("phase %s failed: %s", op.Phase, f.Message)
	case nodeos.Fatal:
		t.publish(op.ID, nodeos.EventFatalSequencerError{Sequence: op.Sequence, Error: f.Message})
		t.finish(nodeos.OperationFailed, f.Reason, fmt.Sprintf("phase %s failed: %s", op.Phase, f.Message))
	case nodeos.AbortAndUndo:
		t.abort(f.Reason, fmt.Sprintf("phase %s failed: %s", op.Phase, f.Message))
	default:
		t.abort(f.Reason, f.Message)
	}
}

// abort ends an operation that can't continue: if its OS is on trial, it rolls
// back, else it runs the compensations.
func (t *step) abort(reason, message string) {
	op := t.s.Op
	switch {
	case op.RollingBack: // a rollback has no rollback
		op.State, op.Reason, op.Message = nodeos.OperationPaused, reason, message
	case t.onTrial() && t.ofTrial(op):
		t.rollBack(reason, message)
	default:
		t.undo(nodeos.OperationFailed, reason, message)
	}
}

// undo runs the compensations of the phases that ran, then ends the operation
// in the state final.
func (t *step) undo(final nodeos.OperationState, reason, message string) {
	op := t.s.Op
	op.State, op.Final, op.Reason, op.Message = nodeos.OperationUndoing, final, reason, message
	op.Try, op.NotBefore = 1, time.Time{}
	if len(op.undoTasks()) == 0 {
		t.undone(nil)
	}
}

// undoTasks returns the compensations of the phases that ran, last first.
func (o *Operation) undoTasks() []nodeos.Task {
	var out []nodeos.Task
	for _, p := range slices.Backward(o.Plan[:min(o.Index+1, len(o.Plan))]) {
		out = append(out, p.Undo...)
	}
	return out
}

func (t *step) undoEnded(e UndoEnded) {
	if op := t.s.Op; op != nil && op.ID == e.OperationID && op.State == nodeos.OperationUndoing {
		t.undone(e.Failure)
	}
}

// undone ends an operation after its compensations.
func (t *step) undone(f *Failure) {
	op := t.s.Op
	message := op.Message
	if f != nil { // the next boot may still try the new OS: stay armed
		message += "; the compensations failed too: " + f.Message
	} else if t.ofTrial(op) && t.s.Trial.BootID == "" {
		t.s.Trial = nil
	}
	t.finish(op.Final, op.Reason, message)
}

// stopped continues after the activity was stopped.
func (t *step) stopped(e Stopped) {
	op := t.s.Op
	if op == nil || op.ID != e.OperationID || op.Stop == nil || op.State == nodeos.OperationRebooting {
		return
	}
	stop := *op.Stop
	op.Stop = nil
	switch {
	case !stop.Takeover && t.onTrial() && t.ofTrial(op):
		t.rollBack(stop.Reason, stop.Message)
	case op.RollingBack, t.ofTrial(op) && t.onTrial():
		// The trial continues without its operation and keeps its deadline.
		t.finish(nodeos.OperationCanceled, stop.Reason, stop.Message)
	default:
		t.undo(nodeos.OperationCanceled, stop.Reason, stop.Message)
	}
}

// ticked applies the deadlines that passed.
func (t *step) ticked() {
	if next := t.s.Next; next != nil && !t.now.Before(next.StopBy) {
		t.s.Next = nil
		st := next.OperationStatus
		st.State, st.Ended, st.Reason = nodeos.OperationFailed, t.now, "TakeoverTimeout"
		st.Message = fmt.Sprintf("operation %s (%s) did not stop within %s", t.s.Op.ID, t.s.Op.Sequence, takeoverGrace)
		t.remember(st)
	}
	t.deadline()
}

// ActivityKind is the kind of an Activity.
type ActivityKind int

// The kinds of activities.
const (
	// Idle runs nothing.
	Idle ActivityKind = iota
	// RunPhase runs the tasks of the current phase.
	RunPhase
	// RunUndo runs compensations.
	RunUndo
	// Stopping stops the running activity, then sends Stopped.
	Stopping
)

// Activity is the activity that a state requires.
type Activity struct {
	// Kind is the kind of activity.
	Kind ActivityKind
	// OperationID is the operation.
	OperationID string
	// Index is the phase, from 0.
	Index int
	// Try is the attempt, from 1.
	Try int
	// RollingBack distinguishes the rollback plan from the original plan.
	RollingBack bool
}

// ActivityOf returns the activity that the state requires now.
func ActivityOf(s State, now time.Time) Activity {
	op := s.Op
	if op == nil {
		return Activity{}
	}
	a := Activity{OperationID: op.ID, Index: op.Index, Try: op.Try, RollingBack: op.RollingBack}
	switch {
	case op.State == nodeos.OperationRebooting:
		return Activity{}
	case op.Stop != nil:
		a.Kind = Stopping
	case op.State == nodeos.OperationUndoing:
		a.Kind = RunUndo
	case op.State == nodeos.OperationRunning && !now.Before(op.NotBefore):
		a.Kind = RunPhase
	default:
		return Activity{}
	}
	return a
}

// Wake returns the time of the next deadline or retry; false without one.
func Wake(s State, now time.Time) (time.Time, bool) {
	var out time.Time
	earliest := func(at time.Time) {
		if out.IsZero() || at.Before(out) {
			out = at
		}
	}
	if s.Op != nil && s.Op.State == nodeos.OperationRunning && s.Op.NotBefore.After(now) {
		earliest(s.Op.NotBefore)
	}
	if s.Next != nil {
		earliest(s.Next.StopBy)
	}
	if s.deadlineApplies() {
		earliest(s.Trial.Deadline)
	}
	return out, !out.IsZero()
}
