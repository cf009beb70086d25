// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
)

// load performs startLoad.
func (w *SyncWorker) load(ctx context.Context, a startLoad) {
	step := func(s Step) { w.dispatch(loadStepped{a.number, s}) }
	ctx = context.WithValue(ctx, stepKey{}, step)
	info, violations, err := w.retrieve(ctx, a, step)
	w.dispatch(loaded{number: a.number, info: info, violations: violations, err: err})
}

// retrieve retrieves and checks the release.
func (w *SyncWorker) retrieve(ctx context.Context, a startLoad, step func(Step)) (PayloadInfo, []precondition.Violation, error) {
	info, err := w.config.Retriever.RetrievePayload(ctx, a.desired)
	if err != nil || info.Payload == nil || !a.check {
		return info, nil, err
	}
	step(StepPreconditionChecks)
	violations, err := w.config.Preconditions.Check(ctx, a.desired, info.Payload, a.current)
	if err != nil || !a.dryRun || precondition.Blocks(violations) {
		return info, violations, err
	}
	step(StepDryRun)
	return info, violations, w.config.Builder.DryRun(ctx, managed(info.Payload, a.current.Overrides))
}

// managed returns the payload without unmanaged objects, which are neither
// applied nor dry-run.
func managed(p *payload.Payload, overrides []Override) *payload.Payload {
	if len(overrides) == 0 {
		return p
	}
	out := *p
	out.Manifests = slices.DeleteFunc(slices.Clone(p.Manifests), func(m payload.Manifest) bool { return overridden(overrides, m.ID) })
	return &out
}

// sync performs startSync.
func (w *SyncWorker) sync(ctx context.Context, a startSync) {
	err := w.begin(ctx, a)
	complete := false
	var pruning Pruning
	if err == nil {
		w.dispatch(syncStepped{a.number, StepApplyManifests})
		run := &syncRun{w: w, startSync: a, applied: map[*payload.Manifest]Written{}}
		graph := taskgraph.Build(a.payload.Manifests, a.work.State, a.order)
		complete = taskgraph.Walk(ctx, graph, w.width(a.work.State), run.applyOne, run.awaitOne).Complete() && run.awaitRest(ctx)
		if complete {
			w.dispatch(syncStepped{a.number, StepPruneObjects})
			pruning, err = w.config.Builder.Prune(ctx, a.payload)
		}
	}
	end := syncEnded{number: a.number, complete: complete, pruning: pruning}
	if err != nil {
		end.err = asUpdateError(payload.ObjectID{}, err)
	}
	w.dispatch(end)
}

// prune performs startPrune.
func (w *SyncWorker) prune(ctx context.Context, a startPrune) {
	pruning, err := w.config.Builder.Prune(ctx, a.payload)
	w.dispatch(pruneEnded{pruning: pruning, failed: err != nil})
}

func (w *SyncWorker) begin(ctx context.Context, a startSync) error {
	if !a.begin {
		return nil
	}
	if w.config.BeforeApply != nil {
		if err := w.config.BeforeApply(ctx, a.work); err != nil {
			return err
		}
	}
	return w.config.Builder.Begin(ctx, a.payload)
}

// width limits how many objects are applied at once. Reconciling rarely writes
// and leaves capacity to the workloads of the cluster.
func (w *SyncWorker) width(state payload.State) int {
	if state == payload.Reconciling {
		return max(w.workers/2, 2)
	}
	return w.workers
}

// syncRun is a running sync.
type syncRun struct {
	startSync
	w *SyncWorker

	mu sync.Mutex
	// applied are the objects that weren't awaited yet.
	applied map[*payload.Manifest]Written
}

