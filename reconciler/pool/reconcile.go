// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout/executor"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// slotFinalizer keeps a NodeOS while one of its hosts is in flight, so that a
// rebooting host stays under control.
const slotFinalizer = "lockstep.dev/slot"

const (
	// minInterval is the minimum time between two syncs of a pool: host facts change
	// many times during a step.
	minInterval = 200 * time.Millisecond
	// retryPending and retryHeld are the delays after which a pool that isn't acted
	// upon is reconciled again.
	retryPending = time.Second
	retryHeld    = 5 * time.Second
)

// syncDelay returns the time until the pool may be synced; zero for now.
func (r *Controller) syncDelay(name string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	if wait := minInterval - now.Sub(r.synced[name]); wait > 0 && wait <= minInterval {
		return wait
	}
	r.synced[name] = now
	return 0
}

// Reconcile implements reconcile.Reconciler: it gathers facts, decides whether the
// pool may be acted upon, and syncs it.
func (r *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.WaitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.NodeOS
	err := r.Client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		r.deleted(req.Name)
		return ctrl.Result{}, r.Store.DropPool(ctx, req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait := r.syncDelay(req.Name); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	defer r.RecordDuration(v1alpha1.KindNodeOS, obj.Name, r.Now())
	before := obj.DeepCopy()
	facts := r.gather(ctx, &obj)
	decision := Decide(facts)
	if decision.Observed {
		err := r.Store.SetPool(ctx, facts.Release, obj.Name, facts.Hash)
		control.LogError(log.FromContext(ctx), err, "persist observed pool", "release", facts.Release)
	}
	// The hosts in flight of a pool that is being deleted are completed whatever its
	// spec is; it starts nothing new.
	if decision.Held.Reason != "" && obj.DeletionTimestamp.IsZero() {
		if decision.Held.Reason == status.ReasonPending {
			// The status of the earlier process is kept after a restart.
			return ctrl.Result{RequeueAfter: retryPending}, nil
		}
		return ctrl.Result{RequeueAfter: retryHeld}, r.reportHeld(ctx, before, &obj, decision.Held)
	}
	if err := r.hosts.ready(ctx); err != nil {
		return r.reportError(ctx, before, &obj, err)
	}
	planned, err := r.planned(ctx, &obj, facts)
	if err != nil {
		return ctrl.Result{}, err
	}
	if decision.Finish.Reason != "" {
		planned = finishing(planned)
	}
	return r.sync(ctx, before, &obj, planned, decision.Finish, r.originOf(&obj, facts.Release))
}

// sync runs the executor once, which executes the due steps, and writes the status.
// finish, if set, replaces the conditions of a pool that starts nothing new.
func (r *Controller) sync(ctx context.Context, before, obj, planned *v1alpha1.NodeOS, finish status.HeldBy, from control.Origin) (ctrl.Result, error) {
	pool := executor.Pool{NodeOS: planned}
	verdict := r.verifier.verify(ctx, obj, from)
	pool.Product = verdict.product
	if verdict.err != nil {
		pool.Unverified, pool.UnverifiedReason = verdict.err.Error(), control.ReasonOf(verdict.err, "FetchFailed")
	}
	result, err := r.hosts.executor.Sync(ctx, pool)
	if errors.Is(err, ledger.ErrSuperseded) {
		r.Fatal(err) // another leader has taken over
		return ctrl.Result{}, nil
	}
	if err != nil {
		return r.reportError(ctx, before, obj, err)
	}
	for _, p := range result.Problems {
		control.LogError(log.FromContext(ctx), p.Err, "step failed, it will be retried", "host", p.Host, "step", p.Step)
	}
	for _, s := range result.Done {
		log.FromContext(ctx).Info("step", "host", s.Node, "step", s.Kind, "attempt", s.Attempt)
	}
	r.hosts.setRollouts(obj.Name, result.Decision.Status.States)
	result.Decision.Status.Apply(obj, r.Now())
	if finish.Reason != "" {
		r.SetConditions(obj, control.Failed(finish))
	}
	r.metrics.Record(obj)
	if err := r.raiseMark(ctx, before, obj, verdict.product); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.keepFinalizer(ctx, obj, result.Decision.Status.Counts.InFlight > 0); err != nil {
		return ctrl.Result{}, err
	}
	before.ResourceVersion = obj.ResourceVersion
	if err := r.PatchStatus(ctx, before, obj); err != nil {
		return ctrl.Result{}, err
	}
	again := result.RequeueAfter
	if verdict.err != nil {
		again = min(again, retryUnverified)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// raiseMark raises the high-water mark of the OS once all hosts of the pool run it.
func (r *Controller) raiseMark(ctx context.Context, before, obj *v1alpha1.NodeOS, product string) error {
	ready := meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady)
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	changed := was == nil || was.Status != metav1.ConditionTrue || was.ObservedGeneration != obj.Generation
	if !ready || !changed || product == "" || obj.Status.Counts.Total == 0 {
		return nil
	}
	_, digest, _ := strings.Cut(obj.Spec.OS.Image, "@")
	if err := r.ledger.RaiseMark(ctx, product, ledger.Image{Version: obj.Spec.OS.Version, Digest: digest}, r.Now()); err != nil {
		return fmt.Errorf("raise high-water mark of %s: %w", product, err)
	}
	return nil
}

// reportError writes the status of a pool that can't be planned. An error without a
// reason is returned.
func (r *Controller) reportError(ctx context.Context, before, obj *v1alpha1.NodeOS, err error) (ctrl.Result, error) {
	reason := control.ReasonOf(err, "")
	if reason == "" {
		return ctrl.Result{}, err
	}
	if err := r.reportHeld(ctx, before, obj, status.HeldBy{Reason: reason, Message: err.Error()}); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: retryUnverified}, nil
}

// reportHeld writes the status of a pool that isn't acted upon.
func (r *Controller) reportHeld(ctx context.Context, before, obj *v1alpha1.NodeOS, held status.HeldBy) error {
	obj.Status.ObservedGeneration = obj.Generation
	r.SetConditions(obj, control.Failed(held))
	return r.PatchStatus(ctx, before, obj)
}

// deleted removes the state of a deleted pool.
func (r *Controller) deleted(name string) {
	r.DeleteMetrics(v1alpha1.KindNodeOS, name)
	r.hosts.deletePool(name)
	r.metrics.delete(name)
	r.verifier.delete(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.synced, name)
}

// keepFinalizer sets or removes the finalizer with a patch.
func (r *Controller) keepFinalizer(ctx context.Context, obj *v1alpha1.NodeOS, inFlight bool) error {
	has := controllerutil.ContainsFinalizer(obj, slotFinalizer)
	if has == inFlight || inFlight && !obj.DeletionTimestamp.IsZero() {
		return nil
	}
	stored := obj.Status.DeepCopy()
	before := obj.DeepCopy()
	if inFlight {
		controllerutil.AddFinalizer(obj, slotFinalizer)
	} else {
		controllerutil.RemoveFinalizer(obj, slotFinalizer)
	}
	err := r.Client.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	obj.Status = *stored // the response has the stored status
	return client.IgnoreNotFound(err)
}
