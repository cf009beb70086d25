// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const testManager = "lockstep:clusterrelease/x"

func entryOf(manager, operation, subresource, fields string) metav1.ManagedFieldsEntry {
	f := &metav1.FieldsV1{}
	f.SetRawString(fields)
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationType(operation), Subresource: subresource,
		APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: f,
	}
}

func content(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return integers(out).(map[string]any)
}

const workload = `
spec:
  replicas: 2
  template:
    spec:
      containers:
      - {name: a, image: x:1}
      - {name: b, image: y:1, ports: [{containerPort: 80, name: web}]}
`

func TestLostReturnsTheFieldsOfOtherManagers(t *testing.T) {
	entries := []metav1.ManagedFieldsEntry{
		entryOf(testManager, "Apply", "", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:image":{}}}}}}}`),
		entryOf("hpa", "Update", "scale", `{"f:spec":{"f:replicas":{}}}`),
		entryOf("updater", "Update", "", `{"f:spec":{"f:paused":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{"f:image":{}},"k:{\"name\":\"b\"}":{"f:image":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{"f:name":{}}}}}}}}}`),
	}
	got := map[string]string{}
	for _, l := range Lost(entries, testManager, content(t, workload), Any) {
		got[l.Pointer] = l.Manager
	}
	want := map[string]string{
		"/spec/replicas":                                "hpa",
		"/spec/template/spec/containers/1/image":        "updater",
		"/spec/template/spec/containers/1/ports/0/name": "updater",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lost fields (-want +got):\n%s", diff)
	}
}

func TestRemoveDeletesOneValue(t *testing.T) {
	for pointer, want := range map[string]string{
		"/spec/replicas":                           "spec: {template: {spec: {containers: [{name: a, image: 'x:1'}, {name: b, image: 'y:1', ports: [{containerPort: 80, name: web}]}]}}}",
		"/spec/template/spec/containers/0":         "spec: {replicas: 2, template: {spec: {containers: [{name: b, image: 'y:1', ports: [{containerPort: 80, name: web}]}]}}}",
		"/spec/template/spec/containers/1/ports/0": "spec: {replicas: 2, template: {spec: {containers: [{name: a, image: 'x:1'}, {name: b, image: 'y:1', ports: []}]}}}",
		"/spec/template/spec/containers/7":         workload,
		"/spec/nothing/here":                       workload,
		"":                                         workload,
	} {
		c := content(t, workload)
		remove(c, pointer)
		if diff := cmp.Diff(content(t, want), c); diff != "" {
			t.Errorf("remove(%q) (-want +got):\n%s", pointer, diff)
		}
	}
}

func TestPointersAreOrderedNumerically(t *testing.T) {
	if comparePointers("/a/2", "/a/10") >= 0 || comparePointers("/a/b", "/a/b/c") >= 0 {
		t.Error("pointers aren't ordered by their tokens")
	}
}

func TestTakeOverMergesFieldsAndDropsTheOtherManagers(t *testing.T) {
	entries := []metav1.ManagedFieldsEntry{
		entryOf(testManager, "Apply", "", `{"f:data":{"f:a":{}}}`),
		entryOf("kubectl-client-side-apply", "Update", "", `{"f:data":{"f:b":{}}}`),
		entryOf("kubectl", "Update", "scale", `{"f:spec":{"f:replicas":{}}}`),
		entryOf("controller", "Update", "", `{"f:data":{"f:c":{}}}`),
	}
	got, err := takeOver(entries, testManager, Adoptable(nil))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for _, e := range got {
		fields[e.Manager] = e.FieldsV1.GetRawString()
	}
	want := map[string]string{
		testManager:  `{"f:data":{"f:a":{},"f:b":{}}}`,
		"kubectl":    `{"f:spec":{"f:replicas":{}}}`,
		"controller": `{"f:data":{"f:c":{}}}`,
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if again, err := takeOver(got, testManager, Adoptable(nil)); err != nil || again != nil {
		t.Errorf("a second takeover: %v %v, want no change", again, err)
	}
}

func TestFieldsOfControllersAreNeverTakenOver(t *testing.T) {
	pick := Adoptable([]string{"helm", "flux", "argo"})
	for manager, want := range map[string]bool{
		"kubectl": true, "kubectl-edit": true, "before-first-apply": true, "cluster-version-operator": true,
		"helm": true, "kustomize-controller": true, "argocd-controller": true,
		"kube-controller-manager": false, "horizontal-pod-autoscaler": false, "kubelet": false, "lockstep:clusterrelease/other": false, "kubectlish": false,
	} {
		e := entryOf(manager, "Update", "", "{}")
		if got := pick(&e); got != want {
			t.Errorf("%s: %t, want %t", manager, got, want)
		}
	}
	given := entryOf("lockstep:clusterrelease/other", "Apply", "", "{}")
	if !Adoptable(nil, "clusterrelease/other")(&given) {
		t.Error("the fields of a set that gives the object aren't taken over")
	}
}

// integers converts whole floats, as a JSON decoder returns them, to int64.
func integers(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k, item := range x {
			x[k] = integers(item)
		}
	case []any:
		for i, item := range x {
			x[i] = integers(item)
		}
	case float64:
		if x == float64(int64(x)) {
			return int64(x)
		}
	}
	return v
}

func TestRelinquishMovesOnlyTheGivenFields(t *testing.T) {
	entries := []metav1.ManagedFieldsEntry{
		entryOf(InitialManager, "Apply", "", `{"f:spec":{"f:paused":{}}}`),
		entryOf(testManager, "Apply", "", `{"f:spec":{"f:replicas":{},"f:minReadySeconds":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"b\"}":{".":{},"f:image":{},"f:name":{}}}}}}}`),
		entryOf("hpa", "Update", "scale", `{"f:spec":{"f:replicas":{}}}`),
	}
	// Content lacks the first root; the second has an index of it.
	got, err := Relinquish(entries, testManager, content(t, workload), []string{"/spec/minReadySeconds", "/spec/template/spec/containers/1/image"})
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for _, e := range got {
		fields[e.Manager] = e.FieldsV1.GetRawString()
	}
	want := map[string]string{
		testManager:    `{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}}}}}}}`,
		"hpa":          `{"f:spec":{"f:replicas":{}}}`,
		InitialManager: `{"f:spec":{"f:minReadySeconds":{},"f:paused":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"b\"}":{"f:image":{}}}}}}}`,
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields by manager (-want +got):\n%s", diff)
	}
	if again, err := Relinquish(got, testManager, content(t, workload), []string{"/spec/minReadySeconds"}); err != nil || again != nil {
		t.Errorf("a second call: %v %v, want no change", again, err)
	}
}
