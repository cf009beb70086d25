// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
)

const webSet = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NS, labels: {app: web}}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: NS}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: example.com/web:1, ports: [{containerPort: 80}], resources: {limits: {cpu: 1000m, memory: 1024Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: NS}
spec: {podSelector: {}, policyTypes: [Ingress], ingress: []}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: NS}
stringData: {user: alice, password: geheim}
`

func actions(chs []Change) []Action {
	var out []Action
	for _, ch := range chs {
		out = append(out, ch.Action)
	}
	return out
}

func count(requests []string, method string) int {
	n := 0
	for _, r := range requests {
		if strings.HasPrefix(r, method+" ") {
			n++
		}
	}
	return n
}

func TestFirstApplyCostsOneRequestPerObject(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	chs := env.apply(ms, Updating)
	if diff := cmp.Diff(slices.Repeat([]Action{Created}, len(ms)), actions(chs)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	got := env.requests.take()
	if len(got) != len(ms) || count(got, "PATCH") != len(ms) {
		t.Errorf("%d requests for %d objects: %q", len(got), len(ms), got)
	}
}

func TestUnchangedSetCostsNoRequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.wantNoRequests(300 * time.Millisecond)
	for range 3 {
		for _, ch := range env.apply(ms, Reconciling) {
			if ch.Action != Unchanged {
				t.Errorf("%s: %s, want Unchanged", ch.ID, ch.Action)
			}
		}
	}
	if got := env.requests.take(); len(got) > 0 {
		t.Errorf("requests in unchanged syncs: %q", got)
	}
}

func TestUnchangedSetAfterARestartCostsNoWrite(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.restart()
	before := env.inventoryVersions()
	for _, ch := range env.apply(ms, Reconciling) {
		if ch.Action != Unchanged {
			t.Errorf("%s: %s, want Unchanged", ch.ID, ch.Action)
		}
	}
	if got := env.requests.take(); len(got) > 0 {
		t.Errorf("requests after the restart: %q", got)
	}
	kinds := map[string]bool{}
	for _, w := range env.watches.take() {
		method, path, _ := strings.Cut(w, " ")
		if path == "/api" || path == "/apis" || strings.HasPrefix(method, "GET") && strings.Count(path, "/") <= 3 && !strings.Contains(path, "/v1/") {
			continue // Discovery.
		}
		if kinds[path] {
			t.Errorf("%s is requested twice", path)
		}
		kinds[path] = true
	}
	if len(kinds) != len(ms) {
		t.Errorf("%d kinds are watched, want %d: %v", len(kinds), len(ms), kinds)
	}
	if diff := cmp.Diff(before, env.inventoryVersions()); diff != "" {
		t.Errorf("the inventory was written:\n%s", diff)
	}
}

func (env *testEnv) inventoryVersions() map[string]string {
	env.t.Helper()
	out := map[string]string{}
	for _, cm := range env.shards() {
		out[cm.Name] = cm.ResourceVersion
	}
	return out
}

func TestOnlyTheChangedManifestIsSent(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.requests.take()
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `c: "3"`, 1))
	chs := env.apply(next, Updating)
	if chs[0].Action != Updated {
		t.Errorf("changed ConfigMap: %s, want Updated", chs[0].Action)
	}
	if got := env.requests.take(); len(got) != 1 {
		t.Errorf("requests for one changed object: %q", got)
	}
	data, _, _ := unstructured.NestedStringMap(env.get(ms[0].ID).Object, "data")
	if diff := cmp.Diff(map[string]string{"a": "1", "c": "3"}, data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
}

func TestKubectlEditIsRepaired(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[0].ID, "kubectl-edit", `{"data":{"a":"hacked"}}`)
	env.patch(ms[2].ID, "kubectl-edit", `{"spec":{"replicas":7}}`)
	env.patch(ms[3].ID, "kubectl-edit", `{"spec":{"selector":{"app":"other"}}}`)
	env.await("repairs", func() bool {
		a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a")
		n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas")
		s, _, _ := unstructured.NestedString(env.get(ms[3].ID).Object, "spec", "selector", "app")
		return a == "1" && n == 2 && s == "web"
	})
	if got := env.requests.take(); count(got, "PATCH") != len(ms)+3 || len(got) != len(ms)+3 {
		t.Errorf("requests: %q, want one patch per repair", got)
	}
	for _, i := range []int{0, 2, 3} {
		env.await("a notice of the repair", func() bool { return env.noticesOf(ms[i].ID, ReasonDriftRepaired, "") == 1 })
	}
}

func TestDeletedObjectIsRecreated(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	before := env.get(ms[0].ID).GetUID()
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	env.await("a new object", func() bool {
		o, err := env.resource(ms[0].ID).Get(t.Context(), "settings", metav1.GetOptions{})
		return err == nil && o.GetUID() != before
	})
}

func TestFieldsOfOtherManagersAreKept(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[0].ID, "other-controller", `{"data":{"theirs":"x"},"metadata":{"labels":{"theirs":"y"}}}`)
	env.await("the verification", func() bool { return count(env.requests.take(), "PATCH") > 0 || env.inSync(ms[0].ID) })
	theirs, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "theirs")
	if theirs != "x" {
		t.Errorf("data.theirs is %q, want it kept", theirs)
	}
}

// inSync reports whether the object is in sync.
func (env *testEnv) inSync(id payload.ObjectID) bool {
	it := env.engine.set.item(id)
	view := env.cache.Get(id)
	env.engine.set.mu.RLock()
	defer env.engine.set.mu.RUnlock()
	return Compare(it.entry.Record, id.GroupKind(), env.engine.Manager(), view) == InSync
}

func TestStatusWritesCostNoRequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.requests.take()
	for i := range 5 {
		env.patch(ms[2].ID, "kube-controller-manager", `{"status":{"observedGeneration":`+string(rune('1'+i))+`}}`, "status")
	}
	env.wantNoMoreRequests(300 * time.Millisecond)
}

// portSet has lists whose items the API server orders by number and JSON decoders
// by text.
const portSet = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: example.com/web, ports: [{containerPort: 80}, {containerPort: 443}, {containerPort: 10260}], env: [{name: B, value: b}, {name: A, value: a}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NS}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80}, {name: https, port: 443}]
`

