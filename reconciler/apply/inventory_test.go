// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
)

// shards returns the ConfigMaps of the inventory in their order.
func (env *testEnv) shards() []corev1.ConfigMap {
	env.t.Helper()
	list, err := env.kube.CoreV1().ConfigMaps(ownNamespace).List(env.t.Context(), metav1.ListOptions{LabelSelector: "lockstep.dev/inventory"})
	must(env.t, err)
	list.Items = slices.DeleteFunc(list.Items, func(cm corev1.ConfigMap) bool { return cm.Data["owner"] != env.owner })
	slices.SortFunc(list.Items, func(a, b corev1.ConfigMap) int { return strings.Compare(a.Data["shard"], b.Data["shard"]) })
	return list.Items
}

// forge adds entries to the stored inventory.
func (env *testEnv) forge(entries ...inventory.Entry) {
	env.t.Helper()
	shard := env.shards()[0]
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		must(env.t, err)
		shard.Data["entries"] += string(line) + "\n"
	}
	_, err := env.kube.CoreV1().ConfigMaps(ownNamespace).Update(env.t.Context(), &shard, metav1.UpdateOptions{})
	must(env.t, err)
}

func TestLargeInventoryIsSharded(t *testing.T) {
	env := newEnv(t)
	var text strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: NS}\n", i)
	}
	ms := env.manifests(text.String())
	must(t, env.engine.Begin(t.Context(), ms, nil))
	if n := len(env.inventoryVersions()); n != 2 {
		t.Errorf("%d shards for 1500 objects, want 2", n)
	}
	env.restart()
	if _, n := env.engine.Prunable(); n != 1500 {
		t.Errorf("%d objects after the restart, want 1500", n)
	}
}

func TestInventoryIsWrittenBeforeTheFirstObject(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	must(t, env.engine.Begin(t.Context(), ms, nil))
	env.crash() // Before, or during, the first apply.
	env.start()
	if _, n := env.engine.Prunable(); n != len(ms) {
		t.Errorf("%d objects in the inventory after the crash, want %d", n, len(ms))
	}
}

func TestSecondWriterOfTheInventoryIsRefused(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.forge(inventory.Entry{Version: "v1", Kind: "ConfigMap", Namespace: env.ns, Name: "theirs"})
	err := env.engine.Begin(t.Context(), append(ms, env.manifests("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: NS}")...), nil)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonInventoryFailed {
		t.Errorf("err = %v, want InventoryFailed", err)
	}
	must(t, env.engine.Flush(t.Context())) // Their entry was loaded.
}

func TestInventoryOfAnUnsupportedFormatIsRefused(t *testing.T) {
	env := newEnv(t)
	name := strings.ReplaceAll(env.owner, "/", "-")
	_, err := env.kube.CoreV1().ConfigMaps(ownNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "lockstep-inventory-" + name + "-0", Labels: map[string]string{"lockstep.dev/inventory": name}},
		Data:       map[string]string{"format": "7", "owner": env.owner, "shard": "0"},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = env.engine.Load(t.Context())
	var refused *Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "format") {
		t.Errorf("err = %v, want format 7 refused", err)
	}
}

func TestInventoryIsAnApplySet(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	parent := env.shards()[0]
	want := map[string]string{
		"applyset.kubernetes.io/tooling":               "lockstep/v1",
		"applyset.kubernetes.io/contains-group-kinds":  "ConfigMap,Deployment.apps,NetworkPolicy.networking.k8s.io,Secret,Service,ServiceAccount",
		"applyset.kubernetes.io/additional-namespaces": env.ns,
	}
	if diff := cmp.Diff(want, parent.Annotations); diff != "" {
		t.Errorf("annotations of the parent (-want +got):\n%s", diff)
	}
	id := parent.Labels["applyset.kubernetes.io/id"]
	if len(id) > 63 || id == "" {
		t.Errorf("id %q", id)
	}
	for i := range ms {
		if got := env.get(ms[i].ID).GetLabels()[inventory.LabelPartOf]; got != id {
			t.Errorf("%s is part of %q, want %q", ms[i].ID, got, id)
		}
	}
}

func TestForgetKeepsTheObjects(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	must(t, env.engine.Forget(t.Context()))
	if n := len(env.inventoryVersions()); n != 0 {
		t.Errorf("%d shards are left", n)
	}
	if !env.exists(payload.ObjectID{Kind: "ConfigMap", Namespace: env.ns, Name: "settings"}) {
		t.Error("the object was deleted")
	}
}

