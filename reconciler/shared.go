// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/reference"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// conditioned is one of our kinds.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
	SetConditions(conditions []metav1.Condition)
}

// base is what all controllers share.
type base struct {
	client client.Client
	// live reads from the API server, where the cache may be behind.
	live    client.Reader
	store   *state.Store
	events  events.Recorder
	metrics *metrics.Recorder
	gauges  *releaseMetrics
	now     func() time.Time
	// ready is closed once the leader has loaded the store.
	ready <-chan struct{}
}

// waitReady waits until the store was loaded.
func (b *base) waitReady(ctx context.Context) error {
	select {
	case <-b.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patchStatus writes the status of obj if it differs from before's, records
// the conditions as metrics, and emits an event for each transition of Ready
// or of another condition that turned bad.
func (b *base) patchStatus(ctx context.Context, before, obj conditioned) error {
	b.record(obj)
	if equality.Semantic.DeepEqual(before, obj) {
		return nil
	}
	// The lock keeps two writers of one status (the source's controller and
	// the write-back) from undoing one another's conditions.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := b.client.Status().Patch(ctx, obj, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("status of %s: %w", obj.GetName(), err))
	}
	b.announce(before, obj)
	return nil
}

// patchFresh changes the status of a GitSource, which has two writers. After a
// conflict the object is read anew, and change is asked again; change returns
// false if there is nothing to say about what it is given.
func (b *base) patchFresh(ctx context.Context, obj *v1alpha1.GitSource, change func(*v1alpha1.GitSource) bool) error {
	const tries = 5
	for i := 1; ; i++ {
		before := obj.DeepCopy()
		if !change(obj) {
			return nil
		}
		err := b.patchStatus(ctx, before, obj)
		if !apierrors.IsConflict(err) || i == tries {
			return err
		}
		fresh := &v1alpha1.GitSource{}
		if err := b.live.Get(ctx, client.ObjectKeyFromObject(obj), fresh); err != nil {
			return client.IgnoreNotFound(err)
		}
		obj = fresh
	}
}

// took records how long a look at an object took; it is to be deferred with the
// time at its begin.
func (b *base) took(kind, name string, began time.Time) {
	b.metrics.RecordDuration(corev1.ObjectReference{Kind: kind, Namespace: v1alpha1.Namespace, Name: name}, began)
}

// record sets the metrics of the object's conditions, and of its suspension.
func (b *base) record(obj conditioned) {
	ref, err := reference.GetReference(b.client.Scheme(), obj)
	if err != nil {
		return
	}
	for _, c := range obj.GetConditions() {
		b.metrics.RecordCondition(*ref, c)
	}
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		b.metrics.RecordSuspend(*ref, o.Spec.Suspend)
	case *v1alpha1.ClusterRelease:
		b.metrics.RecordSuspend(*ref, o.Spec.Suspend)
	case *v1alpha1.NodeOS:
		b.metrics.RecordSuspend(*ref, o.Spec.Suspend)
	}
}

// forget drops the metrics of an object that is gone: an alert on one of its
// conditions would go on for ever.
func (b *base) forget(kind, name string) {
	ref := corev1.ObjectReference{Kind: kind, Namespace: v1alpha1.Namespace, Name: name}
	for _, typ := range []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionInsecure,
		v1alpha1.ConditionSourceVerified, v1alpha1.ConditionWriteBackReady,
		v1alpha1.ConditionAvailable, v1alpha1.ConditionProgressing, v1alpha1.ConditionFailing, v1alpha1.ConditionReleaseAccepted,
		v1alpha1.ConditionReleaseVerified, v1alpha1.ConditionUpgradeable, v1alpha1.ConditionFieldYielded, v1alpha1.ConditionInvalid,
		v1alpha1.ConditionPaused, v1alpha1.ConditionHalted, v1alpha1.ConditionOSVerified,
	} {
		b.metrics.DeleteCondition(ref, typ)
	}
	b.metrics.DeleteDuration(ref)
	b.metrics.DeleteSuspend(ref)
}

// announce emits events for transitions only.
func (b *base) announce(before, obj conditioned) {
	for _, c := range obj.GetConditions() {
		old := meta.FindStatusCondition(before.GetConditions(), c.Type)
		anew := c.Type == v1alpha1.ConditionReleaseAccepted && retargeted(before, obj)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason && !anew {
			continue
		}
		switch c.Type {
		case v1alpha1.ConditionReady:
			kind := corev1.EventTypeNormal
			if c.Status == metav1.ConditionFalse && stalled(obj) {
				kind = corev1.EventTypeWarning
			}
			b.event(obj, kind, c.Reason, c.Message)
		case v1alpha1.ConditionFailing, v1alpha1.ConditionHalted, v1alpha1.ConditionInsecure:
			if c.Status == metav1.ConditionTrue {
				b.event(obj, corev1.EventTypeWarning, c.Reason, c.Message)
			}
		case v1alpha1.ConditionReleaseAccepted, v1alpha1.ConditionSourceVerified, v1alpha1.ConditionOSVerified:
			if c.Status == metav1.ConditionFalse {
				b.event(obj, corev1.EventTypeWarning, c.Reason, c.Message)
			}
		}
	}
}

// retargeted reports whether another release is asked for: that it is refused for
// the reason that the one before it was is news.
func retargeted(before, obj conditioned) bool {
	was, okWas := before.(*v1alpha1.ClusterRelease)
	is, okIs := obj.(*v1alpha1.ClusterRelease)
	return okWas && okIs && !equality.Semantic.DeepEqual(was.Status.Desired, is.Status.Desired)
}

func stalled(obj conditioned) bool {
	return meta.IsStatusConditionTrue(obj.GetConditions(), v1alpha1.ConditionStalled)
}

func (b *base) event(obj client.Object, kind, reason, message string) {
	b.events.Eventf(obj, nil, kind, reason, reason, "%s", sanitize.Clip(message, 1000))
}

// held says whether a brake or a foreign edit holds the object, and how. Both
// are honoured alike for objects from Git and from payloads.
func (b *base) held(obj client.Object, suspended bool) status.HeldBy {
	if why, ok := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; ok {
		return status.HeldBy{Reason: status.ReasonPaused, Message: "paused: " + sanitize.Line(why)}
	}
	if suspended {
		return status.HeldBy{Reason: status.ReasonSuspended, Message: "spec.suspend is set"}
	}
	return status.HeldBy{}
}

// reasonOf returns the condition reason that an error carries, or fallback.
func reasonOf(err error, fallback string) string {
	var r interface{ Reason() string }
	if errors.As(err, &r) && r.Reason() != "" {
		return r.Reason()
	}
	return fallback
}

// retriable reports whether an error may go away by itself; errors that don't
// say may.
func retriable(err error) bool {
	var r interface{ Retriable() bool }
	if errors.As(err, &r) {
		return r.Retriable()
	}
	return true
}

// quiet turns a conflict, which the next try settles, into a retry that nobody
// is told about. A store that somebody else wrote ends the process: it acts on
// what was accepted, and must read that anew.
func (o *Operator) quiet(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, req)
		if errors.Is(err, state.ErrConflict) {
			o.fatal(err)
			return reconcile.Result{}, err
		}
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil
		}
		return result, err
	})
}

// logOnce logs an error with its reason at the top, where it's handled.
func logOnce(log logr.Logger, err error, what string) {
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error(err, what, "reason", reasonOf(err, "Error"))
	}
}
