// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func ownedBy(kind string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "x", UID: "u", Controller: &yes}}
}

// TestClassify follows the filters of kubectl drain.
func TestClassify(t *testing.T) {
	t.Parallel()
	gone := metav1.NewTime(noon().Add(-time.Minute))
	for name, tc := range map[string]struct {
		pod    corev1.Pod
		node   Node
		policy Policy
		want   Verdict
	}{
		"a ReplicaSet's pod is evicted":          {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: ownedBy("ReplicaSet")}}, want: Evict},
		"a DaemonSet's pod is ignored":           {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: ownedBy("DaemonSet")}}, want: Ignore},
		"a static pod is ignored":                {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}}}, want: Ignore},
		"a succeeded pod is ignored":             {pod: corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, want: Ignore},
		"a failed pod is ignored":                {pod: corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, want: Ignore},
		"an unmanaged pod blocks":                {want: Block},
		"an unmanaged pod is evicted with force": {policy: Policy{Force: true}, want: Evict},
		"an emptyDir doesn't block": {pod: corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: ownedBy("ReplicaSet")},
			Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}},
		}, want: Evict},
		"a terminating pod is waited for":                {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &gone}}, want: Terminating},
		"a terminating pod on a dead kubelet is ignored": {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &gone}}, node: Node{KubeletDead: true}, want: Ignore},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, why := Classify(&tc.pod, tc.node, tc.policy, noon()); got != tc.want {
				t.Errorf("%s (%s), want %s", got, why, tc.want)
			}
		})
	}
}

func TestEvictionErrorsAreExplained(t *testing.T) {
	t.Parallel()
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget api needs 3 healthy pods and has 3 currently",
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "api-0"}}
	for name, tc := range map[string]struct {
		err    error
		want   string
		budget string
		after  time.Duration
	}{
		"a budget is named with its pod": {
			budget, "PodDisruptionBudget web/api blocks pod web/api-0: The disruption budget api needs 3 healthy pods and has 3 currently", "api", 10 * time.Second,
		},
		"a busy API server is not a budget": {
			apierrors.NewTooManyRequests("too many requests", 1), "pod web/api-0: the API server is busy: too many requests", "", time.Second,
		},
		"two budgets are distinguished from an internal error": {
			//nolint:revive // error-strings: the API server's message
			apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")),
			"pod web/api-0: more than one PodDisruptionBudget selects the pod, so it can't be evicted; keep only one", "", backoffLimit,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cause := explain(tc.err)
			b := blockerOf(pod, cause)
			if b.String() != tc.want || b.Budget != tc.budget || cause.after != tc.after {
				t.Errorf("%q, budget %q, after %s", b, b.Budget, cause.after)
			}
		})
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	e := NewEvictor(Config{Jitter: func() float64 { return 0.999 }})
	now := noon()
	var last time.Duration
	for range 12 {
		e.backOff("uid", refusal{}, now)
		tr, wait := e.inBackoff("uid", now)
		if !wait {
			t.Fatal("a pod is due immediately after a failed eviction")
		}
		next := tr.next.Sub(now)
		if next < last || next > backoffLimit*3/2 {
			t.Fatalf("waits %s after %s", next, last)
		}
		last = next
	}
	e.backOff("uid", refusal{after: 10 * time.Minute}, now)
	if tr, _ := e.inBackoff("uid", now); tr.next.Sub(now) != 10*time.Minute {
		t.Errorf("the API server's delay isn't respected: %s", tr.next.Sub(now))
	}
	for i := range maxBackoffs + 10 {
		e.backOff(string(rune(i))+"x", refusal{}, now)
	}
	if len(e.backoffs) > maxBackoffs {
		t.Errorf("%d backoffs are stored", len(e.backoffs))
	}
}
