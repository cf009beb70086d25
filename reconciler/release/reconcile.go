// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// Reconcile implements reconcile.Reconciler.
func (r *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.WaitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.ClusterRelease
	err := r.Client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		return r.deleted(ctx, req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	defer r.RecordDuration(v1alpha1.KindClusterRelease, obj.Name, r.Now())
	defer r.runtimes.resumePrunes(ctx)
	before := obj.DeepCopy()
	facts := status.ReleaseFacts{Spec: obj.Spec, Generation: obj.Generation, Insecure: r.insecureOptions}
	rt, err := r.act(ctx, &obj, &facts)
	if err != nil {
		return ctrl.Result{}, err
	}
	facts.Now = r.Now()
	again := nextExpiry(&obj.Spec, facts.Now)
	if rt != nil {
		w := rt.worker.Status()
		if err := r.persist(ctx, rt, &obj, w); err != nil {
			return ctrl.Result{}, err
		}
		facts.Yielded = rt.yielded()
		facts.Lost, facts.LostTotal = rt.lost()
		blockers, err := rt.checks.blockers(ctx, rt.worker.Accepted())
		if err != nil {
			return ctrl.Result{}, err
		}
		for _, b := range blockers {
			facts.Objections = append(facts.Objections, status.Objection(b))
		}
		// A worker without a desired release, since the release is held, has less
		// information than the status.
		if !w.Desired.Empty() {
			facts.Worker = w
		}
		if wait := nextLongWait(w.Waits, facts.Now); wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
		// The list is informational: a failed write doesn't stop the reconciliation.
		control.LogError(r.runtimes.log, rt.excluded.Record(ctx, rt.worker.Accepted()), "record excluded objects", "release", obj.Name)
		if keepStatus(before, w, &facts) {
			return ctrl.Result{RequeueAfter: again}, nil
		}
	}
	obj.Status = status.Release(obj.Status, facts)
	if facts.Worker != nil {
		r.metrics.Record(&obj, facts.Worker)
		if wait := rt.statusDelay(before, &obj, facts.Now); wait > 0 {
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
	return ctrl.Result{RequeueAfter: again}, r.PatchStatus(ctx, before, &obj)
}

// act hands the desired release to the worker, or records in facts why it must not.
// The runtime is nil if there is none yet.
func (r *Controller) act(ctx context.Context, obj *v1alpha1.ClusterRelease, facts *status.ReleaseFacts) (*runtime, error) {
	untrusted := r.sources.NotFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec)
	facts.Held = control.HeldBy(obj, obj.Spec.Suspend && untrusted.Reason == "")
	if untrusted.Reason != "" {
		// Trust boundary T3: nothing in this spec is acted upon, not even for the
		// runtime. A running worker continues with its previous work.
		rt := r.runtimes.get(obj.Name)
		if facts.Held.Reason == "" {
			facts.Held = untrusted
		} else if rt != nil {
			rt.worker.Pause(true)
		}
		return rt, nil
	}
	if facts.Invalid = r.invalid(ctx, obj); facts.Invalid != "" {
		obj = obj.DeepCopy()
		usable(&obj.Spec)
	}
	rt, err := r.runtimes.ensure(ctx, obj)
	if err != nil {
		return nil, err
	}
	removed := r.sources.RemovedFromGit(v1alpha1.KindClusterRelease, obj.Name)
	rt.engine.Retire(removed.Reason != "")
	if facts.Held.Reason != "" {
		rt.worker.Pause(true)
		return rt, nil
	}
	if removed.Reason != "" {
		facts.Held = removed
		r.maintainRemoved(rt, obj)
		return rt, nil
	}
	if facts.Waiting, err = r.dependencies(ctx, obj); err != nil {
		return nil, err
	}
	from, revision, ok := r.sources.Origin(v1alpha1.KindClusterRelease, obj.Name)
	if !ok {
		return rt, nil
	}
	desired := desiredOf(&obj.Spec, revision)
	if facts.Invalid != "" && !rt.worker.Desired().Empty() {
		// A running worker keeps the policies of the last valid spec too.
		rt.worker.Pause(false)
		return rt, nil
	}
	if facts.Waiting != "" || facts.Invalid != "" {
		current, ok := whileWaiting(r.Store.Release(obj.Name).Accepted, desired)
		if !ok {
			rt.worker.Pause(true)
			return rt, nil
		}
		if current.Equal(desired) {
			facts.Waiting = ""
		}
		desired = current
	}
	r.update(rt, obj, from, desired, policyOf(&obj.Spec))
	return rt, nil
}

// maintainRemoved lets the worker of a release that left Git repair what it has
// accepted. It starts no new target and prunes nothing.
func (r *Controller) maintainRemoved(rt *runtime, obj *v1alpha1.ClusterRelease) {
	from, revision, ok := r.sources.Origin(v1alpha1.KindClusterRelease, obj.Name)
	current, accepted := whileWaiting(r.Store.Release(obj.Name).Accepted, desiredOf(&obj.Spec, revision))
	if !ok || !accepted {
		rt.worker.Pause(true)
		return
	}
	policy := policyOf(&obj.Spec)
	policy.prune = false
	r.update(rt, obj, from, current, policy)
}

// update configures the runtime by the spec and a policy, and hands the desired
// release to the worker.
func (r *Controller) update(rt *runtime, obj *v1alpha1.ClusterRelease, from control.Origin, desired worker.Desired, policy buildPolicy) {
	if rt.retriever.setOrigin(from) {
		rt.worker.RetryNow()
	}
	overrides := overridesOf(&obj.Spec, r.Now())
	policy.unmanaged = overrides
	rt.builder.setPolicy(policy)
	rt.checks.setSpec(&obj.Spec)
	rt.checks.withdraw(desired)
	rt.worker.SetInterval(obj.Spec.Interval.Duration)
	rt.worker.Update(obj.Generation, desired, overrides, stateOf(r.Store.Release(obj.Name), desired))
	rt.worker.Pause(false)
}

// recreateDelay is the time that a source gets to recreate a release that was
// deleted manually.
const recreateDelay = 2 * time.Second

// deleted ends the runtime of a deleted release. If a source still declares it, it
// was deleted manually and the source recreates it; its objects are kept.
func (r *Controller) deleted(ctx context.Context, name string) (ctrl.Result, error) {
	r.DeleteMetrics(v1alpha1.KindClusterRelease, name)
	r.metrics.delete(name)
	r.runtimes.end(name)
	r.specs.drop(name)
	defer r.runtimes.resumePrunes(ctx)
	source, _, declared := r.Store.Owner(v1alpha1.KindClusterRelease, name)
	if declared && !r.Store.Removed(v1alpha1.KindClusterRelease, name) {
		var from v1alpha1.GitSource
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: source}, &from)
		if err == nil {
			return ctrl.Result{RequeueAfter: recreateDelay}, nil
		}
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{}, err
		}
	}
	done, err := r.runtimes.remove(ctx, name)
	if err != nil || done {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: recreateDelay}, nil
}

