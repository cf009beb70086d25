// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/excluded"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

const ownerPrefix = "clusterrelease/"

// exists reports whether an owner is a release that may still hand objects over:
// one that Git declares, or that was deleted and whose objects aren't settled.
func (r *runtimes) exists(owner string) bool {
	name, ok := strings.CutPrefix(owner, ownerPrefix)
	if !ok {
		return false
	}
	if _, known := r.store.Releases()[name]; known {
		return true
	}
	_, _, declared := r.store.Owner(v1alpha1.KindClusterRelease, name)
	return declared && !r.store.Removed(v1alpha1.KindClusterRelease, name)
}

// followClaims continues what waits for other releases whenever a claim changes: a
// rejected release may get its objects now, and a prune may delete more.
func (r *runtimes) followClaims(ctx context.Context) {
	for {
		changed := r.cluster.Shared.Changed()
		for _, rt := range r.all() {
			rt.worker.RetryNow()
			if postponed, held := rt.builder.waits(); postponed || held {
				rt.worker.SyncNow()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// resumePrunes starts the syncs of releases whose prune waits for others that are
// settled now.
func (r *runtimes) resumePrunes(ctx context.Context) {
	for _, rt := range r.all() {
		if postponed, _ := rt.builder.waits(); postponed && r.unsettled(ctx, rt.name) == "" {
			rt.worker.SyncNow()
		}
	}
}

// all returns the runtimes.
func (r *runtimes) all() []*runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*runtime, 0, len(r.byName))
	for _, rt := range r.byName {
		out = append(out, rt)
	}
	return out
}

// unsettled returns why the claims of other releases than name aren't known, "" if
// they are. An object that leaves a release is deleted only afterwards: another
// release of the same commit may contain it.
func (r *runtimes) unsettled(ctx context.Context, name string) string {
	if r.sources.Applying() {
		return "a commit is being applied"
	}
	var list v1alpha1.ClusterReleaseList
	if err := r.base.Client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return fmt.Sprintf("list releases: %v", err)
	}
	missing := r.store.Declared(v1alpha1.KindClusterRelease)
	delete(missing, name)
	for i := range list.Items {
		obj := &list.Items[i]
		delete(missing, obj.Name)
		if obj.Name == name || !r.declared(obj) {
			continue
		}
		var w *worker.SyncWorkerStatus
		if rt := r.get(obj.Name); rt != nil {
			w = rt.worker.Status()
		}
		if !claimsKnown(&obj.Spec, w) {
			return fmt.Sprintf("ClusterRelease/%s %s isn't verified yet, and may contain the objects", obj.Name, obj.Spec.Desired.Version)
		}
	}
	for other, source := range missing {
		err := r.base.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: source}, &v1alpha1.GitSource{})
		if !apierrors.IsNotFound(err) { // A deleted source creates nothing.
			return fmt.Sprintf("ClusterRelease/%s isn't created yet, and may contain the objects", other)
		}
	}
	return ""
}

// declared reports whether Git declares the release with this spec.
func (r *runtimes) declared(obj *v1alpha1.ClusterRelease) bool {
	return r.sources.RemovedFromGit(v1alpha1.KindClusterRelease, obj.Name).Reason == "" &&
		r.sources.NotFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec).Reason == ""
}

// claimsKnown reports whether the payload of the desired release was loaded, so that
// its objects are claimed, or can't be without a change of its spec. w is nil before
// the worker starts.
func claimsKnown(spec *v1alpha1.ClusterReleaseSpec, w *worker.SyncWorkerStatus) bool {
	if w == nil {
		return false
	}
	desired := desiredOf(spec, "")
	if w.Actual.Identity.Equal(desired.Identity) && w.Load.Failure == nil {
		return true
	}
	if !w.Load.Desired.Identity.Equal(desired.Identity) || w.Load.Failure == nil {
		return false
	}
	checked := w.Load.Step == worker.StepPreconditionChecks || w.Load.Step == worker.StepDryRun
	return checked || !w.Load.Failure.Retriable()
}

// successor returns the declared release that names a deleted one in spec.adopt, ""
// if there is none, and whether it has taken over what it contains.
func (r *runtimes) successor(ctx context.Context, name string) (successor string, done bool, err error) {
	var list v1alpha1.ClusterReleaseList
	if err := r.base.Client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return "", false, fmt.Errorf("list releases: %w", err)
	}
	for i := range list.Items {
		obj := &list.Items[i]
		if !slices.Contains(obj.Spec.Adopt, ownerOf(name)) || !r.declared(obj) {
			continue
		}
		rt := r.get(obj.Name)
		if rt == nil {
			return obj.Name, false, nil
		}
		w := rt.worker.Status()
		return obj.Name, w.Reconciling && w.Applied.Identity.Equal(desiredOf(&obj.Spec, "").Identity), nil
	}
	return "", true, nil
}

