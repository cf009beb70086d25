// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deadKubeletGrace is how long past its grace period a pod is waited for on a node
// whose kubelet doesn't answer.
const deadKubeletGrace = 30 * time.Second

// Verdict says what a drain does with a pod.
type Verdict string

// The verdicts.
const (
	// Ignore leaves the pod: it belongs to the node, or is over.
	Ignore Verdict = "Ignore"
	// Evict asks the pod to go.
	Evict Verdict = "Evict"
	// Terminating waits for a pod that was asked to go.
	Terminating Verdict = "Leaving"
	// Block keeps the node from being drained: nothing would make the pod again.
	Block Verdict = "Blocks"
)

// Node is what the judgement of a pod needs to know of its node.
type Node struct {
	// KubeletDead says that the kubelet doesn't report (Ready is Unknown).
	KubeletDead bool
}

// Policy says how pods are judged.
type Policy struct {
	// Force evicts pods that nothing would make again.
	Force bool
	// GracePeriodSeconds overrides that of the pods; negative: their own.
	GracePeriodSeconds int64
}

// Classify says what a drain does with a pod, and why. It's pure.
func Classify(pod *corev1.Pod, node Node, p Policy, now time.Time) (Verdict, string) {
	owner := metav1.GetControllerOf(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.DeletionTimestamp != nil:
		// The deletion time is when the grace period ends.
		if node.KubeletDead && now.Sub(pod.DeletionTimestamp.Time) > deadKubeletGrace {
			return Ignore, "told to go, and the kubelet is dead"
		}
		return Terminating, "told to go"
	case mirror:
		return Ignore, "static pod"
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Ignore, "finished"
	case owner != nil && owner.Kind == "DaemonSet":
		return Ignore, "of a DaemonSet"
	case owner == nil && !p.Force:
		return Block, "no controller would make it again; delete it, or set spec.drain.force"
	default:
		return Evict, ""
	}
}
