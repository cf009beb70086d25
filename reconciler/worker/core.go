// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
)

// core is everything that the worker knows. next takes one by value and
// returns its successor; maps in it belong to the latest one alone.
type core struct {
	// interval between full passes; seed of the jitter and of the order of
	// reconciling; draws counts the jitter's numbers.
	interval    time.Duration
	seed, draws uint64
	// restore is what was accepted and applied before this process began.
	restore Restore

	// started says that an Update came.
	started    bool
	generation int64
	desired    Desired
	overrides  []Override
	paused     bool

	load loading

	// accepted is the release that passes are about, applied the one that was
	// level last; nil before the first.
	accepted, applied *accepted
	state             payload.State
	initial           bool
	// began says that the builder knows the accepted payload; beganAny that it
	// knows any.
	began, beganAny bool

	pass pass
	// level is the last pass that ended well: while the next one over the same
	// release runs, its counts are those to show.
	level pass
	// passes numbers them.
	passes             int
	attempt, completed int
	failures           int
	nextPass           time.Time

	// last are the errors of the last pass that this one hasn't disproved yet;
	// since is when each object was first not level.
	last  errorList
	since map[payload.ObjectID]time.Time
	// reached are the objects of the accepted payload that were applied in
	// this process, level or not.
	reached map[payload.ObjectID]bool
	// clocks are those of the objects of the accepted payload that were waited
	// for and aren't level yet.
	clocks map[payload.ObjectID]WaitClock
	// ill are the objects that aren't well, as their watches show it.
	ill map[payload.ObjectID]illness

	repairs      repairs
	driftRepairs int

	lastProgress time.Time
	history      []HistoryFact
}

// Restore is what a status says about the time before this process.
type Restore struct {
	// Accepted is the release that was being applied, Applied the one that
	// was level last; empty for none.
	Accepted, Applied Desired
	// Unfinished says that Accepted wasn't level since it was accepted, though
	// it may be what Applied is too: another release was begun in between. It
	// goes on in State.
	Unfinished bool
	State      payload.State
	// Waits are the clocks of Accepted's objects: of those that are waited for,
	// or, where it was level, of those that are ill.
	Waits map[payload.ObjectID]WaitClock
}

func newCore(interval time.Duration, seed uint64, restore Restore) core {
	return core{
		interval: interval, seed: seed, restore: restore, pass: pass{runLevel: -1},
		since: map[payload.ObjectID]time.Time{}, reached: map[payload.ObjectID]bool{},
		clocks: map[payload.ObjectID]WaitClock{}, ill: map[payload.ObjectID]illness{},
	}
}

// accepted is a release with its payload.
type accepted struct {
	Release
	payload *payload.Payload
	// place is the index of each object's manifest.
	place map[payload.ObjectID]int
}

func newAccepted(r Release, p *payload.Payload) *accepted {
	a := &accepted{Release: r, payload: p, place: make(map[payload.ObjectID]int, len(p.Manifests))}
	for i := range p.Manifests {
		a.place[p.Manifests[i].ID] = i
	}
	return a
}

// manifest returns the object's manifest, nil without one.
func (a *accepted) manifest(id payload.ObjectID) *payload.Manifest {
	if i, ok := a.place[id]; ok {
		return &a.payload.Manifests[i]
	}
	return nil
}

// loadPhase is where the load of the desired release is.
type loadPhase int

const (
	loadIdle loadPhase = iota
	loadRunning
	// loadWaiting waits for its next try.
	loadWaiting
	loadDone
)

// loading is the way of a release to be accepted.
type loading struct {
	phase  loadPhase
	number int
	target Desired
	// restoring says that target isn't what is desired but what was accepted
	// before this process began.
	restoring bool
	step      Step
	failure   *UpdateError
	// checked says that preconditions are evaluated; verified and evidence are
	// those of what was retrieved.
	checked    bool
	verified   bool
	evidence   []string
	violations []precondition.Violation
	attempt    int
	retryAt    time.Time
	since      time.Time
}

// pass is one walk over the accepted payload.
type pass struct {
	number   int
	running  bool
	stopping bool
	step     Step
	runLevel int
	done     int
	skipped  int
	errs     errorList
	waits    []Blocking
}

