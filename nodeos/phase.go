// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// Phase is a set of tasks that run concurrently; a sequence is a list of phases.
//
// A phase is data: the plan is journaled when its operation is accepted, so
// that the same plan is resumed after a reboot, even by a newer agent.
type Phase struct {
	// Name is the phase's name in events, errors and status.
	Name string `json:"name"`
	// Tasks run concurrently; the first error cancels the others.
	Tasks []Task `json:"tasks,omitempty"`
	// Undo are the compensations, run one after another when this phase or a
	// later one fails with AbortAndUndo before the machine restarted.
	Undo []Task `json:"undo,omitempty"`
	// OnFailure is the failure policy of the phase.
	OnFailure FailurePolicy `json:"onFailure"`
	// Timeout limits one attempt; tasks are canceled when it expires.
	Timeout time.Duration `json:"timeout"`
	// Ends is the event that completes the phase.
	Ends PhaseEnd `json:"ends,omitempty"`
	// Effect is the change that the phase makes to the host's memory.
	Effect PhaseEffect `json:"effect,omitempty"`
}

// Task is a task name with parameters; the runner resolves the name in its
// registry.
type Task struct {
	// Name is the key in the registry.
	Name string `json:"name"`
	// Params are the task's parameters besides the request.
	Params map[string]string `json:"params,omitempty"`
}

// FailurePolicy is the reaction to a failed phase: retries, then an action.
type FailurePolicy struct {
	// Retries is the number of retries before Then applies.
	Retries int `json:"retries,omitempty"`
	// Backoff is the delay before the first retry; it doubles up to a minute.
	Backoff time.Duration `json:"backoff,omitempty"`
	// Then is the action when no retry is left.
	Then FailureAction `json:"then"`
}

// FailureAction is the action after a phase failed and its retries are used up.
type FailureAction string

// The failure actions.
const (
	// AbortAndUndo runs the compensations of the phases that ran, last first,
	// and ends the operation as failed. When the OS on trial is running, it
	// rolls back to the previous OS.
	AbortAndUndo FailureAction = "abort-and-undo"
	// Pause holds the sequence until an operator resumes or aborts it.
	Pause FailureAction = "pause"
	// BestEffort records the failure and continues.
	BestEffort FailureAction = "best-effort"
	// Fatal ends the operation as failed without undoing anything.
	Fatal FailureAction = "fatal"
)

// PhaseEnd is the event that completes a phase.
type PhaseEnd string

// The ends of a phase.
const (
	// EndTasks completes when the tasks are done; the default.
	EndTasks PhaseEnd = ""
	// EndBoot completes at the next boot, recognized by a new boot id.
	EndBoot PhaseEnd = "boot"
	// EndDecision completes with a commit, a rollback or the commit deadline.
	EndDecision PhaseEnd = "decision"
)

// PhaseEffect is a change of the host's memory by a phase.
type PhaseEffect string

// The effects of a phase.
const (
	// EffectNone changes nothing.
	EffectNone PhaseEffect = ""
	// EffectArm stores the dead-man timer on disk before the phase starts.
	EffectArm PhaseEffect = "arm"
	// EffectCommit, when the phase is done, ends the trial and raises the
	// high-water mark.
	EffectCommit PhaseEffect = "commit"
	// EffectRestore, when the phase is done, ends the trial as rolled back
	// and denies its digest on this host.
	EffectRestore PhaseEffect = "restore"
)
