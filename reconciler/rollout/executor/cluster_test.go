// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// clusterEnv is a pool on a real API server, accessed with the reconciler's role,
// and simulated hosts for its Nodes.
type clusterEnv struct {
	*simulation
	t     *testing.T
	admin client.Client
	user  client.Client
	kube  *kubernetes.Clientset
	mu    sync.Mutex
}

func newClusterEnv(t *testing.T, hosts int) *clusterEnv {
	t.Helper()
	cluster := controlplane.SharedWithKinds(t)
	ctx := t.Context()
	for _, path := range []string{"namespace/namespace.yaml", "rbac/service_accounts.yaml", "rbac/reconciler.yaml", "rbac/live.yaml"} {
		documents, err := fs.ReadFile(config.FS(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.Apply(ctx, documents); err != nil {
			t.Fatal(err)
		}
	}
	limited, err := cluster.ConfigForServiceAccount(v1alpha1.Namespace, "lockstep-reconciler")
	if err != nil {
		t.Fatal(err)
	}
	env := &clusterEnv{simulation: newSimulation(0, 1), t: t, admin: clientOf(t, cluster.Config), user: clientOf(t, limited)}
	if env.kube, err = kubernetes.NewForConfig(limited); err != nil {
		t.Fatal(err)
	}
	env.now = time.Now().UTC()
	env.pool.Namespace, env.pool.UID = v1alpha1.Namespace, ""
	env.pool.GenerateName, env.pool.Name = "pool-", ""
	env.pool.Spec.All, env.pool.Spec.Sequence = false, "upgrade"
	env.pool.Spec.NodeSelector = &v1alpha1.NodeSelector{MatchLabels: map[string]string{"pool": fmt.Sprint(time.Now().UnixNano())}}
	if err := env.admin.Create(ctx, env.pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.admin.Delete(context.WithoutCancel(ctx), env.pool) })
	for range hosts {
		env.addHost()
	}
	return env
}

func clientOf(t *testing.T, c *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	out, err := client.New(c, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// addHost creates a Node, its Host and the simulated host.
func (env *clusterEnv) addHost() {
	env.t.Helper()
	ctx := env.t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: env.pool.Spec.NodeSelector.MatchLabels}}
	if err := env.admin.Create(ctx, node); err != nil {
		env.t.Fatal(err)
	}
	n := env.addNode(node.Name, 1)
	n.UID, n.hostID, n.pods = string(node.UID), "host-"+node.Name, 0
	host := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: node.Name}}
	host.Spec.Identity = &v1alpha1.HostIdentity{HostID: n.hostID}
	if err := env.admin.Create(ctx, host); err != nil {
		env.t.Fatal(err)
	}
	env.reportNode(n)
}

// reportNode acts as the kubelet of a simulated host: it writes the Node's status
// and copies the cordon from the API server.
func (env *clusterEnv) reportNode(n *simNode) {
	env.t.Helper()
	var node corev1.Node
	if err := env.admin.Get(env.t.Context(), client.ObjectKey{Name: n.Name}, &node); err != nil {
		env.t.Fatal(err)
	}
	n.Unschedulable, n.CordonedBy = node.Spec.Unschedulable, node.Annotations[v1alpha1.AnnotationCordonedBy]
	before := node.DeepCopy()
	status := corev1.ConditionTrue
	if !n.Ready {
		status = corev1.ConditionUnknown
	}
	node.Status.NodeInfo.BootID = n.BootID
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}}
	if err := env.admin.Status().Patch(env.t.Context(), &node, client.MergeFrom(before)); err != nil {
		env.t.Fatal(err)
	}
}

// lockedAgents are the agents of the simulated hosts, safe for concurrent use.
type lockedAgents struct{ env *clusterEnv }

func (a lockedAgents) Observed(id string) rollout.Agent {
	a.env.mu.Lock()
	defer a.env.mu.Unlock()
	return simAgents{a.env.simulation}.Observed(id)
}

func (a lockedAgents) Facts(ctx context.Context, id string) (nodeos.HostFacts, error) {
	a.env.mu.Lock()
	defer a.env.mu.Unlock()
	return simAgents{a.env.simulation}.Facts(ctx, id)
}

