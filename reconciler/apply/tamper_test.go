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

// tampering is a change that must not be taken for level, and how to see it
// undone.
type tampering struct {
	object int // in webSet
	// slow takes several writes: what runs would repair it in between.
	slow  bool
	do    func(r *rig, id payload.ObjectID)
	field []string
	want  any
}

// applyAs writes by server-side apply, under any name, ours as well.
func (r *rig) applyAs(manager string, id payload.ObjectID, body string) {
	r.t.Helper()
	force := true
	_, err := r.resource(id).Patch(r.t.Context(), id.Name, types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: manager, Force: &force})
	must(r.t, err)
}

// putBack edits the object as anybody may, and then sets its managedFields to
// what they were, as tools do that restore a dump.
func (r *rig) putBack(id payload.ObjectID, body string) {
	r.t.Helper()
	before := r.get(id).GetManagedFields()
	r.await("a restore between two writes of controllers", func() bool {
		o := r.patch(id, "someone", body)
		patch, err := managedfields.Patch(before, o.GetResourceVersion())
		must(r.t, err)
		_, err = r.resource(id).Patch(r.t.Context(), id.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "someone"})
		if !apierrors.IsConflict(err) {
			must(r.t, err)
		}
		return err == nil
	})
	was, is := managedfields.OwnFields(before, r.engine.Manager()), managedfields.OwnFields(r.get(id).GetManagedFields(), r.engine.Manager())
	if is == nil || !was.Equals(is) {
		r.t.Fatalf("we hold %v after the restore, want %v as before", is, was)
	}
}

