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

// ignoring is text whose Deployment leaves its replicas to others.
func ignoring(text string) string {
	return strings.Replace(text, "{name: web, namespace: NS}", "{name: web, namespace: NS, annotations: {lockstep.dev/ignore-fields: /spec/replicas}}", 1)
}

func (r *rig) replicas(id payload.ObjectID) int64 {
	r.t.Helper()
	n, _, _ := unstructured.NestedInt64(r.get(id).Object, "spec", "replicas")
	return n
}

// scale sets the replicas through the subresource.
func (r *rig) scale(id payload.ObjectID, manager, n string) {
	r.t.Helper()
	r.patch(id, manager, `{"spec":{"replicas":`+n+`}}`, "scale")
}

func (r *rig) wantReplicas(id payload.ObjectID, want int64, when string) {
	r.t.Helper()
	if n := r.replicas(id); n != want {
		r.t.Errorf("replicas are %d %s, want %d", n, when, want)
	}
}

func TestFieldsThatComeToBeIgnoredKeepTheirValues(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText)
	r.apply(ms, Updating)
	r.seen(ms)
	r.apply(r.manifests(ignoring(scaledText)), Updating)
	r.wantReplicas(ms[0].ID, 3, "after a release that ignores them")
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	r.wantReplicas(ms[0].ID, 3, "after the next one")
	r.patch(ms[0].ID, "someone", `{"spec":{"replicas":5}}`)
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:3", 1))), Updating)
	r.wantReplicas(ms[0].ID, 5, "though they are ignored")
}

func TestFieldsThatComeToBeIgnoredWhenTheyLeaveTheManifestKeepTheirValues(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText)
	r.apply(ms, Updating)
	r.seen(ms)
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "  replicas: 3\n", "", 1))), Updating)
	r.wantReplicas(ms[0].ID, 3, "after a release that ignores them and doesn't name them")
}

func TestAdoptedFieldsThatAreIgnoredKeepTheirValues(t *testing.T) {
	for name, text := range map[string]string{
		"ignored":     ignoring(scaledText),
		"not named":   strings.Replace(scaledText, "  replicas: 3\n", "", 1),
		"both":        ignoring(strings.Replace(scaledText, "  replicas: 3\n", "", 1)),
		"other value": ignoring(strings.Replace(scaledText, "replicas: 3", "replicas: 8", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			found := r.manifests(scaledText)
			var deployment appsv1.Deployment
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(found[0].Object.Object, &deployment))
			_, err := r.kube.AppsV1().Deployments(r.ns).Create(t.Context(), &deployment, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
			must(t, err)
			r.apply(r.manifests(text), Updating)
			r.wantReplicas(found[0].ID, 3, "after the adoption")
			r.apply(r.manifests(strings.Replace(text, "web:1", "web:2", 1)), Updating)
			r.wantReplicas(found[0].ID, 3, "after the next release")
		})
	}
}

func TestPeoplesEditOfAnIgnoredFieldSurvivesTheNextRelease(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(ignoring(scaledText))
	r.apply(ms, Updating)
	r.seen(ms)
	r.shows(r.patch(ms[0].ID, "kubectl-edit", `{"spec":{"replicas":7}}`), ms[0].ID)
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	r.wantReplicas(ms[0].ID, 7, "after a release that took the editor's other fields over")
}

func TestACrashBeforeTheHandOverOfIgnoredFieldsKeepsTheirValues(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(ignoring(scaledText))
	must(t, r.engine.Begin(t.Context(), ms, nil))
	// All that a process did which ended after its create.
	body, err := ms[0].Object.MarshalJSON()
	must(t, err)
	force := true
	_, err = r.resource(ms[0].ID).Patch(t.Context(), "web", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: r.engine.Manager(), Force: &force})
	must(t, err)
	r.restart()
	r.apply(ms, Updating)
	r.wantReplicas(ms[0].ID, 3, "after the crash")
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	r.wantReplicas(ms[0].ID, 3, "after the next release")
}

func TestReplicasThatLeaveTheManifestKeepTheirValue(t *testing.T) {
	for name, text := range map[string]string{
		"Deployment":  scaledText,
		"StatefulSet": strings.Replace(strings.Replace(scaledText, "kind: Deployment", "kind: StatefulSet", 1), "  replicas: 3\n", "  replicas: 3\n  serviceName: web\n", 1),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ms := r.manifests(text)
			r.apply(ms, Updating)
			r.seen(ms)
			bare := strings.Replace(text, "  replicas: 3\n", "", 1)
			r.requests.take()
			r.apply(r.manifests(bare), Updating)
			r.wantReplicas(ms[0].ID, 3, "after a release that doesn't name them")
			r.requests.take()
			next := r.manifests(strings.Replace(bare, "web:1", "web:2", 1))
			r.apply(next, Updating)
			r.wantReplicas(ms[0].ID, 3, "after the next one")
			if got := r.requests.take(); len(got) != 1 {
				t.Errorf("requests: %q, want one patch once the field is others'", got)
			}
			r.patch(ms[0].ID, "someone", `{"spec":{"replicas":6}}`)
			r.apply(r.manifests(strings.Replace(bare, "web:1", "web:3", 1)), Updating)
			r.wantReplicas(ms[0].ID, 6, "after somebody scaled what nobody declares")
			r.apply(ms, Updating)
			r.wantReplicas(ms[0].ID, 3, "when a release names them again")
		})
	}
}