func (a lockedAgents) Order(ctx context.Context, id string, o Order) error {
	a.env.mu.Lock()
	defer a.env.mu.Unlock()
	if n := (simAgents{a.env.simulation}).find(id); n != nil {
		a.env.reportNode(n) // the checks need the cordon of the API server
	}
	snap, err := a.env.store().Load(ctx)
	if err != nil {
		return err
	}
	a.env.doc = snap.Document
	return simAgents{a.env.simulation}.Order(ctx, id, o)
}

func (env *clusterEnv) store() *ledger.Store {
	return ledger.NewStore(env.kube.CoreV1().ConfigMaps(v1alpha1.Namespace))
}

// leader returns an executor with real components except for the agents.
func (env *clusterEnv) leader(holder string) *Executor {
	env.t.Helper()
	e, err := New(Config{
		Ledger:   env.store(),
		Facts:    Cluster{Cached: env.user, Live: env.user, Namespace: v1alpha1.Namespace, Now: env.clock},
		Agents:   lockedAgents{env},
		Cordoner: drain.NewCordoner(env.kube.CoreV1().Nodes()), Evictor: drain.NewEvictor(drain.Config{Client: env.kube}),
		ClusterUID: simClusterUID, Holder: holder, Now: env.clock,
	})
	if err != nil {
		env.t.Fatal(err)
	}
	if err := e.Lead(env.t.Context(), nil); err != nil {
		env.t.Fatal(err)
	}
	return e
}

func (env *clusterEnv) clock() time.Time {
	env.mu.Lock()
	defer env.mu.Unlock()
	return env.now
}

// sync runs one Sync, then a tick of the hosts.
func (env *clusterEnv) sync(e *Executor) Result {
	env.t.Helper()
	var pool v1alpha1.NodeOS
	if err := env.admin.Get(env.t.Context(), client.ObjectKeyFromObject(env.pool), &pool); err != nil {
		env.t.Fatal(err)
	}
	result, err := e.Sync(env.t.Context(), Pool{NodeOS: &pool, Product: "os"})
	if err != nil {
		env.t.Fatal(err)
	}
	env.mu.Lock()
	defer env.mu.Unlock()
	env.tick(20 * time.Second)
	for _, n := range env.nodes {
		env.reportNode(n)
	}
	if len(env.violations) > 0 {
		env.t.Fatalf("violations: %v", env.violations)
	}
	return result
}

func (env *clusterEnv) waitFor(e *Executor, what string, ok func(Result) bool) Result {
	env.t.Helper()
	var last Result
	for range 400 {
		if last = env.sync(e); ok(last) {
			return last
		}
	}
	env.t.Fatalf("timed out: %s\nproblems %v\nwaiting %v\nstatus %+v", what, last.Problems, last.Decision.Waiting, last.Decision.Status)
	return last
}

func (env *clusterEnv) patchTarget(n int) {
	env.t.Helper()
	before := env.pool.DeepCopy()
	env.setTarget(n)
	if err := env.admin.Patch(env.t.Context(), env.pool, client.MergeFrom(before)); err != nil {
		env.t.Fatal(err)
	}
}

func allUpdated(r Result) bool {
	c := r.Decision.Status.Counts
	return c.Total > 0 && c.Updated == c.Total && c.InFlight == 0
}

// TestAPoolIsUpgradedWithTheReconcilersRole updates three simulated hosts; ledger,
// cordons, evictions and gates use a real API server. The leader changes while a
// host is in flight.
func TestAPoolIsUpgradedWithTheReconcilersRole(t *testing.T) {
	env := newClusterEnv(t, 3)
	env.patchTarget(2)
	e := env.leader("first")
	env.waitFor(e, "a host is drained", func(r Result) bool { return r.Decision.Status.Counts.InFlight == 1 })

	next := env.leader("second")
	var pool v1alpha1.NodeOS
	if err := env.admin.Get(t.Context(), client.ObjectKeyFromObject(env.pool), &pool); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Sync(t.Context(), Pool{NodeOS: &pool, Product: "os"}); !errors.Is(err, ledger.ErrSuperseded) {
		t.Fatalf("the old leader continues: %v", err)
	}
	done := env.waitFor(next, "all hosts are updated", allUpdated)
	if done.Decision.Status.Committed == nil || done.Decision.Status.Committed.Version != "2.0.0" {
		t.Errorf("committed is %+v", done.Decision.Status.Committed)
	}
	env.checkUncordoned()
}

