// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// Bounds of the status lists.
const (
	maxInFlight = 50
	maxDenied   = 100
	maxText     = 512
	maxReason   = 256
)

// Condition is a condition without its times.
type Condition struct {
	Type, Reason, Message string
	Status                metav1.ConditionStatus
}

// Status is the part of a NodeOS status that a plan computes.
type Status struct {
	Counts    v1alpha1.HostCounts
	InFlight  []v1alpha1.HostInFlight
	Denied    []v1alpha1.DeniedDigest
	Committed *v1alpha1.OSImage
	// EstimatedEnd is in whole minutes; zero if it can't be estimated.
	EstimatedEnd time.Time
	Conditions   []Condition
	// States are the states of the members that hold a slot, by host name.
	States map[string]v1alpha1.HostRollout
}

// Apply sets the status of the object. A condition's transition time changes
// only with its status.
func (s Status) Apply(n *v1alpha1.NodeOS, now time.Time) {
	st := &n.Status
	st.ObservedGeneration = n.Generation
	st.Counts, st.InFlight, st.Denied, st.Committed = s.Counts, s.InFlight, s.Denied, s.Committed
	st.EstimatedEnd = nil
	if !s.EstimatedEnd.IsZero() {
		st.EstimatedEnd = &metav1.Time{Time: s.EstimatedEnd}
	}
	for _, c := range s.Conditions {
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
			ObservedGeneration: n.Generation, LastTransitionTime: metav1.Time{Time: now},
		})
	}
}

// status summarizes the plan.
func (p *planner) status() Status {
	c := p.counts
	s := Status{
		Counts: v1alpha1.HostCounts{
			Total: int32(p.total), Updated: int32(c.updated), Staged: int32(c.staged), InFlight: int32(c.inFlight), //nolint:gosec // bounded by the number of nodes
			Failed: int32(c.denied), Quarantined: int32(c.stuck + c.suspects), Held: int32(c.held), //nolint:gosec // likewise
		},
		InFlight:   p.inFlight(),
		Denied:     p.denied(),
		States:     p.states(),
		Conditions: p.conditions(),
	}
	if n := len(p.rec.Committed); n > 0 {
		last := p.rec.Committed[n-1]
		image := last.Digest
		if last.Digest == p.pool.Target.Digest {
			image = p.pool.Ref.String()
		} else if p.pool.Ref.Repository != "" {
			image = p.pool.Ref.Repository + "@" + last.Digest
		}
		s.Committed = &v1alpha1.OSImage{Version: last.Version, Image: image}
	}
	s.EstimatedEnd = p.estimatedEnd()
	return s
}

func (p *planner) inFlight() []v1alpha1.HostInFlight {
	var out []v1alpha1.HostInFlight
	for uid, s := range p.out.Ledger.Slots {
		if s.Pool != p.pool.UID {
			continue
		}
		blocking := s.Message
		if m := p.byUID[uid]; m != nil {
			blocking = cmp.Or(blockingOf(m, s), s.Message)
		}
		out = append(out, v1alpha1.HostInFlight{
			Host: s.Node, State: string(s.State), Since: &metav1.Time{Time: s.Since}, Blocking: sanitize.Clip(blocking, maxText),
		})
	}
	slices.SortFunc(out, func(a, b v1alpha1.HostInFlight) int { return cmp.Compare(a.Host, b.Host) })
	for _, host := range p.stagingHosts {
		out = append(out, v1alpha1.HostInFlight{Host: host, State: string(ledger.Staging)})
	}
	return out[:min(len(out), maxInFlight)]
}

// blockingOf returns what a host in flight waits for.
func blockingOf(m *Member, s ledger.Slot) string {
	switch s.State {
	case ledger.Draining, ledger.Drained:
		return m.Pods.Blocking
	case ledger.Verifying:
		if m.Agent.Facts == nil {
			return m.Agent.Problem
		}
		return m.Health.Blocking
	case ledger.Rebooting, ledger.Committing, ledger.RollingBack:
		return cmp.Or(m.Agent.Problem, m.LastError)
	default:
		return m.LastError
	}
}

