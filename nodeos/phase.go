// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// Phase is a set of tasks that run together; a sequence is a list of phases.
//
// A phase is data: it's written to the journal when its operation is
// accepted, so that what was planned is what is resumed after a reboot, even
// by a newer agent.
type Phase struct {
	// Name is the phase's name in events, errors and status.
	Name string `json:"name"`
	// Tasks run concurrently; the first error cancels the others.
	Tasks []Task `json:"tasks,omitempty"`
	// Undo are the compensations, run one after another when a later phase,
	// or this one, fails with AbortAndUndo before the machine restarted.
	Undo []Task `json:"undo,omitempty"`
	// OnFailure says what happens when a task fails.
	OnFailure FailurePolicy `json:"onFailure"`
	// Timeout bounds one attempt of the phase; tasks are cancelled at its end.
	Timeout time.Duration `json:"timeout"`
	// Ends says what the phase's end waits for.
	Ends PhaseEnd `json:"ends,omitempty"`
	// Effect says what the phase changes in the host's memory.
	Effect PhaseEffect `json:"effect,omitempty"`
}

// Task is a task's name and its parameters; the name is resolved in a
// registry by the runner.
type Task struct {
	// Name is the key in the registry.
	Name string `json:"name"`
	// Params are the task's parameters besides the request.
	Params map[string]string `json:"params,omitempty"`
}

// FailurePolicy says what a failed phase does to its sequence: retry first,
// then act.
type FailurePolicy struct {
	// Retries is how often the phase is tried again before Then applies.
	Retries int `json:"retries,omitempty"`
	// Backoff is the pause before the first retry; it doubles up to a minute.
	Backoff time.Duration `json:"backoff,omitempty"`
	// Then applies when no retry is left.
	Then FailureAction `json:"then"`
}

// FailureAction is what follows a phase that failed for good.
type FailureAction string

// The failure actions.
const (
	// AbortAndUndo runs the compensations of the phases that ran, last first,
	// and ends the operation as failed. On a system that is on trial it means
	// going back to the previous one.
	AbortAndUndo FailureAction = "abort-and-undo"
	// Pause holds the sequence until someone resumes or aborts it.
	Pause FailureAction = "pause"
	// BestEffort records the failure and goes on.
	BestEffort FailureAction = "best-effort"
	// Fatal ends the operation as failed and undoes nothing.
	Fatal FailureAction = "fatal"
)

// PhaseEnd is what the end of a phase waits for.
type PhaseEnd string

// The ends of a phase.
const (
	// EndTasks is the usual end: the tasks are done.
	EndTasks PhaseEnd = ""
	// EndBoot is reached by the next boot: a new boot id.
	EndBoot PhaseEnd = "boot"
	// EndDecision is reached when someone commits or rolls back, or at the
	// commit deadline.
	EndDecision PhaseEnd = "decision"
)

// PhaseEffect is what a phase changes in the host's memory.
type PhaseEffect string

// The effects of a phase.
const (
	// EffectNone changes nothing.
	EffectNone PhaseEffect = ""
	// EffectArm arms the dead-man timer, on disk, before the phase starts.
	EffectArm PhaseEffect = "arm"
	// EffectCommit, when the phase is done, ends the trial and raises the
	// high-water mark.
	EffectCommit PhaseEffect = "commit"
	// EffectRestore, when the phase is done, ends the trial as rolled back
	// and denies its digest on this host.
	EffectRestore PhaseEffect = "restore"
)