func TestStatusWritesOfObjectsWithSeveralPortsCostNoRequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(portSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.requests.take()
	for i := range 20 {
		env.patch(ms[0].ID, "kube-controller-manager", fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, i+1), "status")
		env.patch(ms[1].ID, "cloud-controller-manager", fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.%d"}]}}}`, i+1), "status")
	}
	env.wantNoMoreRequests(300 * time.Millisecond)

	// The Service counts no generations, and another order changes no field.
	env.patch(ms[1].ID, "kubectl-edit", `{"spec":{"ports":[{"name":"https","port":443},{"name":"http","port":80}]}}`)
	env.await("the order of the ports", func() bool {
		ports, _, _ := unstructured.NestedSlice(env.get(ms[1].ID).Object, "spec", "ports")
		return len(ports) == 2 && ports[0].(map[string]any)["name"] == "http"
	})
}

func TestScaledFieldIsYieldedWhileReconciling(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	scale := func(n string) {
		_, err := env.resource(ms[2].ID).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":`+n+`}}`),
			metav1.PatchOptions{FieldManager: "horizontal-pod-autoscaler"}, "scale")
		must(t, err)
	}
	scale("5")
	env.await("a yield", func() bool { return len(env.engine.Yielded()[ms[2].ID]) == 1 })
	y := env.engine.Yielded()[ms[2].ID][0]
	if y.Pointer != "/spec/replicas" || y.Manager != "horizontal-pod-autoscaler" {
		t.Errorf("yielded %+v", y)
	}
	if n := env.noticesOf(ms[2].ID, ReasonFieldYielded, "/spec/replicas to horizontal-pod-autoscaler"); n != 1 {
		t.Errorf("%d notices of the yield, want 1", n)
	}
	scale("6")
	env.await("the object to be in sync", func() bool { return env.inSync(ms[2].ID) })
	if n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas"); n != 6 {
		t.Errorf("replicas are %d, want the autoscaler's 6", n)
	}
	// A release that doesn't change the field keeps the yield.
	next := env.manifests(strings.Replace(webSet, "web:1", "web:2", 1))
	env.apply(next, Updating)
	if n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas"); n != 6 {
		t.Errorf("replicas are %d after the update, want 6", n)
	}
	// A release that changes it ends the yield.
	last := env.manifests(strings.NewReplacer("web:1", "web:2", "replicas: 2", "replicas: 3").Replace(webSet))
	env.apply(last, Updating)
	if n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas"); n != 3 {
		t.Errorf("replicas are %d after a release that sets 3", n)
	}
}

