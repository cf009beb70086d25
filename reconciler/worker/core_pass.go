// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// passStep notes how far the running pass is; its first step tells that the
// builder knows the payload.
func (c *core) passStep(e passStepped) {
	if e.number != c.pass.number || !c.pass.running || c.pass.stopping {
		return
	}
	c.pass.step = e.step
	c.began, c.beganAny = true, true
}

// appliedOne counts one manifest of the running pass. Of a pass that was asked
// to end nothing counts: its payload may not be the accepted one any more.
func (c *core) appliedOne(e appliedOne, now time.Time) {
	if e.number != c.pass.number || !c.pass.running || c.pass.stopping {
		return
	}
	id := e.manifest.ID
	c.pass.runLevel = e.manifest.RunLevel
	c.pass.waits = withoutObject(c.pass.waits, id)
	if e.err != nil {
		c.pass.errs = c.pass.errs.add(e.err)
		c.mark(id, now)
		if e.err.Effect != EffectReport {
			return
		}
	} else {
		c.last = c.last.without(id)
		delete(c.since, id)
		delete(c.clocks, id)
	}
	c.pass.done++
	if e.skipped {
		c.pass.skipped++
		return
	}
	c.reach(id, now)
}

// wrote notes that an object is as the accepted payload wants it, level or not:
// what changes it from now on is drift from that.
func (c *core) wrote(e wrote, now time.Time) {
	if e.number != c.pass.number || !c.pass.running || c.pass.stopping {
		return
	}
	c.pass.runLevel = e.manifest.RunLevel
	c.reach(e.manifest.ID, now)
}

func (c *core) reach(id payload.ObjectID, now time.Time) {
	if !c.reached[id] {
		c.reached[id] = true
		c.lastProgress = now
	}
}

// mark notes since when an object isn't level.
func (c *core) mark(id payload.ObjectID, now time.Time) {
	if _, known := c.since[id]; !known {
		c.since[id] = now
	}
}

// waitingFor notes what an object waits for.
func (c *core) waitingFor(e waitingFor, now time.Time) {
	if e.number != c.pass.number || !c.pass.running {
		return
	}
	c.mark(e.manifest.ID, now)
	clock := WaitClock{Spent: e.waiting.Spent, Running: now}
	if e.waiting.Stopped {
		clock.Running = time.Time{}
	}
	c.clocks[e.manifest.ID] = clock
	c.pass.runLevel = e.manifest.RunLevel
	c.pass.waits = append(withoutObject(c.pass.waits, e.manifest.ID), Blocking{
		Object: e.manifest.ID, RunLevel: e.manifest.RunLevel, Component: e.manifest.Component, Since: c.since[e.manifest.ID],
		Reason: e.waiting.Reason, Message: e.waiting.Message, Effect: EffectNone, Retriable: true, Deadline: e.waiting.Deadline,
	})
}

// passed ends the running pass.
func (c *core) passed(e passed, now time.Time) {
	if e.number != c.pass.number || !c.pass.running {
		return
	}
	stopped := c.pass.stopping
	c.rest(now)
	c.pass.running, c.pass.stopping, c.pass.waits = false, false, nil
	if stopped {
		// A new target, other overrides or a pause cut it short: it counts as
		// no attempt, and what is due was decided when it was stopped.
		return
	}
	if e.err != nil {
		c.pass.errs = c.pass.errs.add(e.err)
	}
	c.last, c.pass.errs = c.pass.errs, errorList{}
	if e.complete && e.err == nil {
		c.succeed(now)
		return
	}
	c.attempt++
	c.failures++
	c.completed = 0
	c.nextPass = now.Add(c.wait(backoff(c.interval, c.failures)))
}

// succeed notes that all of the accepted payload is level.
func (c *core) succeed(now time.Time) {
	if c.completed == 0 {
		// One more look at what is level gets nothing further, and would be a
		// write of status.
		c.lastProgress = now
	}
	if c.state != payload.Reconciling {
		c.spare(now)
	}
	c.completed++
	c.attempt, c.failures = 0, 0
	c.pass.step, c.pass.runLevel = StepWatch, -1
	c.level = c.pass
	c.state, c.initial, c.applied = payload.Reconciling, false, c.accepted
	c.nextPass = now.Add(c.wait(c.interval))
	if len(c.history) > 0 && c.history[0].State == HistoryPartial && c.accepted.sameContent(c.history[0].Release) {
		c.history = slices.Clone(c.history)
		c.history[0].State, c.history[0].Ended = HistoryCompleted, now
	}
}

func withoutObject(list []Blocking, id payload.ObjectID) []Blocking {
	return slices.DeleteFunc(slices.Clone(list), func(b Blocking) bool { return b.Object == id })
}
