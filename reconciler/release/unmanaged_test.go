// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// newEngine returns an apply engine of a release, and its cache.
func newEngine(t *testing.T, release string) (*apply.Engine, *live.Cache) {
	t.Helper()
	target := newCluster(t)
	kube, err := kubernetes.NewForConfig(target.REST)
	must(t, err)
	engine, err := apply.New(apply.Config{
		Owner: ownerOf(release), REST: target.REST, Live: target.Live, Inventory: kube.CoreV1().ConfigMaps(v1alpha1.Namespace),
		Namespace: v1alpha1.Namespace, Shared: apply.NewShared(8), Now: time.Now,
	})
	must(t, err)
	t.Cleanup(engine.Close)
	_, err = engine.Load(t.Context())
	must(t, err)
	return engine, target.Live
}

func TestUnmanagedObjectsAreNotPruned(t *testing.T) {
	cluster := controlplane.SharedWithKinds(t)
	kube, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	const ns = "unmanaged"
	for _, name := range []string{v1alpha1.Namespace, ns} {
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			must(t, err)
		}
	}
	engine, cache := newEngine(t, "unmanaged")
	both := &payload.Payload{}
	for _, name := range []string{"kept", "edited", "gone"} {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": ns},
		}})
		must(t, err)
		both.Manifests = append(both.Manifests, m)
	}
	b := builderOf(t, engine, cache)
	must(t, b.Begin(t.Context(), both))
	for i := range both.Manifests {
		_, err := b.Apply(t.Context(), &both.Manifests[i], payload.Reconciling)
		must(t, err)
	}
	b.setPolicy(buildPolicy{prune: true, maxPercent: 90, unmanaged: []worker.Override{{ID: both.Manifests[1].ID}}})
	_, err = b.Prune(t.Context(), &payload.Payload{Manifests: both.Manifests[:1]})
	must(t, err)
	for name, want := range map[string]bool{"kept": true, "edited": true, "gone": false} {
		_, err := kube.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if (err == nil) != want {
			t.Errorf("%s exists: %t, want %t", name, err == nil, want)
		}
	}
}

func TestAnAdoptedManagerIsPermittedInTheNextDryRun(t *testing.T) {
	cluster := controlplane.SharedWithKinds(t)
	kube, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	_, err = kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "adopted"}, Data: map[string]string{"a": "0"}}, metav1.CreateOptions{FieldManager: "helm"})
	must(t, err)
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "adopted", "namespace": "default"}, "data": map[string]any{"a": "1"},
	}})
	must(t, err)
	engine, cache := newEngine(t, "consent")
	b := builderOf(t, engine, cache)
	release := &payload.Payload{Manifests: []payload.Manifest{m}}
	b.setPolicy(buildPolicy{})
	if err := b.DryRun(t.Context(), release); err == nil {
		t.Error("not in spec.adopt: no error")
	}
	b.setPolicy(buildPolicy{adopt: []string{"helm"}})
	if err := b.DryRun(t.Context(), release); err != nil {
		t.Errorf("in spec.adopt: %v", err)
	}
}
