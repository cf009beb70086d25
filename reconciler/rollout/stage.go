// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// stage has hosts fetch and write the image, everywhere in parallel under the
// pool's cap: that disrupts nothing, and so needs neither slot nor window.
func (p *planner) stage() {
	if p.pool.Suspended || p.halted != "" {
		return
	}
	var ready []*Member
	for i := range p.in.Members {
		m := &p.in.Members[i]
		if _, inFlight := p.out.Ledger.Slots[m.Node.UID]; inFlight || !m.Selected || p.updated(m) {
			continue
		}
		if reason, _ := p.stageBlocker(m); reason != "" {
			continue
		}
		f := m.Agent.Facts
		if p.stagedFor(m) || f.Trial != nil {
			continue
		}
		if f.Operation != nil && !f.Operation.State.Done() {
			if f.Operation.Sequence == nodeos.SequenceStageUpgrade {
				p.addStaging(m)
			}
			continue
		}
		ready = append(ready, m)
	}
	for _, m := range ready {
		if p.counts.staging >= p.pool.MaxParallelStaging {
			return
		}
		if s, ok := p.stageStep(m); ok {
			p.out.Steps = append(p.out.Steps, s)
			p.addStaging(m)
		}
	}
}

func (p *planner) addStaging(m *Member) {
	p.counts.staging++
	if len(p.stagingHosts) < maxInFlight {
		p.stagingHosts = append(p.stagingHosts, m.Node.Name)
	}
}

// unstageable says why the host must not even fetch the image.
func (p *planner) stageBlocker(m *Member) (reason, message string) {
	switch {
	case p.pool.Deleting:
		return ReasonDeleting, "the NodeOS is being deleted"
	case p.pool.Paused != "":
		return ReasonPaused, p.pool.Paused
	case m.Hold != "":
		return ReasonHeld, m.Hold
	case m.Conflict != "":
		return ReasonConflict, "NodeOS " + m.Conflict + " selects the node too"
	case p.pool.Unverified != "":
		return orDefault(p.pool.UnverifiedReason, "Unsigned"), p.pool.Unverified
	case m.Agent.Facts == nil:
		return ReasonUnreachable, m.Agent.Problem
	case m.Agent.Problem != "":
		return "FactMismatch", m.Agent.Problem
	}
	if why := p.belowMark(); why != "" {
		return "Rollback", why
	}
	if why := p.deniedOn(m); why != "" {
		return ReasonDenied, why
	}
	return "", ""
}

// stagedFor says whether the host has the image in its inactive slot and knows
// the attempt: should the ledger be lost, the agent's word for the attempt is
// what proves that a cordon is ours.
func (p *planner) stagedFor(m *Member) bool {
	return hasStaged(m.Agent.Facts, p.pool.Target.Digest) && hasAttempt(m.Agent.Facts, p.pool.Attempt(m.Nonce))
}

// stageStep starts the staging of a host: again under another operation id
// when the last one failed, later each time.
func (p *planner) stageStep(m *Member) (Step, bool) {
	attempt := p.pool.Attempt(m.Nonce)
	try := 1
	if last := m.Agent.Facts.Last; last != nil && last.State != nodeos.OperationSucceeded {
		if failed, ok := stageTry(attempt, last.ID); ok {
			at := last.Ended.Add(min(retryBase<<min(failed-1, 10), retryLimit))
			// The host's clock may be wrong: never wait longer than the limit.
			if at.After(p.now) && at.Sub(p.now) <= retryLimit {
				p.wakeAt(at)
				p.addWait(m, "StageFailed", fmt.Sprintf("try %d: %s", failed, last.Message))
				return Step{}, false
			}
			try = failed + 1
		}
	}
	return Step{
		Kind: StepStage, Node: m.Node.Name, NodeUID: m.Node.UID, Attempt: attempt,
		OperationID: stageID(attempt, try, m.Agent.Facts), Rollback: p.isRollback(),
		Slot: ledger.Slot{Node: m.Node.Name, Attempt: attempt, Target: p.pool.Target, Ref: p.pool.Ref.String()},
	}, true
}

