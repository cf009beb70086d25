// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// haltReason returns why the pool claims no hosts until an operator acts or the
// target changes; "" if it isn't halted.
func (p *planner) haltReason() string {
	digest := p.pool.Target.Digest
	if d, ok := p.rec.Denial(digest); ok && d.Pool {
		return fmt.Sprintf("%s denied in the pool: failed on %s; to retry it, set annotation %s to all",
			digest, hostCount(len(d.Hosts)), v1alpha1.AnnotationResume)
	}
	if n := p.rec.FailuresOf(digest); n >= p.pool.FailureThreshold {
		return fmt.Sprintf("%s failed on %s (failureThreshold %d), last on %s; to continue without them, set annotation %s to their names or to all",
			p.pool.Target.Version, hostCount(n), p.pool.FailureThreshold, p.lastFailure(digest), v1alpha1.AnnotationResume)
	}
	stuck := 0
	for _, s := range p.out.Ledger.Slots {
		if s.Pool == p.pool.UID && (s.State == ledger.Quarantined || s.State == ledger.Lost) {
			stuck++
		}
	}
	if stuck > p.pool.MaxQuarantined {
		return fmt.Sprintf("%s quarantined or lost (maxQuarantined %d); to retry a host, set annotation %s on its Host",
			hostCount(stuck), p.pool.MaxQuarantined, v1alpha1.AnnotationRerun)
	}
	return ""
}

func hostCount(n int) string {
	if n == 1 {
		return "1 host"
	}
	return strconv.Itoa(n) + " hosts"
}

func (p *planner) lastFailure(digest string) string {
	for _, f := range slices.Backward(p.rec.Failures) {
		if f.Digest == digest {
			return fmt.Sprintf("%s (%s)", f.Node, f.Reason)
		}
	}
	return "unknown"
}

// canary returns how many hosts may run the target or be in flight.
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

// claim creates slots for as many hosts as all limits allow, and records why
// the other hosts wait.
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
		if reason, cause := p.quorumBlocker(m); reason != "" {
			p.addWait(m, reason, cause)
			continue
		}
		p.claimHost(m)
		if budget--; budget == 0 {
			reason, message = "Budget", "no slot left in the pool's budget"
		}
		if m.Node.ControlPlane || p.pool.ControlPlane {
			budget, reason, message = 0, "OneAtATime", "control-plane nodes are updated one at a time"
		}
	}
}

// claimHost creates the slot and advances it as far as the facts allow.
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

// candidates returns the hosts that can be claimed within the limits, and
// records why the other outdated hosts wait.
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

// claimBlocker returns why the host can't be claimed, regardless of the limits;
// "" if it can.
func (p *planner) claimBlocker(m *Member, estimate time.Duration) (reason, message string) {
	if reason, message = p.stageBlocker(m); reason != "" {
		return reason, message
	}
	f, n := m.Agent.Facts, m.Node
	switch {
	case n.Unschedulable:
		return ReasonCordonedExternally, "the node is cordoned, but not by Lockstep"
	case !n.Ready:
		return "NotReady", "the node isn't Ready"
	case n.BootID != "" && n.BootID != f.BootID:
		return "FactMismatch", "the agent and the Node report different boot IDs"
	case f.Trial != nil:
		return "OutsideOperation", "the host has a trial that no rollout started"
	}
	if !p.stagedFor(m) {
		return string(ledger.Staging), "the image isn't staged yet"
	}
	if f.Operation != nil && !f.Operation.State.Done() {
		return "Busy", "the agent is running " + f.Operation.Sequence.String()
	}
	if r, held := p.rec.Retry(n.UID, p.pool.Target.Digest); held && r.NotBefore.After(p.now) {
		p.wakeAt(r.NotBefore)
		return "Backoff", fmt.Sprintf("last attempt failed with %s; retried at %s", r.Reason, r.NotBefore.Format(time.RFC3339))
	}
	if e := m.Agent.CertificateExpires; !e.IsZero() && e.Before(p.now.Add(estimate+certificateSlack)) {
		return "CertificateExpiring", "the agent's certificate expires at " + e.UTC().Format(time.RFC3339)
	}
	return "", ""
}

