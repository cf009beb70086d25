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

// ReasonPreconditions is the reason of a release that several preconditions block.
const ReasonPreconditions = "PreconditionsFailed"

// maxRestorePause limits the wait before the next attempt to load the accepted
// release of an earlier process, which isn't repaired until then.
const maxRestorePause = time.Minute

// setAccepted marks the desired release as accepted.
func (c *core) setAccepted(now time.Time) {
	c.load = loading{number: c.load.number, phase: loadDone, target: c.desired, step: StepPayloadLoaded, since: now}
}

// mustRestore reports whether the accepted release of an earlier process isn't
// loaded and another one is desired. A failed attempt is repeated until either is
// accepted.
func (c *core) mustRestore() bool {
	return c.started && c.accepted == nil && !c.restore.Accepted.Empty() && !c.restore.Accepted.Equal(c.desired)
}

// due reports whether the load should start.
func (l *loading) due(now time.Time) bool {
	return l.phase == loadIdle || l.phase == loadWaiting && !l.retryAt.After(now)
}

// running returns the load with this number while it runs, nil otherwise.
func (c *core) running(number int) *loading {
	for _, l := range []*loading{&c.load, &c.restoration} {
		if l.phase == loadRunning && l.number == number {
			return l
		}
	}
	return nil
}

// startLoad starts a due load unless another one runs. The accepted release of an
// earlier process goes first; while it can't be loaded, the attempts alternate with
// those of the desired release, so that neither keeps the other from starting.
func (c *core) startLoad(now time.Time) []action {
	switch {
	case c.load.phase == loadRunning || c.restoration.phase == loadRunning:
		return nil
	case c.mustRestore() && c.restoration.due(now):
		return c.begin(&c.restoration, c.restore.Accepted, now)
	case !c.desired.Empty() && c.load.due(now):
		return c.begin(&c.load, c.desired, now)
	}
	return nil
}

// begin starts a load.
func (c *core) begin(l *loading, target Desired, now time.Time) []action {
	c.loads++
	l.number, l.target = c.loads, target
	l.phase, l.step, l.since, l.again = loadRunning, StepRetrievePayload, now, false
	l.attempt++
	l.retryAt = time.Time{}
	// The accepted release of an earlier process has passed its checks, and has no
	// current release to compare with.
	complete := c.accepted == nil && c.state == payload.Reconciling && (c.restore.Applied.Empty() || c.wasComplete(l.target))
	check := !complete && !c.restore.Accepted.Equal(l.target)
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
	l := c.running(e.number)
	if l == nil || l.step == e.step {
		return
	}
	l.step, l.since, c.lastProgress = e.step, now, now
}

// loaded ends a load: it accepts the release, or records why it is rejected and
// when the next attempt is due.
func (c *core) loaded(e loaded, now time.Time) []action {
	l := c.running(e.number)
	if l == nil {
		return nil
	}
	l.violations = e.violations
	l.verified, l.evidence = e.info.verified, e.info.evidence
	failure := loadFailure(e)
	if failure == nil {
		return c.accept(l, e, now)
	}
	l.phase, l.failure, l.since = loadWaiting, failure, now
	pause := c.interval
	if failure.Retry {
		pause = backoff(c.interval, l.attempt)
		if c.accepted == nil && c.restore.Accepted.Equal(l.target) {
			pause = min(pause, maxRestorePause)
		}
	}
	l.retryAt = now.Add(c.wait(pause))
	if l.again {
		l.retryAt = now
	}
	return nil
}

// loadFailure returns why a release is rejected, or nil.
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
		return preconditionError(blocking)
	}
	if e.info.Payload == nil {
		return &UpdateError{Code: "NoPayload", Effect: EffectFail, Nested: errors.New("the retriever returned no payload"), Retry: true}
	}
	return nil
}

// preconditionError combines blocking violations. It is retriable if all are.
func preconditionError(blocking []precondition.Violation) *UpdateError {
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

// accept makes the release that l loaded the accepted one.
func (c *core) accept(l *loading, e loaded, now time.Time) []action {
	p := e.info.Payload
	before := c.accepted
	release := Release{
		Desired: l.target, Product: p.Product, VersionHash: p.VersionHash,
		Verified: e.info.verified, Evidence: e.info.evidence,
		Checked: l.checked, AcceptedRisks: risks(e.violations), Warnings: warnings(e.violations),
	}
	if before != nil && before.sameContent(release) {
		// Another revision of the source declares the same manifests.
		before.Release = release
		c.setAccepted(now)
		return nil
	}
	c.accepted = newAccepted(release, p)
	c.clocks = map[payload.ObjectID]WaitClock{}
	if before == nil && c.restore.Unfinished && c.restore.Accepted.Equal(release.Desired) {
		maps.Copy(c.clocks, c.restore.Waits)
	}
	c.state = c.stateFor(before)
	c.unhealthy = map[payload.ObjectID]unhealthyObject{} // health is reported again
	if before == nil && c.state == payload.Reconciling {
		c.restoreUnhealthy()
	}
	if l == &c.load {
		l.phase, l.step, l.failure, l.since = loadDone, StepPayloadLoaded, nil, now
	} else if c.load.phase == loadWaiting && c.load.failure.Retry {
		c.load.retryAt = now // what the restored release waited for may be over for the desired one too
	}
	c.restoration = loading{}
	if before == nil && c.state == payload.Reconciling {
		c.applied = c.accepted
	}
	c.restore.Accepted = Desired{}
	c.attempt, c.completed, c.failures, c.began = 0, 0, 0, false
	c.sync.done, c.sync.skipped, c.sync.runLevel, c.sync.errs, c.sync.waits = 0, 0, -1, errorList{}, nil
	c.last, c.since = errorList{}, map[payload.ObjectID]time.Time{}
	c.reached = make(map[payload.ObjectID]bool, len(p.Manifests))
	c.nextSync, c.lastProgress = now, now
	c.startHistory(before == nil && c.state == payload.Reconciling, now)
	return c.stopSync()
}

// sameContent reports whether the release has the same manifests as a.
func (a *accepted) sameContent(r Release) bool {
	return a.Version == r.Version && a.VersionHash == r.VersionHash && a.VersionHash != "" && a.Selection.Equal(r.Selection)
}

// stateFor returns the state of a newly accepted release. before is the previous one
// of this process, nil for the first; that one follows the restored state, or else
// the state of Update.
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
	case c.wasComplete(c.accepted.Desired):
		return payload.Reconciling
	case version.IsRollback(was.Accepted.Version, to), version.IsRollback(was.Applied.Version, to):
		return payload.RollingBack
	default:
		return payload.Updating
	}
}

// wasComplete reports whether the release was complete in an earlier process.
func (c *core) wasComplete(d Desired) bool {
	return !c.restore.Unfinished && c.restore.Applied.Equal(d)
}

// risks returns the waived violations.
func risks(violations []precondition.Violation) []string {
	var out []string
	for _, v := range violations {
		if v.Waived {
			out = append(out, v.Name+": "+v.Message)
		}
	}
	return out
}

// warnings returns the violations that don't block.
func warnings(violations []precondition.Violation) []string {
	var out []string
	for _, v := range violations {
		if !v.Blocking {
			out = append(out, v.Name+": "+v.Message)
		}
	}
	return out
}

// startHistory adds the accepted release to the history and ends the previous one. A
// release that was complete in an earlier process, known, has an entry already.
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
