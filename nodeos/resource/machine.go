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
	// ConfigNamespace holds what was given to the host.
	ConfigNamespace = "config"
	// MachineConfigType is the machine configuration; its spec is a
	// nodeos.Provider.
	MachineConfigType = "MachineConfig"
	// RuntimeNamespace holds what the host found out.
	RuntimeNamespace = "runtime"
	// MachineStatusType is what the host does now; its spec is a
	// MachineStatus.
	MachineStatusType = "MachineStatus"
	// TheOne is the name of a resource that there is one of.
	TheOne = "machine"
)

// configOwner owns the machine configuration.
const configOwner = "machine-config"

// SetConfig implements nodeos.V1Alpha2State: it publishes a configuration,
// unless it's the one that is published.
func (r *Runtime) SetConfig(p nodeos.Provider) error {
	key := nodeos.ResourceKey{Namespace: ConfigNamespace, Type: MachineConfigType, Name: TheOne}
	//nolint:forbidigo // the document's SetConfig has no context, and the store is memory: nothing waits.
	return Update(context.Background(), r.store, key, configOwner, func(spec any) (any, bool) {
		old, ok := spec.(nodeos.Provider)
		return p, !ok || !bytes.Equal(old.Bytes(), p.Bytes())
	})
}

// Stage is what a host does, in a word.
type Stage string

// The stages of a host.
const (
	// StageBooting starts, or brings its services up.
	StageBooting Stage = "booting"
	// StageRunning does its work.
	StageRunning Stage = "running"
	// StageUpgrading stages or changes its system.
	StageUpgrading Stage = "upgrading"
	// StageOnTrial runs a system that nobody committed yet.
	StageOnTrial Stage = "on-trial"
	// StageResetting is being wiped.
	StageResetting Stage = "resetting"
	// StageRestarting goes down.
	StageRestarting Stage = "restarting"
	// StageFailed needs someone: the last sequence failed for good.
	StageFailed Stage = "failed"
)

// MachineStatus is what a host does now.
type MachineStatus struct {
	// Stage is the word for it.
	Stage Stage
	// OperationID is the operation that runs, if any.
	OperationID string
	// Message says why, after a failure.
	Message string
}

// Fold returns the status after an event; purely.
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

// stageOf is the stage while a sequence runs.
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

// stopped is the status after a sequence. The end of a sequence that another
// one interrupted changes nothing.
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

// StatusController keeps the machine's status from the host's events. It
// implements Controller.
type StatusController struct{ events nodeos.Watcher }

var _ Controller = StatusController{}

// NewStatusController returns a controller that folds events.
func NewStatusController(events nodeos.Watcher) StatusController {
	return StatusController{events: events}
}

// Name implements Controller.
func (StatusController) Name() string { return "machine-status" }

// Inputs implements Controller: it reads events, no resources.
func (StatusController) Inputs() []Kind { return nil }

// Outputs implements Controller.
func (StatusController) Outputs() []Kind { return []Kind{{RuntimeNamespace, MachineStatusType}} }

// errEnded reports that the event stream ended although nobody asked for it.
var errEnded = errors.New("the event stream ended")

// Run implements Controller.
func (c StatusController) Run(ctx context.Context, a *Access) error {
	status := MachineStatus{Stage: StageBooting}
	write := func() error {
		return a.Update(ctx, Kind{RuntimeNamespace, MachineStatusType}, TheOne, func(spec any) (any, bool) {
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
				continue // lost ones: the next ones tell
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
