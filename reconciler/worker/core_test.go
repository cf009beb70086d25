// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

// script passes the commands of a scenario to a core as events and renders its
// actions and status. Only the command "time" advances the clock. Jitter has seed 0.
type script struct {
	core   core
	now    time.Time
	start  time.Time
	wakeAt time.Time
}

func newScript(restore Restore) *script {
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	return &script{now: start, start: start, core: newCore(80*time.Second, 0, restore)}
}

// Every file in testdata is a scenario; go test ./reconciler/worker -rewrite
// regenerates them.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		s := newScript(Restore{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			if d.Cmd == "restore" {
				s = newScript(restoreOf(t, d))
				return "ok\n"
			}
			return s.run(t, d)
		})
	})
}

// run passes one event to the core and renders actions and status.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	e := s.event(t, d)
	var actions []action
	s.core, actions = next(s.core, e, s.now)
	var out strings.Builder
	for _, a := range actions {
		s.renderAction(&out, a)
	}
	s.renderStatus(&out)
	return out.String()
}

func (s *script) event(t *testing.T, d *datadriven.TestData) event {
	t.Helper()
	switch d.Cmd {
	case "update":
		return s.updateEvent(d)
	case "step":
		return loadStepped{s.running().number, Step(d.CmdArgs[0].Key)}
	case "loaded":
		return s.loadedEvent(t, d)
	case "stale-loaded":
		return loaded{number: s.running().number - 1, err: errors.New("stale")}
	case "started":
		return syncStepped{s.core.sync.number, StepApplyManifests}
	case "health":
		return healthEvent(t, d)
	case "written", "applied", "failed", "skipped", "waiting":
		return s.manifestEvent(t, d)
	case "sync-ended":
		e := syncEnded{number: s.core.sync.number, complete: d.HasArg("complete")}
		if reason := arg(d, "error"); reason != "" {
			e.err = &UpdateError{Code: reason, Effect: EffectFail, Message: "sync failed", Retry: true}
		}
		e.pruning = pruningOf(d)
		return e
	case "prune-ended":
		return pruneEnded{pruning: pruningOf(d), failed: d.HasArg("failed")}
	case "drifted":
		return drifted{object(d.CmdArgs[0].Key)}
	case "repaired":
		e := repaired{id: object(d.CmdArgs[0].Key), obsolete: d.HasArg("obsolete"), deferred: d.HasArg("deferred")}
		if reason := arg(d, "error"); reason != "" {
			e.err = &UpdateError{Code: reason, Effect: EffectFail, Object: e.id, Message: "apply failed", Retry: true}
		}
		return e
	case "retry-now":
		return retryNow{}
	case "sync-now":
		return syncDue{}
	case "pause":
		return pauseSet{true}
	case "resume":
		return pauseSet{false}
	case "time":
		elapsed, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(elapsed)
		return ticked{}
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
		return nil
	}
}

// running returns the load that runs, that of the desired release if none does.
func (s *script) running() *loading {
	if s.core.restoration.phase == loadRunning {
		return &s.core.restoration
	}
	return &s.core.load
}

func (s *script) updateEvent(d *datadriven.TestData) event {
	e := updated{generation: s.core.generation + 1, desired: desired(d.CmdArgs[0].Key), overrides: s.core.overrides, state: payload.Updating}
	if state, ok := payload.ParseState(arg(d, "state")); ok {
		e.state = state
	}
	e.desired.Revision = arg(d, "revision")
	if d.HasArg("override") {
		e.overrides = nil
		if id := arg(d, "override"); id != "none" {
			e.overrides = []Override{{ID: object(id)}}
		}
	}
	return e
}

