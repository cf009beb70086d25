// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
)

func object(t *testing.T, apiVersion, kind, name string, annotations map[string]string) payload.Manifest {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
	u.SetAnnotations(annotations)
	m, err := payload.NewManifest(u)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPrunableReturnsTheObjectsThatAPruneDeletes(t *testing.T) {
	role := func(name string) payload.ObjectID {
		return payload.ObjectID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: name}
	}
	lock := &sync.RWMutex{}
	s := &set{items: map[payload.ObjectID]*item{}, shared: NewShared(1), store: inventory.NewStore(nil, "clusterrelease/x", ownNamespace, lock)}
	e := &Engine{set: s, pruner: &pruner{set: s, namespace: ownNamespace}}
	add := func(id payload.ObjectID, change func(*item)) {
		it := &item{id: id, entry: &inventory.Slot{Entry: inventory.Entry{Group: id.Group, Version: "v1", Kind: id.Kind, Name: id.Name, Record: inventory.Record{UID: "u"}, Created: true}}}
		s.store.Add(it.entry)
		change(it)
		s.items[id] = it
	}
	add(role("made"), func(*item) {})
	add(role("found"), func(it *item) { it.entry.Created = false })
	add(role("never-applied"), func(it *item) { it.entry.UID = "" })
	add(role("not-in-the-inventory"), func(it *item) { s.store.Remove(it.entry) })
	add(payload.ObjectID{Kind: "Namespace", Name: "default"}, func(*item) {})
	add(payload.ObjectID{Kind: "Namespace", Name: "web"}, func(*item) {})
	ids, total := e.Prunable()
	if diff := cmp.Diff([]payload.ObjectID{role("made")}, ids); diff != "" || total != 5 {
		t.Errorf("prunable of %d, want 5 (-want +got):\n%s", total, diff)
	}
}

func TestOthersReturnsTheSetsThatOwnTheObjects(t *testing.T) {
	shared := NewShared(1)
	e := &Engine{set: &set{owner: "clusterrelease/site", shared: shared}}
	adopt := map[string]string{payload.AnnotationAdoptFrom: "clusterrelease/platform"}
	ms := []payload.Manifest{
		object(t, "v1", "Namespace", "theirs", nil), object(t, "v1", "Namespace", "ours", nil),
		object(t, "v1", "Namespace", "unmanaged", nil), object(t, "v1", "Namespace", "handed-over", adopt),
	}
	for i, owner := range []string{"clusterrelease/platform", "clusterrelease/site", "", "clusterrelease/platform"} {
		if owner != "" {
			shared.claim(ms[i].ID, owner)
		}
	}
	if diff := cmp.Diff(map[payload.ObjectID]string{ms[0].ID: "clusterrelease/platform"}, e.Others(ms)); diff != "" {
		t.Errorf("others (-want +got):\n%s", diff)
	}
}

func TestDryRunToleratesMissingKindsOfAProvidedAPIService(t *testing.T) {
	service := object(t, "apiregistration.k8s.io/v1", "APIService", "v1.example.com", nil)
	service.Object.Object["spec"] = map[string]any{"group": "example.com", "version": "v1"}
	coming := providedBy([]payload.Manifest{service})
	for apiVersion, want := range map[string]bool{"example.com/v1": true, "example.com/v2": false, "other.com/v1": false} {
		m := object(t, apiVersion, "Widget", "w", nil)
		refused := permanent(m.ID, ReasonTypeMissing, "no matches for kind")
		if got := coming.kind(&m) && tolerable(refused, &m, coming); got != want {
			t.Errorf("a %s Widget is tolerated: %t, want %t", apiVersion, got, want)
		}
	}
}