func TestForceRepairsAScaledField(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(webSet, "name: web, namespace: NS, labels: {app: web}}", `name: web, namespace: NS, annotations: {lockstep.dev/ssa: force}}`, 1))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	_, err := env.resource(ms[2].ID).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`),
		metav1.PatchOptions{FieldManager: "horizontal-pod-autoscaler"}, "scale")
	must(t, err)
	env.await("the repair", func() bool {
		n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas")
		return n == 2
	})
	if y := env.engine.Yielded(); len(y) != 0 {
		t.Errorf("yielded %v", y)
	}
}

func TestContestBacksOffAndYields(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	deadline := time.Now().Add(patience)
	for len(env.engine.Yielded()[ms[0].ID]) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the contested field was never yielded")
		}
		if a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a"); a == "1" {
			env.patch(ms[0].ID, "stubborn-controller", `{"data":{"a":"mine"}}`)
		}
		elapse(t, 20*time.Millisecond)
	}
	if n := env.repairs(); n > contestsAtOnce+2 {
		t.Errorf("%d repairs before the yield", n)
	}
	y := env.engine.Yielded()[ms[0].ID][0]
	if y.Pointer != "/data/a" || y.Manager != "stubborn-controller" {
		t.Errorf("yielded %+v", y)
	}
}

func TestSecretKeyRemovedFromTheManifestIsDeleted(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.apply(env.manifests(strings.Replace(webSet, ", password: geheim", "", 1)), Updating)
	data, _, _ := unstructured.NestedStringMap(env.get(ms[5].ID).Object, "data")
	if _, left := data["password"]; left || data["user"] == "" {
		t.Errorf("%d keys in the Secret, want only user", len(data))
	}
}

func TestEmptyListsCauseNoLoop(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[4].ID, "someone", `{"metadata":{"labels":{"x":"y"}}}`)
	elapse(t, 200*time.Millisecond)
	if got := env.requests.take(); count(got, "PATCH") > len(ms)+1 {
		t.Errorf("the NetworkPolicy was applied repeatedly: %q", got)
	}
	env.wantNoRequests(300 * time.Millisecond)
}

func TestAggregatedClusterRoleIsStable(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS-part, labels: {aggregate: NS}}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS-whole}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {aggregate: NS}}]}
rules: []
`)
	env.apply(ms, Updating)
	env.await("aggregation", func() bool {
		rules, _, _ := unstructured.NestedSlice(env.get(ms[1].ID).Object, "rules")
		return len(rules) == 1
	})
	elapse(t, 200*time.Millisecond)
	env.wantNoRequests(500 * time.Millisecond)
}

func TestObjectWithoutFieldsIsInSync(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(`
apiVersion: v1
kind: ConfigMap
metadata: {name: bare, namespace: NS}
`)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.wantNoRequests(200 * time.Millisecond)
	if ch := env.apply(ms, Reconciling)[0]; ch.Action != Unchanged {
		t.Errorf("%s, want Unchanged", ch.Action)
	}
}

func TestObjectEditedWhileTheReconcilerIsDownIsRepaired(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	env.patch(ms[0].ID, env.engine.Manager(), `{"data":{"a":"hacked"}}`) // also with the set's field manager
	env.start()
	chs := env.apply(ms, Reconciling)
	if chs[0].Action == Unchanged {
		t.Errorf("the edit counts as in sync")
	}
	if a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a"); a != "1" {
		t.Errorf("data.a is %q", a)
	}
}

func TestObjectDeletedWhileTheReconcilerIsDownIsRecreated(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	env.start()
	if ch := env.apply(ms, Reconciling)[0]; ch.Action != Repaired {
		t.Errorf("%s, want the object recreated", ch.Action)
	}
}

