// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// unhealthyObject is an unhealthy object that no sync awaits.
type unhealthyObject struct {
	err   *UpdateError
	since time.Time
	// failsAt is when it becomes a failure, zero for never; failing is set after that.
	failsAt time.Time
	failing bool
}

// healthObserved records the health of an object. An object that is unhealthy for
// less than its grace is no failure: rescheduling a pod makes its Deployment
// unavailable too.
func (c *core) healthObserved(e healthObserved, now time.Time) {
	if e.err == nil {
		delete(c.unhealthy, e.id)
		c.recovered(e.id, now)
		return
	}
	i, known := c.unhealthy[e.id]
	// The grace starts after a wait that is no problem, such as for a window.
	worse := e.err.Effect.rank() >= EffectFailAfterInterval.rank()
	if !known || worse && i.failsAt.IsZero() {
		i.since = now
	}
	i.err, i.failsAt = e.err, time.Time{}
	if worse {
		i.failsAt = i.since.Add(e.grace)
	}
	i.failing = false // failOverdue sets it for the new failsAt
	c.unhealthy[e.id] = i
}

// restoreUnhealthy restores the unhealthy objects of an earlier process. They stay
// unhealthy, with their clocks, until their health is observed: a restart neither
// completes a failed release nor resets an object's health timeout.
func (c *core) restoreUnhealthy() {
	for id, clock := range c.restore.Waits {
		if c.accepted.manifest(id) == nil || clock.Running.IsZero() {
			continue
		}
		c.unhealthy[id] = unhealthyObject{since: clock.Running, failsAt: clock.Running.Add(restoredGrace), err: &UpdateError{
			Code: "NotObserved", Effect: EffectFailAfterInterval, Object: id, Retry: true,
			Message: "unhealthy before the restart; not rechecked yet",
		}}
	}
}

// restartGrace restarts the grace of unhealthy objects when an update completes:
// they weren't reported during the update.
func (c *core) restartGrace(now time.Time) {
	for id, i := range c.unhealthy {
		if !i.failsAt.IsZero() {
			i.failsAt = now.Add(i.failsAt.Sub(i.since))
		}
		i.since, i.failing = now, false
		c.unhealthy[id] = i
	}
}

// restoredGrace is the grace of unhealthy objects of an earlier process until their
// health is observed.
const restoredGrace = 10 * time.Minute

// recovered makes the next sync due if the last one failed because of an object that
// is healthy now.
func (c *core) recovered(id payload.ObjectID, now time.Time) {
	if c.sync.running || c.failures == 0 {
		return
	}
	for _, e := range c.last.list {
		if e.Object == id {
			c.nextSync = now
			return
		}
	}
}

// failOverdue marks objects whose grace has passed as failing.
func (c *core) failOverdue(now time.Time) {
	for id, i := range c.unhealthy {
		if !i.failing && !i.failsAt.IsZero() && !i.failsAt.After(now) {
			i.failing = true
			c.unhealthy[id] = i
		}
	}
}

// unhealthyClocks returns the clocks of unhealthy objects of a complete release.
func (c *core) unhealthyClocks() map[payload.ObjectID]WaitClock {
	out := make(map[payload.ObjectID]WaitClock, len(c.unhealthy))
	for id, i := range c.unhealthy {
		if !i.failsAt.IsZero() && !overridden(c.overrides, id) {
			out[id] = WaitClock{Running: i.since}
		}
	}
	return out
}

// currentClocks returns the clocks to persist.
func (c *core) currentClocks() map[payload.ObjectID]WaitClock {
	if c.state == payload.Reconciling {
		return c.unhealthyClocks()
	}
	return maps.Clone(c.clocks)
}

// stopClocks stops the clocks of all objects.
func (c *core) stopClocks(now time.Time) {
	for id, clock := range c.clocks {
		c.clocks[id] = WaitClock{Spent: clock.At(now)}
	}
}

// unhealthyErrors returns the errors of unhealthy objects of a complete release;
// before completion its syncs report them.
func (c *core) unhealthyErrors() []*UpdateError {
	if c.state != payload.Reconciling {
		return nil
	}
	var out []*UpdateError
	for id, i := range c.unhealthy {
		if overridden(c.overrides, id) || c.accepted.manifest(id) == nil {
			continue
		}
		e := *i.err
		switch {
		case i.failing:
			e.Effect = EffectFail
		case e.Effect.rank() > EffectReport.rank():
			e.Effect = EffectNone
		}
		out = append(out, &e)
	}
	// The order decides which errors a bounded list keeps.
	slices.SortFunc(out, func(a, b *UpdateError) int {
		return cmp.Or(b.Effect.rank()-a.Effect.rank(), c.accepted.index[a.Object]-c.accepted.index[b.Object])
	})
	return out
}
