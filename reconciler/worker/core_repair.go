// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// Limits of repairs. A repair occupies one of maxRepairs slots until it ends or is slow:
// a repair that takes longer than slowRepair mostly waits for an admission webhook, and
// others need not wait with it. maxRunning bounds all running repairs. At most
// maxRetrying of them are retries, so that objects that always fail can't keep an object
// from its first try.
const (
	maxRepairs  = 4
	slowRepair  = 250 * time.Millisecond
	maxRunning  = 64
	maxRetrying = 16
)

// maxDrifts is how many repairs are queued before a full sync replaces them; a failed
// repair backs off from repairBackoff, doubled at most repairDoubling times.
const (
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
	started   time.Time
	// driftedAgain is set by drift during the repair.
	driftedAgain bool
	// deferred is set while the builder delays the next request for the object. It
	// reports drift once that may be sent.
	deferred bool
}

// slow reports whether the drift's repair runs without a slot.
func (d *drift) slow(now time.Time) bool { return now.Sub(d.started) >= slowRepair }

// waits reports whether the repair is due but doesn't run.
func (d *drift) waits(now time.Time) bool { return !d.running && !d.notBefore.After(now) }

// repairs are the drifted objects in the order of their drift, or of their last failure.
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
		d := &list[i]
		d.driftedAgain = d.running
		if d.deferred && !d.running {
			d.deferred, d.notBefore = false, now
		}
		return
	}
	if len(list) >= maxDrifts {
		// A full sync is cheaper than this many repairs.
		list = slices.DeleteFunc(list, func(d drift) bool { return !d.running })
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

// startRepairs starts the due repairs: first tries before retries.
func (c *core) startRepairs(now time.Time) []action {
	if c.paused || !c.beganAny || len(c.repairs.list) == 0 {
		return nil
	}
	var out []action
	var obsolete []payload.ObjectID
	list := slices.Clone(c.repairs.list)
	load := c.repairs.load(now)
	for _, retry := range []bool{false, true} {
		for i := range list {
			d := &list[i]
			if !d.waits(now) || d.failures > 0 != retry || !load.admits(retry) {
				continue
			}
			m := c.manifestToRepair(d.id)
			if m == nil {
				obsolete = append(obsolete, d.id)
				continue
			}
			d.running, d.started, d.driftedAgain, d.deferred = true, now, false, false
			load.add(d, now)
			out = append(out, repair{m})
		}
	}
	c.repairs.list = slices.DeleteFunc(list, func(d drift) bool { return slices.Contains(obsolete, d.id) })
	return out
}

// repairLoad counts the running repairs: those in slots, all, and the retries.
type repairLoad struct{ slots, all, retries int }

func (r repairs) load(now time.Time) (l repairLoad) {
	for i := range r.list {
		if r.list[i].running {
			l.add(&r.list[i], now)
		}
	}
	return l
}

// add counts a running repair.
func (l *repairLoad) add(d *drift, now time.Time) {
	l.all++
	if !d.slow(now) {
		l.slots++
	}
	if d.failures > 0 {
		l.retries++
	}
}

// admits reports whether another repair may start.
func (l *repairLoad) admits(retry bool) bool {
	return l.slots < maxRepairs && l.all < maxRunning && (!retry || l.retries < maxRetrying)
}

// wakes calls at with the times at which a repair becomes due: after its delay, or when
// a slow repair releases its slot to a waiting one.
func (r repairs) wakes(now time.Time, at func(time.Time)) {
	waiting := slices.ContainsFunc(r.list, func(d drift) bool { return d.waits(now) })
	for i := range r.list {
		switch d := &r.list[i]; {
		case !d.running:
			at(d.notBefore)
		case waiting:
			at(d.started.Add(slowRepair))
		}
	}
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
		list = append(slices.Delete(list, i, i+1), d) // It lost its turn.
		c.mark(e.id, now)
		c.last = c.last.without(e.id).add(e.err)
	case e.deferred:
		// Nothing was sent: the object is neither repaired nor known to fail again.
		d.deferred, d.notBefore = !d.driftedAgain, now
		if d.deferred {
			d.notBefore = now.Add(c.interval)
		}
		list[i] = d
		c.repairs.list = list
		return
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
