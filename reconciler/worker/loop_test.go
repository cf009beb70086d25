// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// virtualNow is the time of the bubble that the test runs in.
func virtualNow() time.Time {
	epoch := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	return epoch.Add(-time.Until(epoch))
}

// world is a cluster and a registry in memory: it implements what the worker
// needs and writes down what it is asked for.
type world struct {
	mu       sync.Mutex
	payloads map[string]*payload.Payload
	bad      map[string]error         // by version
	refused  map[string]int           // by object name: how many tries fail
	hold     map[string]chan struct{} // an object is level once its channel is closed
	slow     map[string]chan struct{} // an apply is answered once its channel is closed
	limit    time.Duration            // how long an object may take to become level; 0: for ever
	log      []string
	tried    []string // by the last dry run
	running  int
	most     int
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// take returns what was noted since the last call.
func (w *world) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.log
	w.log = nil
	return out
}

func (w *world) RetrievePayload(ctx context.Context, desired Desired) (PayloadInfo, error) {
	ReportStep(ctx, StepVerifyPayload)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.bad[desired.Version]; err != nil {
		return PayloadInfo{}, err
	}
	return PayloadInfo{Payload: w.payloads[desired.Version], Verified: true, Evidence: []string{"ci"}}, nil
}

func (w *world) Check(context.Context, Desired, *payload.Payload, Current) ([]precondition.Violation, error) {
	return nil, nil
}

func (w *world) DryRun(_ context.Context, p *payload.Payload) error {
	w.note("dry-run %s", p.Version)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried = nil
	for i := range p.Manifests {
		w.tried = append(w.tried, p.Manifests[i].ID.Name)
	}
	return nil
}

func (w *world) Begin(_ context.Context, p *payload.Payload) error {
	w.note("begin %s", p.Version)
	return nil
}

func (w *world) Prune(_ context.Context, p *payload.Payload) error {
	w.note("prune %s", p.Version)
	return nil
}

func (w *world) Apply(_ context.Context, m *payload.Manifest, state payload.State) (Written, error) {
	data, _ := m.Object.Object["data"].(map[string]any)
	w.note("apply %s of %v as %s", m.ID.Name, data["version"], state)
	w.mu.Lock()
	w.running++
	w.most = max(w.most, w.running)
	hold := w.hold[m.ID.Name]
	slow := w.slow[m.ID.Name]
	refused := w.refused[m.ID.Name] > 0
	w.refused[m.ID.Name]--
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	if refused {
		return Written{}, &UpdateError{Code: "ResourceInvalid", Message: "refused", Retry: true}
	}
	if slow != nil {
		<-slow
	}
	return Written{Done: hold == nil}, nil
}

func (w *world) Await(ctx context.Context, m *payload.Manifest, _ Written, spent time.Duration) error {
	w.mu.Lock()
	hold, limit := w.hold[m.ID.Name], w.limit
	w.mu.Unlock()
	w.note("await %s after %s", m.ID.Name, spent)
	ReportWaiting(ctx, Waiting{Reason: "RolloutInProgress", Message: "0 of 1 updated", Spent: spent})
	select {
	case <-hold:
		return nil
	default:
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(max(limit-spent, 0))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-hold:
		return nil
	case <-late:
		return &UpdateError{Code: "HealthCheckTimeout", Message: "0 of 1 updated", Retry: true}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inBubble runs a test with a started worker over a world.
func inBubble(t *testing.T, config Config, test func(t *testing.T, w *SyncWorker, world *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		made := &world{payloads: map[string]*payload.Payload{}, bad: map[string]error{}, refused: map[string]int{}, hold: map[string]chan struct{}{}, slow: map[string]chan struct{}{}}
		made.payloads["1.0.0"] = testPayload(t, "1.0.0", "a", "b", "c")
		made.payloads["1.1.0"] = testPayload(t, "1.1.0", "a", "b", "d")
		config.Retriever, config.Preconditions, config.Builder = made, made, made
		config.Interval, config.Now = 80*time.Second, virtualNow
		w, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { w.Start(ctx, 2) })
		test(t, w, made)
		cancel()
		group.Wait()
	})
}

