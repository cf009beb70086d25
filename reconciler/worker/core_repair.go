// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// Limits of repairs: how many run concurrently, how many are queued before a full sync
// replaces them, and the backoff after a failure.
const (
	maxRepairs     = 4
	maxDrifts      = 1024
	repairBackoff  = time.Second
	repairDoubling = 8
)

// drift is a drifted object, to be applied again.
type drift struct {
	id        payload.ObjectID
	notBefore time.Time
	failures  int
	running   bool
	// driftedAgain is set by drift during the repair.
	driftedAgain bool
}

// repairs are the drifted objects in the order of their drift.
type repairs struct{ list []drift }

func (r repairs) index(id payload.ObjectID) int {
	return slices.IndexFunc(r.list, func(d drift) bool { return d.id == id })
}

// drifted queues an object's repair.
func (c *core) drifted(e drifted, now time.Time) {
	if c.manifestToRepair(e.id) == nil {
		c.pruneChanged(e.id, now)
		return
	}
	list := slices.Clone(c.repairs.list)
	defer func() { c.repairs.list = list }()
	if i := c.repairs.index(e.id); i >= 0 {
		list[i].driftedAgain = list[i].running
		return
	}
	if len(list) >= maxDrifts {
		// A full sync is cheaper than this many repairs.
		list = nil
		c.nextSync = now
		return
	}
	list = append(list, drift{id: e.id, notBefore: now})
}

// manifestToRepair returns the current manifest of an object: that of the accepted
// payload if the object was reached, else that of the applied one; nil for an object
// that isn't repaired.
func (c *core) manifestToRepair(id payload.ObjectID) *payload.Manifest {
	if c.accepted == nil || overridden(c.overrides, id) {
		return nil
	}
	from := c.accepted
	if !c.reached[id] && c.state != payload.Reconciling {
		from = c.applied
	}
	if from == nil {
		return nil
	}
	if m := from.manifest(id); m != nil && !m.CreateOnly && !m.Delete {
		return m
	}
	return nil
}

// startRepairs starts the due repairs.
func (c *core) startRepairs(now time.Time) []action {
	if c.paused || !c.beganAny {
		return nil
	}
	running := 0
	for _, d := range c.repairs.list {
		if d.running {
			running++
		}
	}
	var out []action
	var list []drift
	for _, d := range c.repairs.list {
		if d.running || d.notBefore.After(now) || running >= maxRepairs {
			list = append(list, d)
			continue
		}
		m := c.manifestToRepair(d.id)
		if m == nil {
			continue
		}
		d.running, d.driftedAgain = true, false
		running++
		list = append(list, d)
		out = append(out, repair{m})
	}
	c.repairs.list = list
	return out
}

// repaired ends a repair.
func (c *core) repaired(e repaired, now time.Time) {
	i := c.repairs.index(e.id)
	if i < 0 {
		return
	}
	list := slices.Clone(c.repairs.list)
	d := list[i]
	d.running = false
	switch {
	case e.err != nil && e.err.Effect.rank() >= EffectFailAfterInterval.rank():
		d.failures++
		d.notBefore = now.Add(c.wait(min(repairBackoff<<min(d.failures, repairDoubling), c.interval)))
		list[i] = d
		c.mark(e.id, now)
		c.last = c.last.without(e.id).add(e.err)
	case d.driftedAgain:
		d.failures, d.notBefore, d.driftedAgain = 0, now, false
		list[i] = d
	default:
		list = slices.Delete(list, i, i+1)
	}
	if e.obsolete {
		c.repairs.list = list
		return
	}
	if e.err == nil || e.err.Effect.rank() < EffectFailAfterInterval.rank() {
		c.driftRepairs++
		c.last = c.last.without(e.id)
		if _, waits := c.clocks[e.id]; !waits {
			delete(c.since, e.id)
		}
	}
	c.repairs.list = list
}
