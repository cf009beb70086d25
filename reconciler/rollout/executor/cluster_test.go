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

// bed is a pool on a real API server, under the reconciler's own role, with
// simulated hosts behind the Nodes.
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
	b := &clusterEnv{simulation: newSimulation(0, 1), t: t, admin: clientOf(t, cluster.Config), user: clientOf(t, limited)}
	if b.kube, err = kubernetes.NewForConfig(limited); err != nil {
		t.Fatal(err)
	}
	b.now = time.Now().UTC()
	b.pool.Namespace, b.pool.UID = v1alpha1.Namespace, ""
	b.pool.GenerateName, b.pool.Name = "pool-", ""
	b.pool.Spec.All, b.pool.Spec.Sequence = false, "upgrade"
	b.pool.Spec.NodeSelector = &v1alpha1.NodeSelector{MatchLabels: map[string]string{"pool": fmt.Sprint(time.Now().UnixNano())}}
	if err := b.admin.Create(ctx, b.pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.admin.Delete(context.WithoutCancel(ctx), b.pool) })
	for range hosts {
		b.addHost()
	}
	return b
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

// join makes a Node, its Host, and a simulated host behind them.
func (b *clusterEnv) addHost() {
	b.t.Helper()
	ctx := b.t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: b.pool.Spec.NodeSelector.MatchLabels}}
	if err := b.admin.Create(ctx, node); err != nil {
		b.t.Fatal(err)
	}
	n := b.addNode(node.Name, 1)
	n.UID, n.hostID, n.pods = string(node.UID), "host-"+node.Name, 0
	host := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: node.Name}}
	host.Spec.Identity = &v1alpha1.HostIdentity{HostID: n.hostID}
	if err := b.admin.Create(ctx, host); err != nil {
		b.t.Fatal(err)
	}
	b.reportNode(n)
}

// post is the kubelet of a simulated host: it reports what the host is, and
// notes what the API server says of the node.
func (b *clusterEnv) reportNode(n *simNode) {
	b.t.Helper()
	var node corev1.Node
	if err := b.admin.Get(b.t.Context(), client.ObjectKey{Name: n.Name}, &node); err != nil {
		b.t.Fatal(err)
	}
	n.Unschedulable, n.CordonedBy = node.Spec.Unschedulable, node.Annotations[v1alpha1.AnnotationCordonedBy]
	before := node.DeepCopy()
	status := corev1.ConditionTrue
	if !n.Ready {
		status = corev1.ConditionUnknown
	}
	node.Status.NodeInfo.BootID = n.BootID
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}}
	if err := b.admin.Status().Patch(b.t.Context(), &node, client.MergeFrom(before)); err != nil {
		b.t.Fatal(err)
	}
}

// agents are the simulated hosts, for real executors.
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
		a.env.reportNode(n) // the truth as the API server has it, for the checks
	}
	snap, err := a.env.store().Load(ctx)
	if err != nil {
		return err
	}
	a.env.doc = snap.Document
	return simAgents{a.env.simulation}.Order(ctx, id, o)
}

func (b *clusterEnv) store() *ledger.Store {
	return ledger.NewStore(b.kube.CoreV1().ConfigMaps(v1alpha1.Namespace))
}