func (s *script) loadedEvent(t *testing.T, d *datadriven.TestData) event {
	t.Helper()
	e := loaded{number: s.running().number}
	if reason := arg(d, "error"); reason != "" {
		e.err = &UpdateError{Code: reason, Message: "cause " + reason, Retry: !d.HasArg("permanent")}
		return e
	}
	if name := arg(d, "violation"); name != "" {
		e.violations = append(e.violations, precondition.Violation{
			Name: name, Reason: name, Message: "check failed", Blocking: true, Retriable: d.HasArg("retriable"), Waived: d.HasArg("waived"),
		})
	}
	if name := arg(d, "warning"); name != "" {
		e.violations = append(e.violations, precondition.Violation{Name: name, Reason: name, Message: "check failed"})
	}
	target := s.running().target
	e.info = PayloadInfo{Payload: testPayload(t, target.Version, strings.Fields(d.Input)...), verified: true}
	return e
}

func (s *script) manifestEvent(t *testing.T, d *datadriven.TestData) event {
	t.Helper()
	m := s.core.accepted.manifest(object(d.CmdArgs[0].Key))
	if m == nil {
		t.Fatalf("%s: no manifest %s", d.Pos, d.CmdArgs[0].Key)
	}
	switch d.Cmd {
	case "written":
		return objectWritten{s.core.sync.number, m}
	case "waiting":
		return waitingFor{s.core.sync.number, m, Waiting{
			Reason: arg(d, "reason"), Message: "2 of 3 replicas updated", Spent: duration(t, arg(d, "spent")), Stopped: d.HasArg("stopped"),
		}}
	case "failed":
		err := &UpdateError{Code: arg(d, "reason"), Effect: Effect(arg(d, "effect")), Object: m.ID, Message: "apply failed", Retry: true}
		if err.Effect == "" {
			err.Effect = EffectFail
		}
		return manifestDone{number: s.core.sync.number, manifest: m, err: err}
	default:
		return manifestDone{number: s.core.sync.number, manifest: m, skipped: d.Cmd == "skipped"}
	}
}

// restoreOf returns the state of an earlier process.
func restoreOf(t *testing.T, d *datadriven.TestData) Restore {
	t.Helper()
	r := Restore{Accepted: desired(arg(d, "accepted")), Applied: desired(arg(d, "applied"))}
	r.State, r.Unfinished = payload.ParseState(arg(d, "unfinished"))
	if name := arg(d, "waiting"); name != "" {
		r.Waits = map[payload.ObjectID]WaitClock{object(name): {Spent: duration(t, arg(d, "spent"))}}
	}
	if name := arg(d, "unhealthy"); name != "" {
		since := newScript(Restore{}).start.Add(-duration(t, arg(d, "for")))
		r.Waits = map[payload.ObjectID]WaitClock{object(name): {Running: since}}
	}
	return r
}

// healthEvent returns the health of an object: "health web ok", or "health web
// reason=X grace=10m [effect=…]".
func healthEvent(t *testing.T, d *datadriven.TestData) event {
	t.Helper()
	e := healthObserved{id: object(d.CmdArgs[0].Key), grace: duration(t, arg(d, "grace"))}
	if !d.HasArg("ok") {
		e.err = &UpdateError{Code: arg(d, "reason"), Effect: EffectFailAfterInterval, Object: e.id, Message: "1 of 2 replicas available", Retry: true}
		if effect := arg(d, "effect"); effect != "" {
			e.err.Effect = Effect(effect)
		}
	}
	return e
}

// pruningOf returns the state of the deletions: leaving=name for one that hasn't
// ended.
func pruningOf(d *datadriven.TestData) Pruning {
	name := arg(d, "leaving")
	if name == "" {
		return Pruning{}
	}
	return Pruning{Leaving: []Leaving{{Object: object(name), Finalizers: []string{"example.com/hold"}}}, Total: 1}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// testPayload has one ConfigMap per object name; the names determine the hash.
func testPayload(t *testing.T, version string, names ...string) *payload.Payload {
	t.Helper()
	p := &payload.Payload{Product: "platform", Version: version, VersionHash: "sha256:" + strings.Join(names, "-")}
	for i, name := range names {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
			"data": map[string]any{"version": version},
		}})
		if err != nil {
			t.Fatal(err)
		}
		m.RunLevel, m.Component = 10*(i+1), "web"
		p.Manifests = append(p.Manifests, m)
	}
	return p
}

