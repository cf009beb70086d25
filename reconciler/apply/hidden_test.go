// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestFieldsThatLeaveTheManifestButStayAreTold(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	// Another applier that wants the same value shares the field.
	r.shows(r.shareField(ms[0].ID.Name), ms[0].ID)
	next := r.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
	r.apply(next, Updating)
	if b, _, _ := unstructured.NestedString(r.get(ms[0].ID).Object, "data", "b"); b != "2" {
		t.Fatalf("data.b is %q, want it to stay with its other holder", b)
	}
	if got := r.log.with("stay", "other-tool", ".data.b", "settings"); len(got) != 1 {
		t.Errorf("lines about data.b: %q, want one; all: %q", got, r.log.with())
	}
	r.seen(next)
	r.apply(next, Reconciling)
	if got := r.log.with("other-tool"); len(got) != 1 {
		t.Errorf("it was told again: %q", got)
	}
}

// shareField has another tool apply data.b of a ConfigMap as it is.
func (r *rig) shareField(name string) *unstructured.Unstructured {
	r.t.Helper()
	o, err := r.resource(r.id("ConfigMap", name)).Apply(r.t.Context(), name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"b": "2"},
	}}, metav1.ApplyOptions{FieldManager: "other-tool"})
	must(r.t, err)
	return o
}

func TestWhatAdmissionMakesOfAnApplyIsToldOnce(t *testing.T) {
	r := newRig(t)
	url, ca := mutator(t, func(map[string]any) string {
		return `[{"op":"add","path":"/metadata/labels/app","value":"rewritten"},{"op":"add","path":"/metadata/managedFields","value":[]}]`
	})
	r.webhook("MutatingWebhookConfiguration", url, ca)
	r.await("the webhook", func() bool {
		cm, err := r.kube.CoreV1().ConfigMaps(r.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{"app": "x"}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && cm.Labels["app"] == "rewritten"
	})
	ms := r.manifests(webSet)[:1]
	for range 3 {
		r.apply(ms, Updating)
		r.seen(ms)
	}
	if got := r.log.with("admission", "/metadata/labels/app", "settings"); len(got) != 1 {
		t.Errorf("lines about the label: %q, want one", got)
	}
	if got := r.log.with("managedFields has no entry", "settings"); len(got) != 1 {
		t.Errorf("lines about the stripped fields: %q, want one; managers: %v", got, r.get(ms[0].ID).GetManagedFields())
	}
	r.quiet(300 * time.Millisecond)
}

func TestOrphansAreTold(t *testing.T) {
	r := newRig(t)
	_, err := r.kube.CoreV1().ConfigMaps(r.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	ms := r.manifests(webSet)
	r.apply(ms, Updating)
	_, err = r.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if got := r.log.with("stays in the cluster", "settings", "existed before"); len(got) != 1 {
		t.Errorf("lines about the orphan: %q, want one", got)
	}
}

func TestAKindThatCantBeWatchedIsToldOnce(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.blind()
	r.await("a line of the log", func() bool { return len(r.log.with("can't be watched", "ConfigMap", "forbidden")) > 0 })
	if got := r.log.with("can't be watched", "ConfigMap"); len(got) != 1 {
		t.Errorf("lines: %q, want one", got)
	}
}

// Most objects that controllers write too have no field in common with them: a
// changed manifest costs one request then.
func TestAChangedObjectOfWhichAControllerHasOtherFieldsCostsOneRequest(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	r.shows(r.patch(ms[0].ID, "ca-injector", `{"data":{"ca":"x"}}`), ms[0].ID)
	next := r.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	must(t, r.engine.Begin(t.Context(), next, nil))
	r.engine.set.sub.Close() // No verification of what the controller wrote.
	r.requests.take()
	_, err := r.engine.Apply(t.Context(), &next[0], Updating)
	must(t, err)
	if got := r.requests.take(); len(got) != 1 || !strings.HasPrefix(got[0], "PATCH ") {
		t.Errorf("requests: %q, want one patch", got)
	}
}