// budget returns how many hosts may be claimed now, and why the others wait.
func (p *planner) budget(allowed int) (n int, reason, message string) {
	switch {
	case p.pool.Suspended:
		return 0, "Suspended", "spec.suspend is set"
	case p.halted != "":
		return 0, ReasonHalted, p.halted
	case p.counts.suspects+p.counts.stuck > p.pool.MaxQuarantined:
		return 0, ReasonHalted, fmt.Sprintf("%s quarantined, lost or not Ready for more than %s (maxQuarantined %d)",
			hostCount(p.counts.suspects+p.counts.stuck), suspectAfter, p.pool.MaxQuarantined)
	case p.rebuildReason() != "":
		return 0, "Rebuilding", p.rebuildReason()
	}
	if open, at := openFor(p.pool.Windows, p.now, p.estimate()); !open {
		if at.IsZero() {
			return 0, "WindowTooShort", fmt.Sprintf("no window is long enough for an attempt (%s)", p.estimate())
		}
		p.wakeAt(at)
		return 0, "OutsideWindow", "the next window opens at " + at.UTC().Format(time.RFC3339)
	}
	limit := p.pool.Limit(p.total)
	n, reason = limit-p.counts.unavailable, "Budget"
	message = fmt.Sprintf("%d of %d hosts unavailable, maxUnavailable allows %d", p.counts.unavailable, p.total, limit)
	if free := ledger.MaxSlots - len(p.out.Ledger.Slots); free < n {
		n, reason, message = free, "Budget", fmt.Sprintf("the ledger holds at most %d slots", ledger.MaxSlots)
	}
	if allowed != math.MaxInt {
		if free := allowed - p.counts.updated - p.counts.inFlight; free < n {
			n, reason, message = free, "Canary", fmt.Sprintf("canary step %d allows %s, then soaks", p.rec.Canary.Step+1, hostCount(allowed))
		}
	}
	return n, reason, message
}

// rebuildReason returns why the ledger may be incomplete: it is new or was
// lost, and there may be attempts that aren't adopted yet. "" if it's complete.
func (p *planner) rebuildReason() string {
	if p.newPool {
		return "the pool has no ledger record yet; attempts in progress are adopted first"
	}
	if p.now.Sub(p.rec.Since) >= adoptFor {
		return ""
	}
	for i := range p.in.Members {
		m := &p.in.Members[i]
		if _, ok := p.out.Ledger.Slots[m.Node.UID]; !ok && m.Node.Unschedulable && m.Node.CordonedBy != "" && m.Agent.Facts == nil {
			p.wakeAt(p.rec.Since.Add(adoptFor))
			return "node " + m.Node.Name + " is cordoned by an unknown attempt and its agent is unreachable"
		}
	}
	return ""
}

// quorumBlocker returns why the control plane can't lose the node now; "" if it
// can.
func (p *planner) quorumBlocker(m *Member) (reason, message string) {
	if !m.Node.ControlPlane && !p.pool.ControlPlane {
		return "", ""
	}
	for _, s := range p.out.Ledger.Slots {
		if s.ControlPlane {
			return "OneAtATime", "control-plane node " + s.Node + " is in flight; control-plane nodes are updated one at a time"
		}
	}
	if ok, cause := p.in.Quorum.Allows(m.Node.Name); !ok {
		return ReasonQuorum, cause
	}
	return "", ""
}

// sortCandidates sorts the node that runs the reconciler last, then by
// strategy.orderBy (by default zone, then oldest first), then by name.
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

// estimate returns how long an attempt may take: a quarter more than the
// longest recent one, or the sum of its deadlines if fewer than three completed.
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

// isRollback reports whether the pool committed another image after the target.
func (p *planner) isRollback() bool {
	c := p.rec.Committed
	return p.rec.HasCommitted(p.pool.Target.Digest) && c[len(c)-1].Digest != p.pool.Target.Digest
}

// belowMark returns why the target is too old to roll out; "" if it isn't. A
// pool may roll back to any target that it has committed.
func (p *planner) belowMark() string {
	mark, ok := p.out.Ledger.Marks[p.pool.Product]
	if !ok || p.rec.HasCommitted(p.pool.Target.Digest) {
		return ""
	}
	if c, err := nodeos.CompareVersions(p.pool.Target.Version, mark.Version); err != nil || c >= 0 {
		return ""
	}
	return fmt.Sprintf("rollback to %s denied: %s has completed and this pool never committed %[1]s",
		p.pool.Target.Version, mark.Version)
}
