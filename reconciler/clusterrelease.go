// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/config/version"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// releaseReconciler hands what a ClusterRelease asks for to its worker, and
// writes what the worker reports to its status.
type releaseReconciler struct {
	base
	opts     Options
	releases *releases
	sources  *sourceRuntimes
}

// Reconcile implements the controller of ClusterRelease.
func (r *releaseReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.waitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.ClusterRelease
	err := r.client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		return r.gone(ctx, req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	defer r.took(v1alpha1.KindClusterRelease, obj.Name, r.now())
	before := obj.DeepCopy()
	facts := status.ReleaseFacts{Spec: obj.Spec, Generation: obj.Generation, Insecure: r.opts.doors()}
	rt, err := r.act(ctx, &obj, &facts)
	if err != nil {
		return ctrl.Result{}, err
	}
	facts.Now = r.now()
	again := nextExpiry(&obj.Spec, facts.Now)
	if rt != nil {
		w := rt.worker.Status()
		if err := r.remember(ctx, rt, &obj, w); err != nil {
			return ctrl.Result{}, err
		}
		facts.Yielded = rt.yielded()
		blockers, err := rt.checks.blockers(ctx, rt.worker.Accepted())
		if err != nil {
			return ctrl.Result{}, err
		}
		for _, b := range blockers {
			facts.Objections = append(facts.Objections, status.Objection(b))
		}
		// A worker that wasn't asked for anything yet, since something holds the
		// release, knows less than the status says.
		if !w.Desired.Empty() {
			facts.Worker = w
		}
		if wait := nextLongWait(w.Waits, facts.Now); wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
		// Nothing is decided by it, so that nothing waits for it either.
		logOnce(r.releases.log.WithValues("release", obj.Name), rt.leftOut.Record(ctx, rt.worker.Accepted()), "what the payload leaves out can't be kept")
		if unknownYet(before, w, &facts) {
			return ctrl.Result{RequeueAfter: again}, nil
		}
	}
	obj.Status = status.Release(obj.Status, facts)
	if facts.Worker != nil {
		r.gauges.release(&obj, facts.Worker)
		if wait := rt.early(before, &obj, facts.Now); wait > 0 {
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
	return ctrl.Result{RequeueAfter: again}, r.patchStatus(ctx, before, &obj)
}

// act has the worker do what the object asks for, if it may be acted upon, and
// notes in facts why not. The runtime is nil while there is none.
func (r *releaseReconciler) act(ctx context.Context, obj *v1alpha1.ClusterRelease, facts *status.ReleaseFacts) (*releaseRuntime, error) {
	foreign := r.sources.notFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec)
	facts.Held = r.held(obj, obj.Spec.Suspend && foreign.Reason == "")
	if foreign.Reason != "" {
		// Wall 3: nothing that this spec says is acted upon, not even how the
		// runtime is made. What runs goes on as it was told before.
		rt := r.releases.get(obj.Name)
		if facts.Held.Reason == "" {
			facts.Held = foreign
		} else if rt != nil {
			rt.worker.Pause(true)
		}
		return rt, nil
	}
	rt, err := r.releases.ensure(ctx, obj)
	if err != nil {
		return nil, err
	}
	if facts.Held.Reason != "" {
		rt.worker.Pause(true)
		return rt, nil
	}
	if facts.Waiting, err = r.dependencies(ctx, obj); err != nil {
		return nil, err
	}
	from, revision, ok := r.sources.origin(v1alpha1.KindClusterRelease, obj.Name)
	if !ok {
		return rt, nil
	}
	desired := desiredOf(&obj.Spec, revision)
	if facts.Waiting != "" {
		kept, ok := keptWhileWaiting(r.store.Release(obj.Name).Accepted, desired)
		if !ok {
			rt.worker.Pause(true)
			return rt, nil
		}
		if kept.Equal(desired) {
			facts.Waiting = ""
		}
		desired = kept
	}
	r.drive(rt, obj, from, desired)
	return rt, nil
}

// keptWhileWaiting is what a release goes on with while another one that it
// depends on isn't ready: what it runs stays and is repaired, only what comes
// next waits. false: it runs nothing yet.
func keptWhileWaiting(chosen *state.Accepted, desired worker.Desired) (worker.Desired, bool) {
	if chosen == nil {
		return worker.Desired{}, false
	}
	kept := desiredAs(chosen, desired.Selection)
	if kept.Equal(desired) {
		return desired, true
	}
	return kept, true
}

// desiredAs is what was chosen, as it was asked for then. A store that doesn't
// know what was selected takes what is selected now.
func desiredAs(chosen *state.Accepted, now payload.Selection) worker.Desired {
	return worker.Desired{
		Identity: chosen.Identity, Revision: chosen.Revision, Selection: selectionAs(chosen.Selection, now),
	}
}

// isChosen reports whether the release that is asked for is the one that is
// being applied.
func isChosen(chosen *state.Accepted, desired worker.Desired) bool {
	return chosen != nil && chosen.Identity.Equal(desired.Identity)
}

// identityOf is the release that a spec names.
func identityOf(d v1alpha1.DesiredRelease) payload.Identity {
	return payload.Identity{Version: d.Version, Image: d.Image, Path: d.Path}
}

// desiredOf is what a ClusterRelease asks for at a revision of its source.
func desiredOf(spec *v1alpha1.ClusterReleaseSpec, revision string) worker.Desired {
	return worker.Desired{
		Identity:   identityOf(spec.Desired),
		Signatures: spec.Desired.Signatures, Revision: revision, Selection: selectionOf(spec),
	}
}

// gone ends the runtime of a release that doesn't exist. While a source still
// declares it, somebody deleted it by hand, and the source makes it anew: only
// Git decides what becomes of its objects.
func (r *releaseReconciler) gone(ctx context.Context, name string) (ctrl.Result, error) {
	r.forget(v1alpha1.KindClusterRelease, name)
	r.gauges.forget(name)
	r.releases.end(name)
	source, _, declared := r.store.Owner(v1alpha1.KindClusterRelease, name)
	if declared {
		var from v1alpha1.GitSource
		err := r.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: source}, &from)
		if err == nil {
			return ctrl.Result{RequeueAfter: 2 * time.Second}, nil
		}
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, r.releases.remove(ctx, name)
}

// unknownYet reports that this process doesn't know of the release yet what its
// status says: what an earlier process observed stands until it does.
func unknownYet(obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus, f *status.ReleaseFacts) bool {
	ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
	return w.Actual.Version == "" && w.Load.Failure == nil && f.Held.Reason == "" && f.Waiting == "" &&
		obj.Status.Accepted != nil && ready != nil && ready.ObservedGeneration == obj.Generation
}

// nextExpiry is the time until the next override expires, which no event tells;
// zero if none does.
func nextExpiry(spec *v1alpha1.ClusterReleaseSpec, now time.Time) time.Duration {
	var next time.Duration
	for _, o := range spec.Overrides {
		if !o.Unmanaged || o.Expires == nil {
			continue
		}
		if left := o.Expires.Sub(now); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// dependencies returns why the release must wait for others, or "". A circle
// waits for ever: it is said by name.
func (r *releaseReconciler) dependencies(ctx context.Context, obj *v1alpha1.ClusterRelease) (string, error) {
	if len(obj.Spec.DependsOn) == 0 {
		return "", nil
	}
	var list v1alpha1.ClusterReleaseList
	if err := r.client.List(ctx, &list, client.InNamespace(obj.Namespace)); err != nil {
		return "", fmt.Errorf("list the releases that %s may depend on: %w", obj.Name, err)
	}
	byName := make(map[string]*v1alpha1.ClusterRelease, len(list.Items))
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	return waitsFor(obj, byName), nil
}

// waitsFor is dependencies over what there is.
func waitsFor(obj *v1alpha1.ClusterRelease, all map[string]*v1alpha1.ClusterRelease) string {
	if way := circle(obj.Name, obj.Spec.DependsOn, all, map[string]bool{}); way != nil {
		return fmt.Sprintf("spec.dependsOn is a circle, %s → %s: take one of them out", obj.Name, strings.Join(way, " → "))
	}
	for _, name := range obj.Spec.DependsOn {
		other, ok := all[name]
		if !ok {
			return fmt.Sprintf("ClusterRelease/%s, which spec.dependsOn names, doesn't exist: declare it, or drop it from dependsOn", name)
		}
		ready := meta.FindStatusCondition(other.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != "True" || ready.ObservedGeneration != other.Generation {
			return fmt.Sprintf("waiting for ClusterRelease/%s to be ready", name)
		}
	}
	return ""
}

// circle returns the way from the names back to the goal, nil if there is none.
func circle(goal string, names []string, all map[string]*v1alpha1.ClusterRelease, seen map[string]bool) []string {
	for _, name := range names {
		if name == goal {
			return []string{goal}
		}
		if other, ok := all[name]; ok && !seen[name] {
			seen[name] = true
			if rest := circle(goal, other.Spec.DependsOn, all, seen); rest != nil {
				return append([]string{name}, rest...)
			}
		}
	}
	return nil
}

// drive tells the worker what to do now.
func (r *releaseReconciler) drive(rt *releaseRuntime, obj *v1alpha1.ClusterRelease, from origin, desired worker.Desired) {
	if rt.retriever.setOrigin(from) {
		rt.worker.RetryNow()
	}
	policy, overrides := policyOf(&obj.Spec), overridesOf(&obj.Spec, r.now())
	policy.unmanaged = overrides
	rt.builder.setPolicy(policy)
	rt.checks.setSpec(&obj.Spec)
	rt.worker.SetInterval(obj.Spec.Interval.Duration)
	record := r.store.Release(obj.Name)
	rt.worker.Update(obj.Generation, desired, overrides, stateOf(record, desired))
	rt.worker.Pause(false)
}

// stateOf decides how the worker begins with a release: a cluster that never
// completed one initializes; the one it completed last is kept; all else is an
// update, or a rollback where the version is lower.
func stateOf(record state.Release, desired worker.Desired) payload.State {
	if len(record.Completed) == 0 {
		return payload.Initializing
	}
	if isChosen(record.Accepted, desired) {
		if unfinished, ok := payload.ParseState(record.Accepted.State); ok {
			return unfinished
		}
	} else if c := record.Accepted; c != nil && c.State != "" {
		// What is there is neither: the objects of c have begun to come.
		if version.IsRollback(c.Version, desired.Version) {
			return payload.RollingBack
		}
		return payload.Updating
	}
	last := record.Completed[0]
	if last.Identity.Equal(desired.Identity) {
		return payload.Reconciling
	}
	if version.IsRollback(last.Version, desired.Version) {
		return payload.RollingBack
	}
	return payload.Updating
}

// remember keeps, apart from status, which release is being applied and which
// became level: a new process goes on from it, rollbacks are judged by it, and
// the high-water mark rises by it.
func (r *releaseReconciler) remember(ctx context.Context, rt *releaseRuntime, obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus) error {
	if w == nil || w.Actual.Version == "" {
		return nil
	}
	chosen := chosenOf(w.Actual.Desired)
	if !w.Reconciling {
		chosen.State = w.State.String()
	}
	chosen.Waits = longWaits(w.Waits, r.now())
	if before := r.store.Release(obj.Name).Accepted; before != nil && alikeWaits(before.Waits, chosen.Waits, r.now()) {
		chosen.Waits = before.Waits
	}
	still := func() bool { return rt.worker.Status().Actual.Equal(w.Actual.Desired) }
	if err := r.store.SetAcceptedWhile(ctx, obj.Name, chosen, w.EnabledCapabilities, still); err != nil {
		return err
	}
	if w.Applied.Version == "" || !w.Reconciling {
		return nil
	}
	done := state.Completed{
		Identity: w.Applied.Identity, VersionHash: w.Applied.VersionHash, Time: r.now().UTC(),
	}
	if err := r.releases.complete(ctx, obj.Name, w.Applied.Product, done); err != nil {
		return err
	}
	if p := permission(&obj.Spec); p != "" && obj.Spec.Rollback.To == w.Applied.Version {
		return r.store.SpendRollback(ctx, obj.Name, p)
	}
	return nil
}

// longWait is how long an object must have been waited for before its clock is
// remembered: most waits are over sooner, and a process that begins anew may
// give them their time again.
const longWait = 30 * time.Second

// longWaits are the waits worth remembering, the longest first.
func longWaits(clocks map[payload.ObjectID]worker.WaitClock, now time.Time) []state.Wait {
	var out []state.Wait
	for id, c := range clocks {
		if c.At(now) >= longWait {
			out = append(out, state.Wait{
				Object: state.Object(id),
				Spent:  metav1.Duration{Duration: c.Spent.Truncate(time.Second)}, Running: c.Running.UTC().Truncate(time.Second),
			})
		}
	}
	slices.SortFunc(out, func(a, b state.Wait) int {
		return cmp.Or(cmp.Compare(clockOf(b).At(now), clockOf(a).At(now)), payload.ObjectID(a.Object).Compare(payload.ObjectID(b.Object)))
	})
	return out[:min(len(out), state.MaxWaits)]
}

// alikeWaits reports whether both tell of the same waits, but for seconds: an
// object that changes what it says of itself is no news.
func alikeWaits(a, b []state.Wait, now time.Time) bool {
	const seconds = 5 * time.Second
	return slices.EqualFunc(a, b, func(x, y state.Wait) bool {
		return x.Object == y.Object && x.Running.IsZero() == y.Running.IsZero() && (clockOf(x).At(now)-clockOf(y).At(now)).Abs() < seconds
	})
}

// clockOf is the clock of a wait that is remembered.
func clockOf(w state.Wait) worker.WaitClock {
	return worker.WaitClock{Spent: w.Spent.Duration, Running: w.Running}
}

// nextLongWait is the time until a wait that runs has become a long one; zero
// if none will.
func nextLongWait(clocks map[payload.ObjectID]worker.WaitClock, now time.Time) time.Duration {
	var next time.Duration
	for _, c := range clocks {
		if left := longWait - c.At(now); left > 0 && !c.Running.IsZero() && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// policyOf reads the spec's rules of applying.
func policyOf(spec *v1alpha1.ClusterReleaseSpec) buildPolicy {
	p := buildPolicy{
		adopt: spec.Adopt, timeout: spec.Timeout.Duration, components: map[string]componentPolicy{}, prune: true, maxPercent: 20,
	}
	for _, c := range spec.Components {
		policy := componentPolicy{warn: c.OnUnhealthy == "warn"}
		if c.Timeout != nil {
			policy.timeout = c.Timeout.Duration
		}
		p.components[c.Name] = policy
	}
	if spec.Prune != nil {
		p.prune = spec.Prune.Enabled == nil || *spec.Prune.Enabled
		if spec.Prune.MaxPercent != nil {
			p.maxPercent = int(*spec.Prune.MaxPercent)
		}
	}
	return p
}

// selectionOf says which manifests of a payload the spec wants.
func selectionOf(spec *v1alpha1.ClusterReleaseSpec) payload.Selection {
	s := payload.Selection{
		Profile: spec.Profile, FeatureSet: spec.FeatureSet, FeatureGates: spec.FeatureGates,
		EvaluateGates: len(spec.FeatureGates) > 0, Baseline: payload.BaselineAll,
	}
	if c := spec.Capabilities; c != nil {
		if c.Baseline != "" {
			s.Baseline = c.Baseline
		}
		s.Capabilities = c.Additional
	}
	return s
}

// overridesOf returns the overrides in force: those that say unmanaged and
// haven't expired.
func overridesOf(spec *v1alpha1.ClusterReleaseSpec, now time.Time) []worker.Override {
	var out []worker.Override
	for _, o := range spec.Overrides {
		if !o.Unmanaged || o.Expires != nil && !now.Before(o.Expires.Time) {
			continue
		}
		out = append(out, worker.Override{
			ID:     payload.ObjectID{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name},
			Reason: o.Reason,
		})
	}
	slices.SortFunc(out, func(a, b worker.Override) int { return a.ID.Compare(b.ID) })
	return out
}
