// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// objectBuilder applies a release's objects and waits until they are ready. It
// implements worker.ResourceBuilder with an apply engine and package health.
type objectBuilder struct {
	engine *apply.Engine
	health *health.Checker
	// monitor observes the health of applied objects.
	monitor *health.Monitor
	now     func() time.Time

	// unsettled returns why it isn't known yet which objects other releases claim,
	// "" if it is; nil if there are no other releases.
	unsettled func(ctx context.Context) string
	// pruning reports what the last prune left.
	pruning func(message string)

	mu     sync.Mutex
	policy buildPolicy
	// postponed is set while a prune waits for unsettled, held while one left
	// objects that others claim.
	postponed, held bool
}

// buildPolicy is the apply policy of a ClusterRelease's spec.
type buildPolicy struct {
	adopt      []string
	timeout    time.Duration
	components map[string]componentPolicy
	prune      bool
	maxPercent int
	// unmanaged objects are neither applied nor pruned.
	unmanaged []worker.Override
}

// componentPolicy is the policy for an unhealthy component: warn reports it and
// continues with the other components.
type componentPolicy struct {
	warn    bool
	timeout time.Duration
}

// warnTimeout is how long an update waits for a component with policy warn and
// without a timeout of its own.
const warnTimeout = time.Minute

// of returns the policy of a component, with the timeout that applies to it.
func (p buildPolicy) of(component string) componentPolicy {
	out := p.components[component]
	switch {
	case out.timeout > 0:
	case out.warn:
		out.timeout = min(warnTimeout, p.timeout)
	default:
		out.timeout = p.timeout
	}
	return out
}

func (b *objectBuilder) setPolicy(p buildPolicy) {
	b.mu.Lock()
	changed := !reflect.DeepEqual(p, b.policy)
	b.policy = p
	b.mu.Unlock()
	b.engine.Adopt(p.adopt) // for a dry run before Begin
	if changed {
		b.monitor.Resend()
	}
}

func (b *objectBuilder) current() buildPolicy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.policy
}

// DryRun implements worker.ResourceBuilder. It reports all rejected objects at
// once, before the first write.
func (b *objectBuilder) DryRun(ctx context.Context, target *payload.Payload) error {
	problems, err := b.engine.DryRun(ctx, target.Manifests)
	if err != nil || len(problems) == 0 {
		return err
	}
	const shown = 5
	var lines []string
	retry := true
	for i, p := range problems {
		retry = retry && control.Retriable(p.Err)
		if i < shown {
			lines = append(lines, p.Err.Error())
		}
	}
	if cut := len(problems) - shown; cut > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", cut))
	}
	return &worker.UpdateError{
		Code: control.ReasonOf(problems[0].Err, "DryRunRefused"), Object: problems[0].ID, Retry: retry,
		Message: "server-side dry run: " + strings.Join(lines, "; "),
	}
}

// Begin implements worker.ResourceBuilder.
func (b *objectBuilder) Begin(ctx context.Context, target *payload.Payload) error {
	if err := b.engine.Begin(ctx, target.Manifests, b.current().adopt); err != nil {
		return err
	}
	b.monitor.Set(target.Manifests)
	return nil
}

// Apply implements worker.ResourceBuilder.
func (b *objectBuilder) Apply(ctx context.Context, m *payload.Manifest, state payload.State) (worker.Written, error) {
	mode := apply.Reconciling
	if state != payload.Reconciling {
		mode = apply.Updating
	}
	change, err := b.engine.Apply(ctx, m, mode)
	if err != nil {
		return worker.Written{}, err
	}
	if change.Failed != nil {
		return worker.Written{}, b.current().of(m.Component).wrap(m, change.Failed)
	}
	written := worker.Written{
		ResourceVersion: change.ResourceVersion,
		Done:            m.Delete || change.Finished || m.Wait == payload.WaitNone || !live.NeedsBody(m),
		Deferred:        change.Action == apply.Deferred,
	}
	if o := change.Respecified; o != nil {
		written.Outdated = health.DigestOf(o.Status, o.OtherManagers)
	}
	return written, nil
}

// warnGrace is the time in which an object can become ready although its timeout is
// used up, as in package health.
const warnGrace = 6 * time.Second

// errContinue ends the wait for an object of a component with policy warn.
var errContinue = errors.New("the update continues")

