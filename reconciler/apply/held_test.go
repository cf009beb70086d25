// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

func TestFindHeldReturnsTheEntryOfTheSet(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(twoMaps)
	env.apply(ms, Updating)
	maps := env.kube.CoreV1().ConfigMaps(ownNamespace)
	held, _, err := inventory.FindHeld(t.Context(), maps, ms[1].ID)
	must(t, err)
	if len(held) != 1 || held[0].Owner != env.owner || !held[0].Applied() || !held[0].Created || held[0].RunLevel != 1 {
		t.Fatalf("held %+v, want one entry of %s", held, env.owner)
	}
	live := env.get(ms[1].ID)
	if got := managedfields.Owner(live); got != env.owner {
		t.Errorf("the owner of the object is %q, want %q", got, env.owner)
	}
	if got := CompareHeld(&held[0], nil); got != Missing {
		t.Errorf("a deleted object is %s", got)
	}
	if held, _, err := inventory.FindHeld(t.Context(), maps, payload.ObjectID{Kind: "ConfigMap", Namespace: env.ns, Name: "unmanaged"}); err != nil || len(held) > 0 {
		t.Errorf("unmanaged object: %v, %v", held, err)
	}
}

func TestFindHeldReportsAnInventoryOfAnotherFormat(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(twoMaps)
	env.apply(ms, Updating)
	maps := env.kube.CoreV1().ConfigMaps(ownNamespace)
	future := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "lockstep-inventory-future-0", Labels: map[string]string{"lockstep.dev/inventory": "future"}},
		Data:       map[string]string{"format": "99", "owner": "clusterrelease/future", "shard": "0"},
	}
	_, err := maps.Create(t.Context(), future, metav1.CreateOptions{})
	must(t, err)
	defer func() { must(t, maps.Delete(t.Context(), future.Name, metav1.DeleteOptions{})) }()
	held, problems, err := inventory.FindHeld(t.Context(), maps, ms[0].ID)
	must(t, err)
	if len(held) != 1 || !strings.Contains(strings.Join(problems, "; "), "format \"99\"") {
		t.Errorf("held %v, problems %q", held, problems)
	}
}

// twoMaps has two ConfigMaps.
const twoMaps = `
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: NS}
data: {key: one}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, namespace: NS}
data: {key: two}
`
