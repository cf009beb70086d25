// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// halts says why the pool makes no claims until a person does something or the
// target changes, and what that is; "" if it may go on.
func (p *planner) haltReason() string {
	digest := p.pool.Target.Digest
	if d, ok := p.rec.Denial(digest); ok && d.Pool {
		return fmt.Sprintf("%s is denied in the whole pool: it failed on %d hosts; to try it again, set the annotation %s to all",
			digest, len(d.Hosts), v1alpha1.AnnotationResume)
	}
	if n := p.rec.FailuresOf(digest); n >= p.pool.FailureThreshold {
		return fmt.Sprintf("%s failed on %d hosts, %d halt the pool; the last is %s; to go on without them, set the annotation %s to their names, or to all",
			p.pool.Target.Version, n, p.pool.FailureThreshold, p.lastFailure(digest), v1alpha1.AnnotationResume)
	}
	stuck := 0
	for _, s := range p.out.Ledger.Slots {
		if s.Pool == p.pool.UID && (s.State == ledger.Quarantined || s.State == ledger.Lost) {
			stuck++
		}
	}
	if stuck > p.pool.MaxQuarantined {
		return fmt.Sprintf("%d hosts are quarantined or lost, %d are tolerated; to try one again, set the annotation %s on its Host",
			stuck, p.pool.MaxQuarantined, v1alpha1.AnnotationRerun)
	}
	return ""
}

func (p *planner) lastFailure(digest string) string {
	for _, f := range slices.Backward(p.rec.Failures) {
		if f.Digest == digest {
			return fmt.Sprintf("%s (%s)", f.Node, f.Reason)
		}
	}
	return "unknown"
}

// canary returns how many hosts may run the target, or be on the way to it.
func (p *planner) canary() int {
	c := &p.rec.Canary
	if c.Digest != p.pool.Target.Digest {
		*c = ledger.Canary{Digest: p.pool.Target.Digest}
		p.out.Changed = true
	}
	for c.Step < len(p.pool.Canary) {
		step := p.pool.Canary[c.Step]
		need, err := scaled(step.Hosts, p.total, roundUp)
		if err != nil {
			return 0
		}
		need = min(need, p.total)
		if p.counts.healthy < need {
			if !c.Since.IsZero() {
				c.Since = time.Time{}
				p.out.Changed = true
			}
			return need
		}
		if c.Since.IsZero() {
			c.Since = p.now
			p.out.Changed = true
		}
		if over := c.Since.Add(step.Soak); over.After(p.now) {
			p.wakeAt(over)
			return need
		}
		c.Step, c.Since = c.Step+1, time.Time{}
		p.out.Changed = true
	}
	return math.MaxInt
}

// claim gives slots to as many hosts as every bound allows, and says what
// keeps the others.
func (p *planner) claim(allowed int) {
	if p.pool.StageOnly {
		return
	}
	candidates := p.candidates()
	if len(candidates) == 0 {
		return
	}
	budget, reason, message := p.budget(allowed)
	if budget > 0 {
		p.sortCandidates(candidates)
	}
	for _, m := range candidates {
		if budget <= 0 {
			p.addWait(m, reason, message)
			continue
		}
		if reason, why := p.quorumBlocker(m); reason != "" {
			p.addWait(m, reason, why)
			continue
		}
		p.claimHost(m)
		if budget--; budget == 0 {
			reason, message = "Budget", "the pool's budget is used up"
		}
		if m.Node.ControlPlane || p.pool.ControlPlane {
			budget, reason, message = 0, "OneAtATime", "control-plane nodes go one at a time"
		}
	}
}

