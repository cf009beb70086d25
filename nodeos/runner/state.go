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

// Limits of what a State remembers.
const (
	maxRecent    = 32
	maxDenied    = 64
	maxCommitted = 8
	// maxRestarts bounds how often an operation is begun again after the
	// agent died or the machine booted under it.
	maxRestarts = 5
	// maxTrialBoots bounds how often a system on trial may boot: one that
	// passes its checks and crashes later is given up.
	maxTrialBoots = 10
	// maxTrial is how long progress can keep a trial open.
	maxTrial = 24 * time.Hour
	// maxEpochJump is how far a fence may rise at once, so that one wild
	// order doesn't lock out every later leader.
	maxEpochJump = 1000
	// takeoverGrace is how long an interrupted sequence may take to stop.
	takeoverGrace = time.Minute
)

// agentCaller is the caller of operations that the agent starts itself.
const agentCaller = "lockstep:agent"

// State is all that a host's journal holds.
type State struct {
	// Number counts the records of the journal.
	Number uint64 `json:"number"`
	// InstallationID is minted with the journal.
	InstallationID string `json:"installationID"`
	// BootID is the last boot that was seen, Starts how often the agent
	// started in it.
	BootID string `json:"bootID,omitempty"`
	// Starts counts the agent's starts in the boot.
	Starts uint64 `json:"starts,omitempty"`
	// Running is the system that the last start found.
	Running nodeos.Booted `json:"running,omitzero"`
	// Fence is the highest accepted fence.
	Fence nodeos.Fence `json:"fence,omitzero"`
	// Op is the open operation, or nil.
	Op *Operation `json:"op,omitempty"`
	// Next is accepted and waits for Op to stop, or nil.
	Next *Operation `json:"next,omitempty"`
	// Trial is the system on trial, or nil.
	Trial *nodeos.Trial `json:"trial,omitempty"`
	// LastRestart is the last time that an operation took the machine down.
	LastRestart Restart `json:"lastRestart,omitzero"`
	// Denied, Committed and HighWater are remembered for ever, within limits.
	Denied []nodeos.Denial `json:"denied,omitempty"`
	// Committed are the last committed systems, newest last.
	Committed []nodeos.Committed `json:"committed,omitempty"`
	// HighWater is the highest committed version of each product.
	HighWater map[string]string `json:"highWater,omitempty"`
	// Recent are the operations that ended last, newest last.
	Recent []nodeos.OperationStatus `json:"recent,omitempty"`
}

// Restart is a time at which the machine was taken down.
type Restart struct {
	// At is when, by the host's clock.
	At time.Time `json:"at"`
	// Sequence is what took it down.
	Sequence nodeos.Sequence `json:"sequence"`
	// Remote says that the order came over the network.
	Remote bool `json:"remote,omitempty"`
}

// Operation is a run of a sequence.
type Operation struct {
	nodeos.OperationStatus
	// Request is the order, as nodeos.MarshalRequest stores it.
	Request json.RawMessage `json:"request"`
	// Remote says that the order came over the network.
	Remote bool `json:"remote,omitempty"`
	// From is the digest of the system that ran at the beginning.
	From string `json:"from,omitempty"`
	// Plan is what was planned when it was accepted.
	Plan []nodeos.Phase `json:"plan"`
	// Index is the current phase in the plan, from 0.
	Index int `json:"index"`
	// TrialID is the operation whose trial this one armed or ends, if any.
	TrialID string `json:"trialID,omitempty"`
	// Back says that the plan is the way back of a trial.
	Back bool `json:"back,omitempty"`
	// Decided says that the commit was decided: a boot in between verifies
	// again, and doesn't ask again.
	Decided bool `json:"decided,omitempty"`
	// PhaseBootID is the boot in which the phase was entered.
	PhaseBootID string `json:"phaseBootID,omitempty"`
	// NotBefore is when the phase is tried again.
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Restarts counts crashes and boots that nobody ordered.
	Restarts int `json:"restarts,omitempty"`
	// Final is how the operation ends once it's undone.
	Final nodeos.OperationState `json:"final,omitempty"`
	// Stop asks the running phase to stop, and says why.
	Stop *Stop `json:"stop,omitempty"`
	// StopBy is when a waiting operation gives up.
	StopBy time.Time `json:"stopBy,omitzero"`
}

// Stop is why a running phase has to stop.
type Stop struct {
	// Takeover says that another operation wants the lock; else the operation
	// goes back, or undoes what it did.
	Takeover bool `json:"takeover,omitempty"`
	// Reason and Message are shown in the status.
	Reason string `json:"reason"`
	// Message goes with Reason.
	Message string `json:"message"`
}

// phase is the current phase.
func (o *Operation) phase() nodeos.Phase { return o.Plan[o.Index] }

// bootIndex is the plan's phase that ends with a boot; -1 without one.
func (o *Operation) bootIndex() int {
	return slices.IndexFunc(o.Plan, func(p nodeos.Phase) bool { return p.Ends == nodeos.EndBoot })
}

// clone copies what the core changes.
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

// Status returns an operation by its id, open or ended.
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

// memory is what tasks are told.
func (s State) memory(hostID string) nodeos.Memory {
	c := s.clone()
	return nodeos.Memory{
		InstallationID: c.InstallationID, HostID: hostID,
		Denied: c.Denied, Committed: c.Committed, HighWater: c.HighWater, Trial: c.Trial,
	}
}