func TestObjectOfAnotherSetIsRefusedUntilItIsHandedOver(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	other := newEnv(t)
	before := env.get(ms[0].ID).GetResourceVersion()
	theirs := env.manifests(strings.Replace(webSet, `a: "1"`, `a: "9"`, 1))[:1]
	must(t, other.engine.Begin(t.Context(), theirs, nil))
	_, err := other.engine.Apply(t.Context(), &theirs[0], Updating)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonOwnedByOther || !strings.Contains(err.Error(), env.owner) {
		t.Fatalf("err = %v, want OwnedByOther with the owner %s", err, env.owner)
	}
	if after := env.get(ms[0].ID).GetResourceVersion(); after != before {
		t.Errorf("the object was written")
	}
	// The annotation hands it over.
	handed := env.manifests(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NS, annotations: {lockstep.dev/adopt-from: ` + env.owner + `}}
data: {a: "9"}
`)
	other.apply(handed, Updating)
	data, _, _ := unstructured.NestedStringMap(env.get(ms[0].ID).Object, "data")
	if diff := cmp.Diff(map[string]string{"a": "9"}, data); diff != "" {
		t.Errorf("data after the handover (-want +got):\n%s", diff)
	}
}

func TestAdoptionTakesOverTheFieldsOfKubectl(t *testing.T) {
	env := newEnv(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: env.ns}, Data: map[string]string{"a": "0", "stale": "x"}}
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), cm, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
	must(t, err)
	ms := env.manifests(webSet)[:1]
	ch := env.apply(ms, Updating)[0]
	if !ch.Adopted || ch.Action != Updated {
		t.Errorf("%+v, want an adopted object", ch)
	}
	data, _, _ := unstructured.NestedStringMap(env.get(ms[0].ID).Object, "data")
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
}

func TestHelmObjectsNeedConsent(t *testing.T) {
	env := newEnv(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: env.ns, Annotations: map[string]string{"meta.helm.sh/release-name": "web"}}}
	_, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), cm, metav1.CreateOptions{FieldManager: "helm"})
	must(t, err)
	ms := env.manifests(webSet)[:1]
	must(t, env.engine.Begin(t.Context(), ms, nil))
	_, err = env.engine.Apply(t.Context(), &ms[0], Updating)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonOwnedByOther || !strings.Contains(err.Error(), `"helm"`) {
		t.Fatalf("err = %v, want OwnedByOther with helm", err)
	}
	must(t, env.engine.Begin(t.Context(), ms, []string{"helm"}))
	if _, err := env.engine.Apply(t.Context(), &ms[0], Updating); err != nil {
		t.Errorf("with adopt: %v", err)
	}
}

func TestCreateOnlyIsNeverUpdated(t *testing.T) {
	env := newEnv(t)
	text := `
apiVersion: v1
kind: ConfigMap
metadata: {name: seed, namespace: NS, annotations: {lockstep.dev/create-only: "true"}}
data: {a: "1"}
`
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[0].ID, "someone", `{"data":{"a":"2"}}`)
	elapse(t, 100*time.Millisecond)
	env.apply(env.manifests(strings.Replace(text, `"1"`, `"3"`, 1)), Updating)
	if a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a"); a != "2" {
		t.Errorf("data.a is %q, want the value of the user", a)
	}
}

func TestIgnoredFieldsAreSetOnceAndLeftToOthers(t *testing.T) {
	env := newEnv(t)
	text := strings.Replace(webSet, "name: web, namespace: NS, labels: {app: web}}", `name: web, namespace: NS, annotations: {lockstep.dev/ignore-fields: /spec/replicas}}`, 1)
	ms := env.manifests(text)
	env.apply(ms, Updating)
	replicas := func() int64 {
		n, _, _ := unstructured.NestedInt64(env.get(ms[2].ID).Object, "spec", "replicas")
		return n
	}
	if replicas() != 2 {
		t.Fatalf("replicas are %d at creation, want 2", replicas())
	}
	env.apply(env.manifests(strings.Replace(text, "web:1", "web:2", 1)), Updating)
	if replicas() != 2 {
		t.Errorf("replicas are %d after an update, want 2", replicas())
	}
	env.patch(ms[2].ID, "someone", `{"spec":{"replicas":4}}`)
	elapse(t, 200*time.Millisecond)
	if replicas() != 4 {
		t.Errorf("replicas are %d, want 4", replicas())
	}
}

func TestImmutableFieldNeedsConsentToReplace(t *testing.T) {
	env := newEnv(t)
	text := `
