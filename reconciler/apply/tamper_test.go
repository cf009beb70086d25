// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// tampering is a change that must be repaired.
type tampering struct {
	object int // in webSet
	// slow takes several writes, between which a running engine would repair it.
	slow  bool
	do    func(env *testEnv, id payload.ObjectID)
	field []string
	want  any
}

// applyAs sends a server-side apply with any manager, including the set's.
func (env *testEnv) applyAs(manager string, id payload.ObjectID, body string) {
	env.t.Helper()
	force := true
	_, err := env.resource(id).Patch(env.t.Context(), id.Name, types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: manager, Force: &force})
	must(env.t, err)
}

// restoreManagedFields patches the object and then restores its managedFields, as
// backup tools do.
func (env *testEnv) restoreManagedFields(id payload.ObjectID, body string) {
	env.t.Helper()
	before := env.get(id).GetManagedFields()
	env.await("a restore between two writes of controllers", func() bool {
		o := env.patch(id, "someone", body)
		patch, err := managedfields.Patch(before, o.GetResourceVersion())
		must(env.t, err)
		_, err = env.resource(id).Patch(env.t.Context(), id.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "someone"})
		if !apierrors.IsConflict(err) {
			must(env.t, err)
		}
		return err == nil
	})
	was, is := managedfields.OwnFields(before, env.engine.Manager()), managedfields.OwnFields(env.get(id).GetManagedFields(), env.engine.Manager())
	if is == nil || !was.Equals(is) {
		env.t.Fatalf("the set owns %v after the restore, want %v", is, was)
	}
}

func tamperings() map[string]tampering {
	edit := func(body string) func(*testEnv, payload.ObjectID) {
		return func(env *testEnv, id payload.ObjectID) { env.patch(id, "kubectl-edit", body) }
	}
	return map[string]tampering{
		"data":           {0, false, edit(`{"data":{"a":"hacked"}}`), []string{"data", "a"}, "1"},
		"a label":        {0, false, edit(`{"metadata":{"labels":{"app":"hacked"}}}`), []string{"metadata", "labels", "app"}, "web"},
		"a lost label":   {0, false, edit(`{"metadata":{"labels":{"app":null}}}`), []string{"metadata", "labels", "app"}, "web"},
		"a spec":         {2, false, edit(`{"spec":{"replicas":9}}`), []string{"spec", "replicas"}, int64(2)},
		"a Secret's key": {5, false, edit(`{"data":{"user":"bWFsbG9yeQ=="}}`), []string{"data", "user"}, "YWxpY2U="},
		"data, by an apply with the set's manager": {0, false, func(env *testEnv, id payload.ObjectID) {
			env.applyAs(env.engine.Manager(), id, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","labels":{"app":"web","`+inventory.LabelPartOf+`":"`+env.setID()+`"}},"data":{"a":"hacked","b":"2"}}`)
		}, []string{"data", "a"}, "1"},
		"a spec, by an apply with the set's manager": {4, false, func(env *testEnv, id payload.ObjectID) {
			env.applyAs(env.engine.Manager(), id, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny","labels":{"`+inventory.LabelPartOf+`":"`+env.setID()+`"}},"spec":{"podSelector":{},"policyTypes":["Egress"],"ingress":[]}}`)
		}, []string{"spec", "policyTypes"}, []any{"Ingress"}},
		"data, with managedFields restored": {0, true, func(env *testEnv, id payload.ObjectID) {
			env.restoreManagedFields(id, `{"data":{"a":"hacked"}}`)
		}, []string{"data", "a"}, "1"},
		"a spec, with managedFields restored": {2, true, func(env *testEnv, id payload.ObjectID) {
			env.restoreManagedFields(id, `{"spec":{"replicas":9}}`)
		}, []string{"spec", "replicas"}, int64(2)},
	}
}

func (env *testEnv) holds(id payload.ObjectID, tm tampering) bool {
	env.t.Helper()
	got, _, _ := unstructured.NestedFieldNoCopy(env.get(id).Object, tm.field...)
	want, err := json.Marshal(tm.want)
	must(env.t, err)
	have, err := json.Marshal(got)
	must(env.t, err)
	return string(want) == string(have)
}

func TestTamperingIsRepaired(t *testing.T) {
	for name, tm := range tamperings() {
		if tm.slow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			ms := env.manifests(webSet)
			env.apply(ms, Updating)
			env.awaitEvents(ms)
			// The time of the entry has a resolution of one second.
			env.await("the next second", func() bool { return time.Now().Nanosecond() < 100e6 })
			tm.do(env, ms[tm.object].ID)
			env.await("the repair", func() bool { return env.holds(ms[tm.object].ID, tm) })
		})
	}
}

// The labels and annotations of the set stay unchanged: they are no evidence.
func TestTamperingWhileTheReconcilerIsDownIsRepaired(t *testing.T) {
	for name, tm := range tamperings() {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			ms := env.manifests(strings.ReplaceAll(webSet, "labels: {app: web}}\n", "labels: {app: web}, annotations: {lockstep.dev/ssa: force}}\n"))
			env.apply(ms, Updating)
			env.crash()
			tm.do(env, ms[tm.object].ID)
			if env.holds(ms[tm.object].ID, tm) {
				t.Fatal("no field was changed")
			}
			env.start()
			env.apply(ms, Reconciling)
			if !env.holds(ms[tm.object].ID, tm) {
				t.Errorf("%v isn't %v after the sync", tm.field, tm.want)
			}
		})
	}
}

