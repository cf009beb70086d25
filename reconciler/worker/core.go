// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
)

// core is the state of the worker. next takes it by value and returns the new
// state; the maps belong to the latest state only.
type core struct {
	// interval between full syncs; seed of jitter and reconciling order; draws
	// counts the random numbers of the jitter.
	interval    time.Duration
	seed, draws uint64
	// restore is the state of an earlier process.
	restore Restore

	// started is set by the first Update.
	started    bool
	generation int64
	desired    Desired
	overrides  []Override
	paused     bool

	// loads numbers the loads. load is that of the desired release, restoration that
	// of the accepted release of an earlier process while another one is desired. At
	// most one of them runs.
	loads             int
	load, restoration loading

	// accepted is the release being applied, applied the last complete release;
	// nil before the first.
	accepted, applied *accepted
	state             payload.State
	initial           bool
	// began is set after the builder began the accepted payload, beganAny after it
	// began any payload.
	began, beganAny bool

	sync syncAttempt
	// lastComplete is the last successful sync. Its counts are reported while the
	// next sync of the same release runs.
	lastComplete syncAttempt
	// syncs numbers the syncs.
	syncs              int
	attempt, completed int
	failures           int
	nextSync           time.Time
	again              bool // a sync is due after the running one

	// last are the errors of the last sync for objects without a newer success;
	// since is when each object started to fail or wait.
	last  errorList
	since map[payload.ObjectID]time.Time
	// reached are the objects of the accepted payload that this process applied,
	// ready or not.
	reached map[payload.ObjectID]bool
	// clocks are the clocks of the objects of the accepted payload that were awaited
	// and aren't ready yet.
	clocks map[payload.ObjectID]WaitClock
	// unhealthy are the objects that their watches report as unhealthy.
	unhealthy map[payload.ObjectID]unhealthyObject

	repairs      repairs
	driftRepairs int

	// pruning are the deletions that haven't ended, nil before the first prune.
	pruning *Pruning
	prune   pruneAttempt

	lastProgress time.Time
	history      []HistoryFact
}

// Restore is the state of an earlier process.
type Restore struct {
	// Accepted is the accepted release, Applied the last complete release; empty
	// for none.
	Accepted, Applied Desired
	// Unfinished reports that Accepted hasn't completed since it was accepted. It
	// can equal Applied, if another release was started in between. It continues in
	// State.
	Unfinished bool
	State      payload.State
	// Waits are the clocks of Accepted's objects: of the awaited ones, or, if it was
	// complete, of the unhealthy ones.
	Waits map[payload.ObjectID]WaitClock
}

func newCore(interval time.Duration, seed uint64, restore Restore) core {
	return core{
		interval: interval, seed: seed, restore: restore, sync: syncAttempt{runLevel: -1},
		since: map[payload.ObjectID]time.Time{}, reached: map[payload.ObjectID]bool{},
		clocks: map[payload.ObjectID]WaitClock{}, unhealthy: map[payload.ObjectID]unhealthyObject{},
	}
}

// accepted is an accepted release with its payload.
type accepted struct {
	Release
	payload *payload.Payload
	// index has the position of each object's manifest.
	index map[payload.ObjectID]int
}

func newAccepted(r Release, p *payload.Payload) *accepted {
	a := &accepted{Release: r, payload: p, index: make(map[payload.ObjectID]int, len(p.Manifests))}
	for i := range p.Manifests {
		a.index[p.Manifests[i].ID] = i
	}
	return a
}

// manifest returns the object's manifest, nil without one.
func (a *accepted) manifest(id payload.ObjectID) *payload.Manifest {
	if i, ok := a.index[id]; ok {
		return &a.payload.Manifests[i]
	}
	return nil
}

// loadPhase is the phase of loading the desired release.
type loadPhase int

const (
	loadIdle loadPhase = iota
	loadRunning
	// loadWaiting waits for the next attempt.
	loadWaiting
	loadDone
)

// loading is the load of a release.
type loading struct {
	phase  loadPhase
	number int
	target Desired
	step   Step
	// failure is that of the last attempt.
	failure *UpdateError
	// checked is set if preconditions are evaluated; verified and evidence are those
	// of the retrieved release.
	checked    bool
	verified   bool
	evidence   []string
	violations []precondition.Violation
	attempt    int
	retryAt    time.Time
	since      time.Time
	// again requests another attempt if the running one fails.
	again bool
}

