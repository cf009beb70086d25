// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/payload"
)

// machine passes random events to a core and checks its invariants.
type machine struct {
	t        *rapid.T
	core     core
	now      time.Time
	payloads map[string]*payload.Payload

	// the running work, as started by the actions
	load     startLoad
	loading  bool
	sync     startSync
	syncing  bool
	stopping bool
	repairs  map[payload.ObjectID]bool
}

func (m *machine) do(e event) {
	before := m.core.accepted
	var actions []action
	m.core, actions = next(m.core, e, m.now)
	if _, isLoaded := e.(loaded); !isLoaded && m.core.accepted != before {
		m.t.Fatalf("%T changed the accepted release", e)
	}
	for _, a := range actions {
		m.perform(a)
	}
	m.check()
}

func (m *machine) perform(a action) {
	switch a := a.(type) {
	case startLoad:
		if m.loading {
			m.t.Fatalf("a load of %s starts during one of %s", a.desired.Version, m.load.desired.Version)
		}
		m.load, m.loading = a, true
	case stopLoad:
		m.loading = false
	case startSync:
		if m.syncing {
			m.t.Fatalf("a sync of %s starts during one of %s", a.work.Desired.Version, m.sync.work.Desired.Version)
		}
		if m.core.paused {
			m.t.Fatal("a sync starts while paused")
		}
		m.sync, m.syncing, m.stopping = a, true, false
	case stopSync:
		m.stopping = true
	case repair:
		id := a.manifest.ID
		if m.repairs[id] || m.core.paused || overridden(m.core.overrides, id) {
			m.t.Fatalf("an invalid repair of %s: running %v, paused %v", id, m.repairs[id], m.core.paused)
		}
		m.repairs[id] = true
		if load := m.core.repairs.load(m.now); load.slots > maxRepairs || load.all > maxRunning || load.retries > maxRetrying {
			m.t.Fatalf("concurrent repairs: %+v", load)
		}
	case wake:
		if !a.at.IsZero() && !a.at.After(m.now) {
			m.t.Fatalf("a wake at %s, which isn't after %s: the loop would spin", a.at, m.now)
		}
	}
}

// check checks the invariants after an event.
func (m *machine) check() {
	s := m.core.status()
	if s.Done > s.Total && m.core.accepted != nil {
		m.t.Fatalf("%d of %d done", s.Done, s.Total)
	}
	if len(s.History) > maxHistory || len(s.Blocking) > maxBlocking {
		m.t.Fatalf("%d history, %d blocking", len(s.History), len(s.Blocking))
	}
	if s.Reconciling && s.Initial {
		m.t.Fatal("reconciling before any release has completed")
	}
	open := 0
	for _, h := range s.History {
		if h.Ended.IsZero() {
			open++
		}
	}
	if load := m.core.repairs.load(m.now); load.admits(false) && !m.core.paused && m.core.beganAny {
		for _, d := range m.core.repairs.list {
			if d.waits(m.now) && d.failures == 0 {
				m.t.Fatalf("the first repair of %s waits beside %+v", d.id, load)
			}
		}
	}
	if open > 1 {
		m.t.Fatalf("%d unfinished releases", open)
	}
	if m.core.accepted != nil && !m.core.paused && !m.syncing && m.core.wakeAt(m.now).IsZero() {
		m.t.Fatal("the accepted release has neither a running nor a due sync")
	}
	if !m.loading && (m.core.load.phase == loadRunning || m.core.restoration.phase == loadRunning) {
		m.t.Fatal("the core has a running load that doesn't run")
	}
	if m.core.load.phase == loadRunning && m.core.restoration.phase == loadRunning {
		m.t.Fatal("two loads run")
	}
	latest := m.now.Add(m.core.interval * (100 + jitterPercent) / 100)
	if r := m.core.restoration; m.core.mustRestore() && !m.loading && (r.phase != loadWaiting || r.retryAt.After(latest)) {
		m.t.Fatalf("the restore of the accepted release is dropped: phase %d, due %s", r.phase, r.retryAt)
	}
	if wanted := !m.core.desired.Empty() && (m.core.accepted == nil || !m.core.accepted.Equal(m.core.desired)); wanted && !m.loading && m.core.wakeAt(m.now).IsZero() {
		m.t.Fatal("the desired release has neither a running nor a due load")
	}
}

var versions = []string{"1.0.0", "1.1.0", "1.2.0"}