// remove deletes the inventory and the persisted state of a deleted ClusterRelease
// whose runtime has ended. Its objects are deleted if the last declared deletion
// policy was Prune, except unmanaged ones and those that other releases claim. It
// returns false while it waits for those, and is called again then, as after an
// error.
func (r *runtimes) remove(ctx context.Context, name string) (done bool, err error) {
	record, known := r.store.Releases()[name]
	if !known {
		return true, nil
	}
	engine, err := r.retire(ctx, name, record)
	if err != nil {
		return false, err
	}
	successor, settled, err := r.successor(ctx, name)
	if err != nil || !settled {
		return false, err
	}
	if record.Deletion == string(v1alpha1.DeletionPrune) {
		if done, err := r.prune(ctx, engine, name, record); !done || err != nil {
			return false, err
		}
	}
	if err := engine.Forget(ctx); err != nil {
		return false, fmt.Errorf("delete inventory of %s: %w", ownerOf(name), err)
	}
	if err := excluded.Delete(ctx, r.maps, name); err != nil {
		return false, fmt.Errorf("delete list of excluded objects of ClusterRelease/%s: %w", name, err)
	}
	if successor != "" {
		r.log.Info("objects handed over", "release", name, "successor", successor)
	}
	r.endRetired(name)
	return true, r.store.DropRelease(ctx, name)
}

// prune deletes the objects of a deleted release. It returns false while it isn't
// known which objects others claim, or until they have taken them.
func (r *runtimes) prune(ctx context.Context, engine *apply.Engine, name string, record state.Release) (done bool, err error) {
	if r.unsettled(ctx, name) != "" {
		return false, nil
	}
	keep := map[payload.ObjectID]bool{}
	for _, o := range record.Unmanaged {
		keep[payload.ObjectID(o)] = true
	}
	// It contains nothing any more: whoever claims an object gets it.
	if err := engine.Begin(ctx, nil, nil); err != nil {
		return false, fmt.Errorf("give the objects of ClusterRelease/%s: %w", name, err)
	}
	engine.Retire(false)
	result, err := engine.Prune(ctx, keep, apply.PruneOptions{All: true})
	if err == nil {
		err = notGone(engine.Leaving(), result)
	}
	if err != nil {
		return false, fmt.Errorf("delete objects of ClusterRelease/%s: %w", name, err)
	}
	return len(result.Held) == 0, nil
}

// retire returns the engine of a deleted release, which gives its objects to a
// release that names it in spec.adopt.
func (r *runtimes) retire(ctx context.Context, name string, record state.Release) (*apply.Engine, error) {
	r.mu.Lock()
	engine := r.retired[name]
	r.mu.Unlock()
	if engine != nil {
		return engine, nil
	}
	engine, err := r.engine(ctx, name, serviceAccountOf(record.ServiceAccount), nil)
	if err != nil {
		return nil, err
	}
	engine.Retire(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired[name] = engine
	return engine, nil
}

// endRetired closes the engine of a deleted release, if there is one.
func (r *runtimes) endRetired(name string) {
	r.mu.Lock()
	engine := r.retired[name]
	delete(r.retired, name)
	r.mu.Unlock()
	if engine != nil {
		engine.Close()
	}
}

// closeRetired closes the engines of all deleted releases.
func (r *runtimes) closeRetired() {
	r.mu.Lock()
	retired := r.retired
	r.retired = map[string]*apply.Engine{}
	r.mu.Unlock()
	for _, engine := range retired {
		engine.Close()
	}
}

// inherit copies to a new release what persists of the releases that it names in
// spec.adopt: capabilities can't be disabled in a running cluster, and pools in
// progress continue.
func (r *runtimes) inherit(ctx context.Context, obj *v1alpha1.ClusterRelease) error {
	if r.store.Release(obj.Name).Accepted != nil {
		return nil
	}
	for _, owner := range obj.Spec.Adopt {
		name, ok := strings.CutPrefix(owner, ownerPrefix)
		if !ok || name == obj.Name {
			continue
		}
		if err := r.store.Inherit(ctx, obj.Name, name); err != nil {
			return err
		}
	}
	return nil
}

// notGone returns an error while deletions haven't ended. The inventory of a deleted
// release stays until then.
func notGone(leaving []apply.Leaving, result apply.PruneResult) error {
	if len(result.Pending)+result.Waiting == 0 {
		return nil
	}
	first := "an object"
	if len(leaving) > 0 {
		first = status.LeavingText(leavingOf(leaving[0]))
	}
	return control.NewError(apply.ReasonTerminating, true, fmt.Errorf("%d objects are still being deleted, %d follow: %s", len(result.Pending), result.Waiting, first))
}
