// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/test/env"
)

const widgetDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// widget is the state that its controller, the test, reports for the Widget.
func widget(t *testing.T, w *env.Env, generation int, ready bool, message string) {
	t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	obj.SetNamespace(platform)
	obj.SetName("machine")
	body := fmt.Sprintf(`{"status":{"observedGeneration":%d,"conditions":[{"type":"Ready","status":%q,"reason":"Test","message":%q}]}}`,
		generation, map[bool]string{true: "True", false: "False"}[ready], message)
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		return w.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(body)))
	}))
}

// widgetRelease has a CRD and a custom resource whose health rule requires a
// status from its controller.
func widgetRelease(version string) env.Release {
	return configRelease(platform, version, map[string]string{
		"crd.yaml": widgetDefinition,
		"widget.yaml": `apiVersion: example.com/v1
kind: Widget
metadata:
  name: machine
  namespace: platform
  annotations: {lockstep.dev/health: "status.?conditions.orValue([]).exists(c, c.type == 'Ready' && c.status == 'True')"}
spec: {version: "` + version + `"}
`,
	})
}

// theWidget is the Widget as the status names it.
const theWidget = "example.com Widget platform/machine"

// blockedBy waits until the release's status lists an object as blocking, with
// a deadline if it is awaited, and returns that entry.
func blockedBy(t *testing.T, w *env.Env, object, message string, waited bool) v1alpha1.Blocking {
	t.Helper()
	var found v1alpha1.Blocking
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		obj, err := getRelease(ctx, w, platform)
		if err != nil {
			return err
		}
		if obj.Status.Progress == nil {
			return fmt.Errorf("no progress yet: %+v", obj.Status)
		}
		for _, b := range obj.Status.Progress.Blocking {
			if b.Object == object && strings.Contains(b.Message, message) && (b.Deadline != nil) == waited {
				found = b
				return nil
			}
		}
		return fmt.Errorf("blocking is %+v, want %s with %q, waited for: %t", obj.Status.Progress.Blocking, object, message, waited)
	}))
	return found
}

// TestAReleaseIsCompleteOnceItsObjectsAreReady acts as the controller of a
// custom resource: during an install, a death of the reconciler while it
// waits, an update, and an unhealthy object at rest.
func TestAReleaseIsCompleteOnceItsObjectsAreReady(t *testing.T) {
	t.Parallel()
	w := newEnv(t, 0)
	s := &stable{w: w}
	s.good = release(t, w, widgetRelease(first))
	declares := func(version, ref, policy string) {
		push(t, w, platform+" "+version, map[string]string{platformFile: declare(platform, version, ref) + policy})
	}
	declares(first, s.good, "")
	start(t, w)

	// The first release isn't complete before the Widget is ready; status has
	// the Widget's own message.
	widget(t, w, 1, false, "warming up")
	blocking := blockedBy(t, w, theWidget, "warming up", true)
	if blocking.Since == nil {
		t.Errorf("%+v, want since when it's waited for", blocking)
	}
	if obj, err := getRelease(t.Context(), w, platform); err != nil || obj.Status.Applied != nil {
		t.Errorf("applied is %+v (%v) while the Widget isn't ready", obj.Status.Applied, err)
	}
	widget(t, w, 1, true, "runs")
	waitApplied(t, w, platform, first)

	// An update waits for it too. A new process continues the wait of the old
	// one, whose clock is persisted once the wait is long.
	next := release(t, w, widgetRelease("1.1.0"))
	declares("1.1.0", next, "")
	widget(t, w, 2, false, "turning around")
	before := blockedBy(t, w, theWidget, "turning around", true)
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		return remembersWait(ctx, w)
	}))
	s.restart(t)
	after := blockedBy(t, w, theWidget, "turning around", true)
	if d := after.Deadline.Sub(before.Deadline.Time); d < -5*time.Second || d > 5*time.Second {
		t.Errorf("the deadline was %s and is %s after the restart", before.Deadline, after.Deadline)
	}
	widget(t, w, 2, true, "runs")
	waitApplied(t, w, platform, "1.1.0")

	// An object that becomes unhealthy later is reported, and fails the
	// release after the timeout of its component.
	declares("1.1.0", next, "  components:\n  - {name: base, timeout: 2s}\n")
	widget(t, w, 2, false, "lost its oil")
	message := waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionFailing, "True", "")
	contains(t, message, "lost its oil", "Widget platform/machine")
	waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionReady, "False", "")
	// A component with onUnhealthy: warn doesn't fail the release.
	declares("1.1.0", next, "  components:\n  - {name: base, timeout: 2s, onUnhealthy: warn}\n")
	waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionReady, "True", "")
	blockedBy(t, w, theWidget, "lost its oil", false)
	declares("1.1.0", next, "  components:\n  - {name: base, timeout: 2s}\n")
	waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionFailing, "True", "")
	widget(t, w, 2, true, "runs")
	waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionReady, "True", "")

	// A storage class that doesn't exist blocks the release; a claim that waits
	// for its first pod doesn't.
	claiming := configRelease(platform, "1.2.0", map[string]string{
		"claim.yaml": "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: platform}\n" +
			"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: absent}\n",
	})
	declares("1.2.0", release(t, w, claiming), "")
	blocking = blockedBy(t, w, "PersistentVolumeClaim platform/data", "StorageClass absent not found", true)
	if blocking.Reason != "StorageClassMissing" {
		t.Errorf("reason %s, want StorageClassMissing", blocking.Reason)
	}
	must(t, w.Client.Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "absent"}, Provisioner: "example.com/none",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}))
	waitApplied(t, w, platform, "1.2.0")
}

// remembersWait checks that the persisted state has a wait for the Widget.
func remembersWait(ctx context.Context, w *env.Env) error {
	var store corev1.ConfigMap
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: state.ReleaseObject(platform)}, &store); err != nil {
		return err
	}
	stored := store.Data["state.json"]
	if !strings.Contains(stored, `"waits":[{"group":"example.com","kind":"Widget"`) {
		return fmt.Errorf("the store is %s, want it to know of the wait", stored)
	}
	return nil
}