func TestTheLoopInstallsThenUpdatesThenKeeps(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		status := w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		if status.Generation != 1 || status.Load.Step != StepRetrievePayload {
			t.Errorf("Update returned %+v", status)
		}
		synctest.Wait()
		status = w.Status()
		if !status.Reconciling || status.Done != 3 || status.Fraction != 1 || status.Applied.Version != "1.0.0" || !status.Verified {
			t.Errorf("status after the install: %+v", status)
		}
		want := []string{"begin 1.0.0", "apply a of 1.0.0 as Initializing", "apply b of 1.0.0 as Initializing", "apply c of 1.0.0 as Initializing", "prune 1.0.0"}
		got := world.take()
		slices.Sort(got[1:4]) // Two workers apply side by side.
		if !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		want = []string{"dry-run 1.1.0", "begin 1.1.0", "apply a of 1.1.0 as Updating", "apply b of 1.1.0 as Updating", "apply d of 1.1.0 as Updating", "prune 1.1.0"}
		if got := world.take(); !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
		w.Drifted(object("b"))
		synctest.Wait()
		if got := world.take(); !slices.Equal(got, []string{"apply b of 1.1.0 as Reconciling"}) {
			t.Errorf("log after a drift is %q", got)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got := world.take(); len(got) != 4 || w.Status().Completed != 2 || w.Status().DriftRepairs != 1 {
			t.Errorf("log after the interval is %q, status %+v", got, w.Status())
		}
		select {
		case s := <-w.StatusCh():
			if s.Completed != 2 {
				t.Errorf("the channel has an old status: %+v", s)
			}
		default:
			t.Error("the channel has no status")
		}
	})
}

func TestADryRunLeavesOutWhatIsLeftToPeople(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		overrides := []Override{{ID: object("b")}}
		w.Update(1, desired("1.0.0"), overrides, payload.Initializing)
		synctest.Wait()
		w.Update(2, desired("1.1.0"), overrides, payload.Updating)
		synctest.Wait()
		if want := []string{"a", "d"}; !slices.Equal(world.tried, want) {
			t.Errorf("tried %q, want %q", world.tried, want)
		}
	})
}

func TestABadTargetStopsNeitherPassNorRepair(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		world.mu.Lock()
		world.bad["1.1.0"] = errors.New("connection refused")
		world.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		world.take()
		w.Drifted(object("c"))
		synctest.Wait()
		if got := world.take(); !slices.Equal(got, []string{"apply c of 1.0.0 as Reconciling"}) {
			t.Errorf("log after a drift is %q", got)
		}
		status := w.Status()
		if status.Load.Failure == nil || status.Failure != nil || status.Actual.Version != "1.0.0" || status.Desired.Version != "1.1.0" {
			t.Errorf("status: %+v", status)
		}
		world.mu.Lock()
		delete(world.bad, "1.1.0")
		world.mu.Unlock()
		w.RetryNow()
		synctest.Wait()
		if got := w.Status().Applied.Version; got != "1.1.0" {
			t.Errorf("applied is %s after the target became good", got)
		}
	})
}

func TestANewTargetPreemptsAWait(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		world.mu.Lock()
		world.hold["b"] = make(chan struct{})
		world.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		status := w.Status()
		if len(status.Blocking) != 1 || status.Blocking[0].Object.Name != "b" || status.Blocking[0].Reason != "RolloutInProgress" || status.RunLevel != 20 {
			t.Errorf("status while waiting: %+v", status)
		}
		world.mu.Lock()
		delete(world.hold, "b")
		world.mu.Unlock()
		w.Update(3, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		status = w.Status()
		if status.Applied.Version != "1.0.0" || !status.Reconciling || status.Failure != nil {
			t.Errorf("status after the way back: %+v", status)
		}
		var versions []string
		for _, h := range status.History {
			versions = append(versions, h.Version+" "+string(h.State))
		}
		if got := strings.Join(versions, ", "); got != "1.0.0 Completed, 1.1.0 Partial" {
			t.Errorf("history: %s", got)
		}
	})
}

// The wait of an update doesn't keep others from its object.
func TestARepairDuringAWaitBringsTheNewVersion(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		world.mu.Lock()
		world.hold["b"] = make(chan struct{})
		world.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		world.take()
		w.Drifted(object("b"))
		synctest.Wait()
		if got := world.take(); !slices.Equal(got, []string{"apply b of 1.1.0 as Reconciling"}) {
			t.Errorf("log after a drift amid the wait is %q", got)
		}
		close(world.hold["b"])
		synctest.Wait()
		if status := w.Status(); status.Applied.Version != "1.1.0" || status.DriftRepairs != 1 {
			t.Errorf("status: %+v", status)
		}
	})
}

