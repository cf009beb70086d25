// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Durations and limits that are the same for all pools.
const (
	// adoptFor is how long after a pool's first plan with a ledger the cordons
	// of attempts that only agents report are adopted: the ledger may have been
	// lost.
	adoptFor = 10 * time.Minute
	// suspectAfter is how long a node without a slot may be unready before it
	// counts as quarantined.
	suspectAfter = time.Hour
	// retryBase and retryLimit bound the delay after an aborted attempt or a
	// failed staging.
	retryBase  = time.Minute
	retryLimit = time.Hour
	// certificateSlack is how long an agent's certificate must remain valid
	// after the estimated end of an attempt.
	certificateSlack = 24 * time.Hour
	// maxFailureText bounds a stored failure message, in bytes.
	maxFailureText = 160
	// maxWaiting bounds Decision.Waiting.
	maxWaiting = 100
)

// Decision is the result of Plan.
type Decision struct {
	// Ledger must be written before the first step if Changed is set.
	Ledger  ledger.Document
	Changed bool
	// Steps are independent of one another.
	Steps []Step
	// Waiting are the hosts that wait, and why; at most 100.
	Waiting []Waiting
	Status  Status
	// Next is when the plan changes even if no input does; zero if never.
	Next time.Time
}

// planner holds the state of one call of Plan.
type planner struct {
	in           Input
	pool         *Pool
	rec          ledger.Pool
	now          time.Time
	out          Decision
	byUID        map[string]*Member
	total        int
	newPool      bool // the ledger has no record of the pool yet
	halted       string
	counts       counts
	stagingHosts []string
	// justFreed are the UIDs of the nodes whose slot this plan frees. A later
	// plan may claim them again, so that attempts of one host never overlap.
	justFreed map[string]bool
	explained map[*Member]bool // members that are in out.Waiting
}

// counts are the numbers of hosts after the slots were advanced; claims and
// status are based on them.
type counts struct {
	updated, healthy, staged, staging, denied, held, suspects, stuck, unavailable, inFlight int
}

// Plan decides the next steps for the hosts of a pool. It is pure: it doesn't
// modify in, and equal arguments give equal plans.
func Plan(in Input, now time.Time) Decision {
	p := &planner{in: in, pool: &in.Pool, now: now.UTC().Round(0), justFreed: map[string]bool{}, explained: map[*Member]bool{}}
	p.out.Ledger = in.Ledger.Clone()
	p.byUID = make(map[string]*Member, len(in.Members))
	for i := range in.Members {
		m := &p.in.Members[i]
		p.byUID[m.Node.UID] = m
		if m.Selected {
			p.total++
		}
	}
	p.dropPools()
	p.loadPool()
	p.resume()
	p.adopt()
	p.halted = p.haltReason()
	p.advanceSlots()
	p.adopt() // a freed slot may have hidden a trial of another attempt
	p.halted = p.haltReason()
	p.count()
	p.recordInstalled()
	allowed := p.canary()
	p.stage()
	p.claim(allowed)
	p.out.Ledger.SetPool(p.pool.UID, p.rec)
	p.out.Status = p.status()
	return p.out
}

// dropPools removes the records of deleted pools. A slot that such a pool left,
// because its finalizer was removed manually, moves to this pool if this pool
// selects the node.
func (p *planner) dropPools() {
	if !p.in.Pools[p.pool.UID] {
		return // the pools weren't listed, or the list is outdated
	}
	held := map[string]bool{}
	for uid, s := range p.out.Ledger.Slots {
		if m := p.byUID[uid]; !p.in.Pools[s.Pool] && m != nil && m.Selected && m.Conflict == "" {
			s.Pool, s.PoolName = p.pool.UID, p.pool.Name
			p.out.Ledger.SetSlot(uid, s)
			p.out.Changed = true
		}
		held[s.Pool] = true
	}
	for uid := range p.out.Ledger.Pools {
		if !p.in.Pools[uid] && !held[uid] {
			delete(p.out.Ledger.Pools, uid)
			p.out.Changed = true
		}
	}
}

// loadPool loads the pool's record from the ledger, or creates it.
func (p *planner) loadPool() {
	rec, ok := p.out.Ledger.Pools[p.pool.UID]
	if !ok {
		p.newPool = true
		rec = ledger.Pool{Since: p.now}
		p.out.Changed = true
	}
	if rec.Name != p.pool.Name {
		rec.Name = p.pool.Name
		p.out.Changed = true
	}
	if target := p.pool.Target.Digest; rec.Target != target {
		// A pool that returns to an earlier target starts a new round: agents
		// run an operation ID only once.
		if rec.Target == "" {
			rec.Round = p.pool.Generation
		} else {
			rec.Round = max(rec.Round+1, p.pool.Generation)
		}
		rec.Target = target
		p.out.Changed = true
	}
	p.pool.Round = rec.Round
	p.rec = rec
}