// checkUncordoned checks that no node has a cordon or its annotation.
func (env *clusterEnv) checkUncordoned() {
	env.t.Helper()
	for name := range env.nodes {
		var node corev1.Node
		if err := env.admin.Get(env.t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
			env.t.Fatal(err)
		}
		if node.Spec.Unschedulable || node.Annotations[v1alpha1.AnnotationCordonedBy] != "" {
			env.t.Errorf("node %s is still cordoned by %q", name, node.Annotations[v1alpha1.AnnotationCordonedBy])
		}
	}
}

// TestABudgetBlocksTheDrainAndIsNamed blocks a drain until the budget is deleted.
func TestABudgetBlocksTheDrainAndIsNamed(t *testing.T) {
	env := newClusterEnv(t, 1)
	env.patchTarget(2)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}
	if err := env.admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	one, yes, none := intstr.FromInt32(1), true, int64(0)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "mine"}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "api"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns.Name, Name: "api-0", Labels: map[string]string{"app": "api"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Set", Name: "api", UID: ns.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &none, ServiceAccountName: "mine",
			Containers:  []corev1.Container{{Name: "c", Image: "example.com/none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	for name := range env.nodes {
		pod.Spec.NodeName = name
	}
	for _, o := range []client.Object{account, budget, pod} {
		if err := env.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := env.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	e := env.leader("only")
	blocked := env.waitFor(e, "the budget is named", func(r Result) bool {
		f := r.Decision.Status.InFlight
		return len(f) == 1 && strings.Contains(f[0].Blocking, "PodDisruptionBudget "+ns.Name+"/api blocks pod "+ns.Name+"/api-0")
	})
	if got := blocked.Decision.Status.InFlight[0].State; got != string(ledger.Draining) {
		t.Errorf("state %s, want Draining", got)
	}
	if err := env.admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	env.waitFor(e, "the host is updated", allUpdated)
	env.checkUncordoned()
}

// TestABadImageHaltsThePool checks that one host tries the image, rolls back, and
// no other host tries it.
func TestABadImageHaltsThePool(t *testing.T) {
	env := newClusterEnv(t, 3)
	env.bad[simDigest(3)], env.firmware = true, true
	env.patchTarget(3)
	e := env.leader("only")
	r := env.waitFor(e, "the pool halts and nothing is in flight", func(r Result) bool {
		c := r.Decision.Status.Counts
		return c.Failed == 1 && c.InFlight == 0
	})
	for _, c := range r.Decision.Status.Conditions {
		if c.Type == v1alpha1.ConditionHalted && c.Status != metav1.ConditionTrue {
			t.Errorf("condition Halted is %+v", c)
		}
	}
	tried := 0
	for _, n := range env.nodes {
		tried += len(n.activated)
		if n.facts.Booted.Digest != simDigest(1) || !n.facts.Booted.Confirmed {
			t.Errorf("%s runs %s", n.Name, n.facts.Booted.Version)
		}
	}
	if tried != 1 {
		t.Errorf("%d hosts tried the bad image", tried)
	}
	env.checkUncordoned()
}

// TestADeletedNodeFreesItsSlot recreates the Node with the same name.
func TestADeletedNodeFreesItsSlot(t *testing.T) {
	env := newClusterEnv(t, 1)
	env.patchTarget(2)
	e := env.leader("only")
	env.waitFor(e, "the host is in flight", func(r Result) bool { return r.Decision.Status.Counts.InFlight == 1 })
	var name string
	for name = range env.nodes {
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := env.admin.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: env.pool.Spec.NodeSelector.MatchLabels}}
	if err := env.admin.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	env.nodes[name].UID = string(again.UID)
	env.waitFor(e, "the recreated node is updated", allUpdated)
	snap, err := env.store().Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for uid, s := range snap.Document.Slots {
		if s.Node == name {
			t.Errorf("slot of %s (%s) not freed", name, uid)
		}
	}
	env.checkUncordoned()
}