// leader is an executor of real parts, but for the agents.
func (b *clusterEnv) leader(holder string) *Executor {
	b.t.Helper()
	e, err := New(Config{
		Ledger:   b.store(),
		Facts:    Cluster{Cached: b.user, Live: b.user, Namespace: v1alpha1.Namespace, Now: b.clock},
		Agents:   lockedAgents{b},
		Cordoner: drain.NewCordoner(b.kube.CoreV1().Nodes()), Evictor: drain.NewEvictor(drain.Config{Client: b.kube}),
		ClusterUID: simClusterUID, Holder: holder, Now: b.clock,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := e.Lead(b.t.Context(), nil); err != nil {
		b.t.Fatal(err)
	}
	return e
}

func (b *clusterEnv) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// round is one pass, then the hosts do a thing and report.
func (b *clusterEnv) sync(e *Executor) Result {
	b.t.Helper()
	var pool v1alpha1.NodeOS
	if err := b.admin.Get(b.t.Context(), client.ObjectKeyFromObject(b.pool), &pool); err != nil {
		b.t.Fatal(err)
	}
	result, err := e.Sync(b.t.Context(), Pool{NodeOS: &pool, Product: "os"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tick(20 * time.Second)
	for _, n := range b.nodes {
		b.reportNode(n)
	}
	if len(b.violations) > 0 {
		b.t.Fatalf("violated: %v", b.violations)
	}
	return result
}

func (b *clusterEnv) waitFor(e *Executor, what string, ok func(Result) bool) Result {
	b.t.Helper()
	var last Result
	for range 400 {
		if last = b.sync(e); ok(last) {
			return last
		}
	}
	b.t.Fatalf("never: %s\nproblems %v\nwaiting %v\nstatus %+v", what, last.Problems, last.Decision.Waiting, last.Decision.Status)
	return last
}

func (b *clusterEnv) patchTarget(n int) {
	b.t.Helper()
	before := b.pool.DeepCopy()
	b.setTarget(n)
	if err := b.admin.Patch(b.t.Context(), b.pool, client.MergeFrom(before)); err != nil {
		b.t.Fatal(err)
	}
}

func allUpdated(r Result) bool {
	c := r.Decision.Status.Counts
	return c.Total > 0 && c.Updated == c.Total && c.InFlight == 0
}

// TestAPoolIsUpgradedWithTheReconcilersRole drives three hosts on a real API
// server: ledger, cordons, evictions and gates are real, the hosts simulated.
// A pod with a budget holds the drain until the budget goes.
func TestAPoolIsUpgradedWithTheReconcilersRole(t *testing.T) {
	b := newClusterEnv(t, 3)
	b.patchTarget(2)
	e := b.leader("first")
	b.waitFor(e, "a host is drained", func(r Result) bool { return r.Decision.Status.Counts.InFlight == 1 })

	// Leaders change in mid-flight; the old one notices and stops.
	next := b.leader("second")
	var pool v1alpha1.NodeOS
	if err := b.admin.Get(t.Context(), client.ObjectKeyFromObject(b.pool), &pool); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Sync(t.Context(), Pool{NodeOS: &pool, Product: "os"}); !errors.Is(err, ledger.ErrSuperseded) {
		t.Fatalf("the old leader goes on: %v", err)
	}
	done := b.waitFor(next, "all hosts are updated", allUpdated)
	if done.Decision.Status.Committed == nil || done.Decision.Status.Committed.Version != "2.0.0" {
		t.Errorf("committed is %+v", done.Decision.Status.Committed)
	}
	b.checkUncordoned()
}

// unharmed holds that nothing of ours is left on the nodes.
func (b *clusterEnv) checkUncordoned() {
	b.t.Helper()
	for name := range b.nodes {
		var node corev1.Node
		if err := b.admin.Get(b.t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
			b.t.Fatal(err)
		}
		if node.Spec.Unschedulable || node.Annotations[v1alpha1.AnnotationCordonedBy] != "" {
			b.t.Errorf("node %s is left cordoned by %q", name, node.Annotations[v1alpha1.AnnotationCordonedBy])
		}
	}
}

// TestABudgetBlocksTheDrainAndIsNamed blocks a drain, and frees it.
func TestABudgetBlocksTheDrainAndIsNamed(t *testing.T) {
	b := newClusterEnv(t, 1)
	b.patchTarget(2)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}
	if err := b.admin.Create(t.Context(), ns); err != nil {
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
	for name := range b.nodes {
		pod.Spec.NodeName = name
	}
	for _, o := range []client.Object{account, budget, pod} {
		if err := b.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := b.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	e := b.leader("only")
	blocked := b.waitFor(e, "the budget is named", func(r Result) bool {
		f := r.Decision.Status.InFlight
		return len(f) == 1 && strings.Contains(f[0].Blocking, "PodDisruptionBudget "+ns.Name+"/api keeps pod "+ns.Name+"/api-0")
	})
	if got := blocked.Decision.Status.InFlight[0].State; got != string(ledger.Draining) {
		t.Errorf("state %s, want Draining", got)
	}
	if err := b.admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	b.waitFor(e, "the host is updated", allUpdated)
	b.checkUncordoned()
}

// TestABadImageHaltsThePool: one host tries it, goes back, and no other does.
func TestABadImageHaltsThePool(t *testing.T) {
	b := newClusterEnv(t, 3)
	b.bad[simDigest(3)], b.firmware = true, true
	b.patchTarget(3)
	e := b.leader("only")
	r := b.waitFor(e, "the pool halts and nothing is in flight", func(r Result) bool {
		c := r.Decision.Status.Counts
		return c.Failed == 1 && c.InFlight == 0
	})
	for _, c := range r.Decision.Status.Conditions {
		if c.Type == v1alpha1.ConditionHalted && c.Status != metav1.ConditionTrue {
			t.Errorf("condition Halted is %+v", c)
		}
	}
	tried := 0
	for _, n := range b.nodes {
		tried += len(n.activated)
		if n.facts.Booted.Digest != simDigest(1) || !n.facts.Booted.Confirmed {
			t.Errorf("%s runs %s", n.Name, n.facts.Booted.Version)
		}
	}
	if tried != 1 {
		t.Errorf("%d hosts tried the bad image", tried)
	}
	b.checkUncordoned()
}

// TestADeletedNodeFreesItsSlot, though a Node of the same name comes back.
func TestADeletedNodeFreesItsSlot(t *testing.T) {
	b := newClusterEnv(t, 1)
	b.patchTarget(2)
	e := b.leader("only")
	b.waitFor(e, "the host is in flight", func(r Result) bool { return r.Decision.Status.Counts.InFlight == 1 })
	var name string
	for name = range b.nodes {
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := b.admin.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: b.pool.Spec.NodeSelector.MatchLabels}}
	if err := b.admin.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	b.nodes[name].UID = string(again.UID)
	b.waitFor(e, "the new node is updated under a slot of its own", allUpdated)
	snap, err := b.store().Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for uid, s := range snap.Document.Slots {
		if s.Node == name {
			t.Errorf("a slot of %s (%s) is left", name, uid)
		}
	}
	b.checkUncordoned()
}
