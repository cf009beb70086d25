// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

func keepOf(ms []payload.Manifest) map[payload.ObjectID]bool {
	keep := map[payload.ObjectID]bool{}
	for i := range ms {
		keep[ms[i].ID] = true
	}
	return keep
}

var generous = PruneOptions{MaxPercent: 90}

func (env *testEnv) exists(id payload.ObjectID) bool {
	env.t.Helper()
	_, err := env.resource(id).Get(env.t.Context(), id.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		env.t.Fatal(err)
	}
	return err == nil
}

func TestObjectsCreatedBeforeACrashWithoutRecordsArePruned(t *testing.T) {
	for name, reapplied := range map[string]bool{"AfterAnotherApply": true, "WhichLeftTheReleaseMeanwhile": false} {
		t.Run(name, func(t *testing.T) { testPruneWithoutRecord(t, reapplied) })
	}
}

func TestObjectsCreatedBeforeTwoCrashesWithoutRecordsArePruned(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	must(t, env.engine.Begin(t.Context(), ms, nil))
	for i := range ms {
		_, err := env.engine.Apply(t.Context(), &ms[i], Updating)
		must(t, err)
	}
	made := env.get(ms[0].ID).GetCreationTimestamp()
	// The second process changes an object that is too old to be recognized as
	// created.
	env.await("the objects to be older", func() bool { return time.Since(made.Time) > 3*time.Second })
	env.restart()
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))
	must(t, env.engine.Begin(t.Context(), next, nil))
	_, err := env.engine.Apply(t.Context(), &next[0], Updating)
	must(t, err)
	env.restart()
	env.apply(next[1:2], Updating)
	result, err := env.engine.Prune(t.Context(), keepOf(next[1:2]), generous)
	must(t, err)
	if len(result.Orphaned) > 0 || env.exists(next[0].ID) {
		t.Errorf("orphaned %v, want all deleted: %v", result.Orphaned, result.Deleted)
	}
}

func testPruneWithoutRecord(t *testing.T, reapplied bool) {
	t.Helper()
	env := newEnv(t)
	ms := env.manifests(webSet)
	found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"a": "1"}}
	found, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), found, metav1.CreateOptions{FieldManager: "kubectl-create"})
	must(t, err)
	env.await("the pre-existing object to be older", func() bool { return time.Since(found.CreationTimestamp.Time) > 3*time.Second })
	must(t, env.engine.Begin(t.Context(), ms, nil))
	for i := range ms {
		_, err := env.engine.Apply(t.Context(), &ms[i], Updating)
		must(t, err)
	}
	env.restart() // The records weren't flushed.
	if reapplied {
		env.apply(ms, Updating)
		env.awaitEvents(ms)
	} else {
		env.apply(ms[1:2], Updating)
	}
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:2]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || result.Orphaned[0].ID != ms[0].ID || !env.exists(ms[0].ID) {
		t.Errorf("orphaned %v, want the pre-existing ConfigMap", result.Orphaned)
	}
	if len(result.Deleted) != len(ms)-2 {
		t.Errorf("deleted %v, want all objects that the crashed process created", result.Deleted)
	}
}

func TestPruneDeletesInReverseOrder(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.requests.take()
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:3]), generous)
	must(t, err)
	want := []payload.ObjectID{ms[5].ID, ms[4].ID, ms[3].ID}
	if diff := cmp.Diff(want, result.Deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	for i := range ms {
		if got := env.exists(ms[i].ID); got != (i < 3) {
			t.Errorf("%s exists: %t", ms[i].ID, got)
		}
	}
	env.restart()
	if _, n := env.engine.Prunable(); n != 3 {
		t.Errorf("%d objects in the inventory, want 3", n)
	}
}

func TestPruneGuard(t *testing.T) {
	for name, tc := range map[string]struct {
		gone, total int
		opts        PruneOptions
		refused     bool
	}{
		"at the percentage":          {20, 100, PruneOptions{MaxPercent: 20}, false},
		"above the percentage":       {21, 100, PruneOptions{MaxPercent: 20}, true},
		"few objects of a small set": {1, 3, PruneOptions{MaxPercent: 20}, false},
		"all objects":                {3, 3, PruneOptions{MaxPercent: 100}, true},
		"0 percent":                  {1, 100, PruneOptions{}, true},
		"the deletion of the set":    {3, 3, PruneOptions{All: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := guard(payload.PruneCount{Deleted: tc.gone, Kept: tc.total - tc.gone, Total: tc.total}, tc.opts)
			if (err != nil) != tc.refused {
				t.Errorf("guard(%d of %d) = %v", tc.gone, tc.total, err)
			}
		})
	}
}