// The events that next takes.
type (
	// updated is a call of Update.
	updated struct {
		generation int64
		desired    Desired
		overrides  []Override
		state      payload.State
	}
	// loadStepped says that a load got to a step.
	loadStepped struct {
		number int
		step   Step
	}
	// loaded ends a load.
	loaded struct {
		number     int
		info       PayloadInfo
		violations []precondition.Violation
		err        error
	}
	// passStepped says that a pass got to a step.
	passStepped struct {
		number int
		step   Step
	}
	// wrote says that a manifest of a pass was applied; its object may not be
	// level yet.
	wrote struct {
		number   int
		manifest *payload.Manifest
	}
	// judged tells of an object's health outside a pass: err is nil once it is
	// well. It counts as failing when it lasts longer than grace.
	judged struct {
		id    payload.ObjectID
		err   *UpdateError
		grace time.Duration
	}
	// appliedOne ends one manifest of a pass.
	appliedOne struct {
		number   int
		manifest *payload.Manifest
		skipped  bool
		err      *UpdateError
	}
	// waitingFor says what a manifest of a pass waits for.
	waitingFor struct {
		number   int
		manifest *payload.Manifest
		waiting  Waiting
	}
	// passed ends a pass.
	passed struct {
		number int
		// complete says that every manifest was tried and nothing was
		// refused; err is an error of the pass itself.
		complete bool
		err      *UpdateError
	}
	// drifted says that an object isn't as it was left.
	drifted struct{ id payload.ObjectID }
	// repaired ends a repair; moot says that there was nothing to repair any
	// more.
	repaired struct {
		id   payload.ObjectID
		err  *UpdateError
		moot bool
	}
	// lookAgain says that something outside changed that may help.
	lookAgain struct{}
	// pausing stops or resumes everything that writes.
	pausing struct{ on bool }
	// paced sets the interval.
	paced struct{ interval time.Duration }
	// ticked says that the time asked for by wake has come.
	ticked struct{}
)

// event is one of the above.
type event any

// The actions that next asks for.
type (
	// startLoad verifies, fetches, loads and checks a release.
	startLoad struct {
		number  int
		desired Desired
		// check says that preconditions and dry-run are due.
		check   bool
		dryRun  bool
		current Current
	}
	// stopLoad ends a load whose release isn't wanted any more.
	stopLoad struct{ number int }
	// startPass walks the accepted payload.
	startPass struct {
		number  int
		work    SyncWork
		payload *payload.Payload
		order   taskgraph.Order
		begin   bool
	}
	// stopPass ends a pass at the next manifest.
	stopPass struct{ number int }
	// repair applies one manifest.
	repair struct{ manifest *payload.Manifest }
	// wake asks for a ticked at a time; it replaces the one before, and a
	// zero time cancels it.
	wake struct{ at time.Time }
)

// action is one of the above.
type action any

// next is the worker's one decision: what the event changes and what is to be
// done about it. It performs nothing and asks nobody.
func next(c core, e event, now time.Time) (core, []action) {
	var out []action
	switch e := e.(type) {
	case updated:
		out = c.update(e, now)
	case loadStepped:
		c.loadStep(e, now)
	case loaded:
		out = c.loaded(e, now)
	case passStepped:
		c.passStep(e)
	case wrote:
		c.wrote(e, now)
	case judged:
		c.judged(e, now)
	case appliedOne:
		c.appliedOne(e, now)
	case waitingFor:
		c.waitingFor(e, now)
	case passed:
		c.passed(e, now)
	case drifted:
		c.drifted(e, now)
	case repaired:
		c.repaired(e, now)
	case lookAgain:
		c.lookAgain(now)
	case pausing:
		out = c.pause(e)
	case paced:
		c.pace(e, now)
	case ticked:
	}
	return c, append(out, c.settle(now)...)
}

