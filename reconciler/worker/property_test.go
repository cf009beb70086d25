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

// machine drives a core at random and holds what must be true of any run.
type machine struct {
	t        *rapid.T
	core     core
	now      time.Time
	payloads map[string]*payload.Payload

	// what runs, by what the actions asked for
	load     startLoad
	loading  bool
	pass     startPass
	passing  bool
	stopping bool
	repairs  map[payload.ObjectID]bool
}

func (m *machine) do(e event) {
	before := m.core.accepted
	var actions []action
	m.core, actions = next(m.core, e, m.now)
	if _, isLoaded := e.(loaded); !isLoaded && m.core.accepted != before {
		m.t.Fatalf("%T changed what is accepted", e)
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
			m.t.Fatalf("a load of %s starts beside one of %s", a.desired.Version, m.load.desired.Version)
		}
		m.load, m.loading = a, true
	case stopLoad:
		m.loading = false
	case startPass:
		if m.passing {
			m.t.Fatalf("a pass over %s starts beside one over %s", a.work.Desired.Version, m.pass.work.Desired.Version)
		}
		if m.core.paused {
			m.t.Fatal("a pass starts while paused")
		}
		m.pass, m.passing, m.stopping = a, true, false
	case stopPass:
		m.stopping = true
	case repair:
		id := a.manifest.ID
		if m.repairs[id] || m.core.paused || overridden(m.core.overrides, id) {
			m.t.Fatalf("a repair of %s that must not be: running %v, paused %v", id, m.repairs[id], m.core.paused)
		}
		m.repairs[id] = true
		if len(m.repairs) > maxRepairs {
			m.t.Fatalf("%d repairs at once", len(m.repairs))
		}
	case wake:
		if !a.at.IsZero() && !a.at.After(m.now) {
			m.t.Fatalf("a wake at %s, and it's %s: the loop would spin", a.at, m.now)
		}
	}
}

// check holds what is true at rest.
func (m *machine) check() {
	s := m.core.status()
	if s.Done > s.Total && m.core.accepted != nil {
		m.t.Fatalf("%d of %d done", s.Done, s.Total)
	}
	if len(s.History) > maxHistory || len(s.Blocking) > maxBlocking {
		m.t.Fatalf("%d history, %d blocking", len(s.History), len(s.Blocking))
	}
	if s.Reconciling && s.Initial {
		m.t.Fatal("reconciling what never was level")
	}
	open := 0
	for _, h := range s.History {
		if h.Ended.IsZero() {
			open++
		}
	}
	if open > 1 {
		m.t.Fatalf("%d releases are under way", open)
	}
	if m.core.accepted != nil && !m.core.paused && !m.passing && m.core.wakeAt(m.now).IsZero() {
		m.t.Fatal("no pass runs and none is due: the accepted release is forgotten")
	}
	if !m.core.desired.Empty() && !m.loading && m.core.load.phase == loadRunning {
		m.t.Fatal("a load is thought to run that doesn't")
	}
	if wanted := !m.core.desired.Empty() && (m.core.accepted == nil || !m.core.accepted.Equal(m.core.desired)); wanted && !m.loading && m.core.wakeAt(m.now).IsZero() {
		m.t.Fatal("the desired release is forgotten")
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
		m.finishPass(t)
	case 5, 6:
		m.do(drifted{id})
	case 7:
		m.finishRepair(t, id)
	case 8:
		m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
		m.do(ticked{})
	case 9:
		e := judged{id: id, grace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second}
		if rapid.Bool().Draw(t, "ill") {
			e.err = &UpdateError{Code: "InProgress", Effect: EffectFailAfterInterval, Object: id, Retry: true}
		}
		m.do(e)
	default:
		if rapid.Bool().Draw(t, "look") {
			m.do(lookAgain{})
		} else {
			m.do(pausing{rapid.Bool().Draw(t, "pause")})
		}
	}
}

func (m *machine) finishLoad(t *rapid.T) {
	if !m.loading {
		return
	}
	m.loading = false
	e := loaded{number: m.load.number, info: PayloadInfo{Payload: m.payloads[m.load.desired.Version]}}
	if rapid.Bool().Draw(t, "bad") {
		e.err = &UpdateError{Code: "Unsigned", Nested: errors.New("unsigned"), Retry: rapid.Bool().Draw(t, "retriable")}
	}
	m.do(e)
}

func (m *machine) progress(t *rapid.T) {
	if !m.passing {
		return
	}
	m.do(passStepped{m.pass.number, StepApplyManifests})
	left := m.pass.payload.Manifests
	for i := range rapid.IntRange(0, len(left)).Draw(t, "applied") {
		m.do(wrote{m.pass.number, &left[i]})
		if rapid.Bool().Draw(t, "waits") {
			m.do(waitingFor{m.pass.number, &left[i], Waiting{Reason: "InProgress", Stopped: rapid.Bool().Draw(t, "stopped")}})
		}
		e := appliedOne{number: m.pass.number, manifest: &left[i]}
		if rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
			e.err = &UpdateError{Code: "Invalid", Effect: EffectFail, Object: left[i].ID, Retry: true}
		}
		m.do(e)
	}
	m.passing = false
	m.do(passed{number: m.pass.number})
}

func (m *machine) finishPass(t *rapid.T) {
	if !m.passing {
		return
	}
	m.do(passStepped{m.pass.number, StepApplyManifests})
	m.passing = false
	m.do(passed{number: m.pass.number, complete: !m.stopping && rapid.Bool().Draw(t, "complete")})
}

func (m *machine) finishRepair(t *rapid.T, id payload.ObjectID) {
	if !m.repairs[id] {
		return
	}
	delete(m.repairs, id)
	e := repaired{id: id, moot: rapid.IntRange(0, 5).Draw(t, "moot") == 0}
	if rapid.Bool().Draw(t, "refused") {
		e.err = &UpdateError{Code: "Forbidden", Effect: EffectFail, Object: id, Retry: true}
	}
	m.do(e)
}

func TestNoRunOfEventsBreaksTheWorker(t *testing.T) {
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
