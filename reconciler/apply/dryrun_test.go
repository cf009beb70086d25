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

// widgetText defines a kind of the rig's own and has one object of it.
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

// widgets fills in the rig's own group.
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
	// A definition that is level already excuses nothing.
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
		t.Fatalf("problems without consent: %v", problems)
	}
	env.engine.Adopt([]string{"helm"})
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) > 0 {
		t.Errorf("with consent: %v %v", problems, err)
	}
	env.engine.Adopt(nil)
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) != 1 {
		t.Errorf("with the consent withdrawn: %v %v", problems, err)
	}
}

func TestRefusalsAreRetriedAfterTheSchemaChanged(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	widget := &payload.Manifest{GVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}}
	a := &applier{now: func() time.Time { return now }, set: &set{defined: map[schema.GroupKind]time.Time{widget.GVK.GroupKind(): now.Add(-time.Second)}}}
	invalid, denied := permanent(widget.ID, ReasonResourceInvalid, "x"), permanent(widget.ID, ReasonWebhookDenied, "x")
	if !a.schemaLags(widget, invalid) {
		t.Error("a refusal a second after the definition is final")
	}
	if a.schemaLags(widget, denied) {
		t.Error("a refusal for another reason is tried again")
	}
	if a.schemaLags(&payload.Manifest{GVK: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}}, invalid) {
		t.Error("the refusal of another kind is tried again")
	}
	now = now.Add(schemaLag)
	if a.schemaLags(widget, invalid) {
		t.Error("a refusal long after the definition is tried again")
	}
}
