// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"

	"github.com/lockstep-dev/lockstep/payload"
)

// status returns the status of the worker.
func (c *core) status() SyncWorkerStatus {
	s := SyncWorkerStatus{
		Generation: c.generation, Desired: c.desired, State: c.state, Attempt: c.attempt, Completed: c.completed,
		Initial: c.initial || !c.started, Paused: c.paused, LastProgress: c.lastProgress, RunLevel: c.sync.runLevel,
		History: c.history, DriftRepairs: c.driftRepairs, Waits: c.currentClocks(), Pruning: c.pruning,
		Load: c.load.status(), Step: c.load.step,
	}
	if c.accepted == nil && !c.restore.Accepted.Empty() {
		s.Restore = c.load.status()
		if c.mustRestore() {
			s.Restore = c.restoration.status()
		}
		s.Restore.Desired = c.restore.Accepted
		if c.restoration.phase == loadRunning {
			s.Step = c.restoration.step
		}
	}
	if c.applied != nil {
		s.Applied = c.applied.Release
	} else {
		s.Applied.Desired = c.restore.Applied
	}
	if c.accepted == nil {
		return s
	}
	s.Actual, s.VersionHash = c.accepted.Release, c.accepted.VersionHash
	s.Warnings, s.Excluded = c.accepted.payload.Warnings, len(c.accepted.payload.Skipped)
	s.EnabledCapabilities, s.ImplicitCapabilities = c.accepted.payload.EnabledCapabilities, c.accepted.payload.ImplicitCapabilities
	s.Total = len(c.accepted.payload.Manifests)
	s.Done, s.Skipped, s.Step = c.sync.done, c.sync.skipped, c.sync.step
	if c.state == payload.Reconciling && c.sync.running && c.completed > 0 {
		// The next sync of a complete release doesn't change the progress.
		s.Done, s.Skipped, s.Step, s.RunLevel = c.lastComplete.done, c.lastComplete.skipped, c.lastComplete.step, c.lastComplete.runLevel
	}
	s.Fraction = 1
	if s.Total > 0 {
		s.Fraction = float32(s.Done) / float32(s.Total)
	}
	s.Reconciling = c.state == payload.Reconciling
	if !c.sync.running && !c.paused {
		s.NextSync = c.nextSync
	}
	errs := c.errors()
	if s.Failure = summarize(errs); s.Failure != nil && s.Failure.Effect == EffectNone {
		s.Failure = nil // a wait is in Blocking only
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

// status returns the progress of a load.
func (l *loading) status() LoadStatus {
	return LoadStatus{
		Desired: l.target, Step: l.step, Failure: l.failure, Violations: l.violations,
		Verified: l.verified, Evidence: l.evidence,
		Attempt: l.attempt, RetryAt: l.retryAt, LastTransition: l.since,
	}
}

// errors returns the errors of the running sync, of the last sync until the running
// one succeeds for the object, and of unhealthy objects, in payload order.
func (c *core) errors() errorList {
	all := c.sync.errs
	for _, e := range c.last.list {
		if !slices.ContainsFunc(c.sync.errs.list, func(p *UpdateError) bool { return p.Object == e.Object }) {
			all = all.add(e)
		}
	}
	for _, e := range c.unhealthyErrors() {
		if !slices.ContainsFunc(all.list, func(p *UpdateError) bool { return p.Object == e.Object }) {
			all = all.add(e)
		}
	}
	all.list = slices.Clone(all.list)
	slices.SortStableFunc(all.list, func(a, b *UpdateError) int {
		return c.accepted.index[a.Object] - c.accepted.index[b.Object]
	})
	return all
}

// blocking returns the blocking objects, the root cause first.
func (c *core) blocking(errs errorList) (list []Blocking, total int) {
	total = len(errs.list) + errs.more + len(c.sync.waits)
	if len(errs.list) > 0 {
		for _, e := range rootFirst(errs.list) {
			if len(list) == maxBlocking {
				return list, total
			}
			list = append(list, c.blockedBy(e))
		}
	}
	waits := slices.Clone(c.sync.waits)
	slices.SortStableFunc(waits, func(a, b Blocking) int { return a.Since.Compare(b.Since) })
	return append(list, waits[:min(len(waits), maxBlocking-len(list))]...), total
}

// blockedBy returns the blocking object of an error.
func (c *core) blockedBy(e *UpdateError) Blocking {
	b := Blocking{Object: e.Object, Reason: e.Code, Message: e.about(), Effect: e.Effect, Retriable: e.Retry, Since: c.since[e.Object], RunLevel: -1}
	if !c.sync.running {
		b.RetryAt = c.nextSync
	}
	if i := c.repairs.index(e.Object); i >= 0 && !c.repairs.list[i].running {
		b.RetryAt = c.repairs.list[i].notBefore
	}
	if i, ok := c.unhealthy[e.Object]; ok && b.Since.IsZero() {
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