// applyOne applies one manifest. An error stops the manifests that depend on it.
func (p *syncRun) applyOne(ctx context.Context, m *payload.Manifest) error {
	if overridden(p.work.Overrides, m.ID) {
		p.w.dispatch(manifestDone{number: p.number, manifest: m, skipped: true})
		return nil
	}
	written, err := p.applyWithRetries(ctx, m)
	if err != nil || written.Done || p.work.State == payload.Reconciling {
		return p.done(m, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied[m] = written
	return nil
}

// awaitOne waits until an applied object is ready.
func (p *syncRun) awaitOne(ctx context.Context, m *payload.Manifest) error {
	p.mu.Lock()
	written, ok := p.applied[m]
	delete(p.applied, m)
	p.mu.Unlock()
	if !ok {
		return nil // It was skipped, has nothing to await, or its error was reported.
	}
	return p.done(m, p.await(ctx, m, written))
}

// done dispatches the result of one manifest. It returns the errors that stop
// later manifests.
func (p *syncRun) done(m *payload.Manifest, err *UpdateError) error {
	p.w.dispatch(manifestDone{number: p.number, manifest: m, err: err})
	if err == nil || err.Effect == EffectReport {
		return nil
	}
	return err
}

// await waits until an object is ready.
func (p *syncRun) await(ctx context.Context, m *payload.Manifest, written Written) *UpdateError {
	ctx = context.WithValue(ctx, waitingKey{}, func(waiting Waiting) { p.w.dispatch(waitingFor{p.number, m, waiting}) })
	if err := p.w.config.Builder.Await(ctx, m, written, p.w.spent(m.ID)); err != nil {
		return asUpdateError(m.ID, err)
	}
	return nil
}

// awaitRest waits for the objects that the graph doesn't await, all at once: in a
// first install an object can depend on one of a later run level. It reports whether
// all are ready.
func (p *syncRun) awaitRest(ctx context.Context) bool {
	if len(p.applied) == 0 {
		return true
	}
	p.w.dispatch(syncStepped{p.number, StepAwaitReady})
	rest := slices.Collect(maps.Keys(p.applied))
	failed := make([]bool, len(rest))
	var group sync.WaitGroup
	for i, m := range rest {
		group.Go(func() { failed[i] = p.awaitOne(ctx, m) != nil })
	}
	group.Wait()
	return !slices.Contains(failed, true)
}

// Attempts to apply one manifest within a sync: transient errors, such as a webhook
// that is starting, don't wait for the next sync.
const (
	maxAttempts     = 3
	firstRetryDelay = time.Second
)

// applyWithRetries applies one manifest and retries transient errors.
func (p *syncRun) applyWithRetries(ctx context.Context, m *payload.Manifest) (Written, *UpdateError) {
	delay := firstRetryDelay
	for attempt := 1; ; attempt++ {
		written, err := p.apply(ctx, m)
		if err == nil || !err.Retry || err.Effect != EffectFail || attempt == maxAttempts || !sleep(ctx, delay) {
			return written, err
		}
		delay *= 2
	}
}

// apply applies one manifest under the lock of its object. It dispatches before it
// unlocks, so that a waiting repair applies the same payload.
func (p *syncRun) apply(ctx context.Context, m *payload.Manifest) (Written, *UpdateError) {
	unlock, err := p.w.locks.lock(ctx, m.ID)
	if err != nil {
		return Written{}, asUpdateError(m.ID, err)
	}
	defer unlock()
	written, err := p.w.config.Builder.Apply(ctx, m, p.work.State)
	if err != nil {
		return Written{}, asUpdateError(m.ID, err)
	}
	p.w.dispatch(objectWritten{p.number, m})
	return written, nil
}

// sleep waits for d; it reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// repair performs repair; it doesn't wait until the object is ready. It selects the
// manifest under the lock of the object, because a sync may have updated it.
func (w *SyncWorker) repair(ctx context.Context, id payload.ObjectID) {
	unlock, err := w.locks.lock(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	w.mu.Lock()
	m := w.core.manifestToRepair(id)
	w.mu.Unlock()
	if m == nil {
		w.dispatch(repaired{id: id, obsolete: true})
		return
	}
	written, err := w.config.Builder.Apply(ctx, m, payload.Reconciling)
	switch {
	case err == nil:
		w.dispatch(repaired{id: id, deferred: written.Deferred})
	case !errors.Is(err, context.Canceled):
		w.dispatch(repaired{id: id, err: asUpdateError(id, err)})
	}
}
