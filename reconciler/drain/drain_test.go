// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// env is the node and the namespace of one test on the real control plane.
type env struct {
	*kubernetes.Clientset
	node      *corev1.Node
	namespace string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	client, err := kubernetes.NewForConfig(controlplane.Shared(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "drain-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the service account exists", func() bool {
		_, err := client.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return &env{client, node, ns.Name}
}

// waitFor polls until ok returns true.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}

// createPod creates a Ready pod on the node; it is unmanaged if owner is "".
func (c *env) createPod(t *testing.T, name, owner string, labels map[string]string) *corev1.Pod {
	t.Helper()
	none := int64(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: c.node.Name, TerminationGracePeriodSeconds: &none,
			Containers:  []corev1.Container{{Name: "c", Image: "example.com/none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if owner != "" {
		p.OwnerReferences = ownedBy(owner)
		p.OwnerReferences[0].UID = c.node.UID
		// The garbage collector ignores owners of an unknown kind.
		p.OwnerReferences[0].APIVersion = "example.com/v1"
	}
	got, err := c.CoreV1().Pods(c.namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	got, err = c.CoreV1().Pods(c.namespace).UpdateStatus(t.Context(), got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (c *env) createBudget(t *testing.T, name string, selector map[string]string, minAvailable int) {
	t.Helper()
	n := intstr.FromInt(minAvailable)
	_, err := c.PolicyV1().PodDisruptionBudgets(c.namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &n, Selector: &metav1.LabelSelector{MatchLabels: selector}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the budget is observed", func() bool {
		b, err := c.PolicyV1().PodDisruptionBudgets(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy > 0
	})
}

func (c *env) exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := c.CoreV1().Pods(c.namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func (c *env) request() Request {
	return Request{Node: c.node.Name, Policy: Policy{GracePeriodSeconds: -1}}
}

func TestDrainRespectsAndNamesBudgets(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	api := map[string]string{"app": "api"}
	c.createPod(t, "api-0", "Set", api)
	c.createPod(t, "api-1", "Set", api)
	c.createPod(t, "free", "Set", nil)
	c.createPod(t, "daemon", "DaemonSet", nil)
	c.createBudget(t, "api", api, 2)
	e := NewEvictor(Config{Client: c})
	now := noon()

	before, err := e.Inspect(t.Context(), c.request(), now)
	if err != nil || before.Remaining != 3 || !c.exists(t, "free") {
		t.Fatalf("inspected %+v, %v: want three pods to evict and none evicted", before, err)
	}
	report, err := e.Round(t.Context(), c.request(), now)
	if err != nil {
		t.Fatal(err)
	}
	if report.Evicted != 1 || len(report.Blockers) != 2 || report.Blockers[0].Budget != "api" {
		t.Fatalf("the round returned %+v", report)
	}
	if want := "PodDisruptionBudget " + c.namespace + "/api blocks pod " + c.namespace + "/api-0: "; !strings.HasPrefix(report.Blocking(), want) {
		t.Errorf("blocking is %q, want prefix %q", report.Blocking(), want)
	}
	if c.exists(t, "free") || !c.exists(t, "daemon") || !c.exists(t, "api-0") {
		t.Error("the wrong pods were evicted")
	}

	again, err := e.Round(t.Context(), c.request(), now.Add(time.Second))
	if err != nil || again.Evicted != 0 || again.Remaining != 2 || again.Blockers[0].Budget != "api" {
		t.Errorf("within the backoff the round returned %+v, %v", again, err)
	}
	if err := c.PolicyV1().PodDisruptionBudgets(c.namespace).Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the node is empty", func() bool {
		now = now.Add(time.Minute)
		report, err := e.Round(t.Context(), c.request(), now)
		return err == nil && report.Remaining == 0
	})
}

func TestAPodInTwoBudgetsIsABlocker(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	labels := map[string]string{"app": "api"}
	c.createPod(t, "api", "Set", labels)
	c.createBudget(t, "one", labels, 1)
	c.createBudget(t, "two", labels, 1)
	report, err := NewEvictor(Config{Client: c}).Round(t.Context(), c.request(), noon())
	if err != nil || len(report.Blockers) != 1 || !strings.Contains(report.Blocking(), "more than one PodDisruptionBudget") {
		t.Errorf("the round returned %+v, %v", report, err)
	}
}

func TestAnUnmanagedPodBlocksTheDrain(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	c.createPod(t, "alone", "", nil)
	e := NewEvictor(Config{Client: c})
	report, err := e.Round(t.Context(), c.request(), noon())
	if err != nil || report.Remaining != 1 || !strings.Contains(report.Blocking(), c.namespace+"/alone: no controller recreates") {
		t.Fatalf("the round returned %+v, %v", report, err)
	}
	forced := c.request()
	forced.Policy.Force = true
	if report, err = e.Round(t.Context(), forced, noon()); err != nil || report.Evicted != 1 {
		t.Errorf("with force the round returned %+v, %v", report, err)
	}
}

func TestOnlyDeleteBypassesABudget(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	labels := map[string]string{"app": "api"}
	c.createPod(t, "api", "Set", labels)
	c.createBudget(t, "api", labels, 1)
	e := NewEvictor(Config{Client: c})
	req := c.request()
	req.Policy.Force = true
	if report, err := e.Round(t.Context(), req, noon()); err != nil || report.Evicted != 0 || !c.exists(t, "api") {
		t.Fatalf("force returned %+v, %v", report, err)
	}
	req.Delete = true
	if report, err := e.Round(t.Context(), req, noon()); err != nil || report.Deleted != 1 {
		t.Fatalf("deletion returned %+v, %v", report, err)
	}
}

func TestARecreatedPodIsNotEvicted(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	old := c.createPod(t, "api", "Set", nil)
	if err := c.CoreV1().Pods(c.namespace).Delete(t.Context(), "api", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the old pod is gone", func() bool { return !c.exists(t, "api") })
	c.createPod(t, "api", "Set", nil)
	blocker, err := NewEvictor(Config{Client: c}).evictPod(t.Context(), old, c.request(), noon())
	if blocker != nil || err != nil || !c.exists(t, "api") {
		t.Errorf("evicting the old pod returned %v, %v; the new one exists=%v", blocker, err, c.exists(t, "api"))
	}
}

func TestDrainStopsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewEvictor(Config{Client: c}).Round(ctx, c.request(), noon()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func (c *env) getNode(t *testing.T) *corev1.Node {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), c.node.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *env) updateNode(t *testing.T, f func(*corev1.Node)) {
	t.Helper()
	waitFor(t, "the node is updated", func() bool {
		n := c.getNode(t)
		f(n)
		_, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		return err == nil
	})
}

func TestCordonRecordsItsOwner(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	ctx, cordoner := t.Context(), NewCordoner(c.CoreV1().Nodes())
	name, uid := c.node.Name, string(c.node.UID)
	for range 2 { // idempotent
		if err := cordoner.Cordon(ctx, name, uid, "a.1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.getNode(t); !n.Spec.Unschedulable || n.Annotations[v1alpha1.AnnotationCordonedBy] != "a.1" {
		t.Fatalf("the node is %+v %v", n.Spec, n.Annotations)
	}
	if err := cordoner.Cordon(ctx, name, uid, "b.1"); !errors.Is(err, ErrCordonedExternally) {
		t.Errorf("another attempt's cordon returned %v", err)
	}
	if err := cordoner.Uncordon(ctx, name, uid, "b.1"); err != nil || !c.getNode(t).Spec.Unschedulable {
		t.Errorf("another attempt's uncordon returned %v and unschedulable=%v", err, c.getNode(t).Spec.Unschedulable)
	}
	for range 2 {
		if err := cordoner.Uncordon(ctx, name, uid, "a.1"); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.getNode(t); n.Spec.Unschedulable || n.Annotations[v1alpha1.AnnotationCordonedBy] != "" {
		t.Errorf("the node is %+v %v", n.Spec, n.Annotations)
	}
}

func TestAnExternalCordonIsNeverChanged(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	ctx, cordoner := t.Context(), NewCordoner(c.CoreV1().Nodes())
	name, uid := c.node.Name, string(c.node.UID)
	c.updateNode(t, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	if err := cordoner.Cordon(ctx, name, uid, "a.1"); !errors.Is(err, ErrCordonedExternally) {
		t.Errorf("cordon returned %v, want ErrCordonedExternally", err)
	}
	if err := cordoner.Uncordon(ctx, name, uid, "a.1"); err != nil || !c.getNode(t).Spec.Unschedulable {
		t.Errorf("uncordon returned %v; the node must stay unschedulable", err)
	}
}

func TestARecreatedNodeIsNotCordoned(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	ctx, cordoner := t.Context(), NewCordoner(c.CoreV1().Nodes())
	if err := cordoner.Cordon(ctx, c.node.Name, "another-uid", "a.1"); !errors.Is(err, ErrGone) {
		t.Errorf("cordon returned %v, want ErrGone", err)
	}
	if err := cordoner.Uncordon(ctx, c.node.Name, "another-uid", "a.1"); err != nil {
		t.Errorf("uncordon returned %v", err)
	}
	if c.getNode(t).Spec.Unschedulable {
		t.Error("the recreated node was cordoned")
	}
}

// TestACordonOfAChangedNodeFails checks the preconditions of the patch.
func TestACordonOfAChangedNodeFails(t *testing.T) {
	t.Parallel()
	c := newEnv(t)
	cordoner := NewCordoner(c.CoreV1().Nodes())
	n := c.getNode(t)
	c.updateNode(t, func(n *corev1.Node) { n.Labels = map[string]string{"changed": "yes"} })
	err := cordoner.patch(t.Context(), n.Name, append(preconditions(n), op{"add", "/spec/unschedulable", true}))
	if !errors.Is(err, ErrChanged) || c.getNode(t).Spec.Unschedulable {
		t.Errorf("error %v, want ErrChanged", err)
	}
}
