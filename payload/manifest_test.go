// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestNewManifestNormalisesACopy(t *testing.T) {
	given := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata":        map[string]any{"name": "a", "creationTimestamp": nil, "managedFields": []any{}, "uid": "u", "labels": nil, "finalizers": []any{}},
		"aggregationRule": map[string]any{"clusterRoleSelectors": []any{}}, "rules": []any{map[string]any{"verbs": []any{"get"}}},
		"status": map[string]any{"x": "y"},
	}}
	want := given.DeepCopy()
	m, err := NewManifest(given)
	if err != nil {
		t.Fatal(err)
	}
	const canonical = `{"aggregationRule":{"clusterRoleSelectors":[]},"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"finalizers":[],"name":"a"}}`
	if diff := cmp.Diff(canonical, string(m.JSON)); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Errorf("the argument changed (-before +after):\n%s", diff)
	}
	if m.ID.String() != "rbac.authorization.k8s.io ClusterRole a" || m.RunLevel != -1 {
		t.Errorf("manifest %s at run level %d", m.ID, m.RunLevel)
	}
}

func TestNewManifestRejectsInvalidObjects(t *testing.T) {
	for name, object := range map[string]*unstructured.Unstructured{
		"nothing": nil,
		"an int":  {Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "x": 1}},
		"no kind": {Object: map[string]any{"apiVersion": "v1", "metadata": map[string]any{"name": "a"}}},
		"a group of three parts": {Object: map[string]any{
			"apiVersion": "a/b/c", "kind": "X", "metadata": map[string]any{"name": "a"},
		}},
		"stringData of a list": {Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "a"}, "stringData": []any{},
		}},
	} {
		if _, err := NewManifest(object); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestAnnotationsSetFields(t *testing.T) {
	m, err := NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "api", "namespace": "web", "annotations": map[string]any{
			AnnotationCreateOnly: "true", AnnotationReplace: "true", AnnotationSSA: "force", AnnotationPrune: "confirmed", AnnotationWait: "none",
			AnnotationHealth: " status.ready ", AnnotationIgnoreFields: "/spec/replicas, /metadata/labels/x", AnnotationRollbackFirst: "true",
			"example.com/other": "kept",
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !m.CreateOnly || !m.Replace || !m.ForceFields || !m.PruneConfirmed || !m.RollbackFirst || m.Delete || m.Wait != WaitNone || m.Health != "status.ready" {
		t.Errorf("manifest %+v", m)
	}
	if diff := cmp.Diff([]string{"/spec/replicas", "/metadata/labels/x"}, m.IgnoreFields); diff != "" {
		t.Errorf("ignored fields (-want +got):\n%s", diff)
	}
}

func TestCVODeleteOverridesCreateOnly(t *testing.T) {
	m, err := NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "annotations": map[string]any{cvoCreateOnly: "true", cvoDelete: "true"}},
	}})
	if err != nil || !m.Delete || m.CreateOnly {
		t.Errorf("delete %v, create-only %v, %v", m.Delete, m.CreateOnly, err)
	}
}

func TestPruneAnnotationTakesOnlyItsTwoValues(t *testing.T) {
	for value, want := range map[string]struct{ confirmed, disabled, ok bool }{
		"confirmed": {true, false, true}, "disabled": {false, true, true}, "enabled": {}, "false": {}, "": {},
	} {
		m, err := NewManifest(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "annotations": map[string]any{AnnotationPrune: value}},
		}})
		if (err == nil) != want.ok || err == nil && (m.PruneConfirmed != want.confirmed || m.PruneDisabled != want.disabled) {
			t.Errorf("value %q: %v, confirmed %v, disabled %v; want %+v", value, err, m.PruneConfirmed, m.PruneDisabled, want)
		}
	}
}
