// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// act returns the steps of the slot's state. They are repeated by each plan
// until the state changes.
func (v view) act(s ledger.Slot) []Step {
	step := func(kind StepKind, id string) []Step {
		return []Step{{
			Kind: kind, Node: v.m.Node.Name, NodeUID: v.m.Node.UID, Attempt: s.Attempt, OperationID: id, Slot: s, Drain: v.drain,
		}}
	}
	f := v.m.Agent.Facts
	switch s.State {
	case ledger.Claimed:
		return step(StepCordon, "")
	case ledger.Draining:
		out := step(StepEvict, "")
		out[0].Force = v.pool.DrainDeadline == DeadlineForce && v.late(s.ClaimedAt, v.pool.DrainTimeout)
		return out
	case ledger.Rebooting:
		if f == nil || f.BootID != s.PrevBootID || isRunning(f, activateID(s)) || v.late(s.ActivatedAt, v.pool.BootDeadline) {
			return nil
		}
		out := step(StepActivate, activateID(s))
		out[0].AutoCommit, out[0].Rollback = s.AutoCommit, v.rollback
		return out
	case ledger.Committing:
		if f == nil || f.BootID != s.TrialBootID {
			return nil
		}
		return step(StepCommit, activateID(s))
	case ledger.RollingBack:
		back := f != nil && f.Booted.Digest != s.Target.Digest && f.Trial == nil && !isRunning(f, activateID(s))
		if f == nil || back || undoing(f) {
			return nil
		}
		return step(StepRollback, activateID(s))
	case ledger.Releasing, ledger.Aborted, ledger.RolledBack:
		if v.m.Node.CordonedBy == s.Owner() && (s.State != ledger.RolledBack || (f != nil && v.m.Node.Ready && v.m.Node.BootID == f.BootID)) {
			return step(StepUncordon, "")
		}
	default:
	}
	return nil
}

// isRunning reports whether the agent's current operation has that ID and hasn't
// ended. An operation on trial hasn't.
func isRunning(f *nodeos.HostFacts, id string) bool {
	return f.Operation != nil && f.Operation.ID == id && !f.Operation.State.Done()
}

// undoing reports whether the agent is rolling back automatically.
func undoing(f *nodeos.HostFacts) bool {
	return f.Operation != nil && f.Operation.State == nodeos.OperationUndoing
}

// Permit checks whether a planned step may still be performed, given the Node
// read from the API server and the agent's facts read for this step. The error
// names what changed since the plan.
func Permit(s Step, n Node, f *nodeos.HostFacts) error {
	if err := permit(s, n, f); err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(string(s.Kind)), s.Node, err)
	}
	return nil
}

func permit(s Step, n Node, f *nodeos.HostFacts) error {
	if n.UID != s.NodeUID {
		return fmt.Errorf("the Node was recreated (UID %s, was %s)", n.UID, s.NodeUID)
	}
	switch s.Kind {
	case StepActivate, StepCommit, StepRollback, StepStage:
		if f == nil {
			return errors.New("the agent is unreachable")
		}
	case StepEvict:
		if !n.cordonedFor(s.Slot) {
			return fmt.Errorf("the node is no longer cordoned by %s", s.Attempt)
		}
		return nil
	default:
		return nil
	}
	switch s.Kind {
	case StepActivate:
		return permitActivate(s, n, f)
	case StepCommit:
		if f.Booted.Digest != s.Slot.Target.Digest || f.BootID != s.Slot.TrialBootID {
			return fmt.Errorf("the host runs %s in boot %s, but the gates checked %s in boot %s",
				describe(f.Booted), f.BootID, s.Slot.Target.Digest, s.Slot.TrialBootID)
		}
	case StepRollback:
		if f.Booted.Digest == s.Slot.Target.Digest && f.Booted.Confirmed {
			return fmt.Errorf("the host has committed %s", s.Slot.Target.Digest)
		}
	default:
	}
	return nil
}

func permitActivate(s Step, n Node, f *nodeos.HostFacts) error {
	switch {
	case s.Drain && !n.cordonedFor(s.Slot):
		return fmt.Errorf("the node is no longer cordoned by %s", s.Attempt)
	case f.BootID != s.Slot.PrevBootID:
		return fmt.Errorf("the host is in boot %s, was in %s", f.BootID, s.Slot.PrevBootID)
	case n.Ready && n.BootID != "" && n.BootID != f.BootID:
		return fmt.Errorf("the agent reports boot %s, the Node reports %s: not the same machine", f.BootID, n.BootID)
	}
	if !hasStaged(f, s.Slot.Target.Digest) {
		return fmt.Errorf("the agent has not verified %s in its inactive slot", s.Slot.Target.Digest)
	}
	return nil
}
