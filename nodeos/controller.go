// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"time"
)

// Controller runs sequences, one at a time.
type Controller interface {
	// Runtime returns what tasks are given.
	Runtime() Runtime
	// Sequencer returns what plans the sequences.
	Sequencer() Sequencer
	// Run takes the lock before it returns: the ticket says that the
	// operation is accepted and on disk; a *LockedError, a refusal or another
	// error says that nothing was started. The operation itself goes on after
	// Run returned.
	Run(ctx context.Context, seq Sequence, data Request, setters ...ControllerOption) (Ticket, error)
	// V1Alpha2 returns the controllers of the host's resources.
	V1Alpha2() V1Alpha2Controller
}

// Ticket is the answer to an accepted order.
type Ticket struct {
	// OperationID is the run's id.
	OperationID string
	// RequestHash is what the id is bound to.
	RequestHash string
	// Known says that the run was accepted before: nothing new was started.
	Known bool
	// State is where the run stands.
	State OperationState
}

// ControllerOptions are the options of a run.
type ControllerOptions struct {
	// Force allows what the take-over table allows only when forced, such as
	// a reboot over a reboot. It never lets two sequences run at once.
	Force bool
	// Takeover interrupts whatever runs.
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

// DefaultControllerOptions returns the options of a run that sets none.
func DefaultControllerOptions() ControllerOptions { return ControllerOptions{} }

// Sequencer plans a sequence into phases. Plan is the sequencer of this
// project, by way of SequencerFunc.
type Sequencer interface {
	// Plan returns the phases of a sequence, purely.
	Plan(seq Sequence, mode Mode, data Request) ([]Phase, error)
}

// SequencerFunc makes a function a Sequencer.
type SequencerFunc func(seq Sequence, mode Mode, data Request) ([]Phase, error)

// Plan implements Sequencer.
func (f SequencerFunc) Plan(seq Sequence, mode Mode, data Request) ([]Phase, error) {
	return f(seq, mode, data)
}

// Verdict is what someone decides about an operation that waits.
type Verdict string

// The verdicts.
const (
	// VerdictCommit keeps the system on trial.
	VerdictCommit Verdict = "commit"
	// VerdictRollback goes back to the previous system.
	VerdictRollback Verdict = "rollback"
	// VerdictResume tries the failed phase of a paused operation again.
	VerdictResume Verdict = "resume"
	// VerdictAbort ends a paused operation with its compensations.
	VerdictAbort Verdict = "abort"
)

// Decision is a verdict on an operation.
type Decision struct {
	// Order says who decides. Its OperationID is the operation that is
	// decided on.
	Order
	// Verdict is what is decided.
	Verdict Verdict
	// Why is shown in the operation's status.
	Why string
}

// Extension moves the commit deadline of the system on trial.
type Extension struct {
	// Order says who extends; its OperationID is the operation on trial.
	Order
	// Until is the wanted deadline; zero means a whole window from now. It
	// never moves the deadline nearer.
	Until time.Time
}