func TestAnOutageOfTheWatchUndoesNoYield(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText)
	r.apply(ms, Updating)
	r.seen(ms)
	r.scale(ms[0].ID, "horizontal-pod-autoscaler", "5")
	r.await("a yield", func() bool { return len(r.engine.Yielded()[ms[0].ID]) == 1 })
	r.await("level", func() bool { return r.level(ms[0].ID) })
	must(t, r.engine.Flush(t.Context()))
	r.blind()
	ch := r.apply(ms, Reconciling)[0]
	r.wantReplicas(ms[0].ID, 5, "after a pass without a watch")
	if len(ch.Yielded) != 1 {
		t.Errorf("yields after a pass without a watch: %v, want the one", ch.Yielded)
	}
	r.apply(r.manifests(strings.Replace(scaledText, "web:1", "web:2", 1)), Updating)
	r.wantReplicas(ms[0].ID, 5, "after a release without a watch")
}

func TestAnOutageOfTheWatchForcesNoIgnoredField(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(ignoring(scaledText))
	r.apply(ms, Updating)
	r.patch(ms[0].ID, "someone", `{"spec":{"replicas":5}}`)
	must(t, r.engine.Flush(t.Context()))
	r.blind()
	r.apply(ms, Reconciling)
	r.wantReplicas(ms[0].ID, 5, "after a pass without a watch")
	r.apply(r.manifests(ignoring(strings.Replace(scaledText, "web:1", "web:2", 1))), Updating)
	r.wantReplicas(ms[0].ID, 5, "after a release without a watch")
}

func TestAnAutoscalerThatActsDuringAnOutageOfTheWatchIsYieldedTo(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText)
	r.apply(ms, Updating)
	r.blind()
	r.scale(ms[0].ID, "horizontal-pod-autoscaler", "5")
	ch := r.apply(ms, Reconciling)[0]
	r.wantReplicas(ms[0].ID, 5, "after a pass without a watch")
	if len(ch.Yielded) != 1 {
		t.Errorf("yields: %v, want the replicas", ch.Yielded)
	}
}

func TestWhatIsGoneDuringAnOutageOfTheWatchIsMadeWithAllItsFields(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(ignoring(scaledText))
	r.apply(ms, Updating)
	r.blind()
	must(t, r.resource(ms[0].ID).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	r.await("the deletion", func() bool { return !r.exists(ms[0].ID) })
	r.apply(ms, Reconciling)
	r.wantReplicas(ms[0].ID, 3, "of the object that was made anew")
}

// shows waits until the watch shows the object in this version.
func (r *rig) shows(o *unstructured.Unstructured, id payload.ObjectID) {
	r.t.Helper()
	r.await("the watch to show "+id.String(), func() bool {
		v := r.cache.Get(id)
		return v.State == live.Present && !older(v.Object.ResourceVersion, o.GetResourceVersion())
	})
}

// blind starts the process again as one that may not watch anything.
func (r *rig) blind() {
	r.t.Helper()
	r.kill()
	r.watcher = "nobody"
	r.start()
	r.await("the kinds to be unwatchable", func() bool { return len(r.cache.Unwatchable()) > 0 })
}

func TestAFieldThatIsIgnoredNoMoreIsOursAgain(t *testing.T) {
	ignoring := func(text string) string {
		return strings.Replace(text, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {lockstep.dev/ignore-fields: /data/b}`, 1)
	}
	r := newRig(t)
	ms := r.manifests(ignoring(webSet))[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	holds := func() bool {
		return slices.ContainsFunc(r.get(ms[0].ID).GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == managedfields.InitialManager })
	}
	if !holds() {
		t.Fatal("the ignored field wasn't handed over")
	}
	next := r.manifests(webSet)[:1]
	r.apply(next, Updating)
	r.seen(next)
	if holds() {
		t.Errorf("%s holds fields that the manifest insists on", managedfields.InitialManager)
	}
	last := r.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
	r.apply(last, Updating)
	if data, _ := r.get(ms[0].ID).Object["data"].(map[string]any); data["b"] != nil {
		t.Errorf("data is %v: what left the manifest stays", data)
	}
}
