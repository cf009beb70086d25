// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestRoleBasedAccessControlRefusesAUserWithoutARole(t *testing.T) {
	c := Shared(t)
	nobody, err := c.ConfigFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientFor(t, nobody).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role listed config maps: got error %v, want Forbidden", err)
	}
}

func TestAnAnonymousRequestIsUnauthorized(t *testing.T) {
	c := Shared(t)
	anonymous := rest.AnonymousClientConfig(c.Config)
	_, err := clientFor(t, anonymous).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("an anonymous request: got error %v, want Unauthorized", err)
	}
}

func TestAServiceAccountsConfigurationActsAsTheAccount(t *testing.T) {
	c := Shared(t)
	config, err := c.ConfigForServiceAccount("default", "probe")
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientFor(t, config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err == nil || !strings.Contains(err.Error(), `"system:serviceaccount:default:probe"`) {
		t.Errorf("got error %v, want a refusal that names the service account", err)
	}
}

func TestTheControllerManagerFinishesTheDeletionOfANamespace(t *testing.T) {
	client := clientFor(t, Shared(t).Config)
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "gone-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func(ctx context.Context) bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestRequestCountsGrowByTheRequestsMade(t *testing.T) {
	c := Shared(t)
	client := clientFor(t, c.Config)
	count := func() int {
		counts, err := c.RequestCounts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return counts.Sum(func(r Request) bool { return r.Resource == "limitranges" && r.Verb == "GET" })
	}
	before := count()
	for range 3 {
		_, err := client.CoreV1().LimitRanges("default").Get(t.Context(), "absent", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if got := count() - before; got != 3 {
		t.Errorf("counted %d requests after 3", got)
	}
}

func TestAnOutageRefusesThenKeepsTheData(t *testing.T) {
	c, err := Start(t.Context(), Options{Profile: Bare, AuditLog: filepath.Join(t.TempDir(), "audit.log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopCluster(t, c) })
	client := clientFor(t, c.Config)
	put := func(name string) error {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	mark, err := c.MarkAudit()
	if err != nil {
		t.Fatal(err)
	}
	if err := put("before"); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := c.Snapshot(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	if err := put("after"); err != nil {
		t.Fatal(err)
	}
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := put("during"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a request to a stopped API server: got %v, want a refused connection", err)
	}
	if err := c.Restore(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
		t.Errorf("what the snapshot held is lost: %v", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "after", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what came after the snapshot: got %v, want NotFound", err)
	}
	requests, err := mark.Since()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(requests, func(a Audited) bool {
		return a.User == "controlplane-admin" && a.Verb == "create" && a.Resource == "configmaps" && a.Name == "before" && a.Code == http.StatusCreated && a.Writes()
	}) {
		t.Errorf("the audit log doesn't name a written object: %v", requests)
	}
}

func TestAPausedAPIServerAnswersLater(t *testing.T) {
	c, err := Start(t.Context(), Options{Profile: Bare})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopCluster(t, c) })
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	client := clientFor(t, c.Config)
	if _, err := client.CoreV1().Namespaces().List(short, metav1.ListOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request to a paused API server: got %v, want no answer", err)
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a request after the pause: %v", err)
	}
	if used, err := c.CPU(); err != nil || used <= 0 {
		t.Errorf("CPU() = %v, %v; want some time used", used, err)
	}
}

func TestPodsRunOnKwokNodesAndOnHostOwnedNodes(t *testing.T) {
	c, err := Start(t.Context(), Options{Profile: Full, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopCluster(t, c) })
	client := clientFor(t, c.Config)
	owned := ownNode(t, client, "owned")
	replicas := int32(3)
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "web"}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all replicas are available", func(ctx context.Context) bool {
		d, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		return err == nil && d.Status.AvailableReplicas == replicas
	})
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=owned"})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("the host-owned node runs %d pods (%v), want 1", len(pods.Items), err)
	}
	now, err := client.CoreV1().Nodes().Get(t.Context(), "owned", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Status.NodeInfo.KubeletVersion != owned.Status.NodeInfo.KubeletVersion || len(now.Status.Addresses) != 0 {
		t.Errorf("kwok wrote the status of a node that a host owns: %+v", now.Status)
	}
	if _, err := client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "owned", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("kwok took the lease of a node that a host owns: got %v, want NotFound", err)
	}
}

// ownNode registers a node as a host does: it writes the status itself.
func ownNode(t *testing.T, client *kubernetes.Clientset, name string) *corev1.Node {
	t.Helper()
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/hostname": name},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := corev1.NodeStatus{
		NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "v0.0.0-host", BootID: "1"},
		Capacity:    corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")},
		Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "HostReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the controller-manager writes taints meanwhile
		if node, err = client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		node.Status = status
		node, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestStopLeavesNoProcessAndNoDirectory(t *testing.T) {
	c, err := Start(t.Context(), Options{Profile: Bare})
	if err != nil {
		t.Fatal(err)
	}
	store, err := c.process(etcd)
	if err != nil {
		t.Fatal(err)
	}
	stopCluster(t, c)
	if err := syscall.Kill(store.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("etcd still runs after Stop: %v", err)
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there after Stop: %v", err)
	}
}

func TestAFailedStartShowsTheEndOfTheLog(t *testing.T) {
	_, err := Start(t.Context(), Options{Profile: Bare, APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("got error %v, want one that shows the component's own words", err)
	}
}

func stopCluster(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// eventually waits for a condition with a deadline that suits a loaded
// machine.
func eventually(t *testing.T, what string, check func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) (bool, error) { return check(ctx), nil })
	if err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}
