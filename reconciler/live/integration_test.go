// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// traffic records the requests of a cache.
type traffic struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen []string
}

func (r *traffic) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.seen = append(r.seen, req.URL.Path)
	r.mu.Unlock()
	return r.next.RoundTrip(req)
}

func (r *traffic) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.seen {
		if s == path {
			n++
		}
	}
	return n
}

func startCache(t *testing.T) (*Cache, *traffic) {
	t.Helper()
	tr := &traffic{}
	cfg := rest.CopyConfig(controlplane.Shared(t).Config)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		tr.next = rt
		return tr
	})
	c, err := New(Config{REST: cfg, Now: time.Now, Log: logr.Discard()})
	ok(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c, tr
}

func within20s(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func configMap(name string) Interest {
	return Interest{
		ID:  payload.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: name},
		GVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
	}
}

func TestAKindHasOneWatch(t *testing.T) {
	c, tr := startCache(t)
	ctx := within20s(t)
	for _, name := range []string{"one", "two", "three"} {
		c.Track(configMap(name))
	}
	ok(t, c.WaitSynced(ctx, schema.GroupKind{Kind: "ConfigMap"}))
	if n := tr.count("/api/v1/configmaps"); n != 1 {
		t.Errorf("%d requests for ConfigMaps, want one initial-events watch", n)
	}
	kube := kubernetes.NewForConfigOrDie(controlplane.Shared(t).Config)
	_, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
	ok(t, err)
	ok(t, c.Await(ctx, configMap("one").ID, func(v View) bool { return v.State == Present && v.Object.Body == nil && !v.Object.Merged }))
	ok(t, kube.CoreV1().ConfigMaps("default").Delete(ctx, "one", metav1.DeleteOptions{}))
	ok(t, c.Await(ctx, configMap("one").ID, func(v View) bool { return v.State == Absent }))
}

func TestTheWatchEndsWithTheLastInterest(t *testing.T) {
	c, tr := startCache(t)
	ctx := within20s(t)
	gk := schema.GroupKind{Kind: "ConfigMap"}
	c.Track(configMap("one"))
	c.Track(configMap("one"))
	ok(t, c.WaitSynced(ctx, gk))
	c.Untrack(configMap("one"))
	if c.kindOf(gk) == nil {
		t.Fatal("the watch ended with one interest left")
	}
	c.Untrack(configMap("one"))
	if c.kindOf(gk) != nil || c.Get(configMap("one").ID).State != Unknown {
		t.Error("the kind is still watched")
	}
	c.Track(configMap("one"))
	ok(t, c.WaitSynced(ctx, gk))
	if n := tr.count("/api/v1/configmaps"); n != 2 {
		t.Errorf("%d watches started, want 2", n)
	}
}

func TestAnInterestInABodyRestartsTheWatch(t *testing.T) {
	c, _ := startCache(t)
	ctx := within20s(t)
	in := configMap("kube-root-ca.crt")
	c.Track(in)
	ok(t, c.WaitSynced(ctx, in.GVK.GroupKind()))
	in.Body = true
	c.Track(in)
	ok(t, c.Await(ctx, in.ID, func(v View) bool {
		return v.State == Present && v.Object.Body != nil && v.Object.Body.GetManagedFields() == nil
	}))
}

func TestABodyRequestedLaterIsFetched(t *testing.T) {
	c, _ := startCache(t)
	ctx := within20s(t)
	first := configMap("first")
	first.Body = true
	c.Track(first)
	ok(t, c.WaitSynced(ctx, first.GVK.GroupKind()))
	late := configMap("kube-root-ca.crt")
	late.Body = true
	if v := c.Get(late.ID); v.State != Present || v.Object.Body != nil {
		t.Fatalf("%+v, want it present without a body", v)
	}
	c.Track(late)
	ok(t, c.Await(ctx, late.ID, func(v View) bool { return v.State == Present && v.Object.Body != nil }))
}

