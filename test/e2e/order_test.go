// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// unordered are files whose order by name is the opposite of their dependencies.
var unordered = map[string]string{
	"a-widget.yaml":    "apiVersion: order.example.com/v1\nkind: Widget\nmetadata: {name: one, namespace: order-new}\n",
	"b-config.yaml":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: order-new}\n",
	"y-namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: order-new}\n",
	"z-crd.yaml": `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.order.example.com}
spec:
  group: order.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`,
}

// An update in which files precede what they need, then one that deletes an object
// with a finalizer that nothing removes.
func TestUpdatesWaitNeitherForTheOrderOfFilesNorForFinalizers(t *testing.T) {
	w := newEnv(t, 0)
	const product = "platform"
	update := func(version string, parts ...map[string]string) {
		r := configRelease(product, version, nil)
		for _, files := range parts {
			r.Components = append(r.Components, env.Component{Name: "extra", RunLevel: 20, Files: files})
		}
		ref := release(t, w, r)
		push(t, w, version, map[string]string{declarePath + product + ".yaml": declare(product, version, ref)})
	}
	with := func(version string, parts ...map[string]string) {
		update(version, parts...)
		waitApplied(t, w, product, version)
	}
	update("1.0.0")
	start(t, w)
	waitApplied(t, w, product, "1.0.0")
	files := map[string]string{"0-held.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, namespace: platform}\n"}
	maps.Copy(files, unordered)
	with("1.1.0", files)

	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: product, Name: "held"}}
	finalizers := func(list string) {
		must(t, w.Client.Patch(t.Context(), held, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`))))
	}
	finalizers(`["example.com/unserved"]`)
	with("1.2.0", unordered)
	message := waitCondition(t, w, releaseObject(product), v1alpha1.ConditionPruneComplete, "False", "Pruning")
	contains(t, message, "ConfigMap platform/held", "example.com/unserved", "kubectl edit")
	with("1.2.1", unordered)
	waitCondition(t, w, releaseObject(product), v1alpha1.ConditionPruneComplete, "False", "Pruning")

	finalizers("null")
	freed := time.Now()
	waitCondition(t, w, releaseObject(product), v1alpha1.ConditionPruneComplete, "True", "")
	if took := time.Since(freed); took > 15*time.Second {
		t.Errorf("the prune ended %s after the finalizer, want at once", took)
	}
}