func TestT7GuardRefusesBeforeAnyDeletion(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.requests.take()
	_, err := env.engine.Prune(t.Context(), nil, PruneOptions{MaxPercent: 100})
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonPruneGuard || refused.Retriable() {
		t.Errorf("err = %v, want a permanent PruneGuard", err)
	}
	if got := env.requests.take(); len(got) > 0 {
		t.Errorf("requests: %q", got)
	}
}

func TestT7AdoptedObjectsAreOrphaned(t *testing.T) {
	env := newEnv(t)
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || result.Orphaned[0].ID != ms[0].ID || !env.exists(ms[0].ID) {
		t.Errorf("%+v, want the adopted ConfigMap orphaned", result)
	}
	if n := env.noticesOf(ms[0].ID, ReasonOrphaned, "it existed before"); n != 1 {
		t.Errorf("%d notices of the orphan, want 1", n)
	}
}

func TestT7OnlyTheSameUIDIsDeleted(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	env.start()
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || !env.exists(ms[0].ID) {
		t.Errorf("%+v, want the other object kept", result)
	}
}

func TestT7OnlyObjectsWithTheFieldManagerAreDeleted(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	env.patch(ms[0].ID, "someone", `{"metadata":{"managedFields":[{}]}}`)
	env.start()
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || !env.exists(ms[0].ID) {
		t.Errorf("%+v, want the object kept", result)
	}
}

func TestT7ControlledObjectsAreKept(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	owner := env.get(ms[2].ID)
	env.patch(ms[0].ID, "someone", `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"`+string(owner.GetUID())+`","controller":true}]}}`)
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || !env.exists(ms[0].ID) {
		t.Errorf("%+v, want the object kept", result)
	}
}

func TestT7ForgedInventoryDeletesNoOtherObjects(t *testing.T) {
	env := newEnv(t)
	victim, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "victim"}, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{FieldManager: "someone"})
	must(t, err)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	env.forge(
		inventory.Entry{Version: "v1", Kind: "ConfigMap", Namespace: env.ns, Name: "victim", Record: inventory.Record{UID: victim.UID}, Created: true, Confirmed: true},
		inventory.Entry{Version: "v1", Kind: "Namespace", Name: "kube-system", Record: inventory.Record{UID: "x"}, Created: true, Confirmed: true},
	)
	env.start()
	_, err = env.engine.Prune(t.Context(), keepOf(ms), generous)
	must(t, err)
	if !env.exists(payload.ObjectID{Kind: "ConfigMap", Namespace: env.ns, Name: "victim"}) {
		t.Error("a forged entry deleted another object")
	}
}

func TestT7NamespacesRequireConfirmation(t *testing.T) {
	env := newEnv(t)
	text := `
apiVersion: v1
kind: Namespace
metadata: {name: NS-a}
---
apiVersion: v1
kind: Namespace
metadata: {name: NS-b, annotations: {lockstep.dev/prune: confirmed}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: stays, namespace: NS}
`
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.restartWithWait(patience)
	result, err := env.engine.Prune(t.Context(), keepOf(ms[2:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 || result.Orphaned[0].ID != ms[0].ID || !slices.Contains(result.Deleted, ms[1].ID) {
		t.Errorf("%+v, want a orphaned and b deleted", result)
	}
}

// Kubernetes copies the labels of a Service to its EndpointSlices, including the
// member label. Neither that label nor a forged inventory entry deletes one.
func TestCopiedLabelsDeleteNothing(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	id := payload.ObjectID{Group: "discovery.k8s.io", Kind: "EndpointSlice", Namespace: env.ns}
	var uid types.UID
	env.await("an EndpointSlice with the label of the set", func() bool {
		list, err := env.kube.DiscoveryV1().EndpointSlices(env.ns).List(t.Context(), metav1.ListOptions{LabelSelector: inventory.LabelPartOf + "=" + env.setID()})
		must(t, err)
		if len(list.Items) == 0 {
			return false
		}
		id.Name, uid = list.Items[0].Name, list.Items[0].UID
		return true
	})
	must(t, env.engine.Flush(t.Context()))
	env.crash()
	env.forge(inventory.Entry{Group: id.Group, Version: "v1", Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, Record: inventory.Record{UID: uid}, Created: true, Confirmed: true})
	env.start()
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:5]), generous)
	must(t, err)
	if len(result.Deleted) != 1 || result.Deleted[0] != ms[5].ID {
		t.Errorf("deleted %v, want only the Secret", result.Deleted)
	}
	if len(result.Orphaned) != 1 || result.Orphaned[0].ID != id || !env.exists(id) {
		t.Errorf("%+v, want the EndpointSlice orphaned", result)
	}
}

