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

// virtualNow is the time of the synctest bubble.
func virtualNow() time.Time {
	epoch := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	return epoch.Add(-time.Until(epoch))
}

// fakeCluster is a cluster and a registry in memory. It implements the interfaces of
// the worker and records their calls.
type fakeCluster struct {
	mu       sync.Mutex
	payloads map[string]*payload.Payload
	invalid  map[string]error         // by version
	failures map[string]int           // attempts to fail, by object name
	hold     map[string]chan struct{} // an object is ready once its channel is closed
	slow     map[string]chan struct{} // an apply returns once its channel is closed
	limit    time.Duration            // health timeout; 0: none
	log      []string
	dryRun   []string // objects of the last dry run
	running  int
	most     int
	pruning  Pruning // the result of Prune
}

func (w *fakeCluster) record(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// take returns the calls recorded since the last take.
func (w *fakeCluster) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.log
	w.log = nil
	return out
}

func (w *fakeCluster) RetrievePayload(ctx context.Context, desired Desired) (PayloadInfo, error) {
	ReportStep(ctx, StepVerifyPayload)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.invalid[desired.Version]; err != nil {
		return PayloadInfo{}, err
	}
	return PayloadInfo{Payload: w.payloads[desired.Version], verified: true, evidence: []string{"ci"}}, nil
}

func (w *fakeCluster) Check(context.Context, Desired, *payload.Payload, Current) ([]precondition.Violation, error) {
	return nil, nil
}

func (w *fakeCluster) DryRun(_ context.Context, p *payload.Payload) error {
	w.record("dry-run %s", p.Version)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dryRun = nil
	for i := range p.Manifests {
		w.dryRun = append(w.dryRun, p.Manifests[i].ID.Name)
	}
	return nil
}

func (w *fakeCluster) Begin(_ context.Context, p *payload.Payload) error {
	w.record("begin %s", p.Version)
	return nil
}

func (w *fakeCluster) Prune(_ context.Context, p *payload.Payload) (Pruning, error) {
	w.record("prune %s", p.Version)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pruning, nil
}

func (w *fakeCluster) Apply(_ context.Context, m *payload.Manifest, state payload.State) (Written, error) {
	data, _ := m.Object.Object["data"].(map[string]any)
	w.record("apply %s of %v as %s", m.ID.Name, data["version"], state)
	w.mu.Lock()
	w.running++
	w.most = max(w.most, w.running)
	hold := w.hold[m.ID.Name]
	slow := w.slow[m.ID.Name]
	failing := w.failures[m.ID.Name] > 0
	w.failures[m.ID.Name]--
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	if failing {
		return Written{}, &UpdateError{Code: "ResourceInvalid", Message: "apply failed", Retry: true}
	}
	if slow != nil {
		<-slow
	}
	return Written{Done: hold == nil}, nil
}

func (w *fakeCluster) Await(ctx context.Context, m *payload.Manifest, _ Written, spent time.Duration) error {
	w.mu.Lock()
	hold, limit := w.hold[m.ID.Name], w.limit
	w.mu.Unlock()
	w.record("await %s after %s", m.ID.Name, spent)
	ReportWaiting(ctx, Waiting{Reason: "RolloutInProgress", Message: "0 of 1 replicas updated", Spent: spent})
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
		return &UpdateError{Code: "HealthCheckTimeout", Message: "0 of 1 replicas updated", Retry: true}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withWorker runs a test with a started worker and a fakeCluster.
func withWorker(t *testing.T, config Config, test func(t *testing.T, w *SyncWorker, cluster *fakeCluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{payloads: map[string]*payload.Payload{}, invalid: map[string]error{}, failures: map[string]int{}, hold: map[string]chan struct{}{}, slow: map[string]chan struct{}{}}
		cluster.payloads["1.0.0"] = testPayload(t, "1.0.0", "a", "b", "c")
		cluster.payloads["1.1.0"] = testPayload(t, "1.1.0", "a", "b", "d")
		config.Retriever, config.Preconditions, config.Builder = cluster, cluster, cluster
		config.Interval, config.Now = 80*time.Second, virtualNow
		w, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { w.Start(ctx, 2) })
		test(t, w, cluster)
		cancel()
		group.Wait()
	})
}