// syncAttempt is one sync of the accepted payload.
type syncAttempt struct {
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

// The events of next.
type (
	// updated is a call of Update.
	updated struct {
		generation int64
		desired    Desired
		overrides  []Override
		state      payload.State
	}
	// loadStepped is a step of a load.
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
	// syncStepped is a step of a sync.
	syncStepped struct {
		number int
		step   Step
	}
	// objectWritten ends the write of a manifest of a sync; its object may not be
	// ready yet.
	objectWritten struct {
		number   int
		manifest *payload.Manifest
	}
	// healthObserved is the health of an object that no sync awaits; a nil err is
	// healthy. An err that persists for grace is a failure.
	healthObserved struct {
		id    payload.ObjectID
		err   *UpdateError
		grace time.Duration
	}
	// manifestDone ends one manifest of a sync.
	manifestDone struct {
		number   int
		manifest *payload.Manifest
		skipped  bool
		err      *UpdateError
	}
	// waitingFor is what a manifest of a sync waits for.
	waitingFor struct {
		number   int
		manifest *payload.Manifest
		waiting  Waiting
	}
	// syncEnded ends a sync.
	syncEnded struct {
		number int
		// complete reports that every manifest succeeded; err is an error of the
		// sync itself.
		complete bool
		err      *UpdateError
		// pruning is the result of its prune.
		pruning Pruning
	}
	// pruneEnded ends a prune outside of a sync.
	pruneEnded struct {
		pruning Pruning
		failed  bool
	}
	// drifted is drift of an object.
	drifted struct{ id payload.ObjectID }
	// repaired ends a repair; obsolete reports that the object needed none, deferred
	// that the builder delays the next request for it.
	repaired struct {
		id       payload.ObjectID
		err      *UpdateError
		obsolete bool
		deferred bool
	}
	// retryNow retries what waits for its next attempt.
	retryNow struct{}
	// syncDue makes the next sync due.
	syncDue struct{}
	// pauseSet pauses or resumes all writes.
	pauseSet struct{ on bool }
	// intervalSet changes the interval.
	intervalSet struct{ interval time.Duration }
	// ticked is the time of the last wake.
	ticked struct{}
)

// event is one of the above.
type event any

// The actions that next returns.
type (
	// startLoad verifies, fetches, loads and checks a release.
	startLoad struct {
		number  int
		desired Desired
		// check enables the preconditions, dryRun the dry run after them.
		check   bool
		dryRun  bool
		current Current
	}
	// stopLoad cancels the load of a release that isn't desired any more.
	stopLoad struct{ number int }
	// startSync syncs the accepted payload.
	startSync struct {
		number  int
		work    SyncWork
		payload *payload.Payload
		order   taskgraph.Order
		begin   bool
	}
	// stopSync ends a sync at the next manifest.
	stopSync struct{ number int }
	// startPrune continues the prune of a complete release; stopPrune stops it.
	startPrune struct{ payload *payload.Payload }
	stopPrune  struct{}
	// repair applies one manifest.
	repair struct{ manifest *payload.Manifest }
	// wake requests ticked at a time. It replaces the previous wake; a zero time
	// cancels it.
	wake struct{ at time.Time }
)

// action is one of the above.
type action any

// next returns the state after an event and the resulting actions. It is pure.
func next(c core, e event, now time.Time) (core, []action) {
	var out []action
	switch e := e.(type) {
	case updated:
		out = c.update(e, now)
	case loadStepped:
		c.loadStep(e, now)
	case loaded:
		out = c.loaded(e, now)
	case syncStepped:
		c.syncStepped(e)
	case objectWritten:
		c.objectWritten(e, now)
	case healthObserved:
		c.healthObserved(e, now)
	case manifestDone:
		c.manifestDone(e, now)
	case waitingFor:
		c.waitingFor(e, now)
	case syncEnded:
		c.syncEnded(e, now)
	case pruneEnded:
		c.pruneEnded(e, now)
	case drifted:
		c.drifted(e, now)
	case repaired:
		c.repaired(e, now)
	case retryNow:
		c.retryNow(now)
	case syncDue:
		c.nextSync, c.again = now, c.sync.running
	case pauseSet:
		out = c.pause(e)
	case intervalSet:
		c.setInterval(e, now)
	case ticked:
	}
	return c, append(out, c.schedule(now)...)
}

// update sets the desired release and the overrides.
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
	if c.load.phase == loadRunning {
		out = append(out, stopLoad{c.load.number})
	}
	c.load = loading{}
	if c.accepted != nil && c.accepted.Equal(c.desired) {
		c.accepted.Desired = c.desired
		c.setAccepted(now)
	}
	return out
}

