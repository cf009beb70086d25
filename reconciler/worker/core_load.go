// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/version"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

// ReasonPreconditions is the reason of a target that several preconditions
// hold back.
const ReasonPreconditions = "PreconditionsFailed"

// loadIsAccepted shows that the desired release is the accepted one.
func (c *core) loadIsAccepted(now time.Time) {
	c.load = loading{number: c.load.number, phase: loadDone, target: c.desired, step: StepPayloadLoaded, since: now}
}

// startLoad begins to load the desired release when it isn't accepted yet and
// nothing else is being loaded.
func (c *core) startLoad(now time.Time) []action {
	l := &c.load
	if l.phase == loadRunning || l.phase == loadDone || c.desired.Empty() && !l.restoring {
		return nil
	}
	if l.phase == loadWaiting && l.retryAt.After(now) {
		return nil
	}
	if !l.restoring {
		l.target = c.desired
	}
	l.number++
	l.phase, l.step, l.since = loadRunning, StepRetrievePayload, now
	l.attempt++
	l.retryAt = time.Time{}
	// What was accepted before this process began has passed its checks, and
	// comparing it with nothing would only fail them.
	level := c.accepted == nil && c.state == payload.Reconciling && (c.restore.Applied.Empty() || c.keeps(l.target))
	check := !l.restoring && !level && !c.restore.Accepted.Equal(l.target)
	l.checked = check
	current := Current{Overrides: c.overrides}
	if c.accepted != nil {
		current.Accepted = c.accepted.payload
	}
	if c.applied != nil {
		current.Applied = c.applied.payload
	}
	return []action{startLoad{number: l.number, desired: l.target, check: check, dryRun: check && !c.initial, current: current}}
}

func (c *core) loadStep(e loadStepped, now time.Time) {
	if c.load.phase != loadRunning || e.number != c.load.number || c.load.step == e.step {
		return
	}
	c.load.step, c.load.since, c.lastProgress = e.step, now, now
}

// loaded ends a load: the release is accepted, or what was accepted stays.
func (c *core) loaded(e loaded, now time.Time) []action {
	if c.load.phase != loadRunning || e.number != c.load.number {
		return nil
	}
	c.load.violations = e.violations
	c.load.verified, c.load.evidence = e.info.Verified, e.info.Evidence
	failure := loadFailure(e)
	if failure == nil {
		return c.accept(e, now)
	}
	c.load.failure, c.load.since = failure, now
	if c.load.restoring {
		// The desired release is worth a try all the same.
		c.load = loading{number: c.load.number}
		return nil
	}
	c.load.phase = loadWaiting
	pause := c.interval
	if failure.Retry {
		pause = backoff(c.interval, c.load.attempt)
	}
	c.load.retryAt = now.Add(c.wait(pause))
	return nil
}

// loadFailure returns why a release isn't accepted, or nil.
func loadFailure(e loaded) *UpdateError {
	if e.err != nil {
		return asUpdateError(payload.ObjectID{}, e.err)
	}
	var blocking []precondition.Violation
	for _, v := range e.violations {
		if v.Blocking && !v.Waived {
			blocking = append(blocking, v)
		}
	}
	if len(blocking) > 0 {
		return violated(blocking)
	}
	if e.info.Payload == nil {
		return &UpdateError{Code: "NoPayload", Effect: EffectFail, Nested: errors.New("the retriever returned no payload"), Retry: true}
	}
	return nil
}

// violated makes one error of blocking violations. It is worth a retry only
// if all may go away by themselves.
func violated(blocking []precondition.Violation) *UpdateError {
	out := &UpdateError{Code: blocking[0].Reason, Effect: EffectFail, Retry: true}
	texts := make([]string, 0, len(blocking))
	for _, v := range blocking {
		out.Retry = out.Retry && v.Retriable
		if v.Reason != out.Code {
			out.Code = ReasonPreconditions
		}
		texts = append(texts, fmt.Sprintf("%s: %s", v.Name, v.Message))
	}
	out.Message = strings.Join(texts, "; ")
	return out
}