func TestTheLoopInstallsUpdatesAndReconciles(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		status := w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		if status.Generation != 1 || status.Load.Step != StepRetrievePayload {
			t.Errorf("Update returned %+v", status)
		}
		synctest.Wait()
		status = w.Status()
		if !status.Reconciling || status.Done != 3 || status.Fraction != 1 || status.Applied.Version != "1.0.0" || !status.Actual.Verified {
			t.Errorf("status after the install: %+v", status)
		}
		want := []string{"begin 1.0.0", "apply a of 1.0.0 as Initializing", "apply b of 1.0.0 as Initializing", "apply c of 1.0.0 as Initializing", "prune 1.0.0"}
		got := cluster.take()
		slices.Sort(got[1:4]) // two workers apply concurrently
		if !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		want = []string{"dry-run 1.1.0", "begin 1.1.0", "apply a of 1.1.0 as Updating", "apply b of 1.1.0 as Updating", "apply d of 1.1.0 as Updating", "prune 1.1.0"}
		if got := cluster.take(); !slices.Equal(got, want) {
			t.Errorf("log is %q, want %q", got, want)
		}
		w.Drifted(object("b"))
		synctest.Wait()
		if got := cluster.take(); !slices.Equal(got, []string{"apply b of 1.1.0 as Reconciling"}) {
			t.Errorf("log after a drift is %q", got)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got := cluster.take(); len(got) != 4 || w.Status().Completed != 2 || w.Status().DriftRepairs != 1 {
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

func TestADryRunExcludesUnmanagedObjects(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		overrides := []Override{{ID: object("b")}}
		w.Update(1, desired("1.0.0"), overrides, payload.Initializing)
		synctest.Wait()
		w.Update(2, desired("1.1.0"), overrides, payload.Updating)
		synctest.Wait()
		if want := []string{"a", "d"}; !slices.Equal(cluster.dryRun, want) {
			t.Errorf("dry run of %q, want %q", cluster.dryRun, want)
		}
	})
}

func TestARejectedReleaseStopsNeitherSyncsNorRepairs(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		cluster.mu.Lock()
		cluster.invalid["1.1.0"] = errors.New("connection refused")
		cluster.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		cluster.take()
		w.Drifted(object("c"))
		synctest.Wait()
		if got := cluster.take(); !slices.Equal(got, []string{"apply c of 1.0.0 as Reconciling"}) {
			t.Errorf("log after a drift is %q", got)
		}
		status := w.Status()
		if status.Load.Failure == nil || status.Failure != nil || status.Actual.Version != "1.0.0" || status.Desired.Version != "1.1.0" {
			t.Errorf("status: %+v", status)
		}
		cluster.mu.Lock()
		delete(cluster.invalid, "1.1.0")
		cluster.mu.Unlock()
		w.RetryNow()
		synctest.Wait()
		if got := w.Status().Applied.Version; got != "1.1.0" {
			t.Errorf("applied is %s after the release became valid", got)
		}
	})
}

func TestANewReleasePreemptsAWait(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		cluster.mu.Lock()
		cluster.hold["b"] = make(chan struct{})
		cluster.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		status := w.Status()
		if len(status.Blocking) != 1 || status.Blocking[0].Object.Name != "b" || status.Blocking[0].Reason != "RolloutInProgress" || status.RunLevel != 20 {
			t.Errorf("status while waiting: %+v", status)
		}
		cluster.mu.Lock()
		delete(cluster.hold, "b")
		cluster.mu.Unlock()
		w.Update(3, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		status = w.Status()
		if status.Applied.Version != "1.0.0" || !status.Reconciling || status.Failure != nil {
			t.Errorf("status after the rollback: %+v", status)
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

// A wait doesn't hold the lock of its object.
func TestARepairDuringAWaitAppliesTheNewVersion(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		cluster.mu.Lock()
		cluster.hold["b"] = make(chan struct{})
		cluster.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		cluster.take()
		w.Drifted(object("b"))
		synctest.Wait()
		if got := cluster.take(); !slices.Equal(got, []string{"apply b of 1.1.0 as Reconciling"}) {
			t.Errorf("log after a drift during the wait is %q", got)
		}
		close(cluster.hold["b"])
		synctest.Wait()
		if status := w.Status(); status.Applied.Version != "1.1.0" || status.DriftRepairs != 1 {
			t.Errorf("status: %+v", status)
		}
	})
}

// A repair that waits for the lock while a sync applies a new version must not
// revert it.
func TestARepairThatWaitedForTheLockAppliesTheNewVersion(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		answer := make(chan struct{})
		cluster.mu.Lock()
		cluster.slow["b"] = answer
		cluster.mu.Unlock()
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait() // b is being applied.
		w.Drifted(object("b"))
		synctest.Wait()
		cluster.take()
		close(answer)
		synctest.Wait()
		for _, line := range cluster.take() {
			if strings.HasPrefix(line, "apply b of 1.0.0") {
				t.Errorf("%q after 1.1.0 was applied", line)
			}
		}
		if status := w.Status(); status.Applied.Version != "1.1.0" {
			t.Errorf("status: %+v", status)
		}
	})
}

