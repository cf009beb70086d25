// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Limits of a State.
const (
	maxRecent    = 32
	maxDenied    = 64
	maxCommitted = 8
	// maxRestarts limits how often an operation is resumed after the agent
	// crashed or the machine rebooted unexpectedly.
	maxRestarts = 5
	// maxTrialBoots limits the boots of an OS on trial: one that passes its
	// checks but crashes later is rolled back.
	maxTrialBoots = 10
	// maxTrial limits how long progress can keep a trial open.
	maxTrial = 24 * time.Hour
	// maxEpochJump limits the increase of a fence, so that one wrong order
	// doesn't lock out all later leaders.
	maxEpochJump = 1000
	// takeoverGrace is the time that an interrupted sequence has to stop.
	takeoverGrace = time.Minute
)

// agentCaller is the caller of operations that the agent starts.
const agentCaller = "lockstep:agent"

// State is the content of a host's journal.
type State struct {
	// Number is the number of the journal record.
	Number uint64 `json:"number"`
	// InstallationID is generated with the journal.
	InstallationID string `json:"installationID"`
	// BootID is the last observed boot id.
	BootID string `json:"bootID,omitempty"`
	// Starts is the number of agent starts in that boot.
	Starts uint64 `json:"starts,omitempty"`
	// Running is the OS that ran at the last start.
	Running nodeos.Booted `json:"running,omitzero"`
	// Fence is the highest accepted fence.
	Fence nodeos.Fence `json:"fence,omitzero"`
	// Op is the open operation, or nil.
	Op *Operation `json:"op,omitempty"`
	// Next is accepted and waits for Op to stop, or nil.
	Next *Operation `json:"next,omitempty"`
	// Trial is the OS on trial, or nil.
	Trial *nodeos.Trial `json:"trial,omitempty"`
	// LastRestart is the last restart by an operation.
	LastRestart Restart `json:"lastRestart,omitzero"`
	// Denied are the digests that this host doesn't boot again.
	Denied []nodeos.Denial `json:"denied,omitempty"`
	// Committed are the last committed images, newest last.
	Committed []nodeos.Committed `json:"committed,omitempty"`
	// HighWater is the highest committed version per product.
	HighWater map[string]string `json:"highWater,omitempty"`
	// Recent are the last ended operations, newest last.
	Recent []nodeos.OperationStatus `json:"recent,omitempty"`
}

// Restart is a restart of the machine by an operation.
type Restart struct {
	// At is the time by the host's clock.
	At time.Time `json:"at"`
	// Sequence is the sequence that restarted the machine.
	Sequence nodeos.Sequence `json:"sequence"`
	// Remote means that the order was received over the network.
	Remote bool `json:"remote,omitempty"`
}

// Operation is a run of a sequence.
type Operation struct {
	nodeos.OperationStatus
	// Request is the output of nodeos.MarshalRequest.
	Request json.RawMessage `json:"request"`
	// Remote means that the order was received over the network.
	Remote bool `json:"remote,omitempty"`
	// From is the digest of the OS that ran when the operation began.
	From string `json:"from,omitempty"`
	// Plan is the plan at acceptance.
	Plan []nodeos.Phase `json:"plan"`
	// Index is the current phase in the plan, from 0.
	Index int `json:"index"`
	// TrialID is the operation whose trial this one armed or ends, if any.
	TrialID string `json:"trialID,omitempty"`
	// RollingBack means that the plan rolls back a trial.
	RollingBack bool `json:"back,omitempty"`
	// Decided means that the commit is decided: after an unexpected boot the OS
	// is verified again without a new decision.
	Decided bool `json:"decided,omitempty"`
	// PhaseBootID is the boot id under which the phase was entered.
	PhaseBootID string `json:"phaseBootID,omitempty"`
	// NotBefore is the time of the next retry.
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Restarts is the number of crashes and unordered boots.
	Restarts int `json:"restarts,omitempty"`
	// Final is the terminal state after the compensations.
	Final nodeos.OperationState `json:"final,omitempty"`
	// Stop is set to stop the running phase.
	Stop *Stop `json:"stop,omitempty"`
	// StopBy is the time at which a waiting operation fails.
	StopBy time.Time `json:"stopBy,omitzero"`
}

// Stop is a request to stop the running phase.
type Stop struct {
	// Takeover means that another operation takes over; else the operation
	// rolls back or runs its compensations.
	Takeover bool `json:"takeover,omitempty"`
	// Reason is the condition reason.
	Reason string `json:"reason"`
	// Message explains Reason.
	Message string `json:"message"`
}

// phase returns the current phase.
func (o *Operation) phase() nodeos.Phase { return o.Plan[o.Index] }

// bootIndex returns the index of the phase that ends with a boot, or -1.
func (o *Operation) bootIndex() int {
	return slices.IndexFunc(o.Plan, func(p nodeos.Phase) bool { return p.Ends == nodeos.EndBoot })
}

// clone returns a copy that shares nothing the core changes.
func (s State) clone() State {
	s.Op = s.Op.clone()
	s.Next = s.Next.clone()
	if s.Trial != nil {
		t := *s.Trial
		s.Trial = &t
	}
	s.Denied = slices.Clone(s.Denied)
	s.Committed = slices.Clone(s.Committed)
	s.HighWater = maps.Clone(s.HighWater)
	s.Recent = slices.Clone(s.Recent)
	return s
}

func (o *Operation) clone() *Operation {
	if o == nil {
		return nil
	}
	c := *o
	if o.Stop != nil {
		stop := *o.Stop
		c.Stop = &stop
	}
	c.Plan = slices.Clone(o.Plan)
	c.Tasks = slices.Clone(o.Tasks)
	return &c
}

// Status returns an open or ended operation by id.
func (s State) Status(id string) (nodeos.OperationStatus, bool) {
	for _, o := range []*Operation{s.Op, s.Next} {
		if o != nil && o.ID == id {
			return o.OperationStatus, true
		}
	}
	for _, r := range slices.Backward(s.Recent) {
		if r.ID == id {
			return r, true
		}
	}
	return nodeos.OperationStatus{}, false
}

// memory returns the input of tasks from the state.
func (s State) memory(hostID string) nodeos.Memory {
	c := s.clone()
	return nodeos.Memory{
		InstallationID: c.InstallationID, HostID: hostID,
		Denied: c.Denied, Committed: c.Committed, HighWater: c.HighWater, Trial: c.Trial,
	}
}