// take writes the slot, and goes on from there as far as the facts allow.
func (p *planner) claimHost(m *Member) {
	s := ledger.Slot{
		Node: m.Node.Name, Pool: p.pool.UID, PoolName: p.pool.Name,
		Attempt: p.pool.Attempt(m.Nonce), Epoch: p.in.Epoch,
		Target: p.pool.Target, Ref: p.pool.Ref.String(),
		State: ledger.Claimed, ClaimedAt: p.now, Since: p.now,
		ControlPlane: m.Node.ControlPlane || p.pool.ControlPlane, Nonce: m.Nonce,
	}
	p.counts.inFlight++
	p.counts.unavailable++
	p.out.Ledger.SetSlot(m.Node.UID, s)
	p.out.Changed = true
	p.advanceSlot(m.Node.UID, s, p.view(m, s))
}

// candidates returns the hosts that could be claimed if the bounds allowed,
// and explains the others that aren't at the target.
func (p *planner) candidates() []*Member {
	estimate := p.estimate()
	var out []*Member
	for i := range p.in.Members {
		m := &p.in.Members[i]
		if _, inFlight := p.out.Ledger.Slots[m.Node.UID]; inFlight || !m.Selected || p.updated(m) || p.justFreed[m.Node.UID] {
			continue
		}
		if reason, message := p.claimBlocker(m, estimate); reason != "" {
			p.addWait(m, reason, message)
			continue
		}
		out = append(out, m)
	}
	return out
}

// unfit says what about the host itself keeps it from being claimed.
func (p *planner) claimBlocker(m *Member, estimate time.Duration) (reason, message string) {
	if reason, message = p.stageBlocker(m); reason != "" {
		return reason, message
	}
	f, n := m.Agent.Facts, m.Node
	switch {
	case n.Unschedulable:
		return ReasonCordonedExternally, "the node is cordoned, and not by us"
	case !n.Ready:
		return "NotReady", "the node isn't Ready"
	case n.BootID != "" && n.BootID != f.BootID:
		return "FactMismatch", "the agent and the Node report different boots"
	case f.Trial != nil:
		return "OutsideOperation", "the host has a system on trial that no rollout ordered"
	}
	if !p.stagedFor(m) {
		return string(ledger.Staging), "the image isn't staged yet"
	}
	if f.Operation != nil && !f.Operation.State.Done() {
		return "Busy", "the agent runs " + f.Operation.Sequence.String()
	}
	if r, held := p.rec.Retry(n.UID, p.pool.Target.Digest); held && r.NotBefore.After(p.now) {
		p.wakeAt(r.NotBefore)
		return "Backoff", fmt.Sprintf("after %s, until %s", r.Reason, r.NotBefore.Format(time.RFC3339))
	}
	if e := m.Agent.CertificateExpires; !e.IsZero() && e.Before(p.now.Add(estimate+certificateSlack)) {
		return "CertificateExpiring", "the agent's certificate ends " + e.UTC().Format(time.RFC3339)
	}
	return "", ""
}

// budget returns how many claims may be made now, and what keeps the rest.
func (p *planner) budget(allowed int) (n int, reason, message string) {
	switch {
	case p.pool.Suspended:
		return 0, "Suspended", "spec.suspend is set"
	case p.halted != "":
		return 0, ReasonHalted, p.halted
	case p.counts.suspects+p.counts.stuck > p.pool.MaxQuarantined:
		return 0, ReasonHalted, fmt.Sprintf("%d hosts are quarantined, lost or away for more than %s, %d are tolerated",
			p.counts.suspects+p.counts.stuck, suspectAfter, p.pool.MaxQuarantined)
	case p.rebuildReason() != "":
		return 0, "Rebuilding", p.rebuildReason()
	}
	if open, at := openFor(p.pool.Windows, p.now, p.estimate()); !open {
		if at.IsZero() {
			return 0, "WindowTooShort", fmt.Sprintf("no window is as long as an attempt may take (%s)", p.estimate())
		}
		p.wakeAt(at)
		return 0, "OutsideWindow", "the next window opens " + at.UTC().Format(time.RFC3339)
	}
	limit := p.pool.Limit(p.total)
	n, reason = limit-p.counts.unavailable, "Budget"
	message = fmt.Sprintf("%d of %d hosts are unavailable, %d may be", p.counts.unavailable, p.total, limit)
	if free := ledger.MaxSlots - len(p.out.Ledger.Slots); free < n {
		n, reason, message = free, "Budget", fmt.Sprintf("the ledger holds at most %d slots", ledger.MaxSlots)
	}
	if allowed != math.MaxInt {
		if free := allowed - p.counts.updated - p.counts.inFlight; free < n {
			n, reason, message = free, "Canary", fmt.Sprintf("step %d allows %d hosts, then soaks", p.rec.Canary.Step+1, allowed)
		}
	}
	return n, reason, message
}

