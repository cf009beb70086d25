// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// newReleasesOf makes the runtimes of a process that begins now.
func newReleasesOf(b *bench) *releases {
	b.t.Helper()
	cluster := controlplane.SharedWithKinds(b.t)
	opts := Options{Config: cluster.Config, Log: logr.Discard(), Now: time.Now}
	shared, err := newApplyShared(opts)
	must(b.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = shared.Start(ctx)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
	})
	return &releases{
		opts: opts, store: b.store, ledger: ledger.NewStore(b.maps), maps: b.kube.CoreV1().ConfigMaps(v1alpha1.Namespace),
		shared: shared, gauges: b.gauges, log: opts.Log, reader: b.live, cached: b.live, discovery: b.kube.Discovery(), event: b.event,
		changed: make(chan event.TypedGenericEvent[string], 64), byName: map[string]*releaseRuntime{}, ready: b.ready,
	}
}

// applier makes a service account that may do anything, as the default
// installation's.
func applier(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	_, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "releases-test"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "lockstep-applier", Namespace: v1alpha1.Namespace}},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
}

// applied has the set of a release hold one ConfigMap, and ends the process.
func applied(b *bench, name string) *corev1.ConfigMap {
	b.t.Helper()
	r := newReleasesOf(b)
	engine, err := r.engine(b.t.Context(), name, accountOf(""), nil)
	must(b.t, err)
	defer engine.Close()
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"}, "data": map[string]any{"a": "b"},
	}})
	must(b.t, err)
	must(b.t, engine.Begin(b.t.Context(), []payload.Manifest{m}, nil))
	_, err = engine.Apply(b.t.Context(), &m, apply.Updating)
	must(b.t, err)
	must(b.t, engine.Flush(b.t.Context()))
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	b.t.Cleanup(func() {
		must(b.t, client.IgnoreNotFound(b.client.Delete(context.WithoutCancel(b.t.Context()), obj)))
	})
	return obj
}

func exists(b *bench, obj client.Object) bool {
	b.t.Helper()
	err := b.live.Get(b.t.Context(), client.ObjectKeyFromObject(obj), obj)
	must(b.t, client.IgnoreNotFound(err))
	return err == nil
}

// A release that was deleted while no process ran leaves no event; what its
// source said of its end is remembered.
func TestAReleaseDeletedWhileNobodyLookedEndsAsItsSourceSaid(t *testing.T) {
	b := newBench(t)
	applier(t, b.kube)
	for policy, stays := range map[v1alpha1.DeletionPolicy]bool{v1alpha1.DeletionPrune: false, v1alpha1.DeletionOrphan: true} {
		name := "ends-" + map[bool]string{true: "orphan", false: "prune"}[stays]
		obj := applied(b, name)
		must(t, b.store.SetDeletion(t.Context(), name, string(policy), accountOf("")))
		must(t, b.store.SetAccepted(t.Context(), name, state.Accepted{Identity: payload.Identity{Version: "1.0.0"}}, nil))
		b.reload()
		r := newReleasesOf(b)
		r.wakeKnown(t.Context())
		if got := (<-r.changed).Object; got != name {
			t.Fatalf("woke %q, want %s", got, name)
		}
		rr := &releaseReconciler{base: b.base, sources: b.runtimes(Options{}), releases: r}
		if _, err := rr.Reconcile(t.Context(), named(name)); err != nil {
			t.Fatal(err)
		}
		if exists(b, obj) != stays {
			t.Errorf("deletionPolicy %s: the object is there: %v", policy, !stays)
		}
		if _, known := b.store.Releases()[name]; known {
			t.Errorf("deletionPolicy %s: the release is remembered", policy)
		}
		if r.loading() {
			t.Error("pools wait for a release that is gone")
		}
	}
}

func TestAReleaseThatEndsLeavesToPeopleWhatOverridesLeftToThem(t *testing.T) {
	b := newBench(t)
	applier(t, b.kube)
	obj := applied(b, "overridden")
	release := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "overridden"}}
	release.Spec.DeletionPolicy = v1alpha1.DeletionPrune
	release.Spec.Overrides = []v1alpha1.Override{{Kind: "ConfigMap", Namespace: obj.Namespace, Name: obj.Name, Unmanaged: true, Reason: "edited by hand"}}
	rr := newReleasesOf(b)
	rt := runtimeOf(b, rr, "overridden")
	rt.serviceAccount = accountOf("")
	rr.byName["overridden"] = rt
	_, err := rr.ensure(t.Context(), release)
	must(t, err)
	rt.engine.Close()
	b.reload()
	must(t, newReleasesOf(b).remove(t.Context(), "overridden"))
	if !exists(b, obj) {
		t.Error("the object that an override left to people was deleted with the release")
	}
	if _, known := b.store.Releases()["overridden"]; known {
		t.Error("the release is remembered")
	}
}

// Deleting a declared object by hand is an edit: its source makes it anew.
func TestAReleaseDeletedByHandKeepsItsObjects(t *testing.T) {
	b := newBench(t)
	applier(t, b.kube)
	obj := applied(b, "byhand")
	b.create(&v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "byhand"},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: "file:///srv/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"},
			Interval: metav1.Duration{Duration: time.Minute}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	})
	must(t, b.store.SetDeletion(t.Context(), "byhand", string(v1alpha1.DeletionPrune), accountOf("")))
	must(t, b.store.SetSource(t.Context(), "byhand", acceptedSource(map[string]string{"ClusterRelease/byhand": "sha256:aa"})))
	rr := &releaseReconciler{base: b.base, sources: b.runtimes(Options{}), releases: newReleasesOf(b)}
	result, err := rr.Reconcile(t.Context(), named("byhand"))
	must(t, err)
	if !exists(b, obj) || result.RequeueAfter == 0 {
		t.Errorf("object there: %v, looked at again in %s", exists(b, obj), result.RequeueAfter)
	}
	// Once Git says so too, the policy holds.
	must(t, b.store.SetSource(t.Context(), "byhand", acceptedSource(nil)))
	_, err = rr.Reconcile(t.Context(), named("byhand"))
	must(t, err)
	if exists(b, obj) {
		t.Error("the source dropped the release and its policy is Prune, but the object is there")
	}
}
