// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// act returns what is to be done in the slot's state, now that the state is
// what the ledger will say. It's the same as long as the state is.
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

// runs says whether the agent is at the operation with that id and hasn't
// ended it. One on trial isn't running: it waits for the next order.
func isRunning(f *nodeos.HostFacts, id string) bool {
	return f.Operation != nil && f.Operation.ID == id && !f.Operation.State.Done()
}

// undoing says that the agent is on its way back by itself.
func undoing(f *nodeos.HostFacts) bool {
	return f.Operation != nil && f.Operation.State == nodeos.OperationUndoing
}

// Permit says whether a step may be done now, given the Node as the API server
// has it and facts that the agent gave in this very step; the plan was made on
// older ones. The error says what changed; the next plan will see it.
func Permit(s Step, n Node, f *nodeos.HostFacts) error {
	if n.UID != s.NodeUID {
		return fmt.Errorf("%s: node %s is another one now (UID %s, was %s)", s.Kind, s.Node, n.UID, s.NodeUID)
	}
	switch s.Kind {
	case StepActivate, StepCommit, StepRollback, StepStage:
		if f == nil {
			return fmt.Errorf("%s: the agent of %s can't be asked now", s.Kind, s.Node)
		}
	case StepEvict:
		if !n.cordonedFor(s.Slot) {
			return fmt.Errorf("%s: node %s isn't cordoned by %s any more", s.Kind, s.Node, s.Attempt)
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
			return fmt.Errorf("commit: %s runs %s in boot %s, the gates saw %s in boot %s",
				s.Node, describe(f.Booted), f.BootID, s.Slot.Target.Digest, s.Slot.TrialBootID)
		}
	case StepRollback:
		if f.Booted.Digest == s.Slot.Target.Digest && f.Booted.Confirmed {
			return fmt.Errorf("rollback: %s has committed %s", s.Node, s.Slot.Target.Digest)
		}
	default:
	}
	return nil
}

func permitActivate(s Step, n Node, f *nodeos.HostFacts) error {
	switch {
	case s.Drain && !n.cordonedFor(s.Slot):
		return fmt.Errorf("activate: node %s isn't cordoned by %s any more", s.Node, s.Attempt)
	case f.BootID != s.Slot.PrevBootID:
		return fmt.Errorf("activate: %s is in boot %s, was in %s", s.Node, f.BootID, s.Slot.PrevBootID)
	case n.Ready && n.BootID != "" && n.BootID != f.BootID:
		return fmt.Errorf("activate: the agent of %s says boot %s, the Node says %s: not the same machine", s.Node, f.BootID, n.BootID)
	}
	if !hasStaged(f, s.Slot.Target.Digest) {
		return fmt.Errorf("activate: the agent of %s has not verified %s in its inactive slot", s.Node, s.Slot.Target.Digest)
	}
	return nil
}