// In a first install an object can depend on one of a later run level: the worker
// applies all objects, then awaits them concurrently.
func TestAFirstInstallAwaitsAllObjectsAfterApply(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		a, c := make(chan struct{}), make(chan struct{})
		cluster.hold["a"], cluster.hold["c"] = a, c
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		got := cluster.take()
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
			t.Errorf("status while c isn't ready: %+v", status)
		}
		close(c)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling || status.Done != 3 {
			t.Errorf("status at the end: %+v", status)
		}
	})
}

// Retries and further syncs don't reset an object's health timeout.
func TestRetriesDoNotResetAHealthTimeout(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		cluster.limit = time.Minute
		held := make(chan struct{})
		cluster.hold["b"] = held
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if status := w.Status(); status.Failure != nil {
			t.Errorf("failure before the timeout: %v", status.Failure)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		status := w.Status()
		if status.Failure == nil || status.Failure.Reason() != "HealthCheckTimeout" || status.Attempt != 1 {
			t.Errorf("status after the timeout: %+v", status)
		}
		cluster.take()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := strings.Join(cluster.take(), "\n"); !strings.Contains(got, "await b after 1m") {
			t.Errorf("log of the next sync is %q, want the time of the first wait to count", got)
		}
		close(held)
		w.SetHealth(object("b"), nil, 0)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling || len(status.Waits) != 0 {
			t.Errorf("status at the end: %+v", status)
		}
	})
}

func TestTransientErrorsAreRetriedWithinASync(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		cluster.failures["b"] = maxAttempts - 1
		cluster.failures["c"] = maxAttempts + 1
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
			t.Errorf("status after the next sync: %+v", status)
		}
	})
}

func TestAWorkerEndsWithItsContextDuringAWait(t *testing.T) {
	withWorker(t, Config{}, func(_ *testing.T, w *SyncWorker, cluster *fakeCluster) {
		cluster.hold["a"] = make(chan struct{})
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		w.Drifted(object("a")) // waits for the lock that the sync holds
		synctest.Wait()
	})
}

func TestAPauseStopsTheSyncAndHoldsRepairs(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		cluster.hold["b"] = make(chan struct{})
		w.Update(1, desired("1.0.0"), nil, payload.Updating)
		synctest.Wait()
		w.Pause(true)
		synctest.Wait()
		cluster.take()
		w.Drifted(object("a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := cluster.take(); len(got) != 0 || !w.Status().Paused {
			t.Errorf("log while paused is %q", got)
		}
		close(cluster.hold["b"])
		w.Pause(false)
		synctest.Wait()
		if status := w.Status(); !status.Reconciling {
			t.Errorf("status after the pause: %+v", status)
		}
	})
}

func TestAShorterIntervalAdvancesTheNextSync(t *testing.T) {
	withWorker(t, Config{}, func(t *testing.T, w *SyncWorker, _ *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
		synctest.Wait()
		w.SetInterval(10 * time.Second)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := w.Status().Completed; got != 2 {
			t.Errorf("%d syncs after a shorter interval, want 2", got)
		}
	})
}

// countingReporter counts reports.
type countingReporter struct{ reports int }

func (d *countingReporter) Report(SyncWorkerStatus) { d.reports++ }

func TestAnUnchangedUpdateReportsNothing(t *testing.T) {
	reporter := &countingReporter{}
	withWorker(t, Config{Reporter: reporter}, func(t *testing.T, w *SyncWorker, _ *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		before := reporter.reports
		for range 3 {
			w.Update(1, desired("1.0.0"), nil, payload.Reconciling)
			w.Pause(false)
			w.RetryNow()
			w.Drifted(object("unknown"))
		}
		synctest.Wait()
		if before == 0 || reporter.reports != before {
			t.Errorf("%d reports, then %d", before, reporter.reports)
		}
	})
}

func TestUpdateBeforeStartTakesEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := &fakeCluster{payloads: map[string]*payload.Payload{"1.0.0": testPayload(t, "1.0.0", "a")}, failures: map[string]int{}}
		w, err := New(Config{Retriever: cluster, Preconditions: cluster, Builder: cluster, Interval: time.Minute, Now: virtualNow})
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

func TestNewRejectsAnIncompleteConfig(t *testing.T) {
	cluster := &fakeCluster{}
	for name, config := range map[string]Config{
		"nothing":     {},
		"no interval": {Retriever: cluster, Preconditions: cluster, Builder: cluster, Now: virtualNow},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// recordingReporter records reports.
type recordingReporter struct {
	mu  sync.Mutex
	all []SyncWorkerStatus
}

func (r *recordingReporter) Report(s SyncWorkerStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
}

func (r *recordingReporter) take() []SyncWorkerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

func TestSyncsOfACompleteReleaseAreNoProgress(t *testing.T) {
	reporter := &recordingReporter{}
	withWorker(t, Config{Reporter: reporter}, func(t *testing.T, w *SyncWorker, _ *fakeCluster) {
		t.Helper()
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		first := w.Status()
		reporter.take()
		time.Sleep(300 * time.Second)
		synctest.Wait()
		if n := w.Status().Completed; n < 4 {
			t.Fatalf("%d syncs ended, want some after the first", n)
		}
		type progress struct {
			step               Step
			done, run, skipped int
			last               time.Time
		}
		want := progress{first.Step, first.Done, first.RunLevel, first.Skipped, first.LastProgress}
		for _, s := range reporter.take() {
			if got := (progress{s.Step, s.Done, s.RunLevel, s.Skipped, s.LastProgress}); got != want {
				t.Fatalf("a sync of a complete release reports %+v, want %+v as before", got, want)
			}
		}
	})
}

func TestBeforeApplyPrecedesTheFirstWrite(t *testing.T) {
	var calls *fakeCluster
	var works atomic.Bool
	beforeApply := func(_ context.Context, work SyncWork) error {
		calls.record("before-apply %s", work.Desired.Version)
		if !works.Load() {
			return errors.New("not persisted")
		}
		return nil
	}
	withWorker(t, Config{BeforeApply: beforeApply}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		calls = cluster
		w.Update(1, desired("1.0.0"), nil, payload.Initializing)
		synctest.Wait()
		if got := cluster.take(); !slices.Equal(got, []string{"before-apply 1.0.0"}) || w.Status().Failure == nil {
			t.Errorf("log is %q, want no writes after an error: %v", got, w.Status().Failure)
		}
		works.Store(true)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if got := cluster.take(); len(got) < 3 || got[0] != "before-apply 1.0.0" || got[1] != "begin 1.0.0" {
			t.Errorf("log is %q, want before-apply first", got)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if got := cluster.take(); slices.Contains(got, "before-apply 1.0.0") {
			t.Errorf("log is %q, want one before-apply", got)
		}
	})
}

func TestCallbacksReceiveTheResultOfEachManifestAndSync(t *testing.T) {
	results, manifests := map[string]int{}, map[string]int{}
	ended := func(m *payload.Manifest, err *UpdateError) {
		if err != nil {
			results[m.ID.Name+" "+err.Code]++
			return
		}
		results[m.ID.Name]++
	}
	syncs := map[bool]int{}
	withWorker(t, Config{ManifestEnded: ended, SyncEnded: func(complete bool) { syncs[complete]++ }}, func(t *testing.T, w *SyncWorker, cluster *fakeCluster) {
		t.Helper()
		cluster.failures["b"] = maxAttempts
		w.Update(1, desired("1.0.0"), []Override{{ID: object("c")}}, payload.Initializing)
		synctest.Wait()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		w.Drifted(object("a"))
		synctest.Wait()
		manifests = maps.Clone(results)
		// a stopped sync isn't reported
		hold := make(chan struct{})
		cluster.hold["d"] = hold
		w.Update(2, desired("1.1.0"), nil, payload.Updating)
		synctest.Wait()
		w.Pause(true)
		synctest.Wait()
	})
	if want := map[bool]int{false: 1, true: 1}; !maps.Equal(syncs, want) {
		t.Errorf("syncs by completion: %v, want %v", syncs, want)
	}
	// One sync in which b fails after its retries, one in which it succeeds, and the
	// repair of a; c is unmanaged.
	if want := map[string]int{"a": 3, "b": 1, "b ResourceInvalid": 1}; !maps.Equal(manifests, want) {
		t.Errorf("results %v, want %v", manifests, want)
	}
}
