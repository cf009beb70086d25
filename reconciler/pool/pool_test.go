// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/source"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources/desired"
	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// fakeReleases has no loaded payload.
type fakeReleases struct{ loading bool }

func (fakeReleases) Manifest(payload.ObjectID, string) (*payload.Manifest, string, bool) {
	return nil, "", false
}

func (f fakeReleases) Loading() bool { return f.loading }

// newController returns the controller of a process without hosts, with the GitSource
// controller that it uses.
func newController(t *testing.T, e *controlenv.Env, releases Releases) *Controller {
	t.Helper()
	sources, err := source.New(source.Config{
		Base: e.Base, StateDir: t.TempDir(), AllowInsecure: true, Secrets: e.Kube.CoreV1().Secrets(v1alpha1.Namespace),
		Releases: control.NewTrigger(16), Pools: control.NewTrigger(16),
	})
	must(t, err)
	reg, err := registry.New(registry.Config{}, registry.Options{Now: e.Now})
	must(t, err)
	r, err := New(Config{
		Base: e.Base, Kube: e.Kube, Sources: sources, Releases: releases, SourceChanges: control.NewTrigger(16),
		Ledger: ledger.NewStore(e.Maps), Registry: reg, Metrics: NewMetrics(),
	})
	must(t, err)
	return r
}

// decide gathers the facts about a pool and decides.
func decide(t *testing.T, r *Controller, pool *v1alpha1.NodeOS) status.HeldBy {
	t.Helper()
	return Decide(r.gather(t.Context(), pool)).Held
}

func specHash(t *testing.T, obj *v1alpha1.NodeOS) string {
	t.Helper()
	hash, err := desired.SpecHash(obj.Spec)
	must(t, err)
	return hash
}

// Hosts in flight must be completed while the next payload is being loaded, and
// after a restart before any payload is loaded.
func TestAPoolOfAPayloadIsActedUponUntilTheNextPayloadReachesIt(t *testing.T) {
	b := controlenv.New(t)
	r := newController(t, b, fakeReleases{})
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers"}, Spec: v1alpha1.NodeOSSpec{OS: v1alpha1.OSImage{Version: "2.0.0"}}}

	if held := decide(t, r, pool); held.Reason != status.ReasonNotFromSource || held.Transient {
		t.Errorf("a manually created pool is held by %+v", held)
	}
	r.releases = fakeReleases{loading: true}
	if held := decide(t, r, pool); held.Reason != status.ReasonPending {
		t.Errorf("before the payload is loaded it is held by %+v", held)
	}
	must(t, b.Store.SetPool(t.Context(), "platform", "workers", specHash(t, pool)))
	if held := decide(t, r, pool); held.Reason != "" {
		t.Errorf("a pool with its last observed spec is held by %+v", held)
	}
	if name, _, _ := r.declaringRelease(pool); name != "platform" {
		t.Errorf("declared by release %q", name)
	}
	edited := pool.DeepCopy()
	edited.Spec.OS.Version = "6.6.6"
	if held := decide(t, r, edited); held.Reason != status.ReasonNotFromSource || !held.Transient {
		t.Errorf("an edited pool is held by %+v", held)
	}
	must(t, b.Store.DropPool(t.Context(), "workers"))
	must(t, b.Store.SetSource(t.Context(), "fleet", controlenv.AcceptedSource(map[string]string{"NodeOS/workers": specHash(t, pool)})))
	if held := decide(t, r, pool); held.Reason != "" {
		t.Errorf("a pool declared by a source is held by %+v", held)
	}
}

func TestAPoolReportsThatHostsAreDisabled(t *testing.T) {
	b := controlenv.New(t)
	r := newController(t, b, fakeReleases{})
	must(t, controlplane.SharedWithKinds(t).Apply(t.Context(), []byte("apiVersion: lockstep.dev/v1alpha1\nkind: NodeOS\nmetadata: {name: nohosts, namespace: "+
		v1alpha1.Namespace+"}\nspec: {all: true, os: {version: 2.0.0, image: "+"registry.example.com/os@sha256:"+strings.Repeat("a", 64)+"}}\n")))
	obj := &v1alpha1.NodeOS{}
	must(t, b.Client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "nohosts"}, obj))
	t.Cleanup(func() { must(t, b.Client.Delete(context.WithoutCancel(t.Context()), obj)) })
	must(t, b.Store.SetSource(t.Context(), "fleet", controlenv.AcceptedSource(map[string]string{"NodeOS/nohosts": specHash(t, obj)})))
	for range 2 {
		if _, err := r.Reconcile(t.Context(), control.Request("nohosts")); err != nil {
			t.Fatal(err)
		}
		b.Writes()
		clear(r.synced)
	}
	var got v1alpha1.NodeOS
	must(t, b.Client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "nohosts"}, &got))
	c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Reason != "HostsDisabled" || got.Status.ObservedGeneration != got.Generation {
		t.Errorf("Ready = %+v", c)
	}
	if _, err := r.Reconcile(t.Context(), control.Request("nohosts")); err != nil {
		t.Fatal(err)
	}
	if n := b.Writes(); n != 0 {
		t.Errorf("an unchanged status was written %d times", n)
	}
}