// restart applies the accepted release again after a change of the overrides.
func (c *core) restart(now time.Time) []action {
	if c.accepted == nil {
		return nil
	}
	if !c.initial && c.state != payload.RollingBack {
		c.state = payload.Updating
	}
	c.attempt, c.completed, c.failures = 0, 0, 0
	c.nextSync = now
	return c.stopSync()
}

// stopSync stops the running sync or prune.
func (c *core) stopSync() []action {
	if c.prune.running && !c.prune.stopping {
		c.prune.stopping = true
		return []action{stopPrune{}}
	}
	if !c.sync.running || c.sync.stopping {
		return nil
	}
	c.sync.stopping = true
	return []action{stopSync{c.sync.number}}
}

// retryNow makes a waiting load and a failed sync due.
func (c *core) retryNow(now time.Time) {
	for _, l := range []*loading{&c.load, &c.restoration} {
		switch l.phase {
		case loadWaiting:
			l.retryAt = now
		case loadRunning:
			l.again = true // It may have checked what changed since.
		default:
		}
	}
	if c.failures > 0 && !c.sync.running {
		c.nextSync = now
	}
}

// setInterval changes the interval; the next sync is due within it.
func (c *core) setInterval(e intervalSet, now time.Time) {
	if e.interval <= 0 || e.interval == c.interval {
		return
	}
	c.interval = e.interval
	if latest := now.Add(c.interval); c.nextSync.After(latest) {
		c.nextSync = latest
	}
}

func (c *core) pause(e pauseSet) []action {
	c.paused = e.on
	if e.on {
		return c.stopSync()
	}
	return nil
}

// schedule starts due work and requests the next tick.
func (c *core) schedule(now time.Time) []action {
	c.failOverdue(now)
	out := c.startLoad(now)
	out = append(out, c.startSync(now)...)
	out = append(out, c.startPrune(now)...)
	out = append(out, c.startRepairs(now)...)
	return append(out, wake{c.wakeAt(now)})
}

// startSync starts the next sync if it is due.
func (c *core) startSync(now time.Time) []action {
	if c.paused || c.accepted == nil || c.sync.running || c.prune.running || c.nextSync.After(now) {
		return nil
	}
	c.syncs++
	c.sync = syncAttempt{number: c.syncs, running: true, step: StepApplyManifests, runLevel: -1}
	begin := !c.began
	return []action{startSync{
		number: c.sync.number, begin: begin, payload: c.accepted.payload,
		order: taskgraph.Order{Seed: c.seed, Attempt: c.attempt, Serial: c.accepted.payload.CVO},
		work:  SyncWork{Desired: c.accepted.Desired, Overrides: c.overrides, State: c.state, Attempt: c.attempt},
	}}
}

// wakeAt returns the earliest future time at which work is due, zero for none.
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
	if c.restoration.phase == loadWaiting && c.mustRestore() {
		earlier(c.restoration.retryAt)
	}
	if c.accepted != nil && !c.sync.running && !c.paused {
		earlier(c.nextSync)
	}
	if !c.paused {
		c.repairs.wakes(now, earlier)
	}
	if c.prunes() {
		earlier(c.prune.at)
	}
	for _, i := range c.unhealthy {
		if !i.failing && !i.failsAt.IsZero() {
			earlier(i.failsAt)
		}
	}
	return at
}

// wait returns d with jitter.
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

// overridden reports whether the object is unmanaged.
func overridden(overrides []Override, id payload.ObjectID) bool {
	for i := range overrides {
		if overrides[i].ID == id {
			return true
		}
	}
	return false
}
