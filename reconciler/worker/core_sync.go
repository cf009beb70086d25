// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// syncStepped records the step of the running sync. Its first step follows Begin.
func (c *core) syncStepped(e syncStepped) {
	if e.number != c.sync.number || !c.sync.running || c.sync.stopping {
		return
	}
	c.sync.step = e.step
	c.began, c.beganAny = true, true
}

// manifestDone counts one manifest of the running sync. A stopping sync doesn't
// count: the accepted payload may have changed.
func (c *core) manifestDone(e manifestDone, now time.Time) {
	if e.number != c.sync.number || !c.sync.running || c.sync.stopping {
		return
	}
	id := e.manifest.ID
	c.sync.runLevel = e.manifest.RunLevel
	c.sync.waits = withoutObject(c.sync.waits, id)
	if e.err != nil {
		c.sync.errs = c.sync.errs.add(e.err)
		c.mark(id, now)
		if e.err.Effect != EffectReport {
			return
		}
	} else {
		c.last = c.last.without(id)
		delete(c.since, id)
		delete(c.clocks, id)
	}
	c.sync.done++
	if e.skipped {
		c.sync.skipped++
		return
	}
	c.reach(id, now)
}

// objectWritten records that an object matches the accepted payload: a later change
// is drift.
func (c *core) objectWritten(e objectWritten, now time.Time) {
	if e.number != c.sync.number || !c.sync.running || c.sync.stopping {
		return
	}
	c.sync.runLevel = e.manifest.RunLevel
	c.reach(e.manifest.ID, now)
}

func (c *core) reach(id payload.ObjectID, now time.Time) {
	if !c.reached[id] {
		c.reached[id] = true
		c.lastProgress = now
	}
}

// mark records when an object started to fail or wait.
func (c *core) mark(id payload.ObjectID, now time.Time) {
	if _, known := c.since[id]; !known {
		c.since[id] = now
	}
}

// waitingFor records what an object waits for.
func (c *core) waitingFor(e waitingFor, now time.Time) {
	if e.number != c.sync.number || !c.sync.running {
		return
	}
	c.mark(e.manifest.ID, now)
	clock := WaitClock{Spent: e.waiting.Spent, Running: now}
	if e.waiting.Stopped {
		clock.Running = time.Time{}
	}
	c.clocks[e.manifest.ID] = clock
	c.sync.runLevel = e.manifest.RunLevel
	c.sync.waits = append(withoutObject(c.sync.waits, e.manifest.ID), Blocking{
		Object: e.manifest.ID, RunLevel: e.manifest.RunLevel, Component: e.manifest.Component, Since: c.since[e.manifest.ID],
		Reason: e.waiting.Reason, Message: e.waiting.Message, Effect: EffectNone, Retriable: true, Deadline: e.waiting.Deadline,
	})
}

// syncEnded ends the running sync.
func (c *core) syncEnded(e syncEnded, now time.Time) {
	if e.number != c.sync.number || !c.sync.running {
		return
	}
	stopped := c.sync.stopping
	c.stopClocks(now)
	c.sync.running, c.sync.stopping, c.sync.waits = false, false, nil
	if stopped {
		// A stopped sync is no attempt; nextSync was set when it was stopped.
		return
	}
	if c.again {
		c.again = false
		defer func() { c.nextSync = now }()
	}
	if e.err != nil {
		c.sync.errs = c.sync.errs.add(e.err)
	}
	c.last, c.sync.errs = c.sync.errs, errorList{}
	if e.complete && e.err == nil {
		c.pruned(e.pruning, now)
		c.succeed(now)
		return
	}
	c.attempt++
	c.failures++
	c.completed = 0
	c.nextSync = now.Add(c.wait(backoff(c.interval, c.failures)))
}

// succeed records that the accepted release is complete.
func (c *core) succeed(now time.Time) {
	if c.completed == 0 {
		// Further syncs of a complete release are no progress, which would change
		// the status.
		c.lastProgress = now
	}
	if c.state != payload.Reconciling {
		c.restartGrace(now)
	}
	c.completed++
	c.attempt, c.failures = 0, 0
	c.sync.step, c.sync.runLevel = StepWatch, -1
	c.lastComplete = c.sync
	c.state, c.initial, c.applied = payload.Reconciling, false, c.accepted
	c.nextSync = now.Add(c.wait(c.interval))
	if len(c.history) > 0 && c.history[0].State == HistoryPartial && c.accepted.sameContent(c.history[0].Release) {
		c.history = slices.Clone(c.history)
		c.history[0].State, c.history[0].Ended = HistoryCompleted, now
	}
}

func withoutObject(list []Blocking, id payload.ObjectID) []Blocking {
	return slices.DeleteFunc(slices.Clone(list), func(b Blocking) bool { return b.Object == id })
}
