// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

func TestUnclearObjectStaysUnclearUntilItIsVerified(t *testing.T) {
	service := schema.GroupKind{Kind: "Service"}
	var p pace
	compare := func(view live.View) Verdict { return p.remember(Compare(recorded(), service, testManager, view)) }
	status := shown("102", func(o *live.Object) { o.Status = d("other") })
	if got := compare(status); got != InSync {
		t.Fatalf("a status write alone is %s, want InSync", got)
	}
	if got := compare(shown("101")); got != Unclear {
		t.Fatalf("a write without a trace is %s, want Unclear", got)
	}
	if got := compare(status); got != Unclear {
		t.Errorf("a status write after it is %s, want Unclear", got)
	}
	if got := compare(shown("103", func(o *live.Object) { o.OwnFields[0].Entry = d("other") })); got != Drifted {
		t.Errorf("a drift after it is %s, want Drifted", got)
	}
	p.accepted()
	if got := compare(status); got != InSync {
		t.Errorf("a status write after the verification is %s, want InSync", got)
	}
}

func TestStatusWriteDoesNotCancelADueVerification(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec: {selector: {app: web}, ports: [{name: a, port: 80}, {name: b, port: 81}]}
`)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	order := func() string {
		ports, _, _ := unstructured.NestedSlice(env.get(ms[0].ID).Object, "spec", "ports")
		first, _ := ports[0].(map[string]any)
		name, _ := first["name"].(string)
		return name
	}
	// managedFields doesn't contain the order of a keyed list, and a Service counts
	// no generations.
	reorder := func() {
		_, err := env.resource(ms[0].ID).Patch(t.Context(), "web", types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/ports","value":[{"name":"b","port":81,"protocol":"TCP","targetPort":81},{"name":"a","port":80,"protocol":"TCP","targetPort":80}]}]`),
			metav1.PatchOptions{FieldManager: "someone"})
		must(t, err)
	}
	reorder()
	env.await("the first repair", func() bool { return order() == "a" })
	env.awaitEvents(ms)
	reorder() // Its verification is delayed.
	env.awaitVersion(env.get(ms[0].ID), ms[0].ID)
	env.await("the verification to be delayed", func() bool { return env.isDue(ms[0].ID) })
	env.patch(ms[0].ID, "cloud-controller-manager", `{"status":{"conditions":[{"type":"X","status":"True","lastTransitionTime":"2026-11-30T00:00:00Z","reason":"X","message":""}]}}`, "status")
	began := time.Now()
	env.await("the second repair", func() bool { return order() == "a" })
	t.Logf("repaired after %s", time.Since(began).Round(time.Millisecond))
}
