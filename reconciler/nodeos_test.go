// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources/desired"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func newPools(b *bench) *poolReconciler {
	return &poolReconciler{
		base: b.base, sources: b.runtimes(Options{}), releases: &releases{store: b.store, byName: map[string]*releaseRuntime{}},
		hosts: &hostRuntime{}, verified: map[string]osVerdict{}, specs: map[string]string{}, passed: map[string]time.Time{},
	}
}

func specHash(t *testing.T, obj *v1alpha1.NodeOS) string {
	t.Helper()
	hash, err := desired.SpecHash(obj.Spec)
	must(t, err)
	return hash
}

// Hosts in flight must be brought to an end while the next payload is on its
// way, and after a restart before any payload is loaded.
func TestAPoolOfAPayloadIsMeantUntilTheNextOneReachesIt(t *testing.T) {
	b := newBench(t)
	r := newPools(b)
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers"}, Spec: v1alpha1.NodeOSSpec{OS: v1alpha1.OSImage{Version: "2.0.0"}}}

	if held := r.notMeant(t.Context(), pool); held.Reason != status.ReasonNotFromSource || held.Transient {
		t.Errorf("a pool made by hand is held by %+v", held)
	}
	must(t, b.store.SetAccepted(t.Context(), "platform", state.Accepted{Identity: payload.Identity{Version: "1.0.0"}}, nil))
	if held := r.notMeant(t.Context(), pool); held.Reason != status.ReasonPending {
		t.Errorf("before the payload is loaded it is held by %+v", held)
	}
	must(t, b.store.SetPool(t.Context(), "platform", "workers", specHash(t, pool)))
	if held := r.notMeant(t.Context(), pool); held.Reason != "" {
		t.Errorf("what was met last is held by %+v", held)
	}
	if name, _, _ := r.carrier(pool); name != "platform" {
		t.Errorf("carried by %q", name)
	}
	edited := pool.DeepCopy()
	edited.Spec.OS.Version = "6.6.6"
	if held := r.notMeant(t.Context(), edited); held.Reason != status.ReasonNotFromSource || !held.Transient {
		t.Errorf("an edited pool is held by %+v", held)
	}
	must(t, b.store.DropPool(t.Context(), "workers"))
	must(t, b.store.SetSource(t.Context(), "fleet", acceptedSource(map[string]string{"NodeOS/workers": specHash(t, pool)})))
	if held := r.notMeant(t.Context(), pool); held.Reason != "" {
		t.Errorf("a pool that a source declares is held by %+v", held)
	}
}

func TestAPoolSaysThatHostsCantBeDriven(t *testing.T) {
	b := newBench(t)
	r := newPools(b)
	must(t, controlplane.SharedWithKinds(t).Apply(t.Context(), []byte("apiVersion: lockstep.dev/v1alpha1\nkind: NodeOS\nmetadata: {name: nohosts, namespace: "+
		v1alpha1.Namespace+"}\nspec: {all: true, os: {version: 2.0.0, image: "+someImage+"}}\n")))
	obj := &v1alpha1.NodeOS{}
	must(t, b.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "nohosts"}, obj))
	t.Cleanup(func() { must(t, b.client.Delete(context.WithoutCancel(t.Context()), obj)) })
	must(t, b.store.SetSource(t.Context(), "fleet", acceptedSource(map[string]string{"NodeOS/nohosts": specHash(t, obj)})))
	for range 2 {
		if _, err := r.Reconcile(t.Context(), named("nohosts")); err != nil {
			t.Fatal(err)
		}
		b.wrote()
		clear(r.passed)
	}
	var got v1alpha1.NodeOS
	must(t, b.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "nohosts"}, &got))
	c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Reason != "HostsDisabled" || got.Status.ObservedGeneration != got.Generation {
		t.Errorf("Ready = %+v", c)
	}
	if _, err := r.Reconcile(t.Context(), named("nohosts")); err != nil {
		t.Fatal(err)
	}
	if n := b.wrote(); n != 0 {
		t.Errorf("the same refusal was written %d times more", n)
	}
}
