// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// scaledText is a Deployment with three replicas.
const scaledText = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.com/web:1"}]}
`

// ignoring returns text with a Deployment that ignores its replicas.
func ignoring(text string) string {
	return strings.Replace(text, "{name: web, namespace: NS}", "{name: web, namespace: NS, annotations: {lockstep.dev/ignore-fields: /spec/replicas}}", 1)
}

func (env *testEnv) replicas(id payload.ObjectID) int64 {
	env.t.Helper()
	n, _, _ := unstructured.NestedInt64(env.get(id).Object, "spec", "replicas")
	return n
}

// scale sets the replicas through the scale subresource.
func (env *testEnv) scale(id payload.ObjectID, manager, n string) {
	env.t.Helper()
	env.patch(id, manager, `{"spec":{"replicas":`+n+`}}`, "scale")
}

func (env *testEnv) wantReplicas(id payload.ObjectID, want int64, when string) {
	env.t.Helper()
	if n := env.replicas(id); n != want {
		env.t.Errorf("replicas are %d %s, want %d", n, when, want)
	}
}

func TestNewlyIgnoredFieldsKeepTheirValues(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.apply(env.manifests(ignoring(scaledText)), Updating)
	env.wantReplicas(ms[0].ID, 3, "after a release that ignores them")
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	env.wantReplicas(ms[0].ID, 3, "after the next release")
	env.patch(ms[0].ID, "someone", `{"spec":{"replicas":5}}`)
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:3", 1))), Updating)
	env.wantReplicas(ms[0].ID, 5, "after a release that ignores them")
}

func TestNewlyIgnoredFieldsThatLeaveTheManifestKeepTheirValues(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "  replicas: 3\n", "", 1))), Updating)
	env.wantReplicas(ms[0].ID, 3, "after a release that ignores and omits them")
}

func TestIgnoredFieldsOfAnAdoptedObjectKeepTheirValues(t *testing.T) {
	for name, text := range map[string]string{
		"ignored":     ignoring(scaledText),
		"not named":   strings.Replace(scaledText, "  replicas: 3\n", "", 1),
		"both":        ignoring(strings.Replace(scaledText, "  replicas: 3\n", "", 1)),
		"other value": ignoring(strings.Replace(scaledText, "replicas: 3", "replicas: 8", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			found := env.manifests(scaledText)
			var deployment appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(found[0].Object.Object, &deployment))
			_, err := env.kube.AppsV1().Deployments(env.ns).Create(t.Context(), &deployment, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
			must(t, err)
			env.apply(env.manifests(text), Updating)
			env.wantReplicas(found[0].ID, 3, "after the adoption")
			env.apply(env.manifests(strings.Replace(text, "web:1", "web:2", 1)), Updating)
			env.wantReplicas(found[0].ID, 3, "after the next release")
		})
	}
}

func TestUserEditOfAnIgnoredFieldSurvivesTheNextRelease(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.awaitVersion(env.patch(ms[0].ID, "kubectl-edit", `{"spec":{"replicas":7}}`), ms[0].ID)
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	env.wantReplicas(ms[0].ID, 7, "after a release that took over the other fields of the editor")
}

func TestIgnoredFieldsKeepTheirValuesAfterACrashBeforeTheyAreRelinquished(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	must(t, env.engine.Begin(t.Context(), ms, nil))
	// The process ended after the creation.
	body, err := ms[0].Object.MarshalJSON()
	must(t, err)
	force := true
	_, err = env.resource(ms[0].ID).Patch(t.Context(), "web", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: env.engine.Manager(), Force: &force})
	must(t, err)
	env.restart()
	env.apply(ms, Updating)
	env.wantReplicas(ms[0].ID, 3, "after the crash")
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	env.wantReplicas(ms[0].ID, 3, "after the next release")
}

func TestReplicasThatLeaveTheManifestKeepTheirValue(t *testing.T) {
	for name, text := range map[string]string{
		"Deployment":  scaledText,
		"StatefulSet": strings.Replace(strings.Replace(scaledText, "kind: Deployment", "kind: StatefulSet", 1), "  replicas: 3\n", "  replicas: 3\n  serviceName: web\n", 1),
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			ms := env.manifests(text)
			env.apply(ms, Updating)
			env.awaitEvents(ms)
			bare := strings.Replace(text, "  replicas: 3\n", "", 1)
			env.requests.take()
			env.apply(env.manifests(bare), Updating)
			env.wantReplicas(ms[0].ID, 3, "after a release that omits them")
			env.requests.take()
			next := env.manifests(strings.Replace(bare, "web:1", "web:2", 1))
			env.apply(next, Updating)
			env.wantReplicas(ms[0].ID, 3, "after the next release")
			if got := env.requests.take(); len(got) != 1 {
				t.Errorf("requests: %q, want one patch", got)
			}
			env.patch(ms[0].ID, "someone", `{"spec":{"replicas":6}}`)
			env.apply(env.manifests(strings.Replace(bare, "web:1", "web:3", 1)), Updating)
			env.wantReplicas(ms[0].ID, 6, "after another manager scaled them")
			env.apply(ms, Updating)
			env.wantReplicas(ms[0].ID, 3, "after a release that sets them again")
		})
	}
}

func TestYieldsOutlastAWatchOutage(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.scale(ms[0].ID, "horizontal-pod-autoscaler", "5")
	env.await("a yield", func() bool { return len(env.engine.Yielded()[ms[0].ID]) == 1 })
	env.await("the object to be in sync", func() bool { return env.inSync(ms[0].ID) })
	must(t, env.engine.Flush(t.Context()))
	env.restartUnwatched()
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 5, "after a sync without a watch")
	if len(env.engine.Yielded()[ms[0].ID]) != 1 {
		t.Errorf("yields after a sync without a watch: %v, want one", env.engine.Yielded())
	}
	env.apply(env.manifests(strings.Replace(scaledText, "web:1", "web:2", 1)), Updating)
	env.wantReplicas(ms[0].ID, 5, "after a release without a watch")
}

func TestIgnoredFieldsAreNotForcedDuringAWatchOutage(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	env.apply(ms, Updating)
	env.patch(ms[0].ID, "someone", `{"spec":{"replicas":5}}`)
	must(t, env.engine.Flush(t.Context()))
	env.restartUnwatched()
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 5, "after a sync without a watch")
	env.apply(env.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	env.wantReplicas(ms[0].ID, 5, "after a release without a watch")
}

func TestReplicasAreYieldedToAnAutoscalerDuringAWatchOutage(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText)
	env.apply(ms, Updating)
	env.restartUnwatched()
	env.scale(ms[0].ID, "horizontal-pod-autoscaler", "5")
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 5, "after a sync without a watch")
	if len(env.engine.Yielded()[ms[0].ID]) != 1 {
		t.Errorf("yields: %v, want the replicas", env.engine.Yielded())
	}
}

func TestObjectDeletedDuringAWatchOutageIsRecreatedWithAllFields(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	env.apply(ms, Updating)
	env.restartUnwatched()
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	env.await("the deletion", func() bool { return !env.exists(ms[0].ID) })
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 3, "of the recreated object")
}

// awaitVersion waits until the cache has the version of the object.
func (env *testEnv) awaitVersion(o *unstructured.Unstructured, id payload.ObjectID) {
	env.t.Helper()
	env.await("the watch to show "+id.String(), func() bool {
		v := env.cache.Get(id)
		return v.State == live.Present && !older(v.Object.ResourceVersion, o.GetResourceVersion())
	})
}

// restartUnwatched restarts the process with an identity that may not watch.
func (env *testEnv) restartUnwatched() {
	env.t.Helper()
	env.crash()
	env.watcher = "nobody"
	env.start()
	env.await("the kinds to be unwatchable", func() bool { return len(env.cache.Unwatchable()) > 0 })
}

func TestFieldIsReclaimedWhenItIsNoLongerIgnored(t *testing.T) {
	ignoring := func(text string) string {
		return strings.Replace(text, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {lockstep.dev/ignore-fields: /data/b}`, 1)
	}
	env := newEnv(t)
	ms := env.manifests(ignoring(webSet))[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	holds := func() bool {
		return slices.ContainsFunc(env.get(ms[0].ID).GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == managedfields.InitialManager })
	}
	if !holds() {
		t.Fatal("the ignored field wasn't relinquished")
	}
	next := env.manifests(webSet)[:1]
	env.apply(next, Updating)
	env.awaitEvents(next)
	if holds() {
		t.Errorf("%s owns fields that the manifest doesn't ignore", managedfields.InitialManager)
	}
	last := env.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
	env.apply(last, Updating)
	if data, _ := env.get(ms[0].ID).Object["data"].(map[string]any); data["b"] != nil {
		t.Errorf("data is %v, want b deleted", data)
	}
}