// A repair of the old version that waits for the object while the pass brings
// the new one must not undo it.
func TestARepairThatHadToWaitAsksAnew(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		answer := make(chan struct{})
		world.mu.Lock()
		world.slow["b"] = answer
		world.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait() // b is being applied.
		w.Drifted(object("b"))
		synctest.Wait()
		world.take()
		close(answer)
		synctest.Wait()
		for _, line := range world.take() {
			if strings.HasPrefix(line, "apply b of 1.0.0") {
				t.Errorf("%q after 1.1.0 was applied", line)
			}
		}
		if status := w.Status(); status.Applied.Version != "1.1.0" {
			t.Errorf("status: %+v", status)
		}
	})
}

// In a first release an object may need one that comes after it: nothing is
// waited for before all is applied, and then for all at once.
func TestAFirstReleaseIsLevelOnceAllOfItIs(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		a, c := make(chan struct{}), make(chan struct{})
		world.hold["a"], world.hold["c"] = a, c
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		got := world.take()
		slices.Sort(got)
		want := []string{
			"apply a of 1.0.0 as Initializing", "apply b of 1.0.0 as Initializing", "apply c of 1.0.0 as Initializing",
			"await a after 0s", "await c after 0s", "begin 1.0.0",
		}
		if !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
		close(a)
		synctest.Wait()
		status := w.Status()
		if status.Reconciling || status.Done != 2 || status.Step != StepAwaitReady || len(status.Blocking) != 1 || status.Blocking[0].Object.Name != "c" {
			t.Errorf("status while c isn't level: %+v", status)
		}
		close(c)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling || status.Done != 3 {
			t.Errorf("status at the end: %+v", status)
		}
	})
}

// An object has its time once, not at each try and each pass.
func TestTheTimeOfAnObjectIsSpentOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		world.limit = time.Minute
		held := make(chan struct{})
		world.hold["b"] = held
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if status := w.Status(); status.Failure != nil {
			t.Errorf("failure before the minute is over: %v", status.Failure)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		status := w.Status()
		if status.Failure == nil || status.Failure.Reason() != "HealthCheckTimeout" || status.Attempt != 1 {
			t.Errorf("status after the minute: %+v", status)
		}
		world.take()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := strings.Join(world.take(), "\n"); !strings.Contains(got, "await b after 1m") {
			t.Errorf("log of the next pass is %q, want the time spent before to count", got)
		}
		close(held)
		w.SetHealth(object("b"), nil, 0)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling || len(status.Waits) != 0 {
			t.Errorf("status at the end: %+v", status)
		}
	})
}

func TestAnObjectIsTriedAFewTimesWithinAPass(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		world.refused["b"] = maxTries - 1
		world.refused["c"] = maxTries + 1
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		status := w.Status()
		if status.Done != 2 || status.Attempt != 1 || status.Failure == nil || status.Failure.Object.Name != "c" || !status.Initial {
			t.Errorf("status: %+v", status)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling || status.Failure != nil {
			t.Errorf("status after the next pass: %+v", status)
		}
	})
}

func TestAWorkerEndsWithItsContextAmidAWait(t *testing.T) {
	inBubble(t, Config{}, func(_ *testing.T, w *SyncWorker, world *world) {
		world.hold["a"] = make(chan struct{})
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		w.Drifted(object("a")) // Waits for the object that the pass holds.
		synctest.Wait()
	})
}

func TestAPauseEndsThePassAndHoldsRepairs(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		world.hold["b"] = make(chan struct{})
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		w.Pause(true)
		synctest.Wait()
		world.take()
		w.Drifted(object("a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := world.take(); len(got) != 0 || !w.Status().Paused {
			t.Errorf("log while paused is %q", got)
		}
		close(world.hold["b"])
		w.Pause(false)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling {
			t.Errorf("status after the pause: %+v", status)
		}
	})
}

func TestAShorterIntervalBringsTheNextPassForward(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, w *SyncWorker, _ *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		w.SetInterval(10 * time.Second)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := w.Status().Completed; got != 2 {
			t.Errorf("%d passes after a shorter interval, want 2", got)
		}
	})
}

// driver counts reports.
type driver struct{ reports int }

func (d *driver) Report(SyncWorkerStatus) { d.reports++ }

func TestAskingForTheSameReportsNothing(t *testing.T) {
	reporter := &driver{}
	inBubble(t, Config{Reporter: reporter}, func(t *testing.T, w *SyncWorker, _ *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		before := reporter.reports
		for range 3 {
			w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
			w.Pause(false)
			w.RetryNow()
			w.Drifted(object("stranger"))
		}
		synctest.Wait()
		if before == 0 || reporter.reports != before {
			t.Errorf("%d reports, then %d", before, reporter.reports)
		}
	})
}

func TestUpdateBeforeStartIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := &world{payloads: map[string]*payload.Payload{"1.0.0": testPayload(t, "1.0.0", "a")}, refused: map[string]int{}}
		w, err := New(Config{Retriever: world, Preconditions: world, Builder: world, Interval: time.Minute, Now: virtualNow})
		if err != nil {
			t.Fatal(err)
		}
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { w.Start(ctx, 2) })
		synctest.Wait()
		if !w.Status().Reconciling || w.Desired().Version != "1.0.0" || w.Accepted() == nil {
			t.Errorf("status: %+v", w.Status())
		}
		cancel()
		group.Wait()
	})
}

func TestNewRefusesAnIncompleteConfig(t *testing.T) {
	world := &world{}
	for name, config := range map[string]Config{
		"nothing":     {},
		"no interval": {Retriever: world, Preconditions: world, Builder: world, Now: virtualNow},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// reports keep what a worker reported.
type reports struct {
	mu  sync.Mutex
	all []SyncWorkerStatus
}

func (r *reports) Report(s SyncWorkerStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
}

func (r *reports) take() []SyncWorkerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

func TestAnotherLookAtWhatIsLevelIsNoProgress(t *testing.T) {
	heard := &reports{}
	inBubble(t, Config{Reporter: heard}, func(t *testing.T, w *SyncWorker, _ *world) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		first := w.Status()
		heard.take()
		time.Sleep(300 * time.Second)
		synctest.Wait()
		if n := w.Status().Completed; n < 4 {
			t.Fatalf("%d passes ended, want some after the first", n)
		}
		type told struct {
			step               Step
			done, run, skipped int
			progress           time.Time
		}
		want := told{first.Step, first.Done, first.RunLevel, first.Skipped, first.LastProgress}
		for _, s := range heard.take() {
			if got := (told{s.Step, s.Done, s.RunLevel, s.Skipped, s.LastProgress}); got != want {
				t.Fatalf("a pass over what is level tells %+v, want %+v as before", got, want)
			}
		}
	})
}

func TestAReleaseIsAnnouncedBeforeItsFirstWrite(t *testing.T) {
	var made *world
	var works atomic.Bool
	beginning := func(_ context.Context, work SyncWork) error {
		made.note("beginning %s", work.Desired.Version)
		if !works.Load() {
			return errors.New("not written down")
		}
		return nil
	}
	inBubble(t, Config{BeforeApply: beginning}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		made = world
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		if got := world.take(); !slices.Equal(got, []string{"beginning 1.0.0"}) || w.Status().Failure == nil {
			t.Errorf("log is %q, want nothing applied that can't be written down: %v", got, w.Status().Failure)
		}
		works.Store(true)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := world.take(); len(got) < 3 || got[0] != "beginning 1.0.0" || got[1] != "begin 1.0.0" {
			t.Errorf("log is %q, want it to begin with the announcement", got)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got := world.take(); slices.Contains(got, "beginning 1.0.0") {
			t.Errorf("log is %q, want it announced once", got)
		}
	})
}

func TestWhoListensHearsHowEachManifestEnded(t *testing.T) {
	heard, manifests := map[string]int{}, map[string]int{}
	ended := func(m *payload.Manifest, err *UpdateError) {
		if err != nil {
			heard[m.ID.Name+" "+err.Code]++
			return
		}
		heard[m.ID.Name]++
	}
	passes := map[bool]int{}
	inBubble(t, Config{ManifestEnded: ended, SyncEnded: func(level bool) { passes[level]++ }}, func(t *testing.T, w *SyncWorker, world *world) {
		t.Helper()
		world.refused["b"] = maxTries
		w.Update(1, desired("1.0.0"), []Override{{ID: object("c")}}, payload.Initializing)
		synctest.Wait()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		w.Drifted(object("a"))
		synctest.Wait()
		manifests = maps.Clone(heard)
		// A pass that is cut short is none.
		hold := make(chan struct{})
		world.hold["d"] = hold
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		w.Pause(true)
		synctest.Wait()
	})
	if want := map[bool]int{false: 1, true: 1}; !maps.Equal(passes, want) {
		t.Errorf("passes that ended level or not: %v, want %v", passes, want)
	}
	// A pass in which b failed after its tries, one in which it didn't, and the
	// repair of a; c is left to people.
	if want := map[string]int{"a": 3, "b": 1, "b ResourceInvalid": 1}; !maps.Equal(manifests, want) {
		t.Errorf("heard %v, want %v", manifests, want)
	}
}
