// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// objectBuilder applies a release's objects and waits until they are level. It
// implements worker.ResourceBuilder over an apply engine and package health.
type objectBuilder struct {
	engine *apply.Engine
	health *health.Checker
	now    func() time.Time

	mu     sync.Mutex
	policy buildPolicy
}

// buildPolicy is what the ClusterRelease's spec says about applying.
type buildPolicy struct {
	adopt       []string
	timeout     time.Duration
	components  map[string]componentPolicy
	prune       bool
	maxFraction int
}

// componentPolicy says what an unhealthy component does to the rest.
type componentPolicy struct {
	warn    bool
	timeout time.Duration
}

func (b *objectBuilder) setPolicy(p buildPolicy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy = p
}

func (b *objectBuilder) current() buildPolicy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.policy
}

// DryRun implements worker.ResourceBuilder. Everything that the server would
// refuse is told at once, before the first write.
func (b *objectBuilder) DryRun(ctx context.Context, target *payload.Payload) error {
	problems, err := b.engine.DryRun(ctx, target.Manifests)
	if err != nil || len(problems) == 0 {
		return err
	}
	const shown = 5
	var lines []string
	retry := true
	for i, p := range problems {
		retry = retry && retriable(p.Err)
		if i < shown {
			lines = append(lines, fmt.Sprintf("%s: %v", p.ID, p.Err))
		}
	}
	if cut := len(problems) - shown; cut > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", cut))
	}
	return &worker.UpdateError{
		Code: reasonOf(problems[0].Err, "DryRunRefused"), Object: problems[0].ID, Retry: retry,
		Message: "the API server would refuse " + strings.Join(lines, "; "),
	}
}

// Begin implements worker.ResourceBuilder.
func (b *objectBuilder) Begin(ctx context.Context, target *payload.Payload) error {
	return b.engine.Begin(ctx, target.Manifests, b.current().adopt)
}

// Apply implements worker.ResourceBuilder.
func (b *objectBuilder) Apply(ctx context.Context, m *payload.Manifest, state payload.State) error {
	mode := apply.Reconciling
	if state != payload.Reconciling {
		mode = apply.Updating
	}
	change, err := b.engine.Apply(ctx, m, mode)
	if err != nil {
		return err
	}
	if !state.Waits() || m.Delete || change.Finished {
		return nil
	}
	return b.await(ctx, m, change)
}

// await waits until the object is level, at most as long as its component may
// take. A component that only warns is reported and not waited for longer than
// its deadline either.
func (b *objectBuilder) await(ctx context.Context, m *payload.Manifest, change apply.Change) error {
	p := b.current()
	component := p.components[m.Component]
	timeout := p.timeout
	if component.timeout > 0 {
		timeout = component.timeout
	}
	deadline := b.now().Add(timeout)
	err := b.health.Wait(ctx, m, change.ResourceVersion, timeout, func(v health.Verdict) {
		worker.ReportWaiting(ctx, worker.Waiting{Reason: v.Reason, Message: v.Message, Deadline: deadline})
	})
	if err == nil || !component.warn || errors.Is(err, context.Canceled) {
		return err
	}
	return &worker.UpdateError{
		Code: reasonOf(err, worker.ReasonFailed), Effect: worker.EffectReport, Object: m.ID, Nested: err, Retry: true,
	}
}

// Prune implements worker.ResourceBuilder.
func (b *objectBuilder) Prune(ctx context.Context, keep *payload.Payload) error {
	p := b.current()
	if !p.prune {
		return nil
	}
	ids := make(map[payload.ObjectID]bool, len(keep.Manifests))
	for i := range keep.Manifests {
		ids[keep.Manifests[i].ID] = true
	}
	_, err := b.engine.Prune(ctx, ids, apply.PruneOptions{MaxFraction: p.maxFraction})
	return err
}
