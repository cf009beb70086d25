// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blang/semver/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/accepted"
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
		r.gauges.forget(req.Name)
		return ctrl.Result{}, r.releases.remove(ctx, req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	before := obj.DeepCopy()
	held := r.holds(&obj)
	rt, err := r.releases.ensure(ctx, &obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	if rt == nil {
		// Another service account is being taken over; the runtime comes back
		// with the next event.
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	waiting, err := r.dependencies(ctx, &obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case held.Reason != "":
		rt.worker.Pause(true)
	case waiting != "":
		held = status.HeldBy{}
		rt.worker.Pause(true)
	default:
		r.drive(rt, &obj)
	}
	facts := status.ReleaseFacts{
		Spec: obj.Spec, Generation: obj.Generation, Worker: rt.worker.Status(), Held: held,
		Waiting: waiting, Yielded: rt.yielded(), Insecure: r.opts.doors(), Now: r.now(),
	}
	if err := r.remember(ctx, &obj, facts.Worker); err != nil {
		return ctrl.Result{}, err
	}
	obj.Status = status.Release(obj.Status, facts)
	r.gauges.release(&obj, facts.Worker)
	return ctrl.Result{}, r.patchStatus(ctx, before, &obj)
}

// holds says what keeps the release from being acted upon: a brake, or that the
// spec isn't what the source said (wall 3).
func (r *releaseReconciler) holds(obj *v1alpha1.ClusterRelease) status.HeldBy {
	if held := r.held(obj, obj.Spec.Suspend); held.Reason != "" {
		return held
	}
	return r.sources.notFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec)
}

// dependencies returns why the release must wait for others, or "".
func (r *releaseReconciler) dependencies(ctx context.Context, obj *v1alpha1.ClusterRelease) (string, error) {
	for _, name := range obj.Spec.DependsOn {
		var other v1alpha1.ClusterRelease
		err := r.client.Get(ctx, client.ObjectKey{Namespace: obj.Namespace, Name: name}, &other)
		if apierrors.IsNotFound(err) {
			return fmt.Sprintf("ClusterRelease/%s, which spec.dependsOn names, doesn't exist", name), nil
		}
		if err != nil {
			return "", err
		}
		ready := meta.FindStatusCondition(other.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != "True" || ready.ObservedGeneration != other.Generation {
			return fmt.Sprintf("waiting for ClusterRelease/%s to be ready", name), nil
		}
	}
	return "", nil
}

// drive tells the worker what to do now.
func (r *releaseReconciler) drive(rt *releaseRuntime, obj *v1alpha1.ClusterRelease) {
	from, revision, ok := r.sources.origin(v1alpha1.KindClusterRelease, obj.Name)
	if !ok {
		return
	}
	rt.retriever.setOrigin(from)
	rt.retriever.setPrevious(rt.worker.Accepted())
	rt.builder.setPolicy(policyOf(&obj.Spec))
	rt.checks.setSpec(&obj.Spec)
	rt.worker.SetInterval(obj.Spec.Interval.Duration)
	desired := worker.Desired{
		Version: obj.Spec.Desired.Version, Image: obj.Spec.Desired.Image, Path: obj.Spec.Desired.Path,
		Signatures: obj.Spec.Desired.Signatures, Revision: revision, Selection: selectionOf(&obj.Spec),
	}
	record := r.store.Release(obj.Name)
	rt.worker.Update(obj.Generation, desired, overridesOf(&obj.Spec, r.now()), stateOf(record, desired))
	rt.worker.Pause(false)
}

// stateOf decides how the worker begins with a release: a cluster that never
// completed one initializes; the one it completed last is kept; all else is an
// update, or a rollback where the version is lower.
func stateOf(record accepted.Release, desired worker.Desired) payload.State {
	if len(record.Completed) == 0 {
		return payload.Initializing
	}
	last := record.Completed[0]
	if last.Version == desired.Version && last.Image == desired.Image && last.Path == desired.Path {
		return payload.Reconciling
	}
	if lower(desired.Version, last.Version) {
		return payload.RollingBack
	}
	return payload.Updating
}

// lower compares semantic versions; what isn't one is never lower.
func lower(a, b string) bool {
	va, errA := semver.ParseTolerant(a)
	vb, errB := semver.ParseTolerant(b)
	return errA == nil && errB == nil && va.LT(vb)
}

// remember keeps, apart from status, which release is being applied and which
// became level: a new process goes on from it, rollbacks are judged by it, and
// the high-water mark rises by it.
func (r *releaseReconciler) remember(ctx context.Context, obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus) error {
	if w == nil || w.Actual.Version == "" {
		return nil
	}
	chosen := accepted.Chosen{Version: w.Actual.Version, Image: w.Actual.Image, Path: w.Actual.Path}
	if chosen.Path != "" {
		chosen.Revision = w.Actual.Revision
	}
	if err := r.store.Choose(ctx, obj.Name, chosen); err != nil {
		return err
	}
	if w.Applied.Version == "" || !w.Reconciling {
		return nil
	}
	done := accepted.Completed{
		Version: w.Applied.Version, Image: w.Applied.Image, Path: w.Applied.Path,
		VersionHash: w.Applied.VersionHash, Time: r.now().UTC(),
	}
	return r.releases.complete(ctx, obj.Name, w.Applied.Product, done)
}

// policyOf reads the spec's rules of applying.
func policyOf(spec *v1alpha1.ClusterReleaseSpec) buildPolicy {
	p := buildPolicy{
		adopt: spec.Adopt, timeout: spec.Timeout.Duration, components: map[string]componentPolicy{}, prune: true, maxFraction: 20,
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
		if spec.Prune.MaxFraction != nil {
			p.maxFraction = int(*spec.Prune.MaxFraction)
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
