// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"

	"github.com/lockstep-dev/lockstep/payload"
)

// status tells what the core knows.
func (c *core) status() SyncWorkerStatus {
	s := SyncWorkerStatus{
		Generation: c.generation, Desired: c.desired, State: c.state, Attempt: c.attempt, Completed: c.completed,
		Initial: c.initial || !c.started, Paused: c.paused, LastProgress: c.lastProgress, RunLevel: c.pass.runLevel,
		History: c.history, DriftRepairs: c.driftRepairs, Waits: c.clocksNow(),
		Load: LoadStatus{
			Desired: c.load.target, Step: c.load.step, Failure: c.load.failure, Violations: c.load.violations,
			Verified: c.load.verified, Evidence: c.load.evidence,
			Attempt: c.load.attempt, RetryAt: c.load.retryAt, LastTransition: c.load.since,
		},
		Step: c.load.step,
	}
	if c.applied != nil {
		s.Applied = c.applied.Release
	} else {
		s.Applied.Desired = c.restore.Applied
	}
	if c.accepted == nil {
		return s
	}
	s.Actual, s.Verified, s.VersionHash = c.accepted.Release, c.accepted.Verified, c.accepted.VersionHash
	s.Warnings, s.Excluded = c.accepted.payload.Warnings, len(c.accepted.payload.Skipped)
	s.EnabledCapabilities, s.ImplicitCapabilities = c.accepted.payload.EnabledCapabilities, c.accepted.payload.ImplicitCapabilities
	s.Total = len(c.accepted.payload.Manifests)
	s.Done, s.Skipped, s.Step = c.pass.done, c.pass.skipped, c.pass.step
	if c.state == payload.Reconciling && c.pass.running && c.completed > 0 {
		// Another look at what is level is nothing to tell.
		s.Done, s.Skipped, s.Step, s.RunLevel = c.level.done, c.level.skipped, c.level.step, c.level.runLevel
	}
	s.Fraction = 1
	if s.Total > 0 {
		s.Fraction = float32(s.Done) / float32(s.Total)
	}
	s.Reconciling = c.state == payload.Reconciling
	if !c.pass.running && !c.paused {
		s.NextSync = c.nextPass
	}
	errs := c.errors()
	if s.Failure = summarize(errs); s.Failure != nil && s.Failure.Effect == EffectNone {
		s.Failure = nil // A wait: Blocking names it.
	}
	s.Blocking, s.BlockingTotal = c.blocking(errs)
	s.Failed = errs.more
	for _, e := range errs.list {
		if e.Effect != EffectNone {
			s.Failed++
		}
	}
	return s
}

// errors are those of the running pass and those of the last one that it
// hasn't disproved yet, in payload order.
func (c *core) errors() errorList {
	all := c.pass.errs
	for _, e := range c.last.list {
		if !slices.ContainsFunc(c.pass.errs.list, func(p *UpdateError) bool { return p.Object == e.Object }) {
			all = all.add(e)
		}
	}
	for _, e := range c.illnesses() {
		if !slices.ContainsFunc(all.list, func(p *UpdateError) bool { return p.Object == e.Object }) {
			all = all.add(e)
		}
	}
	all.list = slices.Clone(all.list)
	slices.SortStableFunc(all.list, func(a, b *UpdateError) int {
		return c.accepted.place[a.Object] - c.accepted.place[b.Object]
	})
	return all
}

// blocking lists what isn't level, the root cause first.
func (c *core) blocking(errs errorList) (list []Blocking, total int) {
	total = len(errs.list) + errs.more + len(c.pass.waits)
	if len(errs.list) > 0 {
		for _, e := range rootFirst(errs.list) {
			if len(list) == maxBlocking {
				return list, total
			}
			list = append(list, c.blockedBy(e))
		}
	}
	waits := slices.Clone(c.pass.waits)
	slices.SortStableFunc(waits, func(a, b Blocking) int { return a.Since.Compare(b.Since) })
	return append(list, waits[:min(len(waits), maxBlocking-len(list))]...), total
}

// blockedBy makes an entry of an error.
func (c *core) blockedBy(e *UpdateError) Blocking {
	b := Blocking{Object: e.Object, Reason: e.Code, Message: e.about(), Effect: e.Effect, Retriable: e.Retry, Since: c.since[e.Object], RunLevel: -1}
	if !c.pass.running {
		b.RetryAt = c.nextPass
	}
	if i := c.repairs.index(e.Object); i >= 0 && !c.repairs.list[i].running {
		b.RetryAt = c.repairs.list[i].notUntil
	}
	if i, ok := c.ill[e.Object]; ok && b.Since.IsZero() {
		b.Since = i.since
	}
	if b.Since.IsZero() {
		b.Since = c.lastProgress
	}
	if m := c.accepted.manifest(e.Object); m != nil {
		b.RunLevel, b.Component = m.RunLevel, m.Component
	}
	return b
}