apiVersion: v1
kind: ConfigMap
metadata: {name: frozen, namespace: NS}
immutable: true
data: {a: "1"}
`
	ms := env.manifests(text)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	uid := env.get(ms[0].ID).GetUID()
	next := env.manifests(strings.Replace(text, `"1"`, `"2"`, 1))
	_, err := env.engine.Apply(t.Context(), &next[0], Updating)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonFieldImmutable || refused.Retriable() {
		t.Fatalf("err = %v, want a permanent FieldImmutable", err)
	}
	if env.get(ms[0].ID).GetUID() != uid {
		t.Fatal("the object was replaced without the annotation")
	}
	replaceable := env.manifests(strings.NewReplacer(`"1"`, `"2"`, "namespace: NS", `namespace: NS, annotations: {lockstep.dev/replace: "true"}`).Replace(text))
	if ch := env.apply(replaceable, Updating)[0]; ch.Action != Replaced {
		t.Errorf("%s, want Replaced", ch.Action)
	}
	if env.get(ms[0].ID).GetUID() == uid {
		t.Error("the object wasn't replaced")
	}
}

func TestTypoNeverDeletes(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	uid := env.get(ms[2].ID).GetUID()
	for name, typo := range map[string]string{
		"unknown value": strings.Replace(webSet, "containerPort: 80", "containerPort: 99999", 1),
		"wrong type":    strings.Replace(webSet, "replicas: 2", "replicas: many", 1),
		"unknown field": strings.Replace(webSet, "replicas: 2", "replicaz: 2", 1),
	} {
		bad := env.manifests(strings.Replace(typo, "name: web, namespace: NS, labels: {app: web}}", `name: web, namespace: NS, annotations: {lockstep.dev/replace: "true"}}`, 1))
		_, err := env.engine.Apply(t.Context(), &bad[2], Updating)
		var refused *Error
		if !errors.As(err, &refused) || refused.Reason() != ReasonResourceInvalid || refused.Retriable() {
			t.Errorf("%s: err = %v, want a permanent ResourceInvalid", name, err)
		}
	}
	if env.get(ms[2].ID).GetUID() != uid {
		t.Error("a typo replaced the Deployment")
	}
}

func TestCRDAndItsObjectAreAppliedInOneSync(t *testing.T) {
	env := newEnv(t)
	group := strings.ReplaceAll(env.ns, "-", "") + ".example.com"
	ms := env.manifests(strings.ReplaceAll(`
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
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: GROUP/v1
kind: Widget
metadata: {name: one, namespace: NS}
spec: {size: 1}
`, "GROUP", group))
	if problems, err := env.engine.DryRun(t.Context(), ms); err != nil || len(problems) > 0 {
		t.Errorf("DryRun: %v %v", problems, err)
	}
	chs := env.apply(ms, Updating)
	if diff := cmp.Diff([]Action{Created, Created}, actions(chs)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	env.awaitEvents(ms)
	env.patch(ms[1].ID, "someone", `{"spec":{"size":2}}`)
	env.await("the repair", func() bool {
		n, _, _ := unstructured.NestedInt64(env.get(ms[1].ID).Object, "spec", "size")
		return n == 1
	})
}

func TestDryRunReturnsRefusalsAndWritesNothing(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(webSet, "containerPort: 80", "containerPort: 99999", 1))
	problems, err := env.engine.DryRun(t.Context(), ms)
	must(t, err)
	if len(problems) != 1 || problems[0].ID != ms[2].ID {
		t.Errorf("problems: %v, want the Deployment's", problems)
	}
	if _, err := env.kube.CoreV1().ConfigMaps(env.ns).Get(t.Context(), "settings", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the dry run created the object: %v", err)
	}
}

func TestDryRunRefusesAnObjectOfAnotherSetThoughItTakesAllItsFields(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	body, err := json.Marshal(ms[0].Object.Object)
	must(t, err)
	_, err = env.kube.CoreV1().ConfigMaps(env.ns).Patch(t.Context(), "settings", types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "lockstep:clusterrelease/other"})
	must(t, err)
	must(t, ms[0].Object.UnmarshalJSON(body))
	ms[0].Object.Object["data"] = map[string]any{"a": "stolen", "b": "stolen"}
	ms[0].Object.SetLabels(map[string]string{"app": "stolen"})
	problems, err := env.engine.DryRun(t.Context(), ms)
	must(t, err)
	var refused *Error
	if len(problems) != 1 || !errors.As(problems[0].Err, &refused) || refused.Reason() != ReasonOwnedByOther {
		t.Errorf("problems: %v, want %s", problems, ReasonOwnedByOther)
	}
}

func TestTerminatingNamespaceIsRetriable(t *testing.T) {
	env := newEnv(t)
	ns := env.ns + "-terminating"
	_, err := env.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	must(t, err)
	_, err = env.kube.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "holds", Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{})
	must(t, err)
	must(t, env.kube.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	m := env.manifests(strings.ReplaceAll(webSet, "namespace: NS", "namespace: "+ns))[0]
	_, err = env.engine.Apply(t.Context(), &m, Updating)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonNamespaceTerminating || !refused.Retriable() {
		t.Errorf("err = %v, want a retriable NamespaceTerminating", err)
	}
	_, err = env.kube.CoreV1().ConfigMaps(ns).Patch(t.Context(), "holds", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
}

func TestTerminatingObjectIsReportedWithItsFinalizersThenRecreated(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	uid := env.get(ms[0].ID).GetUID()
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	env.restartWithWait(200 * time.Millisecond)
	env.await("the watch to show the deletion", func() bool { v := env.cache.Get(ms[0].ID); return v.Object != nil && v.Object.Deleting })
	_, err := env.engine.Apply(t.Context(), &ms[0], Reconciling)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonTerminating || !strings.Contains(err.Error(), "example.com/hold") {
		t.Fatalf("err = %v, want Terminating with the finalizer", err)
	}
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	env.await("a new object", func() bool {
		o, err := env.resource(ms[0].ID).Get(t.Context(), "settings", metav1.GetOptions{})
		return err == nil && o.GetUID() != uid
	})
}

func TestDeleteManifestDeletes(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	del := env.manifests(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NS, annotations: {release.openshift.io/delete: "true"}}
`)
	if ch := env.apply(del, Updating)[0]; ch.Action != Deleted {
		t.Errorf("%s, want Deleted", ch.Action)
	}
	if _, err := env.resource(ms[0].ID).Get(t.Context(), "settings", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v, want NotFound", err)
	}
	env.requests.take()
	if ch := env.apply(del, Reconciling)[0]; ch.Action != Unchanged {
		t.Errorf("%s, want Unchanged", ch.Action)
	}
	if got := env.requests.take(); len(got) > 0 {
		t.Errorf("requests for a deleted object: %q", got)
	}
}

