// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// stage orders hosts to fetch and write the image, in parallel up to the pool's
// limit. Staging disrupts nothing, so it needs neither a slot nor a window.
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

// stageBlocker returns why the host must not stage the image; "" if it may.
func (p *planner) stageBlocker(m *Member) (reason, message string) {
	switch {
	case p.pool.Deleting:
		return ReasonDeleting, "the NodeOS is being deleted"
	case p.pool.Paused != "":
		return ReasonPaused, p.pool.Paused
	case m.Hold != "":
		return ReasonHeld, m.Hold
	case m.Conflict != "":
		return ReasonConflict, conflictMessage(m)
	case p.pool.Unverified != "":
		return cmp.Or(p.pool.UnverifiedReason, "Unsigned"), p.pool.Unverified
	case m.Agent.Facts == nil:
		return ReasonUnreachable, m.Agent.Problem
	case m.Agent.Problem != "":
		return "FactMismatch", m.Agent.Problem
	}
	if cause := p.belowMark(); cause != "" {
		return "Rollback", cause
	}
	if cause := p.deniedOn(m); cause != "" {
		return ReasonDenied, cause
	}
	return "", ""
}

// conflictMessage returns why the member's pool conflict blocks it.
func conflictMessage(m *Member) string { return "NodeOS " + m.Conflict + " also selects the node" }

// stagedFor reports whether the host has staged the image for the current
// attempt. If the ledger is lost, the attempt in the agent's report proves that
// Lockstep owns the node's cordon.
func (p *planner) stagedFor(m *Member) bool {
	return hasStaged(m.Agent.Facts, p.pool.Target.Digest) && hasAttempt(m.Agent.Facts, p.pool.Attempt(m.Nonce))
}

// stageStep returns the step that stages the image. A failed staging is retried
// with backoff and a new operation ID.
func (p *planner) stageStep(m *Member) (Step, bool) {
	attempt := p.pool.Attempt(m.Nonce)
	try := 1
	if last := m.Agent.Facts.Last; last != nil && last.State != nodeos.OperationSucceeded {
		if failed, ok := stageTry(attempt, last.ID); ok {
			at := last.Ended.Add(backoff.Delay(retryBase, retryLimit, failed-1))
			// Ended is the host's time: a wrong clock must not exceed the limit.
			if at.After(p.now) && at.Sub(p.now) <= retryLimit {
				p.wakeAt(at)
				p.addWait(m, "StageFailed", fmt.Sprintf("staging failed (try %d): %s", failed, last.Message))
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

// stageID returns the operation ID of a try. It changes with the host's boot
// and last operation: a repeated order is the same operation, and an image
// that another operation removed is staged again.
func stageID(attempt string, try int, f *nodeos.HostFacts) string {
	seen := f.BootID
	if f.Last != nil {
		seen += "/" + f.Last.ID
	}
	return fmt.Sprintf("%s-stage-%d-%08x", attempt, try, crc32.ChecksumIEEE([]byte(seen)))
}

// stageTry parses the number of the try of an ID made by stageID.
func stageTry(attempt, id string) (int, bool) {
	rest, ok := strings.CutPrefix(id, attempt+"-stage-")
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, "-")
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0
}

// adopt creates slots for attempts in progress that have none, because the
// ledger was lost or restored.
//
//   - A trial that a rollout started is always adopted: the host is disrupted
//     anyway.
//   - A cordon owned by an attempt is adopted while the pool's ledger record is
//     new, if the agent reports the attempt too: a kubelet can forge the
//     annotation, and external cordons must not be removed.
//   - A cordon owned by a recently freed slot is adopted: an earlier leader
//     added it late.
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

// hasAttempt reports whether the agent's current or last operation belongs to
// the attempt.
func hasAttempt(f *nodeos.HostFacts, attempt string) bool {
	if f == nil {
		return false
	}
	return f.Operation != nil && f.Operation.Attempt == attempt || f.Last != nil && f.Last.Attempt == attempt
}
