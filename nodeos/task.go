// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// The names of the tasks that plans use; nodeos/tasks has one file for each.
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
	// TaskSetNextBoot lets the firmware try the staged slot once, counted.
	TaskSetNextBoot = "set-next-boot"
	// TaskClearNextBoot undoes TaskSetNextBoot.
	TaskClearNextBoot = "clear-next-boot"
	// TaskRestart takes the machine down.
	TaskRestart = "restart"
	// TaskVerifyBooted checks that the wanted digest runs and is healthy.
	TaskVerifyBooted = "verify-booted"
	// TaskCommit makes the running system the good one.
	TaskCommit = "commit"
	// TaskPrecheckRollback checks that there is a system to go back to.
	TaskPrecheckRollback = "precheck-rollback"
	// TaskRestore makes the previous system the next one to boot.
	TaskRestore = "restore"
	// TaskVerifyRestored checks that the previous system runs and is healthy.
	TaskVerifyRestored = "verify-restored"
	// TaskPrecheckReset checks that the order is for this machine, this
	// installation and this boot.
	TaskPrecheckReset = "precheck-reset"
	// TaskWipe wipes the targets of a reset.
	TaskWipe = "wipe"
)

// Parameters of tasks.
const (
	// ParamCommand is how TaskRestart takes the machine down: restart or
	// power-off.
	ParamCommand = "command"
	// ParamDigest is the digest that a verification wants.
	ParamDigest = "digest"
)

// TaskExecutionFunc executes a task. It ends when its context ends, and
// executing it twice is the same as once: a crash repeats it.
type TaskExecutionFunc func(ctx context.Context, log *zap.Logger, r Runtime) error

// TaskSetupFunc prepares a task for a run and returns its function and the
// name to show; a nil function skips the task.
type TaskSetupFunc func(seq Sequence, call TaskCall) (TaskExecutionFunc, string)

// TaskCall is what a task is told about its run.
type TaskCall struct {
	// OperationID is the run's id.
	OperationID string
	// Request is the run's data.
	Request Request
	// Params are the task's parameters in the plan.
	Params map[string]string
	// Try counts the tries of the phase from 1.
	Try int
	// Now is when the phase started, by the agent's clock.
	Now time.Time
	// From is the digest of the system that ran when the operation began.
	From string
	// Memory is what the host remembers.
	Memory Memory
}

// Memory is what the journal remembers beyond a single operation.
type Memory struct {
	// InstallationID is minted anew with each journal.
	InstallationID string
	// HostID is this host's identity.
	HostID string
	// Denied are digests that must not boot here.
	Denied []Denial
	// Committed are the last committed systems, newest last.
	Committed []Committed
	// HighWater is the highest committed version of each product.
	HighWater map[string]string
	// Trial is the open trial, or nil.
	Trial *Trial
}

// DeniedBy returns the denial of a digest, if there is one.
func (m Memory) DeniedBy(digest string) (Denial, bool) {
	for _, d := range m.Denied {
		if d.Digest == digest {
			return d, true
		}
	}
	return Denial{}, false
}