func (p *planner) states() map[string]v1alpha1.HostRollout {
	out := map[string]v1alpha1.HostRollout{}
	for _, s := range p.out.Ledger.Slots {
		if s.Pool != p.pool.UID {
			continue
		}
		r := v1alpha1.HostRollout{State: string(s.State), Attempt: s.Attempt}
		if d := p.deadline(s); !d.IsZero() {
			r.Deadline = &metav1.Time{Time: d}
		}
		out[s.Node] = r
	}
	return out
}

// deadline is when the slot's state times out; zero if never.
func (p *planner) deadline(s ledger.Slot) time.Time {
	switch s.State {
	case ledger.Claimed, ledger.Draining:
		return s.ClaimedAt.Add(p.pool.DrainTimeout)
	case ledger.Drained:
		return s.ClaimedAt.Add(p.pool.DrainTimeout + p.pool.BootDeadline)
	case ledger.Rebooting:
		return s.ActivatedAt.Add(p.pool.BootDeadline)
	case ledger.Verifying:
		return s.VerifyingSince.Add(p.pool.GateTimeout + p.pool.Soak)
	case ledger.Committing:
		return s.Since.Add(p.pool.CommitDeadline)
	default:
		return time.Time{}
	}
}

func (p *planner) denied() []v1alpha1.DeniedDigest {
	var out []v1alpha1.DeniedDigest
	for _, d := range p.rec.Denied {
		e := v1alpha1.DeniedDigest{Digest: d.Digest, Scope: "host", Since: &metav1.Time{Time: d.Since}}
		if d.Pool {
			e.Scope = "pool"
		}
		for _, h := range d.Hosts[max(0, len(d.Hosts)-maxInFlight):] {
			e.Hosts = append(e.Hosts, h.Node)
			e.Reason = sanitize.Clip(h.Reason, maxReason)
		}
		out = append(out, e)
	}
	return out[max(0, len(out)-maxDenied):]
}

// estimatedEnd estimates when the rollout completes, from the durations of past
// attempts; zero if the rollout doesn't progress or a window interrupts it.
func (p *planner) estimatedEnd() time.Time {
	left := p.total - p.counts.updated - p.counts.denied - p.counts.held
	limit := p.pool.Limit(p.total)
	if reason, _ := p.stallReason(); reason != "" || left <= 0 || limit <= 0 || p.pool.StageOnly || p.pool.Suspended || p.pool.Paused != "" || p.pool.Unverified != "" {
		return time.Time{}
	}
	each := p.estimate()
	if d := p.rec.Durations; len(d) > 0 {
		var sum time.Duration
		for _, one := range d {
			sum += one
		}
		each = sum / time.Duration(len(d))
	}
	end := p.now.Add(each * time.Duration((left+limit-1)/limit))
	for _, c := range p.pool.Canary[min(p.rec.Canary.Step, len(p.pool.Canary)):] {
		end = end.Add(c.Soak)
	}
	if len(p.pool.Windows) > 0 {
		if open, _ := openFor(p.pool.Windows, p.now, end.Sub(p.now)); !open {
			return time.Time{}
		}
	}
	return end.Add(time.Minute - 1).Truncate(time.Minute)
}