func (m *machine) step(t *rapid.T) {
	id := object(rapid.SampledFrom([]string{"a", "b", "c", "x"}).Draw(t, "object"))
	switch rapid.IntRange(0, 10).Draw(t, "event") {
	case 0:
		e := updated{generation: m.core.generation + 1, desired: desired(rapid.SampledFrom(versions).Draw(t, "version")), overrides: m.core.overrides, state: payload.Updating}
		if rapid.Bool().Draw(t, "initializing") {
			e.state = payload.Initializing
		}
		if rapid.IntRange(0, 3).Draw(t, "override") == 0 {
			e.overrides = []Override{{ID: id}}
		}
		m.do(e)
	case 1:
		m.finishLoad(t)
	case 2:
		m.progress(t)
	case 3, 4:
		m.finishSync(t)
	case 5, 6:
		m.do(drifted{id})
	case 7:
		m.finishRepair(t, id)
	case 8:
		m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
		m.do(ticked{})
	case 9:
		e := healthObserved{id: id, grace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second}
		if rapid.Bool().Draw(t, "unhealthy") {
			e.err = &UpdateError{Code: "InProgress", Effect: EffectFailAfterInterval, Object: id, Retry: true}
		}
		m.do(e)
	default:
		if rapid.Bool().Draw(t, "retry") {
			m.do(retryNow{})
		} else {
			m.do(pauseSet{rapid.Bool().Draw(t, "pause")})
		}
	}
}

func (m *machine) finishLoad(t *rapid.T) {
	if !m.loading {
		return
	}
	m.loading = false
	e := loaded{number: m.load.number, info: PayloadInfo{Payload: m.payloads[m.load.desired.Version]}}
	if rapid.Bool().Draw(t, "invalid") {
		e.err = &UpdateError{Code: "Unsigned", Nested: errors.New("unsigned"), Retry: rapid.Bool().Draw(t, "retriable")}
	}
	m.do(e)
}

func (m *machine) progress(t *rapid.T) {
	if !m.syncing {
		return
	}
	m.do(syncStepped{m.sync.number, StepApplyManifests})
	left := m.sync.payload.Manifests
	for i := range rapid.IntRange(0, len(left)).Draw(t, "applied") {
		m.do(objectWritten{m.sync.number, &left[i]})
		if rapid.Bool().Draw(t, "waits") {
			m.do(waitingFor{m.sync.number, &left[i], Waiting{Reason: "InProgress", Stopped: rapid.Bool().Draw(t, "stopped")}})
		}
		e := manifestDone{number: m.sync.number, manifest: &left[i]}
		if rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
			e.err = &UpdateError{Code: "Invalid", Effect: EffectFail, Object: left[i].ID, Retry: true}
		}
		m.do(e)
	}
	m.syncing = false
	m.do(syncEnded{number: m.sync.number})
}

func (m *machine) finishSync(t *rapid.T) {
	if !m.syncing {
		return
	}
	m.do(syncStepped{m.sync.number, StepApplyManifests})
	m.syncing = false
	m.do(syncEnded{number: m.sync.number, complete: !m.stopping && rapid.Bool().Draw(t, "complete")})
}

func (m *machine) finishRepair(t *rapid.T, id payload.ObjectID) {
	if !m.repairs[id] {
		return
	}
	delete(m.repairs, id)
	e := repaired{id: id, obsolete: rapid.IntRange(0, 5).Draw(t, "obsolete") == 0}
	if !e.obsolete && rapid.IntRange(0, 5).Draw(t, "deferred") == 0 {
		e.deferred = true
	} else if rapid.Bool().Draw(t, "rejected") {
		e.err = &UpdateError{Code: "Forbidden", Effect: EffectFail, Object: id, Retry: true}
	}
	m.do(e)
}

func TestRandomEventsKeepTheInvariants(t *testing.T) {
	payloads := map[string]*payload.Payload{}
	for i, version := range versions {
		payloads[version] = testPayload(t, version, []string{"a", "b", "c"}[:i+1]...)
		payloads[version].VersionHash = fmt.Sprintf("sha256:%d", i)
	}
	rapid.Check(t, func(r *rapid.T) {
		s := newScript(Restore{})
		if rapid.Bool().Draw(r, "restored") {
			s = newScript(Restore{Accepted: desired("1.0.0"), Applied: desired("1.0.0")})
		}
		m := &machine{t: r, core: s.core, now: s.now, payloads: payloads, repairs: map[payload.ObjectID]bool{}}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			m.step(r)
		}
	})
}