// farmText is a kind with a scale subresource and a default size, and an object.
const farmText = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: farms.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Farm, plural: farms, singular: farm, listKind: FarmList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {replicas: {type: integer, default: 1}, color: {type: string}}}
          status: {type: object, properties: {replicas: {type: integer}}}
    subresources:
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
---
apiVersion: GROUP/v1
kind: Farm
metadata: {name: one, namespace: NS}
spec: {replicas: 3, color: red}
`

// awaitKind waits until the object's kind is served.
func (env *testEnv) awaitKind(id payload.ObjectID) {
	env.t.Helper()
	env.await("the kind", func() bool {
		_, err := env.resource(id).List(env.t.Context(), metav1.ListOptions{})
		return err == nil
	})
}

func TestReplicasOfACustomResourceThatLeaveTheManifestKeepTheirValue(t *testing.T) {
	for name, tc := range map[string]struct {
		field   string
		outside bool // The CRD isn't in the set.
	}{
		"CRD in the set":       {field: "replicas"},
		"CRD of another owner": {field: "replicas", outside: true},
		"another field":        {field: "size"},
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			text := strings.NewReplacer("spec.replicas", "spec."+tc.field, "{replicas: {type: integer, default", "{"+tc.field+": {type: integer, default", "{replicas: 3", "{"+tc.field+": 3").Replace(env.widgets(farmText))
			ms := env.manifests(text)
			bare := env.manifests(strings.Replace(text, tc.field+": 3, color: red", "color: blue", 1))
			back := env.manifests(strings.Replace(text, tc.field+": 3", tc.field+": 4", 1))
			if tc.outside {
				env.found(ms[0], "installer")
				env.awaitKind(ms[1].ID)
				ms, bare, back = ms[1:], bare[1:], back[1:]
			}
			env.apply(ms, Updating)
			env.awaitEvents(ms)
			id := ms[len(ms)-1].ID
			size := func(want int64, when string) {
				t.Helper()
				if n, _, _ := unstructured.NestedInt64(env.get(id).Object, "spec", tc.field); n != want {
					t.Errorf("%d %s, want %d", n, when, want)
				}
			}
			env.apply(bare, Updating)
			size(3, "after a release that omits them")
			env.awaitEvents(bare)
			env.scale(id, "kube-controller-manager", "8")
			env.apply(bare, Reconciling)
			size(8, "after an autoscaler")
			env.apply(back, Updating)
			size(4, "after a release that sets them again")
		})
	}
}

func TestReplicasOfACustomResourceSurviveAdoption(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(env.widgets(farmText))
	env.apply(ms[:1], Updating)
	env.awaitKind(ms[1].ID)
	env.found(ms[1], "installer")
	env.scale(ms[1].ID, "keda-operator", "50")
	env.apply(ms, Updating)
	env.wantReplicas(ms[1].ID, 50, "after the adoption")
	if n := env.noticesOf(ms[1].ID, ReasonFieldYielded, "/spec/replicas to keda-operator"); n != 1 {
		t.Errorf("%d notices of the yield, want 1", n)
	}
}