func desired(version string) Desired {
	if version == "" || version == "none" {
		return Desired{}
	}
	return Desired{Identity: payload.Identity{Version: version, Image: "r@sha256:" + version}}
}

func object(name string) payload.ObjectID { return payload.ObjectID{Kind: "ConfigMap", Name: name} }

func arg(d *datadriven.TestData, key string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return ""
}

func (s *script) renderAction(out *strings.Builder, a action) {
	switch a := a.(type) {
	case startLoad:
		fmt.Fprintf(out, "> load %s check=%v dry-run=%v\n", a.desired.Version, a.check, a.dryRun)
	case stopLoad:
		fmt.Fprintf(out, "> stop load\n")
	case startSync:
		fmt.Fprintf(out, "> sync %s as %s attempt=%d begin=%v", a.work.Desired.Version, a.work.State, a.work.Attempt, a.begin)
		for _, o := range a.work.Overrides {
			fmt.Fprintf(out, " without %s", o.ID.Name)
		}
		fmt.Fprintln(out)
	case stopSync:
		fmt.Fprintf(out, "> stop sync\n")
	case startPrune:
		fmt.Fprintf(out, "> prune %s\n", a.payload.Version)
	case stopPrune:
		fmt.Fprintf(out, "> stop prune\n")
	case repair:
		data, _ := a.manifest.Object.Object["data"].(map[string]any)
		fmt.Fprintf(out, "> repair %s of %v\n", a.manifest.ID.Name, data["version"])
	case wake:
		if a.at.Equal(s.wakeAt) {
			return
		}
		s.wakeAt = a.at
		if a.at.IsZero() {
			fmt.Fprintf(out, "> sleep\n")
			return
		}
		fmt.Fprintf(out, "> wake at %s\n", s.clock(a.at))
	}
}

// clock formats a time as whole seconds since the start.
func (s *script) clock(t time.Time) string {
	return fmt.Sprintf("+%ds", int(t.Sub(s.start).Seconds()))
}

