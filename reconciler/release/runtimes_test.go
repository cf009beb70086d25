// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

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

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/cluster"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/source"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// newCluster returns a running Cluster over the shared control plane.
func newCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	c, err := cluster.New(cluster.Config{REST: controlplane.SharedWithKinds(t).Config, Now: time.Now, Log: logr.Discard()})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c
}

// newController returns the controller of a new process, with the GitSource
// controller that it uses.
func newController(t *testing.T, e *controlenv.Env) *Controller {
	t.Helper()
	base := e.Base
	base.Now = time.Now
	sources, err := source.New(source.Config{
		Base: base, StateDir: t.TempDir(), AllowInsecure: true, Secrets: e.Kube.CoreV1().Secrets(v1alpha1.Namespace),
		Releases: control.NewTrigger(16), Pools: control.NewTrigger(16),
	})
	must(t, err)
	target := newCluster(t)
	checker, err := health.NewChecker(target.Live, time.Now)
	must(t, err)
	reg, err := registry.New(registry.Config{}, registry.Options{Now: time.Now})
	must(t, err)
	r, err := New(Config{
		Base: base, Cluster: target, Sources: sources, SourceChanges: control.NewTrigger(16),
		ConfigMaps: e.Kube.CoreV1().ConfigMaps(v1alpha1.Namespace), Ledger: ledger.NewStore(e.Maps),
		Registry: reg, Fetcher: image.New(reg, image.Limits{}), Health: checker, Metrics: NewMetrics(),
	})
	must(t, err)
	return r
}

// applier grants the default service account cluster-admin, as the default
// installation does.
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

// applied applies one ConfigMap as a release, and ends the process.
func applied(t *testing.T, b *controlenv.Env, name string) *corev1.ConfigMap {
	t.Helper()
	r := newController(t, b).runtimes
	engine, err := r.engine(t.Context(), name, serviceAccountOf(""), nil)
	must(t, err)
	defer engine.Close()
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "default"}, "data": map[string]any{"a": "b"},
	}})
	must(t, err)
	must(t, engine.Begin(t.Context(), []payload.Manifest{m}, nil))
	_, err = engine.Apply(t.Context(), &m, apply.Updating)
	must(t, err)
	must(t, engine.Flush(t.Context()))
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	t.Cleanup(func() {
		must(t, client.IgnoreNotFound(b.Client.Delete(context.WithoutCancel(t.Context()), obj)))
	})
	return obj
}

// A release that was deleted while no process ran causes no event; its deletion
// policy is persisted.
func TestAReleaseDeletedBetweenProcessesFollowsItsDeletionPolicy(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	for policy, stays := range map[v1alpha1.DeletionPolicy]bool{v1alpha1.DeletionPrune: false, v1alpha1.DeletionOrphan: true} {
		name := "ends-" + map[bool]string{true: "orphan", false: "prune"}[stays]
		obj := applied(t, b, name)
		must(t, b.Store.SetDeletion(t.Context(), name, string(policy), serviceAccountOf("")))
		must(t, b.Store.SetAccepted(t.Context(), name, state.Accepted{Identity: payload.Identity{Version: "1.0.0"}}, nil))
		b.Reload()
		r := newController(t, b)
		r.runtimes.enqueueRecorded(t.Context())
		if got := (<-r.runtimes.changed).Object; got != name {
			t.Fatalf("enqueued %q, want %s", got, name)
		}
		if !r.Loading() {
			t.Error("pools don't wait for the accepted payload of a release")
		}
		if _, err := r.Reconcile(t.Context(), control.Request(name)); err != nil {
			t.Fatal(err)
		}
		if b.Exists(obj) != stays {
			t.Errorf("deletionPolicy %s: the object exists: %v", policy, !stays)
		}
		if _, known := b.Store.Releases()[name]; known {
			t.Errorf("deletionPolicy %s: the release is still persisted", policy)
		}
		if r.Loading() {
			t.Error("pools wait for a deleted release")
		}
	}
}

func TestUnmanagedObjectsSurviveTheirRelease(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	obj := applied(t, b, "overridden")
	release := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "overridden"}}
	release.Spec.DeletionPolicy = v1alpha1.DeletionPrune
	release.Spec.Overrides = []v1alpha1.Override{{Kind: "ConfigMap", Namespace: obj.Namespace, Name: obj.Name, Unmanaged: true, Reason: "edited by hand"}}
	rr := newController(t, b).runtimes
	rt := runtimeOf(t, rr, "overridden")
	rt.serviceAccount = serviceAccountOf("")
	rr.byName["overridden"] = rt
	_, err := rr.ensure(t.Context(), release)
	must(t, err)
	rt.engine.Close()
	b.Reload()
	done, err := newController(t, b).runtimes.remove(t.Context(), "overridden")
	if err != nil || !done {
		t.Errorf("removed: %t, %v", done, err)
	}
	if !b.Exists(obj) {
		t.Error("the unmanaged object was deleted with the release")
	}
	if _, known := b.Store.Releases()["overridden"]; known {
		t.Error("the release is still persisted")
	}
}

// Deleting a declared object manually is an edit: its source recreates it.
func TestAManuallyDeletedReleaseKeepsItsObjects(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	obj := applied(t, b, "byhand")
	b.Create(&v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "byhand"},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: "file:///srv/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"},
			Interval: metav1.Duration{Duration: time.Minute}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	})
	must(t, b.Store.SetDeletion(t.Context(), "byhand", string(v1alpha1.DeletionPrune), serviceAccountOf("")))
	must(t, b.Store.SetSource(t.Context(), "byhand", controlenv.AcceptedSource(map[string]string{"ClusterRelease/byhand": "sha256:aa"})))
	rr := newController(t, b)
	result, err := rr.Reconcile(t.Context(), control.Request("byhand"))
	must(t, err)
	if !b.Exists(obj) || result.RequeueAfter == 0 {
		t.Errorf("object exists: %v, requeued after %s", b.Exists(obj), result.RequeueAfter)
	}
	// Once it was removed from Git too, the deletion policy applies.
	must(t, b.Store.SetSource(t.Context(), "byhand", controlenv.AcceptedSource(nil)))
	_, err = rr.Reconcile(t.Context(), control.Request("byhand"))
	must(t, err)
	if b.Exists(obj) {
		t.Error("the source no longer declares the release and its policy is Prune, but the object exists")
	}
}

// An undeclared release gets no runtime.
func TestAnUndeclaredReleaseIsNotActedUpon(t *testing.T) {
	r := newController(t, controlenv.New(t))
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "manual"}}
	var facts status.ReleaseFacts
	rt, err := r.act(t.Context(), obj, &facts)
	if rt != nil || err != nil || facts.Held.Reason != status.ReasonNotFromSource || len(r.runtimes.byName) > 0 {
		t.Errorf("act = %v, %v, held by %+v", rt, err, facts.Held)
	}
}