func TestFieldTakenByKubectlIsDeletedWhenItLeavesTheManifest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.crash()
	env.patch(ms[0].ID, "kubectl-edit", `{"data":{"b":"mine"}}`)
	env.start()
	env.apply(env.manifests(strings.Replace(webSet, `, b: "2"`, "", 1)), Updating)
	data, _, _ := unstructured.NestedStringMap(env.get(ms[0].ID).Object, "data")
	if diff := cmp.Diff(map[string]string{"a": "1"}, data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
}

func TestBodiesAreCachedAfterARestart(t *testing.T) {
	env := newEnv(t)
	var text strings.Builder
	for i := range 20 {
		text.WriteString("---\n" + strings.ReplaceAll(strings.Split(webSet, "---")[2], "name: web, namespace", "name: web"+string(rune('a'+i))+", namespace"))
	}
	ms := env.manifests(text.String())
	env.apply(ms, Updating)
	env.restart()
	env.apply(ms, Reconciling)
	for i := range ms {
		if v := env.cache.Get(ms[i].ID); v.Object == nil || v.Object.Body == nil {
			t.Errorf("%s has no body after the restart", ms[i].ID)
		}
	}
	if got := count(env.watches.take(), "GET"); got > 3 { // discovery
		t.Errorf("%d reads after the restart", got)
	}
}