// resume handles each value of the resume annotation once: it clears the
// failures of the named hosts, or of all. Denials of single hosts are kept.
func (p *planner) resume() {
	if p.pool.Resume == p.rec.Resumed {
		return
	}
	p.rec.Resumed = p.pool.Resume
	p.out.Changed = true
	if p.pool.Resume == "" {
		return
	}
	if p.pool.Resume == "all" {
		p.rec.Failures = nil
		for i := range p.rec.Denied {
			p.rec.Denied[i].Pool = false
		}
		return
	}
	accepted := strings.Split(p.pool.Resume, ",")
	p.rec.Failures = slices.DeleteFunc(p.rec.Failures, func(f ledger.Failure) bool {
		return slices.ContainsFunc(accepted, func(a string) bool { return strings.TrimSpace(a) == f.Node })
	})
}

// advanceSlots advances each slot of the pool as far as the facts allow, and
// adds the steps of its new state.
func (p *planner) advanceSlots() {
	for _, uid := range slices.Sorted(maps.Keys(p.out.Ledger.Slots)) {
		s := p.out.Ledger.Slots[uid]
		if s.Pool != p.pool.UID {
			continue
		}
		m := p.byUID[uid]
		if m == nil {
			p.out.Ledger.FreeSlot(uid)
			p.out.Changed = true
			continue
		}
		p.advanceSlot(uid, s, p.view(m, s))
	}
}

func (p *planner) advanceSlot(uid string, s ledger.Slot, v view) {
	next, left := v.advance(s)
	for _, state := range append(left, next.State) {
		if state == ledger.RolledBack && s.State != ledger.RolledBack {
			p.recordFailure(v.m, next)
		}
	}
	if next.State == ledger.Idle {
		p.recordFreed(v.m, next, left[len(left)-1])
		p.out.Ledger.FreeSlot(uid)
		p.out.Changed = true
		return
	}
	if next != s {
		p.out.Ledger.SetSlot(uid, next)
		p.out.Changed = true
	}
	p.out.Steps = append(p.out.Steps, v.act(next)...)
}

// recordFailure denies the target on the host and records the failure.
func (p *planner) recordFailure(m *Member, s ledger.Slot) {
	bootID, cause := "", s.Message
	if f := m.Agent.Facts; f != nil {
		bootID = f.BootID
		if last, bad := failedOperation(f, activateID(s)); bad && last.Message != "" {
			cause = last.Message // more exact than the slot's message
		}
	}
	p.rec.Deny(s.Target.Digest, ledger.DeniedHost{
		NodeUID: m.Node.UID, Node: m.Node.Name, BootID: bootID, At: p.now, Nonce: m.Nonce,
		Reason: sanitize.Clip(s.Reason+": "+cause, maxFailureText),
	}, max(2, p.pool.FailureThreshold))
}

// recordFreed records the result of an attempt whose slot is freed.
func (p *planner) recordFreed(m *Member, s ledger.Slot, from ledger.State) {
	p.justFreed[m.Node.UID] = true
	if s.Reason != ReasonAdopted { // otherwise a forged cordon would be adopted repeatedly
		p.rec.AddReleased(m.Node.UID, s.Owner(), adoptFor, p.now)
	}
	switch from {
	case ledger.Releasing:
		p.rec.AddCommitted(s.Target, p.now)
		p.rec.AddDuration(p.now.Sub(s.ClaimedAt))
		p.rec.ClearRetry(m.Node.UID)
	case ledger.Aborted:
		switch s.Reason {
		case ReasonTargetChanged, ReasonDeleting, ReasonPaused, ReasonHeld, ReasonLeftPool, ReasonHalted, ReasonConflict, ReasonAdopted, ReasonRerun:
		default:
			p.rec.AddRetry(ledger.Retry{NodeUID: m.Node.UID, Digest: s.Target.Digest, Reason: s.Reason}, retryBase, retryLimit, p.now)
		}
	default:
	}
}

func (p *planner) view(m *Member, s ledger.Slot) view {
	v := view{pool: p.pool, m: m, drain: p.drains(), rollback: p.isRollback(), quorum: p.in.Quorum, now: p.now, epoch: p.in.Epoch}
	v.abortReason, v.abortMessage = p.abortReason(m, s)
	return v
}

// drains reports whether nodes are cordoned and drained. By default a
// single-node cluster isn't: its pods can't run elsewhere.
func (p *planner) drains() bool {
	switch p.pool.Drain {
	case DrainNone:
		return false
	case DrainEvict:
		return true
	default:
		return p.in.ClusterNodes > 1
	}
}