func TestObjectInTwoShardsIsRemovedFromOne(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	first := env.shards()[0]
	second := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: strings.TrimSuffix(first.Name, "0") + "1", Labels: first.Labels},
		Data:       map[string]string{"format": first.Data["format"], "owner": env.owner, "shard": "1", "entries": first.Data["entries"]},
	}
	_, err := env.kube.CoreV1().ConfigMaps(ownNamespace).Create(t.Context(), second, metav1.CreateOptions{})
	must(t, err)
	env.start()
	env.apply(ms, Reconciling)
	must(t, env.engine.Flush(t.Context()))
	lines := 0
	for _, cm := range env.shards() {
		lines += strings.Count(cm.Data["entries"], "\n")
	}
	if lines != len(ms) {
		t.Errorf("%d lines for %d objects", lines, len(ms))
	}
}

// setID returns the ID of the ApplySet.
func (env *testEnv) setID() string {
	env.t.Helper()
	return env.shards()[0].Labels["applyset.kubernetes.io/id"]
}

// hangingInventory delays updates while it hangs, as an admission webhook does.
type hangingInventory struct {
	corev1client.ConfigMapInterface
	hangs   chan struct{} // closed to end the hang
	updates chan struct{}
}

func (h *hangingInventory) Update(ctx context.Context, cm *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	select {
	case h.updates <- struct{}{}:
	default:
	}
	select {
	case <-h.hangs:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return h.ConfigMapInterface.Update(ctx, cm, opts)
}

func TestAHangingWriteOfTheInventoryDoesntBlockRepair(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:2]
	env.apply(ms, Updating)
	h := &hangingInventory{hangs: make(chan struct{}), updates: make(chan struct{}, 1)}
	env.inventory = func(client corev1client.ConfigMapInterface) corev1client.ConfigMapInterface {
		h.ConfigMapInterface = client
		return h
	}
	env.restart()
	env.patch(ms[0].ID, "someone", `{"data":{"a":"drifted"}}`)
	select { // The repair's record is written.
	case <-h.updates:
	case <-time.After(patience):
		t.Fatal("the inventory wasn't written")
	}
	env.await("another write to be repaired", func() bool {
		env.patch(ms[0].ID, "someone", `{"data":{"b":"drifted"}}`)
		before := env.repairs()
		deadline := time.Now().Add(time.Second)
		for env.repairs() == before && time.Now().Before(deadline) {
			elapse(t, 5*time.Millisecond)
		}
		return env.repairs() > before
	})
	close(h.hangs)
	env.await("the inventory to be written", func() bool { return !env.engine.set.store.Dirty() })
}

func TestObjectsOfALostInventoryAreReportedUntilTheyAreRecreated(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:4]
	env.found(ms[0], "installer")
	env.found(ms[1], "installer")
	env.await("the objects to be older than an adoption", func() bool { return time.Since(env.get(ms[1].ID).GetCreationTimestamp().Time) > 2500*time.Millisecond })
	env.apply(ms[:3], Updating)
	if lost := env.engine.Lost(); len(lost) > 0 {
		t.Errorf("%v are lost after the first install", lost)
	}
	env.crash()
	for _, shard := range env.shards() {
		must(t, env.kube.CoreV1().ConfigMaps(ownNamespace).Delete(t.Context(), shard.Name, metav1.DeleteOptions{}))
	}
	env.start()
	env.found(ms[3], "installer")
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	// The Deployment is as the set created it, and the Service is of another tool.
	want := []payload.ObjectID{ms[0].ID, ms[1].ID}
	if diff := cmp.Diff(want, env.engine.Lost()); diff != "" {
		t.Errorf("lost objects (-want +got):\n%s", diff)
	}
	env.restart()
	env.apply(ms, Reconciling)
	if diff := cmp.Diff(want, env.engine.Lost()); diff != "" {
		t.Errorf("lost objects after a restart (-want +got):\n%s", diff)
	}
	must(t, env.resource(ms[0].ID).Delete(t.Context(), ms[0].ID.Name, metav1.DeleteOptions{}))
	env.await("the object to be created again", func() bool { return len(env.engine.Lost()) == 1 })
	result, err := env.engine.Prune(t.Context(), keepOf(ms[2:]), generous)
	must(t, err)
	if len(result.Deleted) != 1 || result.Deleted[0] != ms[0].ID || len(result.Orphaned) != 1 || result.Orphaned[0].ID != ms[1].ID {
		t.Errorf("%+v, want the recreated object deleted and the other one kept", result)
	}
	if lost := env.engine.Lost(); len(lost) > 0 {
		t.Errorf("%v are lost after they left the set", lost)
	}
}