// twoVersions is widgetText with a second served version.
func (env *testEnv) twoVersions() string {
	text := env.widgets(widgetText)
	version := text[strings.Index(text, "  - name: v1\n"):strings.Index(text, "---")]
	old := strings.NewReplacer("name: v1", "name: v1alpha1", "storage: true", "storage: false").Replace(version)
	return strings.Replace(strings.Replace(text, "---", old+"---", 1), ".example.com/v1\n", ".example.com/v1alpha1\n", 1)
}

func TestObjectOfAnUnservedVersionIsPruned(t *testing.T) {
	env := newEnv(t)
	text := env.twoVersions()
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	next := env.manifests(strings.Replace(text, "name: v1alpha1\n    served: true", "name: v1alpha1\n    served: false", 1))[:1]
	env.apply(next, Updating)
	env.await("the version to be unserved", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && missingResource(err)
	})
	env.restartWithWait(time.Second)
	result, err := env.engine.Prune(t.Context(), keepOf(next), generous)
	if !env.terminating(ms[1].ID) {
		t.Errorf("%+v, %v: want the Widget deleted in the served version", result, err)
	}
}

func TestDeleteManifestOfAnUnservedVersionDeletes(t *testing.T) {
	env := newEnv(t)
	text := env.twoVersions()
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.apply(env.manifests(strings.Replace(text, "name: v1alpha1\n    served: true", "name: v1alpha1\n    served: false", 1))[:1], Updating)
	env.await("the version to be unserved", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && missingResource(err)
	})
	env.wait = time.Second
	env.restart()
	del := env.manifests(strings.Replace(text, "{name: one, namespace: NS}", `{name: one, namespace: NS, annotations: {release.openshift.io/delete: "true"}}`, 1))[1]
	if !del.Delete {
		t.Fatal("no delete manifest")
	}
	ch, err := env.engine.Apply(t.Context(), &del, Updating)
	if !env.terminating(ms[1].ID) {
		t.Errorf("%+v, %v: want the Widget deleted in the served version", ch, err)
	}
}

// terminating reports whether the object is deleted or being deleted: the garbage
// collector discovers a new kind late.
func (env *testEnv) terminating(id payload.ObjectID) bool {
	env.t.Helper()
	o, err := env.resource(id).Get(env.t.Context(), id.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true
	}
	must(env.t, err)
	return o.GetDeletionTimestamp() != nil
}

// target returns the location of an object without discovery.
func (env *testEnv) target(m payload.Manifest) target {
	resource := m.GVK.GroupVersion().WithResource(strings.ToLower(m.GVK.Kind) + "s")
	return target{mapping: &meta.RESTMapping{Resource: resource, GroupVersionKind: m.GVK, Scope: meta.RESTScopeNamespace}, namespace: m.ID.Namespace, name: m.ID.Name}
}

func TestObjectOfAnUnservedKindStaysInTheInventory(t *testing.T) {
	env := newEnv(t)
	text := env.widgets(widgetText)
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	crds := env.resource(ms[0].ID)
	served := func(on string) {
		_, err := crds.Patch(t.Context(), ms[0].ID.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/0/served","value":`+on+`}]`), metav1.PatchOptions{})
		must(t, err)
	}
	env.engine.set.sub.Close() // No repair of the CRD.
	served("false")
	env.await("the kind to be unserved", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && missingResource(err)
	})
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:1]), generous)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonTypeMissing || !refused.Retriable() || !strings.Contains(err.Error(), ms[0].ID.Name) {
		t.Errorf("err = %v, want a retriable %s with the name of the CRD", err, ReasonTypeMissing)
	}
	if len(result.Deleted) != 0 || env.engine.set.item(ms[1].ID) == nil {
		t.Errorf("%+v: an object left the inventory without a confirmed deletion", result)
	}
	served("true")
	env.await("the kind to be served", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return err == nil
	})
	env.restartWithWait(time.Second)
	result, err = env.engine.Prune(t.Context(), keepOf(ms[:1]), generous)
	if !env.terminating(ms[1].ID) {
		t.Errorf("%+v, %v: want the Widget deleted", result, err)
	}
}

