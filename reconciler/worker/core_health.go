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

// illness is an object that isn't well although nothing is being applied.
type illness struct {
	err   *UpdateError
	since time.Time
	// failsAt is when it counts as failing, zero for never; failing says that
	// it does.
	failsAt time.Time
	failing bool
}

// judged notes how an object is, as its watch shows it. What is ill for a
// moment is no failure: a pod that moves to another node makes its Deployment
// unavailable too.
func (c *core) judged(e judged, now time.Time) {
	if e.err == nil {
		delete(c.ill, e.id)
		c.recovered(e.id, now)
		return
	}
	i, known := c.ill[e.id]
	// A wait for a window is no illness; what comes after it may be one.
	worse := e.err.Effect.rank() >= EffectFailAfterInterval.rank()
	if !known || worse && i.failsAt.IsZero() {
		i.since = now
	}
	i.err, i.failsAt = e.err, time.Time{}
	if worse {
		i.failsAt = i.since.Add(e.grace)
	}
	i.failing = false // Until worsen looks: the time may be another one now.
	c.ill[e.id] = i
}

// illBefore takes over what was ill when the process before this one ended:
// until it's seen to be well, a release that failed isn't taken for a good one,
// and what is ill still doesn't get its time anew.
func (c *core) illBefore() {
	for id, clock := range c.restore.Waits {
		if c.accepted.manifest(id) == nil || clock.Running.IsZero() {
			continue
		}
		c.ill[id] = illness{since: clock.Running, failsAt: clock.Running.Add(restoredGrace), err: &UpdateError{
			Code: "NotObserved", Effect: EffectFailAfterInterval, Object: id, Retry: true,
			Message: "it wasn't well when the process before this one ended, and wasn't looked at since",
		}}
	}
}

// spare gives what is ill its time from now on: while an update was on its way,
// nothing of it was told.
func (c *core) spare(now time.Time) {
	for id, i := range c.ill {
		if !i.failsAt.IsZero() {
			i.failsAt = now.Add(i.failsAt.Sub(i.since))
		}
		i.since, i.failing = now, false
		c.ill[id] = i
	}
}

// restoredGrace is how long what an earlier process found ill may have been so
// before it counts as failing, until it is judged anew, which takes a moment.
const restoredGrace = 10 * time.Minute

// recovered brings the next pass forward when the last one failed because of
// an object that is well now.
func (c *core) recovered(id payload.ObjectID, now time.Time) {
	if c.pass.running || c.failures == 0 {
		return
	}
	for _, e := range c.last.list {
		if e.Object == id {
			c.nextPass = now
			return
		}
	}
}

// worsen has what was ill for too long count as failing.
func (c *core) worsen(now time.Time) {
	for id, i := range c.ill {
		if !i.failing && !i.failsAt.IsZero() && !i.failsAt.After(now) {
			i.failing = true
			c.ill[id] = i
		}
	}
}

// ills are the clocks of what is ill while the accepted release is level.
func (c *core) ills() map[payload.ObjectID]WaitClock {
	out := make(map[payload.ObjectID]WaitClock, len(c.ill))
	for id, i := range c.ill {
		if !i.failsAt.IsZero() && !overridden(c.overrides, id) {
			out[id] = WaitClock{Running: i.since}
		}
	}
	return out
}

// clocksNow are the clocks that the next process wants to know.
func (c *core) clocksNow() map[payload.ObjectID]WaitClock {
	if c.state == payload.Reconciling {
		return c.ills()
	}
	return maps.Clone(c.clocks)
}

// rest stops the clocks of what nobody waits for any more.
func (c *core) rest(now time.Time) {
	for id, clock := range c.clocks {
		c.clocks[id] = WaitClock{Spent: clock.At(now)}
	}
}

// illnesses are the errors of what is ill, while the accepted release is level:
// before that its passes tell what isn't.
func (c *core) illnesses() []*UpdateError {
	if c.state != payload.Reconciling {
		return nil
	}
	var out []*UpdateError
	for id, i := range c.ill {
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
	// A list has room for some only: always for the same, the worst first.
	slices.SortFunc(out, func(a, b *UpdateError) int {
		return cmp.Or(b.Effect.rank()-a.Effect.rank(), c.accepted.place[a.Object]-c.accepted.place[b.Object])
	})
	return out
}
