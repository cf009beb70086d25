// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
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

func mapsKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
}

// cacheOf is a cache that knows one kind and has no server.
func cacheOf(gvk schema.GroupVersionKind) *Cache {
	c := &Cache{cfg: Config{Now: time.Now, SyncTimeout: time.Minute}, kinds: map[schema.GroupKind]*kind{}, hub: newHub()}
	c.mapper = &mapper{now: time.Now, changes: make(chan struct{}), missed: map[schema.GroupKind]bool{}, defined: map[string]definition{}, known: map[schema.GroupVersionKind]*meta.RESTMapping{
		gvk: {Resource: gvk.GroupVersion().WithResource("configmaps"), GroupVersionKind: gvk, Scope: meta.RESTScopeNamespace},
	}}
	return c
}

// bodies answers reads only.
type bodies struct {
	dynamic.Interface
	dynamic.NamespaceableResourceInterface
	get func(name string) *unstructured.Unstructured
}

func (b *bodies) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return b
}

func (b *bodies) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return b.get(name), nil
}

func TestBodiesThatAreWantedLateAreFetchedAFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects = 50
		free := make(chan struct{})
		var asked, inFlight atomic.Int64
		c := cacheOf(mapsKind())
		c.run = t.Context()
		c.dynamic = &bodies{get: func(name string) *unstructured.Unstructured {
			asked.Add(1)
			inFlight.Add(1)
			defer inFlight.Add(-1)
			<-free
			o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
			o.SetName(name)
			o.SetUID("u")
			o.SetResourceVersion("5")
			return o
		}}
		k := newKind(mapsKind().GroupKind(), "v1", c.hub)
		k.bodies, k.synced, k.cancel = true, true, func() {}
		c.kinds[k.gk] = k
		for i := range objects {
			name := strconv.Itoa(i)
			k.objects[key{"", name}] = &Object{Name: name, UID: "u", ResourceVersion: "5"}
			c.Track(Interest{ID: payload.ObjectID{Kind: "ConfigMap", Name: name}, GVK: mapsKind(), Body: true})
		}
		synctest.Wait()
		if n := inFlight.Load(); n != maxFetching {
			t.Errorf("%d bodies are fetched side by side, want %d", n, maxFetching)
		}
		close(free)
		c.running.Wait()
		if asked.Load() != objects || c.fetching != 0 || len(c.late) > 0 {
			t.Errorf("%d bodies were asked for, %d goroutines and %d bodies are left", asked.Load(), c.fetching, len(c.late))
		}
		for at, o := range k.objects {
			if o.Body == nil {
				t.Errorf("%s has no body", at.name)
			}
		}
	})
}

// A server whose watches all end at once by an error event.
func TestAKindWhoseWatchesEndAtOnceIsListedEverMoreSeldom(t *testing.T) {
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
		c := cacheOf(mapsKind())
		c.meta = client
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = c.Start(ctx) }()
		c.Track(Interest{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "x", Name: "y"}, GVK: mapsKind()})
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

// A definition that nobody applies, of a group that another tool brings, may be
// missing for days: each look costs a whole discovery.
func TestAKindThatIsMissingCostsADiscoverySeldomUntilItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := fake.NewTestScheme()
		ok(t, metav1.AddMetaToScheme(scheme))
		client := fake.NewSimpleMetadataClient(scheme)
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}, nil
		})
		server := &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{}}
		server.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}}}
		c := cacheOf(mapsKind())
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
		synctest.Wait() // A look of this moment is over.
		if n, most := groupLists(server), int(watched/missingBackoff)+15; n < 2 || n > most {
			t.Errorf("%d discoveries within %s, want at most %d", n, watched, most)
		}
		// Somebody applies an object of it: nobody waits for the next look.
		server.Resources = append(server.Resources, &metav1.APIResourceList{GroupVersion: "missing.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "gadgets", Kind: "Gadget", Namespaced: true}}})
		c.mapper.discovery.Reset() // For another kind.
		began := time.Now()
		if _, err := c.Mapping(gvk); err != nil {
			t.Fatal(err)
		}
		ok(t, c.WaitSynced(ctx, gvk.GroupKind()))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the kind was watched %s after it was found", took)
		}
		cancel()
		<-ended
	})
}

// groupLists counts the discoveries: each begins with the groups.
func groupLists(server *discoveryfake.FakeDiscovery) int {
	n := 0
	for _, a := range server.Actions() {
		if a.GetResource().Resource == "group" {
			n++
		}
	}
	return n
}
