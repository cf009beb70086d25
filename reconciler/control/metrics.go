// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/reference"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// RecordDuration records the duration of a reconciliation that began at the given
// time.
func (b *Base) RecordDuration(kind, name string, began time.Time) {
	b.Metrics.RecordDuration(corev1.ObjectReference{Kind: kind, Namespace: v1alpha1.Namespace, Name: name}, began)
}

// record sets the metrics of the object's conditions and of its suspension.
func (b *Base) record(obj Object) {
	ref, err := reference.GetReference(b.Client.Scheme(), obj)
	if err != nil {
		return
	}
	for _, c := range obj.GetConditions() {
		b.Metrics.RecordCondition(*ref, c)
	}
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		b.Metrics.RecordSuspend(*ref, o.Spec.Suspend)
	case *v1alpha1.ClusterRelease:
		b.Metrics.RecordSuspend(*ref, o.Spec.Suspend)
	case *v1alpha1.NodeOS:
		b.Metrics.RecordSuspend(*ref, o.Spec.Suspend)
	}
}

// DeleteMetrics deletes the metrics of a deleted object, so that no alert on its
// conditions keeps firing.
func (b *Base) DeleteMetrics(kind, name string) {
	ref := corev1.ObjectReference{Kind: kind, Namespace: v1alpha1.Namespace, Name: name}
	for _, typ := range []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionInsecure,
		v1alpha1.ConditionSourceVerified, v1alpha1.ConditionWriteBackReady,
		v1alpha1.ConditionAvailable, v1alpha1.ConditionProgressing, v1alpha1.ConditionFailing, v1alpha1.ConditionReleaseAccepted,
		v1alpha1.ConditionReleaseVerified, v1alpha1.ConditionUpgradeable, v1alpha1.ConditionFieldYielded, v1alpha1.ConditionInvalid,
		v1alpha1.ConditionPruneComplete,
		v1alpha1.ConditionInventoryIncomplete,
		v1alpha1.ConditionPaused, v1alpha1.ConditionHalted, v1alpha1.ConditionOSVerified,
	} {
		b.Metrics.DeleteCondition(ref, typ)
	}
	b.Metrics.DeleteDuration(ref)
	b.Metrics.DeleteSuspend(ref)
}
