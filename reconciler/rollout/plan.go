// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Times that no pool sets.
const (
	// adoptFor is how long after the first plan under a ledger cordons of
	// attempts that only agents know of are taken over: the ledger was lost.
	adoptFor = 10 * time.Minute
	// suspectAfter is how long a node may be away without an attempt of ours
	// before it counts as quarantined.
	suspectAfter = time.Hour
	// retryBase and retryLimit hold a host back after an aborted attempt.
	retryBase  = time.Minute
	retryLimit = time.Hour
	// certificateSlack is what must be left of an agent's certificate at the
	// estimated end of an attempt.
	certificateSlack = 24 * time.Hour
	// maxFailureText bounds what is remembered of a failure, in bytes.
	maxFailureText = 160
	// maxWaiting bounds the hosts whose waiting is explained.
	maxWaiting = 100
)

// Decision is what a plan says.
type Decision struct {
	// Ledger is what must be written before the first step, if Changed.
	Ledger  ledger.Document
	Changed bool
	// Steps are what to do then; none depends on another.
	Steps []Step
	// Waiting says why hosts get no further, at most 100 of them.
	Waiting []Waiting
	Status  Status
	// Next is when the plan changes by time alone; zero: it doesn't.
	Next time.Time
}

// planner is one plan in the making.
type planner struct {
	in           Input
	pool         *Pool
	rec          ledger.Pool
	now          time.Time
	out          Decision
	byUID        map[string]*Member
	total        int
	newPool      bool // the ledger doesn't know the pool yet
	halted       string
	counts       counts
	stagingHosts []string // hosts that stage now
	// justFreed are the hosts whose slot was freed in this plan: they're
	// claimed again in a later one, so that one attempt ends before the next.
	justFreed map[string]bool
	explained map[*Member]bool // whose waiting has its reason already
}

// counts is what claims and status are decided from, after the slots moved on.
type counts struct {
	updated, healthy, staged, staging, denied, held, suspects, stuck, unavailable, inFlight int
}

// Plan decides what the hosts of a pool do now. It's pure: it changes nothing
// of in, and the same arguments give the same plan.
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
	p.adopt() // a slot that was freed may have hidden a trial of another attempt
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

// forget drops what's remembered of pools that are gone. A slot that one of
// them left behind, by a finalizer taken off by hand, becomes this pool's if
// it selects the node.
func (p *planner) dropPools() {
	if !p.in.Pools[p.pool.UID] {
		return // not known, or known wrongly
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

// remember takes what the ledger knows of the pool.
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
		// A pool that goes back and forth tries a target anew each time: hosts
		// take the same operation for the same run and do it only once.
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

// resume acts once on a new value of the resume annotation: the failures of
// the hosts it names, or of all, are accepted. What failed on a host stays
// denied there.
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

// advanceSlots moves each slot of the pool as far as the facts allow, and
// collects what's to be done in the state it then has.
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

// failed denies the target on the host and counts the failure.
func (p *planner) recordFailure(m *Member, s ledger.Slot) {
	bootID, why := "", s.Message
	if f := m.Agent.Facts; f != nil {
		bootID = f.BootID
		if last, bad := failedOperation(f, activateID(s)); bad && last.Message != "" {
			why = last.Message // the host knows best
		}
	}
	p.rec.Deny(s.Target.Digest, ledger.DeniedHost{
		NodeUID: m.Node.UID, Node: m.Node.Name, BootID: bootID, At: p.now, Nonce: m.Nonce,
		Reason: sanitize.Clip(s.Reason+": "+why, maxFailureText),
	}, max(2, p.pool.FailureThreshold))
}

// freed remembers what an attempt leaves behind.
func (p *planner) recordFreed(m *Member, s ledger.Slot, from ledger.State) {
	p.justFreed[m.Node.UID] = true
	if s.Reason != ReasonAdopted { // else a forged cordon would be ours for ever
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

// drains says whether nodes are cordoned and emptied: in a cluster of one node
// there's nowhere to go.
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

// stops says why an attempt that hasn't been activated is taken back.
func (p *planner) abortReason(m *Member, s ledger.Slot) (reason, message string) {
	switch {
	case p.pool.Deleting:
		return ReasonDeleting, "the NodeOS is being deleted"
	case p.pool.Paused != "":
		return ReasonPaused, p.pool.Paused
	case m.Hold != "":
		return ReasonHeld, m.Hold
	case !m.Selected:
		return ReasonLeftPool, "the NodeOS doesn't select the node any more"
	case m.Conflict != "":
		return ReasonConflict, "NodeOS " + m.Conflict + " selects the node too"
	case s.Target.Digest != p.pool.Target.Digest:
		return ReasonTargetChanged, "the pool wants " + p.pool.Target.Version + " now"
	case p.pool.Unverified != "":
		return orDefault(p.pool.UnverifiedReason, "Unsigned"), p.pool.Unverified
	case p.halted != "":
		return ReasonHalted, p.halted
	}
	return "", ""
}

// count looks at every member once, after the slots have moved on.
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
		away := inFlight || !m.Node.Ready || m.Node.Unschedulable || onTrial(m)
		if away && (m.Selected || inFlight && slot.Pool == p.pool.UID) {
			p.counts.unavailable++
		}
		if m.Selected {
			p.countSelected(m, inFlight, away)
		}
	}
}

// found records as committed a verified target that every host of the pool was
// running already when it was declared: hosts are installed with their first
// system, and without a record of it nobody could go back there.
func (p *planner) recordInstalled() {
	if p.total == 0 || p.counts.healthy < p.total || p.pool.Unverified != "" ||
		p.rec.HasCommitted(p.pool.Target.Digest) || p.belowMark() != "" {
		return
	}
	p.rec.AddCommitted(p.pool.Target, p.now)
}

func (p *planner) countSelected(m *Member, inFlight, away bool) {
	if m.Hold != "" {
		p.counts.held++
	}
	if !inFlight && !m.Node.Ready && !m.Node.ReadySince.IsZero() && p.now.Sub(m.Node.ReadySince) > suspectAfter {
		p.counts.suspects++
	}
	if p.updated(m) && !inFlight {
		p.counts.updated++
		if !away {
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

// updated says whether the host runs the target for good.
func (p *planner) updated(m *Member) bool {
	f := m.Agent.Facts
	return f != nil && f.Booted.Digest == p.pool.Target.Digest && (f.Booted.Confirmed || f.Trial == nil)
}

// onTrial says whether the host runs something that may go back by itself.
func onTrial(m *Member) bool { return m.Agent.Facts != nil && m.Agent.Facts.Trial != nil }

// deniedOn says why the target must not be tried on the host; "" if it may.
func (p *planner) deniedOn(m *Member) string {
	digest := p.pool.Target.Digest
	if f := m.Agent.Facts; f != nil {
		if i := slices.IndexFunc(f.Denied, func(d nodeos.Denial) bool { return d.Digest == digest }); i >= 0 {
			return "the host itself denies the image: " + f.Denied[i].Why
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

// wake notes when time alone changes the plan.
func (p *planner) wakeAt(at time.Time) {
	if at.After(p.now) && (p.out.Next.IsZero() || at.Before(p.out.Next)) {
		p.out.Next = at
	}
}

// wait notes why a host gets no further.
func (p *planner) addWait(m *Member, reason, message string) {
	if len(p.out.Waiting) < maxWaiting && !p.explained[m] {
		p.explained[m] = true
		p.out.Waiting = append(p.out.Waiting, Waiting{Host: m.Node.Name, Reason: reason, Message: message})
	}
}
