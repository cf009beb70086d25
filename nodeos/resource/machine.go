// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"context"
	"errors"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// The resources of a host.
const (
	// ConfigNamespace contains the configuration of the host.
	ConfigNamespace = "config"
	// MachineConfigType is the machine configuration; its spec is a
	// nodeos.Provider.
	MachineConfigType = "MachineConfig"
	// RuntimeNamespace contains the observed state of the host.
	RuntimeNamespace = "runtime"
	// MachineStatusType is the current status of the host; its spec is a
	// MachineStatus.
	MachineStatusType = "MachineStatus"
	// SingletonName is the name of singleton resources.
	SingletonName = "machine"
)

// configOwner owns the machine configuration.
const configOwner = "machine-config"

// SetConfig implements nodeos.V1Alpha2State: it publishes a configuration unless
// it's unchanged.
func (r *Runtime) SetConfig(p nodeos.Provider) error {
	key := nodeos.ResourceKey{Namespace: ConfigNamespace, Type: MachineConfigType, Name: SingletonName}
	//nolint:forbidigo // SetConfig has no context, and the in-memory store doesn't block.
	return Update(context.Background(), r.store, key, configOwner, func(spec any) (any, bool) {
		old, ok := spec.(nodeos.Provider)
		return p, !ok || !bytes.Equal(old.Bytes(), p.Bytes())
	})
}

// Stage is a summary of the host's activity.
type Stage string

// The stages of a host.
const (
	// StageBooting is starting, or starting its services.
	StageBooting Stage = "booting"
	// StageRunning is in normal operation.
	StageRunning Stage = "running"
	// StageUpgrading is staging or switching its OS.
	StageUpgrading Stage = "upgrading"
	// StageOnTrial runs an OS that isn't committed yet.
	StageOnTrial Stage = "on-trial"
	// StageResetting is being wiped.
	StageResetting Stage = "resetting"
	// StageRestarting is going down.
	StageRestarting Stage = "restarting"
	// StageFailed requires an operator: the last sequence failed permanently.
	StageFailed Stage = "failed"
)

// MachineStatus is the current status of a host.
type MachineStatus struct {
	// Stage is the summary.
	Stage Stage
	// OperationID is the running operation, if any.
	OperationID string
	// Message is the cause of a failure.
	Message string
}

// Fold returns the status after an event; it's pure.
func Fold(s MachineStatus, e nodeos.Event) MachineStatus {
	switch p := e.Payload.(type) {
	case nodeos.EventSequenceStart:
		return MachineStatus{Stage: stageOf(p.Sequence, s.Stage), OperationID: e.OperationID}
	case nodeos.EventSequenceStop:
		return stopped(s, e.OperationID, p)
	case nodeos.EventTrial:
		switch p.What {
		case "committed", "rolled-back", "fell-back":
			s.Stage = StageUpgrading
		default:
			s.Stage = StageOnTrial
		}
		return s
	case nodeos.EventRestart:
		s.Stage = StageRestarting
		return s
	default:
		return s
	}
}

// stageOf returns the stage while a sequence runs.
func stageOf(seq nodeos.Sequence, before Stage) Stage {
	switch seq {
	case nodeos.SequenceBoot, nodeos.SequenceBootstrap, nodeos.SequenceInitialize:
		return StageBooting
	case nodeos.SequenceUpgrade, nodeos.SequenceStageUpgrade, nodeos.SequenceInstall, nodeos.SequenceRollback:
		return StageUpgrading
	case nodeos.SequenceReset:
		return StageResetting
	case nodeos.SequenceReboot, nodeos.SequenceShutdown:
		return StageRestarting
	default:
		return before
	}
}

// stopped returns the status after a sequence. The end of an interrupted sequence
// changes nothing.
func stopped(s MachineStatus, id string, p nodeos.EventSequenceStop) MachineStatus {
	switch {
	case s.OperationID != "" && s.OperationID != id:
		return s
	case p.State == nodeos.OperationFailed && (p.Sequence == nodeos.SequenceBoot || p.Sequence == nodeos.SequenceReset):
		return MachineStatus{Stage: StageFailed, Message: p.Error}
	case p.State == nodeos.OperationCanceled:
		return MachineStatus{Stage: s.Stage}
	default:
		return MachineStatus{Stage: StageRunning}
	}
}

// StatusController derives the machine's status from the host's events. It implements
// Controller.
type StatusController struct{ events nodeos.Watcher }

var _ Controller = StatusController{}

// NewStatusController returns a controller of the given event stream.
func NewStatusController(events nodeos.Watcher) StatusController {
	return StatusController{events: events}
}

// Name implements Controller.
func (StatusController) Name() string { return "machine-status" }

// Inputs implements Controller; it reads events instead of resources.
func (StatusController) Inputs() []Kind { return nil }

// Outputs implements Controller.
func (StatusController) Outputs() []Kind { return []Kind{{RuntimeNamespace, MachineStatusType}} }

// errEnded means that the event stream ended unexpectedly.
var errEnded = errors.New("event stream ended")

// Run implements Controller.
func (c StatusController) Run(ctx context.Context, a *Access) error {
	status := MachineStatus{Stage: StageBooting}
	write := func() error {
		return a.Update(ctx, Kind{RuntimeNamespace, MachineStatusType}, SingletonName, func(spec any) (any, bool) {
			return status, spec != any(status)
		})
	}
	if err := write(); err != nil {
		return err
	}
	var failed error
	err := c.events.Watch(ctx, func(ch <-chan nodeos.EventInfo) {
		for e := range ch {
			if e.Payload == nil {
				continue // lost events: the next ones update the status
			}
			status = Fold(status, e.Event)
			if failed = write(); failed != nil {
				return
			}
		}
	}, nodeos.WithTailEvents(-1))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, failed, errEnded)
}