// update takes what is asked for.
func (c *core) update(e updated, now time.Time) (out []action) {
	first := !c.started
	c.generation = e.generation
	if first {
		c.started = true
		c.initial = e.state == payload.Initializing
		c.state = e.state
		c.overrides = e.overrides
		c.lastProgress = now
	} else if !sameOverrides(c.overrides, e.overrides) {
		c.overrides = e.overrides
		out = c.restart(now)
	}
	if !first && c.desired.identical(e.desired) {
		return out
	}
	c.desired = e.desired
	if c.load.phase == loadRunning && !c.load.restoring {
		out = append(out, stopLoad{c.load.number})
	}
	if !c.load.restoring {
		c.load = loading{number: c.load.number}
	}
	if c.accepted != nil && c.accepted.Equal(c.desired) {
		c.accepted.Desired = c.desired
		c.loadIsAccepted(now)
	}
	if first && !c.restore.Accepted.Empty() && !c.restore.Accepted.Equal(c.desired) {
		c.load.target, c.load.restoring = c.restore.Accepted, true
	}
	return out
}

// restart begins the accepted release anew, for example because what is left
// to people changed.
func (c *core) restart(now time.Time) []action {
	if c.accepted == nil {
		return nil
	}
	if !c.initial && c.state != payload.RollingBack {
		c.state = payload.Updating
	}
	c.attempt, c.completed, c.failures = 0, 0, 0
	c.nextPass = now
	return c.stopPass()
}

// stopPass asks the running pass to end.
func (c *core) stopPass() []action {
	if !c.pass.running || c.pass.stopping {
		return nil
	}
	c.pass.stopping = true
	return []action{stopPass{c.pass.number}}
}

// lookAgain makes whatever waits due.
func (c *core) lookAgain(now time.Time) {
	if c.load.phase == loadWaiting {
		c.load.retryAt = now
	}
	if c.failures > 0 && !c.pass.running {
		c.nextPass = now
	}
}

// pace takes another interval; a pass that is due later than that comes
// earlier.
func (c *core) pace(e paced, now time.Time) {
	if e.interval <= 0 || e.interval == c.interval {
		return
	}
	c.interval = e.interval
	if latest := now.Add(c.interval); c.nextPass.After(latest) {
		c.nextPass = latest
	}
}

func (c *core) pause(e pausing) []action {
	c.paused = e.on
	if e.on {
		return c.stopPass()
	}
	return nil
}

// settle starts what is due and asks to be woken for what will be.
func (c *core) settle(now time.Time) []action {
	c.worsen(now)
	out := c.startLoad(now)
	out = append(out, c.startPass(now)...)
	out = append(out, c.startRepairs(now)...)
	return append(out, wake{c.wakeAt(now)})
}

// startPass begins the next pass when it is due.
func (c *core) startPass(now time.Time) []action {
	if c.paused || c.accepted == nil || c.pass.running || c.nextPass.After(now) {
		return nil
	}
	c.passes++
	c.pass = pass{number: c.passes, running: true, step: StepApplyManifests, runLevel: -1}
	begin := !c.began
	return []action{startPass{
		number: c.pass.number, begin: begin, payload: c.accepted.payload,
		order: taskgraph.Order{Seed: c.seed, Attempt: c.attempt},
		work:  SyncWork{Desired: c.accepted.Desired, Overrides: c.overrides, State: c.state, Attempt: c.attempt},
	}}
}

// wakeAt is the earliest time to come at which something is due, zero for
// never. What is due by now was started or waits for an event, not for time.
func (c *core) wakeAt(now time.Time) time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if t.After(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if c.load.phase == loadWaiting {
		earlier(c.load.retryAt)
	}
	if c.accepted != nil && !c.pass.running && !c.paused {
		earlier(c.nextPass)
	}
	if !c.paused {
		for _, d := range c.repairs.list {
			earlier(d.notUntil)
		}
	}
	for _, i := range c.ill {
		if !i.failing && !i.failsAt.IsZero() {
			earlier(i.failsAt)
		}
	}
	return at
}

// wait draws a jittered wait.
func (c *core) wait(d time.Duration) time.Duration {
	c.draws++
	return jitter(d, c.seed, c.draws)
}

func sameOverrides(a, b []Override) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].ID != b[i].ID {
			return false
		}
	}
	return true
}

// overridden reports whether the object is left to people.
func overridden(overrides []Override, id payload.ObjectID) bool {
	for i := range overrides {
		if overrides[i].ID == id {
			return true
		}
	}
	return false
}