func TestAMissingKindIsUnwatchableUntilServed(t *testing.T) {
	c, tr := startCache(t)
	ctx := within20s(t)
	widget := schema.GroupVersionKind{Group: "live.example.com", Version: "v1", Kind: "Gadget"}
	in := Interest{ID: payload.ObjectID{Group: widget.Group, Kind: widget.Kind, Name: "one"}, GVK: widget}
	c.Track(in)
	var unwatchable *UnwatchableError
	if err := c.WaitSynced(ctx, widget.GroupKind()); !errors.As(err, &unwatchable) {
		t.Fatalf("err = %v, want Unwatchable", err)
	}
	if got := c.Unwatchable(); len(got) != 1 || got[0].Kind != widget.GroupKind() {
		t.Errorf("unwatchable: %v", got)
	}
	crd := Interest{
		ID:  payload.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "gadgets.live.example.com"},
		GVK: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	}
	c.Track(crd)
	ok(t, c.WaitSynced(ctx, crd.GVK.GroupKind()))
	dyn := dynamic.NewForConfigOrDie(controlplane.Shared(t).Config)
	crds := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := crds.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "gadgets.live.example.com"},
		"spec": map[string]any{
			"group": "live.example.com", "scope": "Cluster", "names": map[string]any{"kind": "Gadget", "plural": "gadgets"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}, metav1.CreateOptions{})
	ok(t, err)
	began := time.Now()
	ok(t, c.Await(ctx, in.ID, func(v View) bool { return v.State == Absent }))
	t.Logf("watched %s after its CRD was created", time.Since(began))
	if _, err := c.Mapping(widget); err != nil {
		t.Error(err)
	}
	discoveries := 0
	tr.mu.Lock()
	for _, path := range tr.seen {
		if strings.HasPrefix(path, "/apis") && strings.Count(path, "/") == 1 {
			discoveries++
		}
	}
	tr.mu.Unlock()
	if discoveries > 6 {
		t.Errorf("%d discoveries for one missing kind", discoveries)
	}
}

// Objects are evaluated in the API version of their manifests, also after a
// rollback to a release with another version.
func TestBodiesAreWatchedInTheRequestedVersion(t *testing.T) {
	c, _ := startCache(t)
	ctx := within20s(t)
	dyn := dynamic.NewForConfigOrDie(controlplane.Shared(t).Config)
	version := func(name string, storage bool) map[string]any {
		return map[string]any{"name": name, "served": true, "storage": storage, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}
	}
	crds := dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := crds.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "movers.moved.example.com"},
		"spec": map[string]any{
			"group": "moved.example.com", "scope": "Cluster", "names": map[string]any{"kind": "Mover", "plural": "movers"},
			"versions": []any{version("v1", true), version("v1alpha1", false)},
		},
	}}, metav1.CreateOptions{})
	ok(t, err)
	in := func(version string) Interest {
		gvk := schema.GroupVersionKind{Group: "moved.example.com", Version: version, Kind: "Mover"}
		return Interest{ID: payload.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Name: "one"}, GVK: gvk, Body: true}
	}
	c.Track(configMap("any"))
	for _, v := range []string{"v1", "v1alpha1"} {
		for {
			if _, err = c.Mapping(in(v).GVK); err == nil || ctx.Err() != nil {
				break
			}
			timer := time.NewTimer(50 * time.Millisecond)
			<-timer.C
		}
		ok(t, err)
	}
	movers := dyn.Resource(schema.GroupVersionResource{Group: "moved.example.com", Version: "v1", Resource: "movers"})
	_, err = movers.Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "moved.example.com/v1", "kind": "Mover", "metadata": map[string]any{"name": "one"}}}, metav1.CreateOptions{})
	ok(t, err)
	for _, v := range []string{"v1alpha1", "v1", "v1alpha1"} {
		c.Track(in(v))
		if view := c.Get(in(v).ID); view.State == Present && view.Object.Body != nil && view.Object.Body.GetAPIVersion() != "moved.example.com/"+v {
			t.Errorf("the body has the version %s, want %s", view.Object.Body.GetAPIVersion(), v)
		}
		if err := c.Await(ctx, in(v).ID, func(view View) bool {
			return view.State == Present && view.Object.Body != nil && view.Object.Body.GetAPIVersion() == "moved.example.com/"+v
		}); err != nil {
			t.Fatalf("wait for the body in %s: %v", v, err)
		}
	}
	k := c.kindOf(in("v1").GVK.GroupKind())
	session := k.session
	c.Track(in("v1alpha1"))
	if k.session != session {
		t.Error("the watch restarted although it has the requested version")
	}
}