func tamperings() map[string]tampering {
	edit := func(body string) func(*rig, payload.ObjectID) {
		return func(r *rig, id payload.ObjectID) { r.patch(id, "kubectl-edit", body) }
	}
	return map[string]tampering{
		"data":           {0, false, edit(`{"data":{"a":"hacked"}}`), []string{"data", "a"}, "1"},
		"a label":        {0, false, edit(`{"metadata":{"labels":{"app":"hacked"}}}`), []string{"metadata", "labels", "app"}, "web"},
		"a lost label":   {0, false, edit(`{"metadata":{"labels":{"app":null}}}`), []string{"metadata", "labels", "app"}, "web"},
		"a spec":         {2, false, edit(`{"spec":{"replicas":9}}`), []string{"spec", "replicas"}, int64(2)},
		"a Secret's key": {5, false, edit(`{"data":{"user":"bWFsbG9yeQ=="}}`), []string{"data", "user"}, "YWxpY2U="},
		"data, by an apply under our name": {0, false, func(r *rig, id payload.ObjectID) {
			r.applyAs(r.engine.Manager(), id, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","labels":{"app":"web","`+inventory.LabelPartOf+`":"`+r.setID()+`"}},"data":{"a":"hacked","b":"2"}}`)
		}, []string{"data", "a"}, "1"},
		"a spec, by an apply under our name": {4, false, func(r *rig, id payload.ObjectID) {
			r.applyAs(r.engine.Manager(), id, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"deny","labels":{"`+inventory.LabelPartOf+`":"`+r.setID()+`"}},"spec":{"podSelector":{},"policyTypes":["Egress"],"ingress":[]}}`)
		}, []string{"spec", "policyTypes"}, []any{"Ingress"}},
		"data, with the old managedFields put back": {0, true, func(r *rig, id payload.ObjectID) {
			r.putBack(id, `{"data":{"a":"hacked"}}`)
		}, []string{"data", "a"}, "1"},
		"a spec, with the old managedFields put back": {2, true, func(r *rig, id payload.ObjectID) {
			r.putBack(id, `{"spec":{"replicas":9}}`)
		}, []string{"spec", "replicas"}, int64(2)},
	}
}

func (r *rig) holds(id payload.ObjectID, tm tampering) bool {
	r.t.Helper()
	got, _, _ := unstructured.NestedFieldNoCopy(r.get(id).Object, tm.field...)
	want, err := json.Marshal(tm.want)
	must(r.t, err)
	have, err := json.Marshal(got)
	must(r.t, err)
	return string(want) == string(have)
}

func TestTamperingIsRepairedHoweverItsDone(t *testing.T) {
	for name, tm := range tamperings() {
		if tm.slow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ms := r.manifests(webSet)
			r.apply(ms, Updating)
			r.seen(ms)
			// The time of our entry has a grain of a second.
			r.await("the next second", func() bool { return time.Now().Nanosecond() < 100e6 })
			tm.do(r, ms[tm.object].ID)
			r.await("the repair", func() bool { return r.holds(ms[tm.object].ID, tm) })
		})
	}
}

// The annotations and labels that we write stay as they are: they are no
// evidence of anything.
func TestTamperingWhileWeAreDownIsRepairedHoweverItsDone(t *testing.T) {
	for name, tm := range tamperings() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ms := r.manifests(strings.ReplaceAll(webSet, "labels: {app: web}}\n", "labels: {app: web}, annotations: {lockstep.dev/ssa: force}}\n"))
			r.apply(ms, Updating)
			r.kill()
			tm.do(r, ms[tm.object].ID)
			if r.holds(ms[tm.object].ID, tm) {
				t.Fatal("nothing was changed")
			}
			r.start()
			r.apply(ms, Reconciling)
			if !r.holds(ms[tm.object].ID, tm) {
				t.Errorf("%v isn't %v after the pass", tm.field, tm.want)
			}
		})
	}
}

func TestClearedManagedFieldsAreTakenAgainAndLeaveNoCoOwner(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:3]
	r.apply(ms, Updating)
	r.seen(ms)
	for i := range ms {
		r.patch(ms[i].ID, "someone", `{"metadata":{"managedFields":[{}]}}`)
	}
	r.await("our entry to be back", func() bool {
		for i := range ms {
			if managedfields.OwnFields(r.get(ms[i].ID).GetManagedFields(), r.engine.Manager()) == nil || !r.level(ms[i].ID) {
				return false
			}
		}
		return true
	})
	next := r.manifests(strings.NewReplacer(`, b: "2"`, "", ", ports: [{containerPort: 80}]", "").Replace(webSet))[:3]
	r.apply(next, Updating)
	if _, left, _ := unstructured.NestedString(r.get(ms[0].ID).Object, "data", "b"); left {
		t.Error("data.b stays though the release dropped it: who held it?")
	}
	containers, _, _ := unstructured.NestedSlice(r.get(ms[2].ID).Object, "spec", "template", "spec", "containers")
	if _, left := containers[0].(map[string]any)["ports"]; left {
		t.Error("the ports stay though the release dropped them")
	}
}

// The cache still shows the object alive when the apply is sent.
func TestApplyToADyingObjectIsNoSuccess(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	old := r.get(ms[0].ID).GetUID()
	r.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	r.wait = 100 * time.Millisecond
	r.blind() // No event tells of the deletion.
	must(t, r.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	next := r.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	must(t, r.engine.Begin(t.Context(), next, nil))
	_, err := r.engine.Apply(t.Context(), &next[0], Updating)
	if err == nil || !strings.Contains(err.Error(), "example.com/hold") {
		t.Fatalf("err = %v, want one that names the finalizer", err)
	}
	r.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	r.await("the new object", func() bool {
		if _, err := r.engine.Apply(t.Context(), &next[0], Updating); err != nil {
			return false
		}
		return true
	})
	o := r.get(ms[0].ID)
	if b, _, _ := unstructured.NestedString(o.Object, "data", "b"); b != "3" || o.GetUID() == old {
		t.Errorf("data.b is %q in object %s, want 3 in a new one", b, o.GetUID())
	}
}

// An Event is served by two API groups: one object, two names.
func TestObjectThatIsKnownUnderAnotherGroupIsNotPruned(t *testing.T) {
	r := newRig(t)
	core := r.manifests(`
apiVersion: v1
kind: Event
metadata: {name: hello, namespace: NS}
involvedObject: {apiVersion: v1, kind: Namespace, name: NS, namespace: NS}
reason: Started
message: hello
type: Normal
---` + twoMaps)
	r.apply(core, Updating)
	found, err := r.kube.EventsV1().Events(r.ns).Get(t.Context(), "hello", metav1.GetOptions{})
	must(t, err)
	r.seen(core)
	next := r.manifests(`
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: hello, namespace: NS}
regarding: {apiVersion: v1, kind: Namespace, name: NS, namespace: NS}
reason: Started
note: hello
type: Normal
---` + twoMaps)
	r.apply(next, Updating)
	result, err := r.engine.Prune(t.Context(), keepOf(next), generous)
	must(t, err)
	after, err := r.kube.EventsV1().Events(r.ns).Get(t.Context(), "hello", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.Fatalf("%+v: the object was pruned under its old name, and is gone under the new", result)
	}
	must(t, err)
	if after.UID != found.UID || len(result.Orphaned) != 1 || result.Orphaned[0].ID != core[0].ID {
		t.Errorf("%+v, want the old name orphaned and the object as it was", result)
	}
}

func TestPolicyWithEmptyListsDoesNotLoopThoughEachApplyWritesIt(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[4:5]
	r.apply(ms, Updating)
	r.seen(ms)
	before := r.get(ms[0].ID).GetGeneration()
	r.applyAs(r.engine.Manager(), ms[0].ID, r.body(ms[0]))
	if r.get(ms[0].ID).GetGeneration() == before {
		t.Skip("the server doesn't write on such an apply any more")
	}
	r.settles(ms[0].ID, "the foreign apply", r.get(ms[0].ID).GetResourceVersion())
	r.quiet(300 * time.Millisecond)

	r.requests.take()
	r.patch(ms[0].ID, "kubectl-edit", `{"spec":{"ingress":[{"from":[{"podSelector":{}}]}]}}`)
	r.await("the repair", func() bool {
		rules, _, _ := unstructured.NestedSlice(r.get(ms[0].ID).Object, "spec", "ingress")
		return len(rules) == 0 && r.level(ms[0].ID) && !r.due(ms[0].ID)
	})
	r.quiet(300 * time.Millisecond)

	// A foreign field leaves our entry as it is; the generation tells that
	// something changed, and what that costs is at its pace.
	r.requests.take()
	changed := r.patch(ms[0].ID, "someone", `{"spec":{"egress":[{}]}}`)
	r.settles(ms[0].ID, "a foreign field", changed.GetResourceVersion())
	r.quiet(verifyEvery + time.Second)
}

// settles waits until the cache has shown a version of the object, or a later
// one, and the object is level with nothing put off.
func (r *rig) settles(id payload.ObjectID, after, version string) {
	r.t.Helper()
	r.await("level after "+after, func() bool {
		v := r.cache.Get(id)
		return v.State == live.Present && !older(v.Object.ResourceVersion, version) && r.level(id) && !r.due(id)
	})
}

// due reports whether a repair or a verification was put off.
func (r *rig) due(id payload.ObjectID) bool {
	r.engine.set.mu.RLock()
	defer r.engine.set.mu.RUnlock()
	_, due := r.engine.set.due[id]
	return due || r.engine.set.items[id].pace.unclear
}

// body is what the engine sends of a manifest that it applied.
func (r *rig) body(m payload.Manifest) string {
	r.t.Helper()
	raw, err := json.Marshal(r.engine.set.store.Label(m.Object.Object))
	must(r.t, err)
	return string(raw)
}