// abortReason returns why an attempt that isn't activated yet is aborted; "" if
// it isn't.
func (p *planner) abortReason(m *Member, s ledger.Slot) (reason, message string) {
	switch {
	case p.pool.Deleting:
		return ReasonDeleting, "the NodeOS is being deleted"
	case p.pool.Paused != "":
		return ReasonPaused, p.pool.Paused
	case m.Hold != "":
		return ReasonHeld, m.Hold
	case !m.Selected:
		return ReasonLeftPool, "the NodeOS no longer selects the node"
	case m.Conflict != "":
		return ReasonConflict, conflictMessage(m)
	case s.Target.Digest != p.pool.Target.Digest:
		return ReasonTargetChanged, "the target is now " + p.pool.Target.Version
	case p.pool.Unverified != "":
		return cmp.Or(p.pool.UnverifiedReason, "Unsigned"), p.pool.Unverified
	case p.halted != "":
		return ReasonHalted, p.halted
	}
	return "", ""
}

// count computes p.counts after the slots were advanced.
func (p *planner) count() {
	for i := range p.in.Members {
		m := &p.in.Members[i]
		slot, inFlight := p.out.Ledger.Slots[m.Node.UID]
		if inFlight && slot.Pool == p.pool.UID {
			p.counts.inFlight++
			if slot.State == ledger.Quarantined || slot.State == ledger.Lost {
				p.counts.stuck++
			}
		}
		unavailable := inFlight || !m.Node.Ready || m.Node.Unschedulable || onTrial(m)
		if unavailable && (m.Selected || inFlight && slot.Pool == p.pool.UID) {
			p.counts.unavailable++
		}
		if m.Selected {
			p.countSelected(m, inFlight, unavailable)
		}
	}
}

// recordInstalled records a verified target as committed if all hosts already
// run it, healthy. Hosts are installed with their first version; without this
// record a rollback to it would be denied.
func (p *planner) recordInstalled() {
	if p.total == 0 || p.counts.healthy < p.total || p.pool.Unverified != "" ||
		p.rec.HasCommitted(p.pool.Target.Digest) || p.belowMark() != "" {
		return
	}
	p.rec.AddCommitted(p.pool.Target, p.now)
}

func (p *planner) countSelected(m *Member, inFlight, unavailable bool) {
	if m.Hold != "" {
		p.counts.held++
	}
	if !inFlight && !m.Node.Ready && !m.Node.ReadySince.IsZero() && p.now.Sub(m.Node.ReadySince) > suspectAfter {
		p.counts.suspects++
	}
	if p.updated(m) && !inFlight {
		p.counts.updated++
		if !unavailable {
			p.counts.healthy++
		}
		return
	}
	if p.deniedOn(m) != "" {
		p.counts.denied++
	}
	if f := m.Agent.Facts; f != nil && hasStaged(f, p.pool.Target.Digest) {
		p.counts.staged++
	}
}

// updated reports whether the host runs the target, committed or not on trial.
func (p *planner) updated(m *Member) bool {
	f := m.Agent.Facts
	return f != nil && f.Booted.Digest == p.pool.Target.Digest && (f.Booted.Confirmed || f.Trial == nil)
}

// onTrial reports whether the host has a trial that may roll back automatically.
func onTrial(m *Member) bool { return m.Agent.Facts != nil && m.Agent.Facts.Trial != nil }

// deniedOn returns why the target is denied on the host; "" if it isn't.
func (p *planner) deniedOn(m *Member) string {
	digest := p.pool.Target.Digest
	if f := m.Agent.Facts; f != nil {
		if i := slices.IndexFunc(f.Denied, func(d nodeos.Denial) bool { return d.Digest == digest }); i >= 0 {
			return "the host denies the image: " + f.Denied[i].Why
		}
	}
	d, ok := p.rec.Denial(digest)
	if !ok {
		return ""
	}
	for _, h := range d.Hosts {
		if h.NodeUID == m.Node.UID && h.Nonce == m.Nonce {
			return "the image failed on this host: " + h.Reason
		}
	}
	return ""
}

// wakeAt sets Decision.Next if at is earlier.
func (p *planner) wakeAt(at time.Time) {
	if at.After(p.now) && (p.out.Next.IsZero() || at.Before(p.out.Next)) {
		p.out.Next = at
	}
}

// addWait records why a host waits; the first reason of a host is kept.
func (p *planner) addWait(m *Member, reason, message string) {
	if len(p.out.Waiting) < maxWaiting && !p.explained[m] {
		p.explained[m] = true
		p.out.Waiting = append(p.out.Waiting, Waiting{Host: m.Node.Name, Reason: reason, Message: message})
	}
}
