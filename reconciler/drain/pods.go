// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deadKubeletGrace is how long after its grace period a terminating pod is
// waited for on a node whose kubelet doesn't report.
const deadKubeletGrace = 30 * time.Second

// Verdict is what a drain does with a pod.
type Verdict string

// The verdicts.
const (
	// Ignore leaves the pod: it belongs to the node or has finished.
	Ignore Verdict = "Ignore"
	// Evict requests the pod's eviction.
	Evict Verdict = "Evict"
	// Terminating waits for a pod that is being deleted.
	Terminating Verdict = "Terminating"
	// Block stops the drain: no controller recreates the pod.
	Block Verdict = "Block"
)

// Node is the state of a node that Classify depends on.
type Node struct {
	// KubeletDead reports whether the kubelet stopped reporting (Ready is
	// Unknown).
	KubeletDead bool
}

// Policy configures a drain.
type Policy struct {
	// Force evicts pods that no controller recreates.
	Force bool
	// GracePeriodSeconds overrides the pods' grace period unless it's negative.
	GracePeriodSeconds int64
}

// Classify returns what a drain does with a pod, and why. It is pure.
func Classify(pod *corev1.Pod, node Node, p Policy, now time.Time) (Verdict, string) {
	owner := metav1.GetControllerOf(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.DeletionTimestamp != nil:
		// The deletion timestamp is the end of the grace period.
		if node.KubeletDead && now.Sub(pod.DeletionTimestamp.Time) > deadKubeletGrace {
			return Ignore, "terminating on a dead kubelet"
		}
		return Terminating, "terminating"
	case mirror:
		return Ignore, "static pod"
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Ignore, "finished"
	case owner != nil && owner.Kind == "DaemonSet":
		return Ignore, "owned by a DaemonSet"
	case owner == nil && !p.Force:
		return Block, "no controller recreates it; delete it or set spec.drain.force"
	default:
		return Evict, ""
	}
}
