// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
)

// load performs a startLoad.
func (w *SyncWorker) load(ctx context.Context, a startLoad) {
	step := func(s Step) { w.dispatch(loadStepped{a.number, s}) }
	ctx = context.WithValue(ctx, stepKey{}, step)
	info, violations, err := w.retrieve(ctx, a, step)
	w.dispatch(loaded{number: a.number, info: info, violations: violations, err: err})
}

// retrieve gets the release and checks it.
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

// managed is the payload without the objects that are left to people: whether
// the server would take those doesn't matter.
func managed(p *payload.Payload, overrides []Override) *payload.Payload {
	if len(overrides) == 0 {
		return p
	}
	out := *p
	out.Manifests = slices.DeleteFunc(slices.Clone(p.Manifests), func(m payload.Manifest) bool { return overridden(overrides, m.ID) })
	return &out
}

// pass performs a startPass.
func (w *SyncWorker) pass(ctx context.Context, a startPass) {
	err := w.begin(ctx, a)
	complete := false
	if err == nil {
		w.dispatch(passStepped{a.number, StepApplyManifests})
		run := &passRun{w: w, startPass: a}
		graph := taskgraph.Build(a.payload.Manifests, a.work.State, a.order)
		complete = taskgraph.Walk(ctx, graph, w.width(a.work.State), run.applyOne).Complete() && run.awaitLater(ctx)
		if complete {
			w.dispatch(passStepped{a.number, StepPruneObjects})
			err = w.config.Builder.Prune(ctx, a.payload)
		}
	}
	end := passed{number: a.number, complete: complete}
	if err != nil {
		end.err = asUpdateError(payload.ObjectID{}, err)
	}
	w.dispatch(end)
}

func (w *SyncWorker) begin(ctx context.Context, a startPass) error {
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

// width is how many objects are applied at once. Reconciling repairs what is
// rarely broken, beside what the cluster is there for.
func (w *SyncWorker) width(state payload.State) int {
	if state == payload.Reconciling {
		return max(w.workers/2, 2)
	}
	return w.workers
}

// passRun is one pass on its way.
type passRun struct {
	startPass
	w *SyncWorker

	mu sync.Mutex
	// later are the objects that are waited for when all are applied.
	later []laterWait
}

type laterWait struct {
	manifest *payload.Manifest
	written  Written
}

// applyOne applies one manifest of the pass and waits for its object where what
// follows depends on it. Its error decides whether that goes on.
func (p *passRun) applyOne(ctx context.Context, m *payload.Manifest) error {
	if overridden(p.work.Overrides, m.ID) {
		p.w.dispatch(appliedOne{number: p.number, manifest: m, skipped: true})
		return nil
	}
	written, err := p.applyPatiently(ctx, m)
	switch {
	case err != nil, written.Done, p.work.State == payload.Reconciling:
		return p.ended(m, err)
	case p.work.State.WaitsFor(m.ID):
		return p.ended(m, p.await(ctx, m, written))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.later = append(p.later, laterWait{m, written})
	return nil
}

// ended tells how it went with one manifest.
func (p *passRun) ended(m *payload.Manifest, err *UpdateError) error {
	p.w.dispatch(appliedOne{number: p.number, manifest: m, err: err})
	if err == nil || err.Effect == EffectReport {
		return nil
	}
	return err
}

// await waits until an object is level.
func (p *passRun) await(ctx context.Context, m *payload.Manifest, written Written) *UpdateError {
	ctx = context.WithValue(ctx, waitingKey{}, func(waiting Waiting) { p.w.dispatch(waitingFor{p.number, m, waiting}) })
	if err := p.w.config.Builder.Await(ctx, m, written, p.w.spent(m.ID)); err != nil {
		return asUpdateError(m.ID, err)
	}
	return nil
}

// awaitLater waits for what the walk left to be waited for, all at once: in a
// first release one object may need another that comes after it. It reports
// whether all are level.
func (p *passRun) awaitLater(ctx context.Context) bool {
	if len(p.later) == 0 {
		return true
	}
	p.w.dispatch(passStepped{p.number, StepAwaitReady})
	failed := make([]bool, len(p.later))
	var group sync.WaitGroup
	for i, l := range p.later {
		group.Go(func() { failed[i] = p.ended(l.manifest, p.await(ctx, l.manifest, l.written)) != nil })
	}
	group.Wait()
	return !slices.Contains(failed, true)
}

// Tries of one manifest within a pass: what is over in a moment, such as a
// webhook that just starts, needn't wait for the next pass.
const (
	maxTries   = 3
	firstPause = time.Second
)

// applyPatiently applies one manifest and tries a few times where that may
// help.
func (p *passRun) applyPatiently(ctx context.Context, m *payload.Manifest) (Written, *UpdateError) {
	pause := firstPause
	for try := 1; ; try++ {
		written, err := p.apply(ctx, m)
		if err == nil || !err.Retry || err.Effect != EffectFail || try == maxTries || !sleep(ctx, pause) {
			return written, err
		}
		pause *= 2
	}
}

// apply applies one manifest while nobody else does. That the object was
// reached is told before anybody else may: a repair that waits for it wants to
// know by which payload.
func (p *passRun) apply(ctx context.Context, m *payload.Manifest) (Written, *UpdateError) {
	unlock, err := p.w.locks.lock(ctx, m.ID)
	if err != nil {
		return Written{}, asUpdateError(m.ID, err)
	}
	defer unlock()
	written, err := p.w.config.Builder.Apply(ctx, m, p.work.State)
	if err != nil {
		return Written{}, asUpdateError(m.ID, err)
	}
	p.w.dispatch(wrote{p.number, m})
	return written, nil
}

// sleep waits and reports whether ctx is still good.
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

// repair performs a repair. It doesn't wait for the object to become level.
// What the object should be like is asked anew once nobody else applies it: the
// pass may have brought it to the next version meanwhile.
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
		w.dispatch(repaired{id: id, moot: true})
		return
	}
	_, err = w.config.Builder.Apply(ctx, m, payload.Reconciling)
	switch {
	case err == nil:
		w.dispatch(repaired{id: id})
	case !errors.Is(err, context.Canceled):
		w.dispatch(repaired{id: id, err: asUpdateError(id, err)})
	}
}