// keepStatus reports whether the worker has no information yet about the release
// that the status shows. After a restart the status is kept until it has.
func keepStatus(obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus, f *status.ReleaseFacts) bool {
	ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
	return w.Actual.Version == "" && w.Load.Failure == nil && w.Restore.Failure == nil && f.Invalid == "" && f.Held.Reason == "" && f.Waiting == "" &&
		obj.Status.Accepted != nil && ready != nil && ready.ObservedGeneration == obj.Generation
}

// dependencies returns why the release must wait for its dependencies, or "".
func (r *Controller) dependencies(ctx context.Context, obj *v1alpha1.ClusterRelease) (string, error) {
	if len(obj.Spec.DependsOn) == 0 {
		return "", nil
	}
	var list v1alpha1.ClusterReleaseList
	if err := r.Client.List(ctx, &list, client.InNamespace(obj.Namespace)); err != nil {
		return "", fmt.Errorf("list dependencies of %s: %w", obj.Name, err)
	}
	byName := make(map[string]*v1alpha1.ClusterRelease, len(list.Items))
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	return waitsFor(obj, byName), nil
}

// waitsFor returns why the release must wait for its dependencies, or "".
func waitsFor(obj *v1alpha1.ClusterRelease, all map[string]*v1alpha1.ClusterRelease) string {
	if path := cycle(obj.Name, obj.Spec.DependsOn, all, map[string]bool{}); path != nil {
		return fmt.Sprintf("spec.dependsOn is a cycle: %s → %s; remove one of them", obj.Name, strings.Join(path, " → "))
	}
	for _, name := range obj.Spec.DependsOn {
		other, ok := all[name]
		if !ok {
			return fmt.Sprintf("ClusterRelease/%s in spec.dependsOn doesn't exist; declare it or remove it from spec.dependsOn", name)
		}
		ready := meta.FindStatusCondition(other.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != "True" || ready.ObservedGeneration != other.Generation {
			return fmt.Sprintf("waiting for ClusterRelease/%s to be ready", name)
		}
	}
	return ""
}

// cycle returns the path from the names back to the goal, nil if there is none.
func cycle(goal string, names []string, all map[string]*v1alpha1.ClusterRelease, seen map[string]bool) []string {
	for _, name := range names {
		if name == goal {
			return []string{goal}
		}
		if other, ok := all[name]; ok && !seen[name] {
			seen[name] = true
			if rest := cycle(goal, other.Spec.DependsOn, all, seen); rest != nil {
				return append([]string{name}, rest...)
			}
		}
	}
	return nil
}
