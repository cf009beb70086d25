// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// EventAction says what began or ended.
type EventAction string

// The actions of events.
const (
	// ActionNoop says that nothing was done: the order was refused.
	ActionNoop EventAction = "noop"
	// ActionStart is a beginning.
	ActionStart EventAction = "start"
	// ActionStop is an end, good or bad.
	ActionStop EventAction = "stop"
)

// EventSequenceStart says that a sequence starts.
type EventSequenceStart struct {
	// Sequence is what starts, Phases how many phases it has.
	Sequence Sequence `json:"sequence"`
	// Phases is the length of the plan.
	Phases int `json:"phases"`
	// Resumed says that it goes on after a crash or a boot.
	Resumed bool `json:"resumed,omitempty"`
}

// EventSequenceStop says that a sequence ended: the terminal result of its
// operation, apart from reboots on the way.
type EventSequenceStop struct {
	// Sequence is what ended.
	Sequence Sequence `json:"sequence"`
	// State is how it ended.
	State OperationState `json:"state"`
	// Reason and Error are empty after a success.
	Reason string `json:"reason,omitempty"`
	// Error is the message.
	Error string `json:"error,omitempty"`
	// Duration is how long it took.
	Duration time.Duration `json:"duration"`
}

// EventSequenceRefused says that a sequence was not started.
type EventSequenceRefused struct {
	// Sequence is what was refused.
	Sequence Sequence `json:"sequence"`
	// Reason and Error say why.
	Reason string `json:"reason"`
	// Error is the message.
	Error string `json:"error"`
}

// EventFatalSequencerError says that a sequence failed in a way that nothing
// undoes.
type EventFatalSequencerError struct {
	// Error is the message.
	Error string `json:"error"`
	// Sequence is what failed.
	Sequence Sequence `json:"sequence"`
}

// EventPhase says that a phase starts or stops.
type EventPhase struct {
	// Sequence and Phase say which.
	Sequence Sequence `json:"sequence"`
	// Phase is the phase's name.
	Phase string `json:"phase"`
	// Index counts from 1; Count is the length of the plan.
	Index int `json:"index"`
	// Count is the length of the plan.
	Count int `json:"count"`
	// Try counts from 1.
	Try int `json:"try"`
	// Action is start or stop.
	Action EventAction `json:"action"`
	// Error is set when a phase stops with one.
	Error string `json:"error,omitempty"`
	// Duration is set when a phase stops.
	Duration time.Duration `json:"duration,omitempty"`
}

// EventTask says that a task starts or stops.
type EventTask struct {
	// Sequence, Phase and Task say which.
	Sequence Sequence `json:"sequence"`
	// Phase is the task's phase.
	Phase string `json:"phase"`
	// Task is the task's name.
	Task string `json:"task"`
	// Index counts from 1 within the phase, Count is how many there are.
	Index int `json:"index"`
	// Count is the number of tasks in the phase.
	Count int `json:"count"`
	// Action is start or stop.
	Action EventAction `json:"action"`
	// Error is set when a task stops with one.
	Error string `json:"error,omitempty"`
	// Duration is set when a task stops.
	Duration time.Duration `json:"duration,omitempty"`
}

// EventProgress says how far a task is.
type EventProgress struct {
	// Task is the task's name.
	Task string `json:"task"`
	// Done and Total are in Unit.
	Done int64 `json:"done"`
	// Total is 0 when unknown.
	Total int64 `json:"total"`
	// Unit is what is counted: bytes, …
	Unit string `json:"unit"`
}

// EventTrial says that something happened to the system on trial.
type EventTrial struct {
	// What is armed, extended, committed, expired, unordered-reboot,
	// fell-back or rolled-back.
	What string `json:"what"`
	// Digest is the image on trial.
	Digest string `json:"digest"`
	// Deadline is the commit deadline.
	Deadline time.Time `json:"deadline,omitzero"`
	// Message says more.
	Message string `json:"message,omitempty"`
}

// EventRestart says that the machine goes down.
type EventRestart struct {
	// Cmd is how.
	Cmd RebootCommand `json:"cmd"`
}

// EventServiceState says that a service changed its state.
type EventServiceState struct {
	// Service is the service's name.
	Service string `json:"service"`
	// State is started, stopped or failed.
	State string `json:"state"`
	// Message says more.
	Message string `json:"message,omitempty"`
}

// EventConfigError says that a machine configuration was refused.
type EventConfigError struct {
	// Error is the message.
	Error string `json:"error"`
}

// TypeName implements Payload.
func (EventSequenceStart) TypeName() string { return "SequenceStart" }

// TypeName implements Payload.
func (EventSequenceStop) TypeName() string { return "SequenceStop" }

// TypeName implements Payload.
func (EventSequenceRefused) TypeName() string { return "SequenceRefused" }

// TypeName implements Payload.
func (EventFatalSequencerError) TypeName() string { return "FatalSequencerError" }

// TypeName implements Payload.
func (EventPhase) TypeName() string { return "Phase" }

// TypeName implements Payload.
func (EventTask) TypeName() string { return "Task" }

// TypeName implements Payload.
func (EventProgress) TypeName() string { return "Progress" }

// TypeName implements Payload.
func (EventTrial) TypeName() string { return "Trial" }

// TypeName implements Payload.
func (EventRestart) TypeName() string { return "Restart" }

// TypeName implements Payload.
func (EventServiceState) TypeName() string { return "ServiceState" }

// TypeName implements Payload.
func (EventConfigError) TypeName() string { return "ConfigError" }

// TypeURLOf returns the type URL of a payload.
func TypeURLOf(p Payload) string { return "lockstep/runtime/" + p.TypeName() }
