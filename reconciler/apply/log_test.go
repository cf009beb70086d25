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

func TestFieldsThatOutliveTheManifestAreLogged(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	// Another applier of the same value co-owns the field.
	env.awaitVersion(env.shareField(ms[0].ID.Name), ms[0].ID)
	next := env.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
	env.apply(next, Updating)
	if b, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "b"); b != "2" {
		t.Fatalf("data.b is %q, want it kept by its other manager", b)
	}
	if got := env.log.with("stay", "other-tool", ".data.b", "settings"); len(got) != 1 {
		t.Errorf("lines about data.b: %q, want one; all: %q", got, env.log.with())
	}
	env.awaitEvents(next)
	env.apply(next, Reconciling)
	if got := env.log.with("other-tool"); len(got) != 1 {
		t.Errorf("it was logged again: %q", got)
	}
}

// shareField applies the current data.b of a ConfigMap with another manager.
func (env *testEnv) shareField(name string) *unstructured.Unstructured {
	env.t.Helper()
	o, err := env.resource(env.id("ConfigMap", name)).Apply(env.t.Context(), name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"b": "2"},
	}}, metav1.ApplyOptions{FieldManager: "other-tool"})
	must(env.t, err)
	return o
}

func TestChangesByAdmissionAreLoggedOnce(t *testing.T) {
	env := newEnv(t)
	url, ca := mutator(t, func(map[string]any) string {
		return `[{"op":"add","path":"/metadata/labels/app","value":"rewritten"},{"op":"add","path":"/metadata/managedFields","value":[]}]`
	})
	env.webhook("MutatingWebhookConfiguration", url, ca)
	env.await("the webhook", func() bool {
		cm, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{"app": "x"}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && cm.Labels["app"] == "rewritten"
	})
	ms := env.manifests(webSet)[:1]
	for range 3 {
		env.apply(ms, Updating)
		env.awaitEvents(ms)
	}
	if got := env.log.with("admission", "/metadata/labels/app", "settings"); len(got) != 1 {
		t.Errorf("lines about the label: %q, want one", got)
	}
	if got := env.log.with("managedFields has no entry", "settings"); len(got) != 1 {
		t.Errorf("lines about the stripped fields: %q, want one; managers: %v", got, env.get(ms[0].ID).GetManagedFields())
	}
	env.wantNoRequests(300 * time.Millisecond)
}

func TestOrphansAreLogged(t *testing.T) {
	env := newEnv(t)
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	_, err = env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if got := env.log.with("stays in the cluster", "settings", "existed before"); len(got) != 1 {
		t.Errorf("lines about the orphan: %q, want one", got)
	}
}

func TestUnwatchableKindIsLoggedOnce(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.restartUnwatched()
	env.await("a line of the log", func() bool { return len(env.log.with("can't be watched", "ConfigMap", "forbidden")) > 0 })
	if got := env.log.with("can't be watched", "ConfigMap"); len(got) != 1 {
		t.Errorf("lines: %q, want one", got)
	}
}

// Most objects share no field with the controllers that write them.
func TestChangedObjectWithoutSharedFieldsCostsOneRequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	changed := env.patch(ms[0].ID, "ca-injector", `{"data":{"ca":"x"}}`)
	env.awaitInSync(ms[0].ID, "its verification", changed.GetResourceVersion())
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	must(t, env.engine.Begin(t.Context(), next, nil))
	env.requests.take()
	_, err := env.engine.Apply(t.Context(), &next[0], Updating)
	must(t, err)
	if got := env.requests.take(); len(got) != 1 || !strings.HasPrefix(got[0], "PATCH ") {
		t.Errorf("requests: %q, want one patch", got)
	}
}
