// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
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
	if !known {
		i.since = now
	}
	i.err, i.failsAt = e.err, time.Time{}
	if e.err.Effect.rank() >= EffectFailAfterInterval.rank() {
		i.failsAt = i.since.Add(e.grace)
	}
	i.failing = false // Until worsen looks: the time may be another one now.
	c.ill[e.id] = i
}

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
	return out
}