func (p *planner) conditions() []Condition {
	ready := p.ready()
	reconciling := Condition{Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionFalse, Reason: ready.Reason, Message: ready.Message}
	stalled := Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "Progressing", Message: "no action required"}
	if ready.Status != metav1.ConditionTrue {
		if reason, message := p.stallReason(); reason != "" && p.counts.inFlight == p.counts.stuck {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, reason, message
			ready.Reason, ready.Message = reason, message
			reconciling.Reason, reconciling.Message = reason, message
		} else {
			reconciling.Status = metav1.ConditionTrue
		}
	}
	out := []Condition{ready, reconciling, stalled, p.verified()}
	paused := Condition{Type: v1alpha1.ConditionPaused, Status: metav1.ConditionFalse, Reason: "Running", Message: "not paused"}
	if p.pool.Paused != "" {
		paused.Status, paused.Reason, paused.Message = metav1.ConditionTrue, ReasonPaused, p.pool.Paused
	} else if p.pool.Suspended {
		paused.Status, paused.Reason, paused.Message = metav1.ConditionTrue, "Suspended", "spec.suspend is set"
	}
	halted := Condition{Type: v1alpha1.ConditionHalted, Status: metav1.ConditionFalse, Reason: "Running", Message: "not halted"}
	if p.halted != "" {
		halted.Status, halted.Reason, halted.Message = metav1.ConditionTrue, ReasonHalted, p.halted
	}
	out = append(out, paused, halted)
	for i := range out {
		out[i].Message = sanitize.Clip(out[i].Message, maxText)
	}
	return out
}

func (p *planner) verified() Condition {
	c := Condition{Type: v1alpha1.ConditionOSVerified, Status: metav1.ConditionTrue, Reason: "Verified", Message: p.pool.Target.Digest + " satisfies the trust policy"}
	if p.pool.Unverified != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, cmp.Or(p.pool.UnverifiedReason, "Unsigned"), p.pool.Unverified
	}
	return c
}

// ready returns the Ready condition.
func (p *planner) ready() Condition {
	c := Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "RollingOut"}
	switch {
	case p.counts.inFlight == 0 && p.counts.updated == p.total:
		c.Status, c.Reason = metav1.ConditionTrue, "UpToDate"
		c.Message = fmt.Sprintf("%d of %d hosts run %s", p.counts.updated, p.total, p.pool.Target.Version)
	case p.pool.StageOnly && p.counts.staged+p.counts.updated == p.total:
		c.Status, c.Reason = metav1.ConditionTrue, "Staged"
		c.Message = fmt.Sprintf("%d of %d hosts staged %s", p.counts.staged, p.total, p.pool.Target.Version)
	default:
		c.Message = fmt.Sprintf("%d of %d hosts run %s, %d staged, %d in flight", p.counts.updated, p.total, p.pool.Target.Version, p.counts.staged, p.counts.inFlight)
		if w := p.mainWait(); w.Reason != "" {
			c.Message += fmt.Sprintf("; waiting: %s (%s)", w.Message, w.Reason)
		}
	}
	return c
}

// mainWait returns the first host that waits for the most frequent reason; of
// equally frequent ones, the first in alphabetical order.
func (p *planner) mainWait() Waiting {
	seen := map[string]int{}
	for _, w := range p.out.Waiting {
		seen[w.Reason]++
	}
	var best Waiting
	for _, reason := range slices.Sorted(maps.Keys(seen)) {
		if best.Reason != "" && seen[reason] <= seen[best.Reason] {
			continue
		}
		i := slices.IndexFunc(p.out.Waiting, func(w Waiting) bool { return w.Reason == reason })
		best = p.out.Waiting[i]
	}
	return best
}

// stallReason returns why the rollout can't progress without an operator; ""
// if it may progress automatically.
func (p *planner) stallReason() (reason, message string) {
	switch {
	case p.halted != "":
		return ReasonHalted, p.halted
	case p.belowMark() != "":
		return "Rollback", p.belowMark()
	case p.mainWait().Reason == ReasonConflict:
		return ReasonConflict, p.mainWait().Host + ": " + p.mainWait().Message + "; narrow one of the two selectors"
	case p.counts.denied > 0 && p.counts.updated+p.counts.denied+p.counts.held == p.total:
		return ReasonDenied, fmt.Sprintf("%s denied on %s; the other hosts run it", p.pool.Target.Version, hostCount(p.counts.denied))
	case p.counts.inFlight > 0 && p.counts.inFlight == p.counts.stuck:
		return "Quarantined", hostCount(p.counts.stuck) + " quarantined or lost"
	default:
		return "", ""
	}
}