func (s *script) renderStatus(out *strings.Builder) {
	st := s.core.status()
	fmt.Fprintf(out, "%s %s", st.State, st.Step)
	if st.Total > 0 {
		fmt.Fprintf(out, " %d/%d", st.Done, st.Total)
	}
	if st.Skipped > 0 {
		fmt.Fprintf(out, " skipped=%d", st.Skipped)
	}
	if st.Attempt > 0 {
		fmt.Fprintf(out, " attempt=%d", st.Attempt)
	}
	if st.Completed > 0 {
		fmt.Fprintf(out, " completed=%d", st.Completed)
	}
	if st.Paused {
		fmt.Fprint(out, " paused")
	}
	fmt.Fprintf(out, "\n  desired=%s accepted=%s applied=%s", st.Desired.Version, st.Actual.Version, st.Applied.Version)
	if st.Load.Step != StepPayloadLoaded {
		fmt.Fprintf(out, " load=%s", st.Load.Step)
	}
	fmt.Fprintln(out)
	if f := st.Load.Failure; f != nil {
		fmt.Fprintf(out, "  rejected: %s (%s) attempt=%d retry=%v", f, f.Code, st.Load.Attempt, f.Retry)
		if !st.Load.RetryAt.IsZero() {
			fmt.Fprintf(out, " at %s", s.clock(st.Load.RetryAt))
		}
		fmt.Fprintln(out)
	}
	if f := st.Restore.Failure; f != nil {
		fmt.Fprintf(out, "  not restored: %s: %s (%s) attempt=%d retry=%v", st.Restore.Desired.Version, f, f.Code, st.Restore.Attempt, f.Retry)
		if !st.Restore.RetryAt.IsZero() {
			fmt.Fprintf(out, " at %s", s.clock(st.Restore.RetryAt))
		}
		fmt.Fprintln(out)
	}
	if f := st.Failure; f != nil {
		fmt.Fprintf(out, "  failure: %s %s %s\n", f.Code, f.Effect, f)
	}
	for _, b := range st.Blocking {
		fmt.Fprintf(out, "  blocking: %s %s since %s\n", b.Object, b.Reason, s.clock(b.Since))
	}
	for _, id := range slices.SortedFunc(maps.Keys(st.Waits), payload.ObjectID.Compare) {
		fmt.Fprintf(out, "  clock: %s %s", id.Name, st.Waits[id].At(s.now))
		if st.Waits[id].Running.IsZero() {
			fmt.Fprint(out, " stopped")
		}
		fmt.Fprintln(out)
	}
	if st.Pruning != nil {
		for _, l := range st.Pruning.Leaving {
			fmt.Fprintf(out, "  leaving: %s %s\n", l.Object, strings.Join(l.Finalizers, ","))
		}
	}
	for _, h := range st.History {
		fmt.Fprintf(out, "  history: %s %s", h.Version, h.State)
		if !h.Ended.IsZero() {
			fmt.Fprintf(out, " ended %s", s.clock(h.Ended))
		}
		fmt.Fprintln(out)
	}
	if len(st.Actual.AcceptedRisks) > 0 {
		fmt.Fprintf(out, "  risks: %s\n", strings.Join(st.Actual.AcceptedRisks, ", "))
	}
	if len(st.Actual.Warnings) > 0 {
		fmt.Fprintf(out, "  warnings: %s\n", strings.Join(st.Actual.Warnings, ", "))
	}
}

func TestARejectedReleaseReportsItsSigners(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	c, _ := next(core{interval: time.Minute}, updated{generation: 1, desired: desired("1.0.0"), state: payload.Updating}, now)
	info := PayloadInfo{Payload: testPayload(t, "1.0.0", "a"), verified: true, evidence: []string{"ci"}}
	c, _ = next(c, loaded{number: c.load.number, info: info, violations: []precondition.Violation{{Name: "GiantHop", Reason: "GiantHop", Blocking: true}}}, now)
	if s := c.status(); s.Load.Failure == nil || !s.Load.Verified || !slices.Equal(s.Load.Evidence, info.Evidence()) {
		t.Errorf("load: %+v", s.Load)
	}
}

func TestBlockingObjectsReportWhetherTheyAreRetriable(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	c, _ := next(core{interval: time.Minute}, updated{generation: 1, desired: desired("1.0.0"), state: payload.Updating}, now)
	c, _ = next(c, loaded{number: c.load.number, info: PayloadInfo{Payload: testPayload(t, "1.0.0", "a", "b", "c"), verified: true}}, now)
	c, _ = next(c, syncStepped{c.sync.number, StepApplyManifests}, now)
	for name, retry := range map[string]bool{"a": true, "b": false} {
		err := &UpdateError{Code: "Rejected", Effect: EffectFail, Object: object(name), Retry: retry}
		c, _ = next(c, manifestDone{number: c.sync.number, manifest: c.accepted.manifest(object(name)), err: err}, now)
	}
	c, _ = next(c, waitingFor{c.sync.number, c.accepted.manifest(object("c")), Waiting{Reason: "InProgress"}}, now)
	s := c.status()
	got := map[string]bool{}
	for _, b := range s.Blocking {
		got[b.Object.Name] = b.Retriable
	}
	if want := map[string]bool{"a": true, "b": false, "c": true}; !maps.Equal(got, want) || s.Failed != 2 || s.BlockingTotal != 3 {
		t.Errorf("retriable %v, %d failed of %d", got, s.Failed, s.BlockingTotal)
	}
}