// accept makes the loaded release the one that passes are about.
func (c *core) accept(e loaded, now time.Time) []action {
	p := e.info.Payload
	before := c.accepted
	release := Release{
		Desired: c.load.target, Product: p.Product, VersionHash: p.VersionHash,
		Verified: e.info.Verified, Evidence: e.info.Evidence,
		Checked: c.load.checked, AcceptedRisks: risks(e.violations), Warnings: warnings(e.violations),
	}
	if before != nil && before.sameContent(release) {
		// Another revision of the source names the same manifests.
		before.Release = release
		c.loadIsAccepted(now)
		return nil
	}
	c.accepted = newAccepted(release, p)
	c.clocks = map[payload.ObjectID]WaitClock{}
	if before == nil && c.restore.Unfinished && c.restore.Accepted.Equal(release.Desired) {
		maps.Copy(c.clocks, c.restore.Waits)
	}
	c.state = c.stateFor(before)
	c.ill = map[payload.ObjectID]illness{} // What is ill still is told again.
	if before == nil && c.state == payload.Reconciling {
		c.illBefore()
	}
	if c.load.restoring {
		c.load = loading{number: c.load.number}
	} else {
		c.load.phase, c.load.step, c.load.failure, c.load.since = loadDone, StepPayloadLoaded, nil, now
	}
	if before == nil && c.state == payload.Reconciling {
		c.applied = c.accepted
	}
	c.restore.Accepted = Desired{}
	c.attempt, c.completed, c.failures, c.began = 0, 0, 0, false
	c.pass.done, c.pass.skipped, c.pass.runLevel, c.pass.errs, c.pass.waits = 0, 0, -1, errorList{}, nil
	c.last, c.since = errorList{}, map[payload.ObjectID]time.Time{}
	c.reached = make(map[payload.ObjectID]bool, len(p.Manifests))
	c.nextPass, c.lastProgress = now, now
	c.startHistory(before == nil && c.state == payload.Reconciling, now)
	return c.stopPass()
}

// sameContent reports whether the release has the manifests of a.
func (a *accepted) sameContent(r Release) bool {
	return a.Version == r.Version && a.VersionHash == r.VersionHash && a.VersionHash != "" && a.Selection.Equal(r.Selection)
}

// stateFor chooses the state of a newly accepted release that follows before.
// The first one of a process follows what an earlier process left; without a
// word of that it is as the caller of Update says.
func (c *core) stateFor(before *accepted) payload.State {
	to, was := c.accepted.Version, c.restore
	switch {
	case c.initial:
		return payload.Initializing
	case before != nil && version.IsRollback(before.Version, to):
		return payload.RollingBack
	case before != nil:
		return payload.Updating
	case was.Accepted.Empty() && was.Applied.Empty():
		return c.state
	case was.Unfinished && was.Accepted.Equal(c.accepted.Desired):
		return was.State
	case c.keeps(c.accepted.Desired):
		return payload.Reconciling
	case version.IsRollback(was.Accepted.Version, to), version.IsRollback(was.Applied.Version, to):
		return payload.RollingBack
	default:
		return payload.Updating
	}
}

// keeps reports whether the release is the one that an earlier process left
// level.
func (c *core) keeps(d Desired) bool {
	return !c.restore.Unfinished && c.restore.Applied.Equal(d)
}

// risks lists the waived violations.
func risks(violations []precondition.Violation) []string {
	var out []string
	for _, v := range violations {
		if v.Waived {
			out = append(out, v.Name+": "+v.Message)
		}
	}
	return out
}

// warnings lists the violations that hold nothing back.
func warnings(violations []precondition.Violation) []string {
	var out []string
	for _, v := range violations {
		if !v.Blocking {
			out = append(out, v.Name+": "+v.Message)
		}
	}
	return out
}

// startHistory notes that the accepted release begins; what it supersedes
// ends as it is. A release that was level before this process began has its
// entry already.
func (c *core) startHistory(known bool, now time.Time) {
	if len(c.history) > 0 && c.history[0].Ended.IsZero() {
		c.history = append([]HistoryFact(nil), c.history...)
		c.history[0].Ended = now
	}
	if known {
		return
	}
	fact := HistoryFact{Release: c.accepted.Release, State: HistoryPartial, Started: now}
	c.history = append([]HistoryFact{fact}, c.history[:min(len(c.history), maxHistory-1)]...)
}