func TestDecide(t *testing.T) {
	notFromSource := status.HeldBy{Reason: status.ReasonNotFromSource, Message: "not declared"}
	for name, tc := range map[string]struct {
		facts     Facts
		reason    string
		transient bool
		observed  bool
	}{
		"the spec that a source declares":         {facts: Facts{DeclaredBySource: true}},
		"another spec than a source declares":     {facts: Facts{NotFromSource: notFromSource, DeclaredBySource: true, Hash: "a", ManifestHash: "a"}, reason: status.ReasonNotFromSource},
		"the spec of the accepted payload":        {facts: Facts{NotFromSource: notFromSource, Hash: "a", ManifestHash: "a", ObservedHash: "b"}, observed: true},
		"the observed spec, payload not loaded":   {facts: Facts{NotFromSource: notFromSource, Hash: "a", ObservedHash: "a", Loading: true}},
		"the observed spec, next payload loaded":  {facts: Facts{NotFromSource: notFromSource, Hash: "a", ManifestHash: "b", ObservedHash: "a"}},
		"another spec than the payload":           {facts: Facts{NotFromSource: notFromSource, Hash: "a", ManifestHash: "b"}, reason: status.ReasonNotFromSource, transient: true},
		"another spec than the observed one":      {facts: Facts{NotFromSource: notFromSource, Hash: "a", ObservedHash: "b", Loading: true}, reason: status.ReasonNotFromSource, transient: true},
		"undeclared while payloads are loading":   {facts: Facts{NotFromSource: notFromSource, Hash: "a", Loading: true}, reason: status.ReasonPending},
		"undeclared":                              {facts: Facts{NotFromSource: notFromSource, Hash: "a"}, reason: status.ReasonNotFromSource},
		"a manifest whose hash can't be computed": {facts: Facts{NotFromSource: notFromSource, Hash: "a", Invalid: status.HeldBy{Reason: "InvalidManifest"}}, reason: "InvalidManifest"},
	} {
		got := Decide(tc.facts)
		if got.Held.Reason != tc.reason || got.Held.Transient != tc.transient || got.Observed != tc.observed {
			t.Errorf("%s: %+v, want reason %q, transient %v, observed %v", name, got, tc.reason, tc.transient, tc.observed)
		}
	}
}

// A pool whose declaration left Git finishes its hosts in flight.
func TestAPoolThatLeftGitClaimsNoHosts(t *testing.T) {
	b := controlenv.New(t)
	r := newController(t, b, fakeReleases{})
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "gone"}, Spec: v1alpha1.NodeOSSpec{OS: v1alpha1.OSImage{Version: "2.0.0"}}}
	record := controlenv.AcceptedSource(map[string]string{"NodeOS/gone": specHash(t, pool)})
	record.Removed = []string{"NodeOS/gone"}
	must(t, b.Store.SetSource(t.Context(), "fleet", record))
	d := Decide(r.gather(t.Context(), pool))
	if d.Held.Reason != "" || d.Finish.Reason != status.ReasonRemovedFromGit || !strings.Contains(d.Finish.Message, "kubectl delete nodeos gone -n lockstep-system") {
		t.Errorf("%+v, want it to finish, with the command that deletes it", d)
	}
	if planned := finishing(pool); !planned.Spec.Suspend || pool.Spec.Suspend {
		t.Errorf("planned with suspend %t, the object has %t", planned.Spec.Suspend, pool.Spec.Suspend)
	}
	must(t, b.Store.SetPool(t.Context(), "platform", "gone", specHash(t, pool)))
	if d := Decide(r.gather(t.Context(), pool)); d.Finish.Reason != "" {
		t.Errorf("a pool that moved into a payload is held by %+v", d.Finish)
	}
}

func TestAHeldReleaseHoldsItsPools(t *testing.T) {
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	release := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "platform"}}
	if withReleaseHold(pool, release) != pool {
		t.Error("a release that isn't held changes the plan")
	}
	release.Annotations = map[string]string{v1alpha1.AnnotationPaused: "incident"}
	got := withReleaseHold(pool, release)
	if want := "ClusterRelease/platform, which contains it, is paused: incident"; got.Annotations[v1alpha1.AnnotationPaused] != want {
		t.Errorf("pause = %q, want %q", got.Annotations[v1alpha1.AnnotationPaused], want)
	}
	if len(pool.Annotations) > 0 {
		t.Error("the object itself was changed: every status write would differ")
	}
	release.Annotations, release.Spec.Suspend = nil, true
	if !withReleaseHold(pool, release).Spec.Suspend || pool.Spec.Suspend {
		t.Error("a suspended release must suspend the plan, and nothing else")
	}
	own := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationPaused: "own"}}}
	release.Annotations = map[string]string{v1alpha1.AnnotationPaused: "incident"}
	if got := withReleaseHold(own, release).Annotations[v1alpha1.AnnotationPaused]; got != "own" {
		t.Errorf("the pool's own pause was replaced by %q", got)
	}
}

func TestARejectedTrustDocumentIsNotSentAtEachInterval(t *testing.T) {
	now := epoch
	h := &runtime{now: func() time.Time { return now }, delivered: map[string]delivery{}}
	if !h.due("host-1", 3) {
		t.Error("a host without a delivery isn't due")
	}
	h.recordDelivery("host-1", 3, 0, errNoHosts)
	if h.due("host-1", 3) {
		t.Error("a host that just rejected it is due")
	}
	if !h.due("host-1", 4) {
		t.Error("a newer document isn't due at once")
	}
	now = now.Add(retryTrust)
	if !h.due("host-1", 3) {
		t.Error("a host that rejected it is never due again")
	}
	h.recordDelivery("host-1", 3, 3, nil)
	if h.due("host-1", 3) {
		t.Error("a host that has the document is due")
	}
}