func TestObjectOfADeletedKindIsDeleted(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(env.widgets(widgetText) + "---" + twoMaps)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.restart()
	env.engine.set.sub.Close() // No repair of the CRD.
	must(t, env.resource(ms[0].ID).Delete(t.Context(), ms[0].ID.Name, metav1.DeleteOptions{}))
	env.await("the deletion of the CRD", func() bool { return !env.exists(ms[0].ID) })
	result, err := env.engine.Prune(t.Context(), keepOf(ms[2:]), PruneOptions{MaxPercent: 90})
	must(t, err)
	if !slices.Contains(result.Deleted, ms[1].ID) {
		t.Errorf("%+v, want the Widget deleted with its kind", result)
	}
}

// Discovery of the other APIs doesn't prove that an unavailable aggregated API was
// removed.
func TestObjectsOfAnUnavailableAPIStayInTheInventory(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(twoMaps)
	env.apply(ms, Updating)
	group := strings.ReplaceAll(env.ns, "-", "") + ".example.com"
	services := env.dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	_, err := services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1." + group},
		"spec": map[string]any{
			"group": group, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": env.ns, "name": "missing", "port": int64(443)},
		},
	}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = services.Delete(context.WithoutCancel(t.Context()), "v1."+group, metav1.DeleteOptions{})
	})
	env.crash()
	env.forge(inventory.Entry{Group: group, Version: "v1", Kind: "Widget", Namespace: env.ns, Name: "one", Record: inventory.Record{UID: "u"}, Created: true})
	env.start()
	widget := payload.ObjectID{Group: group, Kind: "Widget", Namespace: env.ns, Name: "one"}
	result, err := env.engine.Prune(t.Context(), keepOf(ms), generous)
	if err == nil || env.engine.set.item(widget) == nil {
		t.Errorf("%+v, %v: an object left the inventory without a confirmed deletion", result, err)
	}
}

func TestUnconfirmedDeletionStaysInTheInventory(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[5].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	env.restartWithWait(200 * time.Millisecond)
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:4]), generous)
	must(t, err)
	if !slices.Contains(env.engine.Deleting(), ms[5].ID) {
		t.Errorf("being deleted: %v, want %s among them", env.engine.Deleting(), ms[5].ID)
	}
	if !slices.Contains(result.Pending, ms[5].ID) || result.Waiting != 1 || !env.exists(ms[4].ID) {
		t.Errorf("%+v, want the Secret pending and lower run levels unchanged", result)
	}
	leaving := env.engine.Leaving()
	if len(leaving) != 1 || leaving[0].ID != ms[5].ID || !slices.Equal(leaving[0].Finalizers, []string{"example.com/hold"}) || time.Since(leaving[0].Since) > time.Minute {
		t.Errorf("leaving: %+v, want the Secret with its finalizer", leaving)
	}
	if ids, _ := env.engine.Prunable(); slices.Contains(ids, ms[5].ID) {
		t.Error("a deletion in progress counts as a deletion of the next release")
	}

	env.await("the watch to show the deletion", func() bool { return env.cache.Get(ms[5].ID).Object.Deleting })
	env.requests.take()
	result, err = env.engine.Prune(t.Context(), keepOf(ms[:4]), generous)
	must(t, err)
	if sent := env.requests.take(); len(sent) > 0 || len(result.Pending) != 1 {
		t.Errorf("%+v after %d requests %v, want none while the watch shows the object", result, len(sent), sent)
	}

	env.restartWithWait(200 * time.Millisecond)
	_, err = env.engine.Prune(t.Context(), keepOf(ms[:4]), generous)
	must(t, err)
	env.await("the watch to show the deletion", func() bool { return env.cache.Get(ms[5].ID).Object.Deleting })
	env.mu.Lock()
	clear(env.applied) // What was pruned isn't repaired.
	env.drifted = nil
	env.mu.Unlock()
	env.patch(ms[5].ID, "someone", `{"metadata":{"finalizers":null}}`)
	env.await("the end of the deletion to be reported", func() bool {
		env.mu.Lock()
		defer env.mu.Unlock()
		return slices.Contains(env.drifted, ms[5].ID) && env.cache.Get(ms[5].ID).State == live.Absent
	})
	env.restartWithWait(patience) // The garbage collection takes time.
	_, err = env.engine.Prune(t.Context(), keepOf(ms[:4]), generous)
	must(t, err)
	if env.exists(ms[5].ID) || env.exists(ms[4].ID) || len(env.engine.Leaving()) > 0 {
		t.Errorf("the prune wasn't continued: %+v", env.engine.Leaving())
	}
	if env.noticesOf(ms[5].ID, ReasonPruned, "") != 1 || env.noticesOf(ms[4].ID, ReasonPruned, "") != 1 {
		t.Errorf("notices: %v, want one per deletion", env.notices)
	}
}

