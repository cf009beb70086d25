// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"time"
)

// Controller runs sequences, one at a time.
type Controller interface {
	// Runtime returns the runtime that tasks use.
	Runtime() Runtime
	// Sequencer returns the planner of sequences.
	Sequencer() Sequencer
	// Run acquires the lock before it returns. A ticket means that the
	// operation is accepted and journaled; any error, such as a *LockedError
	// or a *Refusal, means that nothing was started. The operation continues
	// after Run returns.
	Run(ctx context.Context, seq Sequence, data Request, setters ...ControllerOption) (Ticket, error)
	// V1Alpha2 returns the controllers of the host's resources.
	V1Alpha2() V1Alpha2Controller
}

// Ticket is the result of an accepted order.
type Ticket struct {
	// OperationID is the id of the operation.
	OperationID string
	// RequestHash is the hash that the id is bound to.
	RequestHash string
	// Known means that the operation was accepted before; nothing new was started.
	Known bool
	// State is the current state of the operation.
	State OperationState
}

// ControllerOptions are the options of a run.
type ControllerOptions struct {
	// Force allows the take-overs that the table allows only when forced, such
	// as a reboot during a reboot. Two sequences never run at once.
	Force bool
	// Takeover interrupts any running sequence.
	Takeover bool
}

// ControllerOption sets an option.
type ControllerOption func(o *ControllerOptions) error

// WithForce sets Force.
func WithForce() ControllerOption {
	return func(o *ControllerOptions) error {
		o.Force = true
		return nil
	}
}

// WithTakeover sets Takeover.
func WithTakeover() ControllerOption {
	return func(o *ControllerOptions) error {
		o.Takeover = true
		return nil
	}
}

// DefaultControllerOptions returns the default options.
func DefaultControllerOptions() ControllerOptions { return ControllerOptions{} }

// Sequencer plans a sequence into phases; SequencerFunc(Plan) is the default.
type Sequencer interface {
	// Plan returns the phases of a sequence; it's pure.
	Plan(seq Sequence, mode Mode, data Request) ([]Phase, error)
}

// SequencerFunc adapts a function to a Sequencer.
type SequencerFunc func(seq Sequence, mode Mode, data Request) ([]Phase, error)

// Plan implements Sequencer.
func (f SequencerFunc) Plan(seq Sequence, mode Mode, data Request) ([]Phase, error) {
	return f(seq, mode, data)
}

// Verdict is a decision on an operation that waits for one.
type Verdict string

// The verdicts.
const (
	// VerdictCommit commits the OS on trial.
	VerdictCommit Verdict = "commit"
	// VerdictRollback rolls back to the previous OS.
	VerdictRollback Verdict = "rollback"
	// VerdictResume retries the failed phase of a paused operation.
	VerdictResume Verdict = "resume"
	// VerdictAbort ends a paused operation and runs its compensations.
	VerdictAbort Verdict = "abort"
)

// Decision applies a verdict to an operation.
type Decision struct {
	// Order identifies the caller; its OperationID is the operation to decide.
	Order
	// Verdict is the verdict.
	Verdict Verdict
	// Why is shown in the operation's status.
	Why string
}

// Extension moves the commit deadline of the OS on trial.
type Extension struct {
	// Order identifies the caller; its OperationID is the operation on trial.
	Order
	// Until is the new deadline; zero means a full window from now. A deadline
	// is never moved to an earlier time.
	Until time.Time
}
