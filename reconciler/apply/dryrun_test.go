// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

// widgetText has a CRD and an object of its kind.
const widgetText = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer}
---
apiVersion: GROUP/v1
kind: Widget
metadata: {name: one, namespace: NS}
spec: {size: 1}
`

// widgets replaces GROUP in text by an API group of the env.
func (env *testEnv) widgets(text string) string {
	return strings.ReplaceAll(text, "GROUP", strings.ReplaceAll(env.ns, "-", "")+".example.com")
}

func TestDryRunToleratesAnObjectThatNeedsTheChangedCRD(t *testing.T) {
	env := newEnv(t)
	env.apply(env.manifests(env.widgets(widgetText)), Updating)
	extended := strings.NewReplacer("size: {type: integer}", "size: {type: integer}\n              color: {type: string}",
		"spec: {size: 1}", "spec: {size: 1, color: red}").Replace(env.widgets(widgetText))
	ms := env.manifests(extended)
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) > 0 {
		t.Fatalf("DryRun: %v %v", problems, err)
	}
	env.apply(ms, Updating)
	color, _, _ := unstructured.NestedString(env.get(ms[1].ID).Object, "spec", "color")
	if color != "red" {
		t.Errorf("color is %q", color)
	}
	// A CRD that is in sync tolerates no refusal.
	env.awaitEvents(ms)
	bad := env.manifests(strings.Replace(extended, "color: red", "colour: red", 1))
	problems, err := env.engine.DryRun(t.Context(), bad)
	must(t, err)
	var refused *Error
	if len(problems) != 1 || problems[0].ID != ms[1].ID || !errors.As(problems[0].Err, &refused) || refused.Reason() != ReasonResourceInvalid {
		t.Errorf("problems: %v, want the Widget's unknown field", problems)
	}
}

func TestAdoptAffectsTheNextDryRun(t *testing.T) {
	env := newEnv(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: env.ns, Annotations: map[string]string{"meta.helm.sh/release-name": "web"}}}
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), cm, metav1.CreateOptions{FieldManager: "helm"})
	must(t, err)
	ms := env.manifests(webSet)[:1]
	problems, err := env.engine.DryRun(t.Context(), ms)
	must(t, err)
	if len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), "spec.adopt") {
		t.Fatalf("problems without adopt: %v", problems)
	}
	env.engine.Adopt([]string{"helm"})
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) > 0 {
		t.Errorf("problems with adopt: %v %v", problems, err)
	}
	env.engine.Adopt(nil)
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) != 1 {
		t.Errorf("problems after adopt was reset: %v %v", problems, err)
	}
}

func TestRefusalsAreRetriedAfterTheSchemaChanged(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	widget := &payload.Manifest{GVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}}
	a := &applier{now: func() time.Time { return now }, set: &set{defined: map[schema.GroupKind]time.Time{widget.GVK.GroupKind(): now.Add(-time.Second)}}}
	invalid, denied := permanent(widget.ID, ReasonResourceInvalid, "x"), permanent(widget.ID, ReasonWebhookDenied, "x")
	if !a.schemaLags(widget, invalid) {
		t.Error("a refusal one second after the CRD was written isn't retried")
	}
	if a.schemaLags(widget, denied) {
		t.Error("a refusal for another reason is retried")
	}
	if a.schemaLags(&payload.Manifest{GVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}}, invalid) {
		t.Error("a refusal of another kind is retried")
	}
	now = now.Add(schemaLag)
	if a.schemaLags(widget, invalid) {
		t.Error("a refusal long after the CRD was written is retried")
	}
}