func TestADeleteManifestDoesNotWaitForFinalizers(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	env.restartWithWait(200 * time.Millisecond)
	m := ms[0]
	m.Delete = true
	must(t, env.engine.Begin(t.Context(), []payload.Manifest{m}, nil))
	change, err := env.engine.Apply(t.Context(), &m, Updating)
	must(t, err)
	if leaving := env.engine.Leaving(); change.Action != Deleted || len(leaving) != 1 || leaving[0].ID != m.ID {
		t.Errorf("%+v, leaving %+v, want a deletion in progress", change, leaving)
	}
	env.patch(m.ID, "someone", `{"metadata":{"finalizers":null}}`)
	env.await("the end of the deletion", func() bool { return len(env.engine.Leaving()) == 0 })
}

func TestTheContentOfATerminatingNamespaceIsNamed(t *testing.T) {
	env := newEnv(t)
	const ns = "content-hangs"
	holder := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	ms := env.manifests("{apiVersion: v1, kind: Namespace, metadata: {name: " + ns + ", annotations: {lockstep.dev/prune: confirmed}}}\n---\n" +
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: stays, namespace: NS}}")
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	_, err := env.kube.CoreV1().ConfigMaps(ns).Create(t.Context(), holder, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = env.kube.CoreV1().ConfigMaps(ns).Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	env.restartWithWait(100 * time.Millisecond)
	env.await("the namespace's content to be reported", func() bool {
		result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
		must(t, err)
		if len(result.Pending) != 1 {
			t.Fatalf("%+v, want the namespace pending", result)
		}
		return strings.Contains(env.engine.Leaving()[0].Content, "example.com/hold")
	})
	must(t, env.engine.Begin(t.Context(), ms, nil)) // The next release contains it again.
	_, err = env.engine.Apply(t.Context(), &ms[0], Updating)
	if err == nil || !strings.Contains(err.Error(), "example.com/hold") {
		t.Errorf("apply: %v, want the finalizer of the content", err)
	}
}

func TestProtectedObjects(t *testing.T) {
	for id, want := range map[payload.ObjectID]bool{
		{Kind: "Namespace", Name: "kube-system"}:                                                                true,
		{Kind: "Namespace", Name: "default"}:                                                                    true,
		{Kind: "Namespace", Name: "lockstep-system"}:                                                            true,
		{Kind: "Namespace", Name: "web"}:                                                                        false,
		{Kind: "ConfigMap", Namespace: "lockstep-system", Name: "x"}:                                            true,
		{Group: "lockstep.dev", Kind: "NodeOS", Namespace: "lockstep-system", Name: "x"}:                        false,
		{Kind: "ConfigMap", Namespace: "kube-public", Name: "x"}:                                                true,
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "hosts.lockstep.dev"}:           true,
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "widgets.notlockstep.dev.x.io"}: false,
		{Kind: "ConfigMap", Namespace: "default", Name: "x"}:                                                    false,
	} {
		if got := protected(id, "lockstep-system") != ""; got != want {
			t.Errorf("protected(%s) = %t, want %t", id, got, want)
		}
	}
}

// forgetRecords removes the records from the inventory, as if the process had ended
// before it wrote them and no object could be read since.
func (env *testEnv) forgetRecords(ms []payload.Manifest) {
	for i := range ms {
		it := env.engine.set.item(ms[i].ID)
		env.engine.set.mu.Lock()
		it.entry.Record = inventory.Record{}
		it.entry.Created = false
		env.engine.set.mu.Unlock()
	}
}

func TestPruneGuardCountsObjectsWithoutRecords(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.engine.set.sub.Close() // No repair of the objects to prune.
	env.forgetRecords(ms)
	_, err := env.engine.Prune(t.Context(), keepOf(ms[:1]), PruneOptions{})
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonPruneGuard {
		t.Errorf("err = %v, want %s", err, ReasonPruneGuard)
	}
	for i := range ms {
		if !env.exists(ms[i].ID) {
			t.Errorf("%s was deleted", ms[i].ID)
		}
	}
}

