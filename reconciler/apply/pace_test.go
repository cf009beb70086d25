// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

func TestUnclearObjectStaysUnclearUntilItIsVerified(t *testing.T) {
	service := schema.GroupKind{Kind: "Service"}
	var p pace
	compare := func(view live.View) Verdict { return p.remember(Compare(recorded(), service, testManager, view)) }
	status := shown("102", func(o *live.Object) { o.Status = d("other") })
	if got := compare(status); got != InSync {
		t.Fatalf("a status write alone is %s, want InSync", got)
	}
	if got := compare(shown("101")); got != Unclear {
		t.Fatalf("a write without a trace is %s, want Unclear", got)
	}
	if got := compare(status); got != Unclear {
		t.Errorf("a status write after it is %s, want Unclear", got)
	}
	if got := compare(shown("103", func(o *live.Object) { o.OwnFields[0].Entry = d("other") })); got != Drifted {
		t.Errorf("a drift after it is %s, want Drifted", got)
	}
	p.accepted()
	if got := compare(status); got != InSync {
		t.Errorf("a status write after the verification is %s, want InSync", got)
	}
}

func TestStatusWriteDoesNotCancelADueVerification(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec: {selector: {app: web}, ports: [{name: a, port: 80}, {name: b, port: 81}]}
`)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	order := func() string {
		ports, _, _ := unstructured.NestedSlice(env.get(ms[0].ID).Object, "spec", "ports")
		first, _ := ports[0].(map[string]any)
		name, _ := first["name"].(string)
		return name
	}
	// managedFields doesn't contain the order of a keyed list, and a Service counts
	// no generations.
	reorder := func() {
		_, err := env.resource(ms[0].ID).Patch(t.Context(), "web", types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/ports","value":[{"name":"b","port":81,"protocol":"TCP","targetPort":81},{"name":"a","port":80,"protocol":"TCP","targetPort":80}]}]`),
			metav1.PatchOptions{FieldManager: "someone"})
		must(t, err)
	}
	reorder()
	env.await("the first repair", func() bool { return order() == "a" })
	env.awaitEvents(ms)
	reorder() // Its verification is delayed.
	env.awaitVersion(env.get(ms[0].ID), ms[0].ID)
	env.await("the verification to be delayed", func() bool { return env.isDue(ms[0].ID) })
	env.patch(ms[0].ID, "cloud-controller-manager", `{"status":{"conditions":[{"type":"X","status":"True","lastTransitionTime":"2026-11-30T00:00:00Z","reason":"X","message":""}]}}`, "status")
	began := time.Now()
	env.await("the second repair", func() bool { return order() == "a" })
	t.Logf("repaired after %s", time.Since(began).Round(time.Millisecond))
}

// leaderText is the lock of an election, which its leader renews.
const leaderText = `
apiVersion: v1
kind: ConfigMap
metadata: {name: lock, namespace: NS}
`

func TestRenewingALockDoesntKeepWritingTheInventory(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(leaderText)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	it := env.engine.set.item(ms[0].ID)
	verifies := func() int {
		env.engine.set.mu.Lock()
		defer env.engine.set.mu.Unlock()
		return it.pace.verifies
	}
	env.engine.set.mu.Lock()
	it.pace.verifies, it.pace.lastVerify = verifiesAtOnce, time.Now().Add(-2*verifySlowly) // It was renewed for minutes.
	env.engine.set.mu.Unlock()
	before := env.inventoryVersions()
	env.patch(ms[0].ID, "leader", `{"metadata":{"annotations":{"control-plane.alpha.kubernetes.io/leader":"{\"renewTime\":\"2026-11-30T00:00:01Z\"}"}}}`)
	env.await("a verification", func() bool { return verifies() == verifiesAtOnce+1 })
	if env.engine.set.store.Dirty() {
		t.Error("the inventory is to be written")
	}
	// A drift still is recorded.
	env.patch(ms[0].ID, "someone", `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":"theirs"}}}`)
	env.await("the repair to be recorded", func() bool {
		after := env.inventoryVersions()
		return !maps.Equal(before, after)
	})
}

func TestWritesOfOthersDuringAVerificationAreNoDrift(t *testing.T) {
	writers := []metav1.ManagedFieldsEntry{{Manager: "binder", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1"}}
	state := func(version string, entries ...metav1.ManagedFieldsEntry) *metav1.PartialObjectMetadata {
		ours := metav1.ManagedFieldsEntry{Manager: testManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1"}
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			UID: "u", ResourceVersion: version, ManagedFields: append([]metav1.ManagedFieldsEntry{ours}, entries...),
		}}
	}
	for name, tc := range map[string]struct {
		response *metav1.PartialObjectMetadata
		want     Action
	}{
		"nobody wrote":  {state("101"), Verified},
		"others wrote":  {state("105", writers...), Verified},
		"the set wrote": {state("102"), Repaired},
		"both wrote": {func() *metav1.PartialObjectMetadata {
			o := state("106", writers...)
			o.ManagedFields[0].Time = &metav1.Time{Time: time.Unix(1e9, 0)}
			return o
		}(), Repaired},
	} {
		t.Run(name, func(t *testing.T) {
			m := object(t, "v1", "PersistentVolumeClaim", "x", nil)
			seen := live.Summarize(state("101"))
			en := inventory.NewEntry(&m)
			en.Record = recordOf(live.Summarize(state("100")), testManager, desiredOf(&m), 0)
			s := newSet(&Config{Owner: strings.TrimPrefix(testManager, live.ManagerPrefix), Now: time.Now, Live: idleCache(t), Shared: NewShared(1)})
			defer s.close()
			r := &request{it: &item{id: m.ID, entry: &inventory.Slot{Entry: en}}, m: &m, decision: decision{step: stepVerify}}
			got := s.record(r, &observation{view: live.View{State: live.Present, Object: seen}, exists: true, object: seen}, result{response: tc.response})
			if got.Action != tc.want {
				t.Errorf("%s, want %s", got.Action, tc.want)
			}
		})
	}
}

// idleCache returns a cache that isn't started.
func idleCache(t *testing.T) *live.Cache {
	t.Helper()
	cache, err := live.New(live.Config{REST: &rest.Config{Host: "https://127.0.0.1:1"}, Now: time.Now})
	must(t, err)
	return cache
}
