// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// EventAction is the start or the end of something.
type EventAction string

// The actions of events.
const (
	// ActionNoop means that the order was refused and nothing was done.
	ActionNoop EventAction = "noop"
	// ActionStart is a start.
	ActionStart EventAction = "start"
	// ActionStop is an end, successful or not.
	ActionStop EventAction = "stop"
)

// EventSequenceStart is published when a sequence starts.
type EventSequenceStart struct {
	// Sequence is the sequence.
	Sequence Sequence `json:"sequence"`
	// Phases is the number of phases in the plan.
	Phases int `json:"phases"`
	// Resumed means that it continues after a crash or a reboot.
	Resumed bool `json:"resumed,omitempty"`
}

// EventSequenceStop is published when a sequence ends: the terminal result of
// its operation; reboots in between have events of their own.
type EventSequenceStop struct {
	// Sequence is the sequence.
	Sequence Sequence `json:"sequence"`
	// State is the terminal state.
	State OperationState `json:"state"`
	// Reason is the condition reason; empty after a success.
	Reason string `json:"reason,omitempty"`
	// Error is the message; empty after a success.
	Error string `json:"error,omitempty"`
	// Duration is the time from start to end.
	Duration time.Duration `json:"duration"`
}

// EventSequenceRefused is published when a sequence is refused.
type EventSequenceRefused struct {
	// Sequence is the refused sequence.
	Sequence Sequence `json:"sequence"`
	// Reason is the condition reason.
	Reason string `json:"reason"`
	// Error is the message.
	Error string `json:"error"`
}

// EventFatalSequencerError is published when a sequence fails and can't be
// undone.
type EventFatalSequencerError struct {
	// Error is the message.
	Error string `json:"error"`
	// Sequence is the failed sequence.
	Sequence Sequence `json:"sequence"`
}

// EventPhase is published when a phase starts or stops.
type EventPhase struct {
	// Sequence is the phase's sequence.
	Sequence Sequence `json:"sequence"`
	// Phase is the phase's name.
	Phase string `json:"phase"`
	// Index is the number of the phase, from 1.
	Index int `json:"index"`
	// Count is the number of phases in the plan.
	Count int `json:"count"`
	// Try is the attempt, from 1.
	Try int `json:"try"`
	// Action is start or stop.
	Action EventAction `json:"action"`
	// Error is set when the phase fails.
	Error string `json:"error,omitempty"`
	// Duration is set when a phase stops.
	Duration time.Duration `json:"duration,omitempty"`
}

// EventTask is published when a task starts or stops.
type EventTask struct {
	// Sequence is the task's sequence.
	Sequence Sequence `json:"sequence"`
	// Phase is the task's phase.
	Phase string `json:"phase"`
	// Task is the task's name.
	Task string `json:"task"`
	// Index is the number of the task in its phase, from 1.
	Index int `json:"index"`
	// Count is the number of tasks in the phase.
	Count int `json:"count"`
	// Action is start or stop.
	Action EventAction `json:"action"`
	// Error is set when the task fails.
	Error string `json:"error,omitempty"`
	// Duration is set when a task stops.
	Duration time.Duration `json:"duration,omitempty"`
}

// EventProgress is the progress of a task.
type EventProgress struct {
	// Task is the task's name.
	Task string `json:"task"`
	// Done is the completed amount in Unit.
	Done int64 `json:"done"`
	// Total is the full amount in Unit; 0 when unknown.
	Total int64 `json:"total"`
	// Unit is the unit of Done and Total: bytes, …
	Unit string `json:"unit"`
}

// EventTrial is published when the state of the OS on trial changes.
type EventTrial struct {
	// What is armed, extended, committed, expired, unordered-reboot, fell-back
	// or rolled-back.
	What string `json:"what"`
	// Digest is the image on trial.
	Digest string `json:"digest"`
	// Deadline is the commit deadline.
	Deadline time.Time `json:"deadline,omitzero"`
	// Message has the details.
	Message string `json:"message,omitempty"`
}

// EventRestart is published before the machine goes down.
type EventRestart struct {
	// Cmd is the reboot command.
	Cmd RebootCommand `json:"cmd"`
}

// EventServiceState is published when a service changes its state.
type EventServiceState struct {
	// Service is the service's name.
	Service string `json:"service"`
	// State is started, stopped or failed.
	State string `json:"state"`
	// Message has the details.
	Message string `json:"message,omitempty"`
}

// EventConfigError is published when a machine configuration is rejected.
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
