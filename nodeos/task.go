// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// The names of the tasks that plans use; nodeos/tasks implements them.
const (
	// TaskLoadConfig loads and checks the machine configuration.
	TaskLoadConfig = "load-config"
	// TaskPrecheckImage checks space, slots, floor, denials and signature.
	TaskPrecheckImage = "precheck-image"
	// TaskStageImage writes the image to the inactive slot.
	TaskStageImage = "stage-image"
	// TaskStopServices stops the host's services.
	TaskStopServices = "stop-services"
	// TaskStartServices starts the host's services.
	TaskStartServices = "start-services"
	// TaskSetNextBoot lets the firmware try the staged slot once, with boot counting.
	TaskSetNextBoot = "set-next-boot"
	// TaskClearNextBoot undoes TaskSetNextBoot.
	TaskClearNextBoot = "clear-next-boot"
	// TaskRestart takes the machine down.
	TaskRestart = "restart"
	// TaskVerifyBooted checks that the requested digest runs and is healthy.
	TaskVerifyBooted = "verify-booted"
	// TaskCommit marks the running OS as good.
	TaskCommit = "commit"
	// TaskPrecheckRollback checks that a previous OS exists.
	TaskPrecheckRollback = "precheck-rollback"
	// TaskRestore selects the previous OS for the next boot.
	TaskRestore = "restore"
	// TaskVerifyRestored checks that the previous OS runs and is healthy.
	TaskVerifyRestored = "verify-restored"
	// TaskPrecheckReset checks that the order names this machine, installation
	// and boot.
	TaskPrecheckReset = "precheck-reset"
	// TaskWipe wipes the targets of a reset.
	TaskWipe = "wipe"
)

// Parameters of tasks.
const (
	// ParamCommand is the reboot command of TaskRestart: restart or power-off.
	ParamCommand = "command"
)

// TaskExecutionFunc executes a task. It returns when its context ends and is
// idempotent: a crash repeats it.
type TaskExecutionFunc func(ctx context.Context, log *zap.Logger, r Runtime) error

// TaskSetupFunc prepares a task for a run and returns its function and display
// name; a nil function skips the task.
type TaskSetupFunc func(seq Sequence, call TaskCall) (TaskExecutionFunc, string)

// TaskCall is the input of a task.
type TaskCall struct {
	// OperationID is the id of the operation.
	OperationID string
	// Request is the request of the operation.
	Request Request
	// Params are the task's parameters in the plan.
	Params map[string]string
	// Try is the attempt at the phase, from 1.
	Try int
	// Now is the start of the phase, by the agent's clock.
	Now time.Time
	// From is the digest of the OS that ran when the operation began.
	From string
	// Memory is the host's memory.
	Memory Memory
}

// Memory is the part of the journal that outlives an operation.
type Memory struct {
	// InstallationID is generated with each new journal.
	InstallationID string
	// HostID is this host's identity.
	HostID string
	// Denied are digests that must not boot here.
	Denied []Denial
	// Committed are the last committed images, newest last.
	Committed []Committed
	// HighWater is the highest committed version per product.
	HighWater map[string]string
	// Trial is the open trial, or nil.
	Trial *Trial
}

// DeniedBy returns the denial of a digest, if any.
func (m Memory) DeniedBy(digest string) (Denial, bool) {
	for _, d := range m.Denied {
		if d.Digest == digest {
			return d, true
		}
	}
	return Denial{}, false
}
