// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// Object is one of the declared kinds.
type Object interface {
	client.Object
	GetConditions() []metav1.Condition
	SetConditions(conditions []metav1.Condition)
}

// SetConditions sets conditions of obj for its generation and removes those named
// in gone. Messages are sanitized and limited. A condition that didn't change keeps
// its transition time.
func (b *Base) SetConditions(obj Object, conditions []status.Condition, gone ...string) {
	now := metav1.NewTime(b.Now().UTC().Truncate(time.Second))
	obj.SetConditions(status.Fold(obj.GetConditions(), obj.GetGeneration(), now, conditions, gone...))
}

// Succeeded returns Ready, Reconciling and Stalled of an object without problems.
func Succeeded(reason, message string) []status.Condition {
	return summary(metav1.ConditionTrue, reason, message, false, false)
}

// Failed returns Ready, Reconciling and Stalled of an object that isn't ready:
// Reconciling if the cause is transient, Stalled otherwise.
func Failed(cause status.HeldBy) []status.Condition {
	return summary(metav1.ConditionFalse, cause.Reason, cause.Message, cause.Transient, !cause.Transient)
}

func summary(ready metav1.ConditionStatus, reason, message string, reconciling, stalled bool) []status.Condition {
	return []status.Condition{
		{Type: v1alpha1.ConditionReady, Status: ready, Reason: reason, Message: message},
		{Type: v1alpha1.ConditionReconciling, Status: status.Bool(reconciling), Reason: reason, Message: message},
		{Type: v1alpha1.ConditionStalled, Status: status.Bool(stalled), Reason: reason, Message: message},
	}
}

// PatchStatus writes the status of obj if it differs from before, records its
// conditions as metrics, and emits an event per relevant transition. A concurrent
// write is a conflict.
func (b *Base) PatchStatus(ctx context.Context, before, obj Object) error {
	b.record(obj)
	if equality.Semantic.DeepEqual(before, obj) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := b.Client.Status().Patch(ctx, obj, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("patch status of %s: %w", obj.GetName(), err))
	}
	b.emitTransitions(before, obj)
	return nil
}

// PatchLatestStatus patches the status of a GitSource, which has two writers. After
// a conflict it reads the object again and repeats change, which returns false to
// write nothing.
func (b *Base) PatchLatestStatus(ctx context.Context, obj *v1alpha1.GitSource, change func(*v1alpha1.GitSource) bool) error {
	const attempts = 5
	for i := 1; ; i++ {
		before := obj.DeepCopy()
		if !change(obj) {
			return nil
		}
		err := b.PatchStatus(ctx, before, obj)
		if !apierrors.IsConflict(err) || i == attempts {
			return err
		}
		latest := &v1alpha1.GitSource{}
		if err := b.Reader.Get(ctx, client.ObjectKeyFromObject(obj), latest); err != nil {
			return client.IgnoreNotFound(err)
		}
		obj = latest
	}
}
