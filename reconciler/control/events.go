// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// maxEvent limits the message of an event, in bytes.
const maxEvent = 1000

// Event emits an event about obj. kind is corev1.EventTypeNormal or
// corev1.EventTypeWarning.
func (b *Base) Event(obj client.Object, kind, reason, message string) {
	b.Events.Eventf(obj, nil, kind, reason, reason, "%s", sanitize.Clip(message, maxEvent))
}

// emitTransitions emits an event for each transition of Ready, and for each other
// condition that became bad.
func (b *Base) emitTransitions(before, obj Object) {
	for _, c := range obj.GetConditions() {
		old := meta.FindStatusCondition(before.GetConditions(), c.Type)
		another := c.Type == v1alpha1.ConditionReleaseAccepted && retargeted(before, obj)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason && !another {
			continue
		}
		switch c.Type {
		case v1alpha1.ConditionReady:
			kind := corev1.EventTypeNormal
			if c.Status == metav1.ConditionFalse && stalled(obj) {
				kind = corev1.EventTypeWarning
			}
			b.Event(obj, kind, c.Reason, c.Message)
		case v1alpha1.ConditionFailing, v1alpha1.ConditionHalted, v1alpha1.ConditionInsecure:
			if c.Status == metav1.ConditionTrue {
				b.Event(obj, corev1.EventTypeWarning, c.Reason, c.Message)
			}
		case v1alpha1.ConditionReleaseAccepted, v1alpha1.ConditionSourceVerified, v1alpha1.ConditionOSVerified:
			if c.Status == metav1.ConditionFalse {
				b.Event(obj, corev1.EventTypeWarning, c.Reason, c.Message)
			}
		}
	}
}

// retargeted reports whether another release is desired: its rejection is a
// transition even with an unchanged reason.
func retargeted(before, obj Object) bool {
	was, okWas := before.(*v1alpha1.ClusterRelease)
	is, okIs := obj.(*v1alpha1.ClusterRelease)
	return okWas && okIs && !equality.Semantic.DeepEqual(was.Status.Desired, is.Status.Desired)
}

func stalled(obj Object) bool {
	return meta.IsStatusConditionTrue(obj.GetConditions(), v1alpha1.ConditionStalled)
}