// Await implements worker.ResourceBuilder. A component with policy warn delays an
// update by at most its timeout, also while the clock of an object is stopped.
func (b *objectBuilder) Await(ctx context.Context, m *payload.Manifest, written worker.Written, spent time.Duration) error {
	policy := b.current().of(m.Component)
	var last health.Verdict
	if policy.warn {
		var cancel context.CancelFunc
		// The waiter ends first while its clock runs.
		ctx, cancel = context.WithTimeoutCause(ctx, max(policy.timeout-spent, 0)+warnGrace, errContinue)
		defer cancel()
	}
	applied := health.Applied{ResourceVersion: written.ResourceVersion, Outdated: written.Outdated}
	err := b.health.Wait(ctx, m, applied, health.Budget{Total: policy.timeout, Spent: spent}, func(v health.Verdict, spent time.Duration) {
		last = v
		waiting := worker.Waiting{Reason: v.Reason, Message: v.Message, Spent: spent, Stopped: v.Waiting}
		if !v.Waiting {
			waiting.Deadline = b.now().Add(policy.timeout - spent)
		}
		worker.ReportWaiting(ctx, waiting)
	})
	if errors.Is(err, errContinue) {
		err = &worker.UpdateError{Code: last.Reason, Object: m.ID, Message: last.Message, Retry: true}
	}
	return policy.wrap(m, err)
}

// wrap adds the effect of the policy to an object's error.
func (p componentPolicy) wrap(m *payload.Manifest, err error) error {
	if err == nil || !p.warn || errors.Is(err, context.Canceled) {
		return err
	}
	return &worker.UpdateError{
		Code: control.ReasonOf(err, worker.ReasonFailed), Effect: worker.EffectReport, Object: m.ID, Nested: err, Retry: true,
	}
}

// unhealthyGrace is how long an object of a complete release may be unhealthy
// before the release is failing: pods are unavailable for minutes while their node
// is drained for an OS update.
const unhealthyGrace = 10 * time.Minute

// healthError returns the error of an unhealthy object of a complete release, and
// the time after which the release is failing: none if the object's own status
// reports a failure, the component's timeout for a NodeOS.
func (b *objectBuilder) healthError(m *payload.Manifest, v health.Verdict) (err *worker.UpdateError, grace time.Duration) {
	if v.Ready {
		return nil, 0
	}
	policy := b.current().of(m.Component)
	err = &worker.UpdateError{Code: v.Reason, Effect: worker.EffectFailAfterInterval, Object: m.ID, Message: v.Message, Retry: true}
	switch {
	case policy.warn:
		err.Effect = worker.EffectReport
	case v.Waiting:
		err.Effect = worker.EffectNone
	case v.Failed:
	case m.ID.Group == payload.Group && m.ID.Kind == payload.KindNodeOS:
		grace = policy.timeout
	default:
		grace = min(policy.timeout, unhealthyGrace)
	}
	return err, grace
}

// Prune implements worker.ResourceBuilder.
func (b *objectBuilder) Prune(ctx context.Context, keep *payload.Payload) (worker.Pruning, error) {
	p := b.current()
	if !p.prune {
		return b.pruningState(0, ""), nil
	}
	ids := make(map[payload.ObjectID]bool, len(keep.Manifests))
	for i := range keep.Manifests {
		ids[keep.Manifests[i].ID] = true
	}
	for _, o := range p.unmanaged {
		ids[o.ID] = true
	}
	if b.unsettled != nil && b.engine.Leaves(ids) {
		if why := b.unsettled(ctx); why != "" {
			held := "prune postponed: " + why
			b.setWaits(true, false, held)
			return b.pruningState(0, held), nil
		}
	}
	result, err := b.engine.Prune(ctx, ids, apply.PruneOptions{MaxPercent: p.maxPercent})
	message := ""
	if n := len(result.Held); n > 0 {
		message = fmt.Sprintf("%d objects aren't pruned, since other releases claim them, such as %s claims %s", n, result.Held[0].By, result.Held[0].ID)
	}
	b.setWaits(false, len(result.Held) > 0, message)
	return b.pruningState(result.Waiting, message), err
}

// maxLeaving limits the objects of a worker.Pruning.
const maxLeaving = 20

// pruningState returns the state of all deletions, the oldest ones first.
func (b *objectBuilder) pruningState(waiting int, held string) worker.Pruning {
	leaving := b.engine.Leaving()
	out := worker.Pruning{Total: len(leaving), Waiting: waiting, Held: held}
	slices.SortStableFunc(leaving, func(a, b apply.Leaving) int { return a.Since.Compare(b.Since) })
	for _, l := range leaving[:min(len(leaving), maxLeaving)] {
		out.Leaving = append(out.Leaving, leavingOf(l))
	}
	return out
}

// leavingOf returns an object that is being deleted as the worker reports it.
func leavingOf(l apply.Leaving) worker.Leaving {
	return worker.Leaving{Object: l.ID, Since: l.Since, Finalizers: l.Finalizers, Content: l.Content}
}

// setWaits records why the last prune left objects.
func (b *objectBuilder) setWaits(postponed, held bool, message string) {
	b.mu.Lock()
	changed := postponed != b.postponed || held != b.held
	b.postponed, b.held = postponed, held
	b.mu.Unlock()
	if changed && message != "" && b.pruning != nil {
		b.pruning(message)
	}
}

// waits returns whether the last prune was postponed, or left objects that others
// claim.
func (b *objectBuilder) waits() (postponed, held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.postponed, b.held
}