// unsettled says why it isn't known yet what the ledger should hold: it's new
// or was lost, and a node says that we cordoned it while its agent is silent.
func (p *planner) rebuildReason() string {
	if p.newPool {
		return "the first plan under this ledger only takes stock"
	}
	if p.now.Sub(p.rec.Since) >= adoptFor {
		return ""
	}
	for i := range p.in.Members {
		m := &p.in.Members[i]
		if _, ok := p.out.Ledger.Slots[m.Node.UID]; !ok && m.Node.Unschedulable && m.Node.CordonedBy != "" && m.Agent.Facts == nil {
			p.wakeAt(p.rec.Since.Add(adoptFor))
			return m.Node.Name + " says that we cordoned it, and its agent can't be asked"
		}
	}
	return ""
}

// quorumFor says why the control plane can't do without the node now.
func (p *planner) quorumBlocker(m *Member) (reason, message string) {
	if !m.Node.ControlPlane && !p.pool.ControlPlane {
		return "", ""
	}
	for _, s := range p.out.Ledger.Slots {
		if s.ControlPlane {
			return "OneAtATime", "control-plane node " + s.Node + " is in flight; they go one at a time"
		}
	}
	if ok, why := p.in.Quorum.Allows(m.Node.Name); !ok {
		return ReasonQuorum, why
	}
	return "", ""
}

// order sorts candidates: nodes that carry the reconciler last, then as the
// strategy says (by zone, then oldest first, if it says nothing), then by name.
func (p *planner) sortCandidates(c []*Member) {
	keys := p.pool.OrderBy
	if len(keys) == 0 {
		keys = []string{"topology.kubernetes.io/zone", "age"}
	}
	slices.SortFunc(c, func(a, b *Member) int {
		if a.RunsReconciler != b.RunsReconciler {
			if b.RunsReconciler {
				return -1
			}
			return 1
		}
		for _, k := range keys {
			by := cmp.Compare(a.Node.Labels[k], b.Node.Labels[k])
			if k == "age" {
				by = a.Node.Created.Compare(b.Node.Created)
			}
			if by != 0 {
				return by
			}
		}
		return cmp.Compare(a.Node.Name, b.Node.Name)
	})
}

// estimate is how long an attempt may take: the longest of the last good ones
// and a quarter more, or what the deadlines allow where there are too few.
func (p *planner) estimate() time.Duration {
	worst := p.pool.CommitDeadline
	if p.drains() {
		worst += p.pool.DrainTimeout
	}
	if d := p.rec.Durations; len(d) >= 3 {
		longest := slices.Max(d)
		return min(worst, longest+longest/4)
	}
	return worst
}

// older says whether the target was committed here before something newer.
func (p *planner) isRollback() bool {
	c := p.rec.Committed
	return p.rec.HasCommitted(p.pool.Target.Digest) && c[len(c)-1].Digest != p.pool.Target.Digest
}

// belowMark says why the target is too old to roll out; "" if it isn't. What
// the pool has committed before may be gone back to.
func (p *planner) belowMark() string {
	mark, ok := p.out.Ledger.Marks[p.pool.Product]
	if !ok || p.rec.HasCommitted(p.pool.Target.Digest) {
		return ""
	}
	if c, err := nodeos.CompareVersions(p.pool.Target.Version, mark.Version); err != nil || c >= 0 {
		return ""
	}
	return fmt.Sprintf("%s is older than %s, which has completed; only what this pool has committed can be gone back to",
		p.pool.Target.Version, mark.Version)
}