func TestObjectOfAnUnservedVersionWithoutRecordIsPruned(t *testing.T) {
	env := newEnv(t)
	text := env.twoVersions()
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	next := env.manifests(strings.Replace(text, "name: v1alpha1\n    served: true", "name: v1alpha1\n    served: false", 1))[:1]
	env.apply(next, Updating)
	env.await("the version to be unserved", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && missingResource(err)
	})
	env.restartWithWait(time.Second)
	env.forgetRecords(ms[1:2])
	result, err := env.engine.Prune(t.Context(), keepOf(next), generous)
	if !env.terminating(ms[1].ID) {
		t.Errorf("%+v, %v: want the Widget deleted in the served version", result, err)
	}
}

// The CRD isn't watched, so that only the response shows that the version isn't
// served.
func TestDeleteManifestDistinguishesAnUnservedPathFromADeletedObject(t *testing.T) {
	env := newEnv(t)
	text := env.twoVersions()
	ms := env.manifests(text)
	crds := env.resource(ms[0].ID)
	crd, err := crds.Create(t.Context(), ms[0].Object, metav1.CreateOptions{})
	must(t, err)
	env.await("the kind", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && !missingResource(err)
	})
	widget := ms[1:2]
	env.apply(widget, Updating)
	_, err = crds.Patch(t.Context(), crd.GetName(), types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/1/served","value":false}]`), metav1.PatchOptions{})
	must(t, err)
	env.await("the version to be unserved", func() bool {
		_, err := env.engine.applier.client.get(t.Context(), env.target(ms[1]))
		return apierrors.IsNotFound(err) && missingResource(err)
	})
	del := env.manifests(strings.Replace(text, "{name: one, namespace: NS}", `{name: one, namespace: NS, annotations: {release.openshift.io/delete: "true"}}`, 1))[1]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ch, err := env.engine.Apply(ctx, &del, Updating)
	if !env.terminating(ms[1].ID) {
		t.Errorf("%+v, %v: want the Widget deleted in the served version", ch, err)
	}
}

func TestAnObjectThatWasNeverAppliedLeavesWithoutANotice(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms[:1], Updating)
	must(t, env.engine.Begin(t.Context(), ms[:3], nil)) // The second and third are never applied.
	env.found(ms[2], "someone")
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:1]), generous)
	must(t, err)
	if len(result.Orphaned)+len(result.Deleted) > 0 {
		t.Errorf("%+v, want neither reported", result)
	}
	for _, m := range ms[1:3] {
		if env.noticesOf(m.ID, ReasonOrphaned, "") > 0 {
			t.Errorf("a notice that %s stays in the cluster", m.ID)
		}
	}
	if _, n := env.engine.Prunable(); n != 1 {
		t.Errorf("%d objects in the inventory, want 1", n)
	}
	if !env.exists(ms[2].ID) {
		t.Errorf("the object of another tool was deleted")
	}
}

func TestObjectWhosePruneIsDisabledIsKept(t *testing.T) {
	for name, opts := range map[string]PruneOptions{"WhenItLeavesThePayload": generous, "WhenItsReleaseIsDeleted": {All: true}} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			text := strings.Replace(webSet, "name: settings, namespace: NS", "name: settings, namespace: NS, annotations: {lockstep.dev/prune: disabled}", 1)
			ms := env.manifests(text)[:3]
			env.apply(ms, Updating)
			if can, total := env.engine.Prunable(); total != 3 || slices.Contains(can, ms[0].ID) {
				t.Errorf("%v of %d objects may be pruned, want all but %s", can, total, ms[0].ID)
			}
			if protected := env.engine.Protected(); !slices.Equal(protected, []payload.ObjectID{ms[0].ID}) {
				t.Errorf("protected: %v, want %s", protected, ms[0].ID)
			}
			env.restart() // The inventory remembers it.
			keep := keepOf(ms[2:])
			if opts.All {
				keep = nil
			}
			result, err := env.engine.Prune(t.Context(), keep, opts)
			must(t, err)
			if !env.exists(ms[0].ID) || env.exists(ms[1].ID) {
				t.Errorf("%+v: want only %s kept", result, ms[0].ID)
			}
			if env.noticesOf(ms[0].ID, ReasonOrphaned, "lockstep.dev/prune: disabled") != 1 {
				t.Errorf("notices %+v, want one that names the annotation", env.notices)
			}
		})
	}
}