// stageID names a try of staging. As long as the host does nothing else it's
// the same, so that a doubled order is one run; after anything else it's
// another, so that an image that has gone since is written again.
func stageID(attempt string, try int, f *nodeos.HostFacts) string {
	seen := f.BootID
	if f.Last != nil {
		seen += "/" + f.Last.ID
	}
	return fmt.Sprintf("%s-stage-%d-%08x", attempt, try, crc32.ChecksumIEEE([]byte(seen)))
}

// stageTry reads the number of the try out of an operation id.
func stageTry(attempt, id string) (int, bool) {
	rest, ok := strings.CutPrefix(id, attempt+"-stage-")
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, "-")
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0
}

// adopt makes slots for attempts that are under way without one: the ledger
// was lost or is older than the hosts. A system that an attempt of ours has on
// trial is taken over at any time: the host is disrupted whatever we think. A
// cordon in the name of an attempt is taken over only while the ledger is new
// to the pool, and only if the agent knows the attempt too: a kubelet may
// write that annotation, and an administrator's cordon isn't ours to undo. Or
// if the ledger says that this very slot was freed lately: then a leader that
// was stopped between its write and its cordon has come back.
func (p *planner) adopt() {
	for i := range p.in.Members {
		m := &p.in.Members[i]
		if _, ok := p.out.Ledger.Slots[m.Node.UID]; ok || !m.Selected || m.Conflict != "" {
			continue
		}
		if len(p.out.Ledger.Slots) >= ledger.MaxSlots {
			return
		}
		if s, ok := p.adoptedSlot(m); ok {
			p.out.Ledger.SetSlot(m.Node.UID, s)
			p.out.Changed = true
		}
	}
}

func (p *planner) adoptedSlot(m *Member) (ledger.Slot, bool) {
	f := m.Agent.Facts
	s := ledger.Slot{
		Node: m.Node.Name, Pool: p.pool.UID, PoolName: p.pool.Name, Epoch: p.in.Epoch,
		Target: p.pool.Target, Ref: p.pool.Ref.String(), ClaimedAt: p.now, Since: p.now,
		ControlPlane: m.Node.ControlPlane || p.pool.ControlPlane, Nonce: m.Nonce, Reason: ReasonAdopted,
	}
	if onTrial(m) {
		t := f.Trial
		attempt, ok := strings.CutSuffix(t.OperationID, "-activate")
		if !ok || !strings.HasPrefix(attempt, attemptPrefix) {
			return ledger.Slot{}, false
		}
		s.Attempt, s.ActivatedAt = attempt, p.now
		s.PrevBootID, s.PrevDigest = beforeTrial(f)
		s.Target = ledger.Image{Version: t.Image.Version, Digest: t.Image.Ref.Digest}
		s.Ref, s.State = t.Image.Ref.String(), ledger.Rebooting
		if by, epoch := m.Node.owner(); by == attempt {
			s.Epoch = epoch
		}
		return s, true
	}
	attempt, epoch := m.Node.owner()
	fresh := p.now.Sub(p.rec.Since) < adoptFor && hasAttempt(f, attempt)
	if !m.Node.Unschedulable || attempt == "" || !fresh && !p.rec.HasReleased(m.Node.UID, m.Node.CordonedBy, p.now.Add(-adoptFor)) {
		return ledger.Slot{}, false
	}
	s.Attempt, s.Epoch, s.State = attempt, epoch, ledger.Aborted
	if p.updated(m) {
		s.State = ledger.Releasing
	}
	return s, true
}

// knows says whether the agent has run something for the attempt.
func hasAttempt(f *nodeos.HostFacts, attempt string) bool {
	if f == nil {
		return false
	}
	return f.Operation != nil && f.Operation.Attempt == attempt || f.Last != nil && f.Last.Attempt == attempt
}
