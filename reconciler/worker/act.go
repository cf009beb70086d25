// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
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
	return info, violations, w.config.Builder.DryRun(ctx, info.Payload)
}

// pass performs a startPass.
func (w *SyncWorker) pass(ctx context.Context, a startPass) {
	err := w.begin(ctx, a)
	complete := false
	if err == nil {
		w.dispatch(passStepped{a.number, StepApplyManifests})
		graph := taskgraph.Build(a.payload.Manifests, a.work.State, a.order)
		result := taskgraph.Walk(ctx, graph, w.width(a.work.State), func(ctx context.Context, m *payload.Manifest) error {
			return w.applyOne(ctx, a, m)
		})
		if complete = result.Complete(); complete {
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

// applyOne applies one manifest of a pass. Its error decides whether what
// depends on the object goes on.
func (w *SyncWorker) applyOne(ctx context.Context, a startPass, m *payload.Manifest) error {
	if overridden(a.work.Overrides, m.ID) {
		w.dispatch(appliedOne{number: a.number, manifest: m, skipped: true})
		return nil
	}
	ctx = context.WithValue(ctx, waitingKey{}, func(waiting Waiting) { w.dispatch(waitingFor{a.number, m, waiting}) })
	err := w.applyPatiently(ctx, m, a.work.State)
	w.dispatch(appliedOne{number: a.number, manifest: m, err: err})
	if err == nil || err.Effect == EffectReport {
		return nil
	}
	return err
}

// Tries of one manifest within a pass: what is over in a moment, such as a
// webhook that just starts, needn't wait for the next pass.
const (
	maxTries   = 3
	firstPause = time.Second
)

// applyPatiently applies one manifest and tries a few times where that may
// help.
func (w *SyncWorker) applyPatiently(ctx context.Context, m *payload.Manifest, state payload.State) *UpdateError {
	pause := firstPause
	for try := 1; ; try++ {
		err := w.applyLocked(ctx, m, state)
		if err == nil || !err.Retry || err.Effect != EffectFail || try == maxTries || !sleep(ctx, pause) {
			return err
		}
		pause *= 2
	}
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

// applyLocked applies one manifest while nobody else does.
func (w *SyncWorker) applyLocked(ctx context.Context, m *payload.Manifest, state payload.State) *UpdateError {
	unlock, err := w.locks.lock(ctx, m.ID)
	if err == nil {
		err = w.config.Builder.Apply(ctx, m, state)
		unlock()
	}
	if err == nil {
		return nil
	}
	return asUpdateError(m.ID, err)
}

// repair performs a repair. It doesn't wait for the object to become level.
func (w *SyncWorker) repair(ctx context.Context, m *payload.Manifest) {
	err := w.applyLocked(ctx, m, payload.Reconciling)
	if err != nil && errors.Is(err, context.Canceled) {
		return
	}
	w.dispatch(repaired{id: m.ID, err: err})
}