func TestClearedManagedFieldsAreRestoredWithoutCoOwner(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:3]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	for i := range ms {
		env.patch(ms[i].ID, "someone", `{"metadata":{"managedFields":[{}]}}`)
	}
	env.await("the set's entry to be restored", func() bool {
		for i := range ms {
			if managedfields.OwnFields(env.get(ms[i].ID).GetManagedFields(), env.engine.Manager()) == nil || !env.inSync(ms[i].ID) {
				return false
			}
		}
		return true
	})
	next := env.manifests(strings.NewReplacer(`, b: "2"`, "", ", ports: [{containerPort: 80}]", "").Replace(webSet))[:3]
	env.apply(next, Updating)
	if _, left, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "b"); left {
		t.Error("data.b stays after it left the release")
	}
	containers, _, _ := unstructured.NestedSlice(env.get(ms[2].ID).Object, "spec", "template", "spec", "containers")
	if _, left := containers[0].(map[string]any)["ports"]; left {
		t.Error("the ports stay after they left the release")
	}
}

// The cache doesn't show the deletion when the apply is sent.
func TestApplyToATerminatingObjectFails(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	old := env.get(ms[0].ID).GetUID()
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	env.wait = 100 * time.Millisecond
	env.restartUnwatched() // Without an event of the deletion.
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	must(t, env.engine.Begin(t.Context(), next, nil))
	_, err := env.engine.Apply(t.Context(), &next[0], Updating)
	if err == nil || !strings.Contains(err.Error(), "example.com/hold") {
		t.Fatalf("err = %v, want the finalizer", err)
	}
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	env.await("the new object", func() bool {
		if _, err := env.engine.Apply(t.Context(), &next[0], Updating); err != nil {
			return false
		}
		return true
	})
	o := env.get(ms[0].ID)
	if b, _, _ := unstructured.NestedString(o.Object, "data", "b"); b != "3" || o.GetUID() == old {
		t.Errorf("data.b is %q in object %s, want 3 in a new one", b, o.GetUID())
	}
}

// Two API groups serve Events, so that one object has two identities.
func TestObjectStillInTheSetUnderAnotherGroupIsNotPruned(t *testing.T) {
	env := newEnv(t)
	core := env.manifests(`
apiVersion: v1
kind: Event
metadata: {name: hello, namespace: NS}
involvedObject: {apiVersion: v1, kind: Namespace, name: NS, namespace: NS}
reason: Started
message: hello
type: Normal
---` + twoMaps)
	env.apply(core, Updating)
	found, err := env.kube.EventsV1().Events(env.ns).Get(t.Context(), "hello", metav1.GetOptions{})
	must(t, err)
	env.awaitEvents(core)
	next := env.manifests(`
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: hello, namespace: NS}
regarding: {apiVersion: v1, kind: Namespace, name: NS, namespace: NS}
reason: Started
note: hello
type: Normal
---` + twoMaps)
	env.apply(next, Updating)
	result, err := env.engine.Prune(t.Context(), keepOf(next), generous)
	must(t, err)
	after, err := env.kube.EventsV1().Events(env.ns).Get(t.Context(), "hello", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.Fatalf("%+v: the object was pruned under its old identity", result)
	}
	must(t, err)
	if after.UID != found.UID || len(result.Orphaned) != 1 || result.Orphaned[0].ID != core[0].ID {
		t.Errorf("%+v, want the old identity orphaned and the object unchanged", result)
	}
}

func TestPolicyWithEmptyListsCausesNoLoop(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[4:5]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	before := env.get(ms[0].ID).GetGeneration()
	env.applyAs(env.engine.Manager(), ms[0].ID, env.body(ms[0]))
	if env.get(ms[0].ID).GetGeneration() == before {
		t.Skip("the server doesn't write on such an apply")
	}
	env.awaitInSync(ms[0].ID, "the other apply", env.get(ms[0].ID).GetResourceVersion())
	env.wantNoRequests(300 * time.Millisecond)

	env.requests.take()
	env.patch(ms[0].ID, "kubectl-edit", `{"spec":{"ingress":[{"from":[{"podSelector":{}}]}]}}`)
	env.await("the repair", func() bool {
		rules, _, _ := unstructured.NestedSlice(env.get(ms[0].ID).Object, "spec", "ingress")
		return len(rules) == 0 && env.inSync(ms[0].ID) && !env.isDue(ms[0].ID)
	})
	env.wantNoRequests(300 * time.Millisecond)

	// A field of another manager changes the generation but not the set's entry, so
	// that it costs a paced verification.
	env.requests.take()
	changed := env.patch(ms[0].ID, "someone", `{"spec":{"egress":[{}]}}`)
	env.awaitInSync(ms[0].ID, "a field of another manager", changed.GetResourceVersion())
	env.wantNoRequests(verifyEvery + time.Second)
}

// awaitInSync waits until the cache has the version of the object, or a later one,
// and the object is in sync without a delayed request.
func (env *testEnv) awaitInSync(id payload.ObjectID, after, version string) {
	env.t.Helper()
	env.await("the object to be in sync after "+after, func() bool {
		v := env.cache.Get(id)
		return v.State == live.Present && !older(v.Object.ResourceVersion, version) && env.inSync(id) && !env.isDue(id)
	})
}

// isDue reports whether a repair or a verification is delayed.
func (env *testEnv) isDue(id payload.ObjectID) bool {
	env.engine.set.mu.RLock()
	defer env.engine.set.mu.RUnlock()
	_, due := env.engine.set.due[id]
	return due || env.engine.set.items[id].pace.unclear
}

// body returns the body of an apply.
func (env *testEnv) body(m payload.Manifest) string {
	env.t.Helper()
	raw, err := json.Marshal(env.engine.set.store.Label(m.Object.Object))
	must(env.t, err)
	return string(raw)
}
