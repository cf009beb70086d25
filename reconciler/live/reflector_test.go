// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/restmapper"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-dev/lockstep/payload"
)

func configMapKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
}

// cacheOf returns a cache with the mapping of one kind and without a server.
func cacheOf(gvk schema.GroupVersionKind) *Cache {
	c := &Cache{cfg: Config{Now: time.Now, SyncTimeout: time.Minute}, kinds: map[schema.GroupKind]*kind{}, notifier: newNotifier()}
	c.mapper = &mapper{now: time.Now, changes: make(chan struct{}), missing: map[schema.GroupKind]bool{}, crds: map[string]crdInfo{}, mappings: map[schema.GroupVersionKind]*meta.RESTMapping{
		gvk: {Resource: gvk.GroupVersion().WithResource("configmaps"), GroupVersionKind: gvk, Scope: meta.RESTScopeNamespace},
	}}
	return c
}

// fakeDynamic is a dynamic client that only gets objects.
type fakeDynamic struct {
	dynamic.Interface
	dynamic.NamespaceableResourceInterface
	get func(name string) *unstructured.Unstructured
}

func (b *fakeDynamic) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return b
}

func (b *fakeDynamic) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return b.get(name), nil
}

func TestBodiesAreFetchedWithBoundedConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects = 50
		free := make(chan struct{})
		var requests, inFlight atomic.Int64
		c := cacheOf(configMapKind())
		c.run = t.Context()
		c.dynamic = &fakeDynamic{get: func(name string) *unstructured.Unstructured {
			requests.Add(1)
			inFlight.Add(1)
			defer inFlight.Add(-1)
			<-free
			o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
			o.SetName(name)
			o.SetUID("u")
			o.SetResourceVersion("5")
			return o
		}}
		k := newKind(configMapKind().GroupKind(), "v1", c.notifier)
		k.store.spec.bodies, k.store.sync.synced, k.cancel = true, true, func() {}
		c.kinds[k.gk] = k
		for i := range objects {
			name := strconv.Itoa(i)
			k.store.objects[key{"", name}] = &Object{Name: name, UID: "u", ResourceVersion: "5"}
			c.Track(Interest{ID: payload.ObjectID{Kind: "ConfigMap", Name: name}, GVK: configMapKind(), Body: true})
		}
		synctest.Wait()
		if n := inFlight.Load(); n != maxFetching {
			t.Errorf("%d concurrent fetches, want %d", n, maxFetching)
		}
		close(free)
		c.running.Wait()
		if requests.Load() != objects || c.fetching != 0 || len(c.pending) > 0 {
			t.Errorf("%d requests, %d goroutines and %d bodies left", requests.Load(), c.fetching, len(c.pending))
		}
		for at, o := range k.store.objects {
			if o.Body == nil {
				t.Errorf("%s has no body", at.name)
			}
		}
	})
}

func TestAReplacedReflectorWritesNothing(t *testing.T) {
	k := newKind(configMaps, "v1", newNotifier())
	old := &reflector{cache: &Cache{}, kind: k, session: k.nextSession()}
	ok(t, old.Replace(nil, "1"))
	next := &reflector{cache: old.cache, kind: k, session: k.nextSession()}
	ok(t, old.Add(object("a", "2")))
	ok(t, old.Replace([]any{object("a", "2")}, "2"))
	ok(t, old.Bookmark("2"))
	for range brokenAfter {
		old.kind.settle(old.session, errors.New("stopped"))
	}
	if v := k.get(key{"", "a"}); v.State != Absent || v.AsOf != "1" {
		t.Errorf("%+v, want nothing written by the old reflector", v)
	}
	ok(t, next.Add(object("a", "3")))
	ok(t, old.Delete(object("a", "4")))
	if v := k.get(key{"", "a"}); v.State != Present || v.AsOf != "3" {
		t.Errorf("%+v, want the object of the new reflector", v)
	}
}

// The server ends every watch immediately with an error event.
func TestAKindWithFailingWatchesIsListedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := fake.NewTestScheme()
		ok(t, metav1.AddMetaToScheme(scheme))
		client := fake.NewSimpleMetadataClient(scheme)
		var count atomic.Int64
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			count.Add(1)
			return true, &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}, nil
		})
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
			w := watch.NewFakeWithChanSize(1, false)
			w.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonUnknown, Message: "decoding an object"})
			return true, w, nil
		})
		c := cacheOf(configMapKind())
		c.meta = client
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Start(ctx) }()
		c.Track(Interest{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "x", Name: "y"}, GVK: configMapKind()})
		const watched = 10 * time.Minute
		timer := time.NewTimer(watched)
		<-timer.C
		lists := int(count.Load())
		if most := int(2*watched/maxBackoff) + 40; lists < 2 || lists > most {
			t.Errorf("%d lists within %s, want at most %d", lists, watched, most)
		}
		cancel()
		<-ended
	})
}

// A CRD that another tool installs may be missing for days, and each attempt costs
// a full discovery.
func TestAMissingKindIsDiscoveredWithBackoffUntilServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := fake.NewTestScheme()
		ok(t, metav1.AddMetaToScheme(scheme))
		client := fake.NewSimpleMetadataClient(scheme)
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}, nil
		})
		server := &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{}}
		server.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}}}
		c := cacheOf(configMapKind())
		c.meta = client
		c.mapper.discovery = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(server))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Start(ctx) }()
		gvk := schema.GroupVersionKind{Group: "missing.k8s.io", Version: "v1", Kind: "Gadget"}
		in := Interest{ID: payload.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Namespace: "x", Name: "y"}, GVK: gvk}
		c.Track(in)
		const watched = 6 * time.Hour
		timer := time.NewTimer(watched)
		<-timer.C
		synctest.Wait()
		if n, most := groupLists(server), int(watched/missingBackoff)+15; n < 2 || n > most {
			t.Errorf("%d discoveries within %s, want at most %d", n, watched, most)
		}
		// A Mapping of the kind ends the backoff.
		server.Resources = append(server.Resources, &metav1.APIResourceList{GroupVersion: "missing.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "gadgets", Kind: "Gadget", Namespaced: true}}})
		c.mapper.discovery.Reset() // As for another kind.
		began := time.Now()
		if _, err := c.Mapping(gvk); err != nil {
			t.Fatal(err)
		}
		ok(t, c.WaitSynced(ctx, gvk.GroupKind()))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the kind was watched %s after its mapping was found", took)
		}
		cancel()
		<-ended
	})
}

// groupLists counts the discoveries: each starts with a list of the groups.
func groupLists(server *discoveryfake.FakeDiscovery) int {
	n := 0
	for _, a := range server.Actions() {
		if a.GetResource().Resource == "group" {
			n++
		}
	}
	return n
}
