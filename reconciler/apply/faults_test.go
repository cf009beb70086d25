// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// webhook registers a webhook for the ConfigMaps of the env's namespace, after
// the changes.
func (env *testEnv) webhook(kind, url, ca string, change ...func(hook map[string]any)) (remove func()) {
	env.t.Helper()
	client := env.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: strings.ToLower(kind) + "s"})
	hook := map[string]any{
		"name": "test.example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"}, "timeoutSeconds": int64(1),
		"clientConfig":      map[string]any{"url": url, "caBundle": ca},
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": env.ns}},
		"rules":             []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE", "UPDATE"}, "resources": []any{"configmaps"}}},
	}
	for _, c := range change {
		c(hook)
	}
	_, err := client.Create(env.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": map[string]any{"name": env.ns}, "webhooks": []any{hook},
	}}, metav1.CreateOptions{})
	must(env.t, err)
	remove = func() { _ = client.Delete(context.WithoutCancel(env.t.Context()), env.ns, metav1.DeleteOptions{}) }
	env.t.Cleanup(remove)
	return remove
}

// mutator serves a mutating webhook that returns a JSON patch.
func mutator(t *testing.T, patch func(object map[string]any) string) (url, ca string) {
	t.Helper()
	return reviewer(t, func(_ *admissionv1.AdmissionRequest, object map[string]any) string { return patch(object) })
}

// reviewer is a mutator whose patch depends on the request.
func reviewer(t *testing.T, patch func(req *admissionv1.AdmissionRequest, object map[string]any) string) (url, ca string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var object map[string]any
		_ = json.Unmarshal(review.Request.Object.Raw, &object)
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if p := patch(review.Request, object); p != "" {
			kind := admissionv1.PatchTypeJSONPatch
			response.PatchType, response.Patch = &kind, []byte(p)
		}
		review.Response = response
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL, base64.StdEncoding.EncodeToString(raw)
}

func TestWebhookThatRewritesALabelCausesNoLoop(t *testing.T) {
	env := newEnv(t)
	url, ca := mutator(t, func(o map[string]any) string {
		if o["metadata"].(map[string]any)["name"] != "settings" {
			return ""
		}
		return `[{"op":"add","path":"/metadata/labels/app","value":"rewritten"},{"op":"add","path":"/data/a","value":"stamped"}]`
	})
	env.webhook("MutatingWebhookConfiguration", url, ca)
	ms := env.manifests(webSet)[:1]
	env.await("the webhook", func() bool {
		cm, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Labels: map[string]string{"app": "x"}}, Data: map[string]string{"a": "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && cm.Labels["app"] == "rewritten"
	})
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	if a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a"); a != "stamped" {
		t.Fatalf("data.a is %q: the webhook wasn't called", a)
	}
	env.wantNoRequests(300 * time.Millisecond)
	if ch := env.apply(ms, Reconciling)[0]; ch.Action != Unchanged {
		t.Errorf("%s, want Unchanged: changes by admission are no drift", ch.Action)
	}
}

func TestUnavailableWebhookIsRetriedThenReported(t *testing.T) {
	env := newEnv(t)
	env.webhook("ValidatingWebhookConfiguration", "https://127.0.0.1:1/", "")
	ms := env.manifests(webSet)[:1]
	must(t, env.engine.Begin(t.Context(), ms, nil))
	var refused *Error
	env.await("the webhook to be active", func() bool {
		_, err := env.engine.Apply(t.Context(), &ms[0], Updating)
		if err == nil {
			must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
			return false
		}
		return errors.As(err, &refused)
	})
	if refused.Reason() != ReasonWebhookFailed || !refused.Retriable() || !strings.Contains(refused.Error(), "test.example.com") {
		t.Errorf("err = %v, want a retriable WebhookFailed that names the webhook", refused)
	}
}

const jobText = `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: NS}
spec: {ttlSecondsAfterFinished: TTL, template: {spec: {restartPolicy: Never, containers: [{name: x, image: "example.com/x:1"}]}}}
`

// finish completes the Job, as its controller does.
func (env *testEnv) finish(id payload.ObjectID) {
	env.t.Helper()
	env.end(id, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete)
}

// end sets the two conditions of an ended Job, as its controller does.
func (env *testEnv) end(id payload.ObjectID, target, final batchv1.JobConditionType) {
	env.t.Helper()
	now := metav1.Now()
	env.await("the Job's end", func() bool {
		job, err := env.kube.BatchV1().Jobs(env.ns).Get(env.t.Context(), id.Name, metav1.GetOptions{})
		must(env.t, err)
		if job.Status.StartTime == nil {
			return false
		}
		job.Status.Active = 0
		if final == batchv1.JobComplete {
			job.Status.CompletionTime, job.Status.Succeeded = &now, 1
		} else {
			job.Status.Failed = 1
		}
		job.Status.Ready, job.Status.UncountedTerminatedPods = nil, &batchv1.UncountedTerminatedPods{}
		job.Status.Conditions = []batchv1.JobCondition{
			{Type: target, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: final, Status: corev1.ConditionTrue, LastTransitionTime: now},
		}
		_, err = env.kube.BatchV1().Jobs(env.ns).UpdateStatus(env.t.Context(), job, metav1.UpdateOptions{})
		return err == nil
	})
}

func TestFinishedJobRemovedByItsTTLIsDone(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(jobText, "TTL", "1", 1))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.finish(ms[0].ID)
	env.await("the TTL", func() bool { return !env.exists(ms[0].ID) })
	elapse(t, 300*time.Millisecond)
	if env.exists(ms[0].ID) {
		t.Fatal("the Job ran again")
	}
	if ch := env.apply(ms, Reconciling)[0]; ch.Action != Unchanged || !ch.Finished {
		t.Errorf("%+v, want a finished Job", ch)
	}
	env.restart()
	if ch := env.apply(ms, Reconciling)[0]; ch.Action != Unchanged || !ch.Finished {
		t.Errorf("after the restart: %+v, want a finished Job", ch)
	}
}

func TestFailedJobRemovedByItsTTLStaysFailed(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(jobText, "TTL", "1", 1))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.end(ms[0].ID, batchv1.JobFailureTarget, batchv1.JobFailed)
	env.await("the TTL", func() bool { return !env.exists(ms[0].ID) })
	elapse(t, 300*time.Millisecond)
	if env.exists(ms[0].ID) {
		t.Fatal("the Job ran again")
	}
	wantFailed := func(when string) {
		t.Helper()
		ch := env.apply(ms, Updating)[0]
		var failed *Error
		if ch.Finished || !errors.As(ch.Failed, &failed) || failed.Reason() != ReasonJobFailed || failed.Retriable() {
			t.Errorf("%s: %+v, want a permanent failure", when, ch)
		}
	}
	wantFailed("immediately")
	env.restart()
	wantFailed("after a restart")
	if env.exists(ms[0].ID) {
		t.Fatal("the Job ran again")
	}
	next := env.manifests(strings.NewReplacer("TTL", "1", "x:1", "x:2").Replace(jobText))
	if ch := env.apply(next, Updating)[0]; ch.Action != Created && ch.Action != Updated || ch.Failed != nil || !env.exists(ms[0].ID) {
		t.Errorf("%+v, want the changed Job to run", ch)
	}
}

func TestFailedJobRunsAgainAfterAUserDeletesIt(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(jobText, "ttlSecondsAfterFinished: TTL, ", "", 1))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	uid := env.get(ms[0].ID).GetUID()
	env.end(ms[0].ID, batchv1.JobFailureTarget, batchv1.JobFailed)
	background := metav1.DeletePropagationBackground
	must(t, env.resource(ms[0].ID).Delete(t.Context(), ms[0].ID.Name, metav1.DeleteOptions{PropagationPolicy: &background}))
	env.await("another run", func() bool {
		o, err := env.resource(ms[0].ID).Get(t.Context(), ms[0].ID.Name, metav1.GetOptions{})
		return err == nil && o.GetUID() != uid
	})
}

func TestJobWithAChangedTemplateIsReplaced(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(strings.Replace(jobText, "TTL", "1000", 1))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	uid := env.get(ms[0].ID).GetUID()
	next := env.manifests(strings.NewReplacer("TTL", "1000", "x:1", "x:2").Replace(jobText))
	env.restartWithWait(patience)
	if ch := env.apply(next, Updating)[0]; ch.Action != Replaced {
		t.Errorf("%s, want Replaced", ch.Action)
	}
	if env.get(ms[0].ID).GetUID() == uid {
		t.Error("the Job wasn't replaced")
	}
}

func TestRefusedRepairBacksOff(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.patch(ms[0].ID, "someone", `{"immutable":true,"data":{"a":"frozen"}}`)
	elapse(t, 1500*time.Millisecond)
	if got := count(env.requests.take(), "PATCH"); got > 4 {
		t.Errorf("%d patches for a repair that the server refuses", got)
	}
}

func TestObjectsAreRepairedAfterAServerOutageAndAnEtcdRestore(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cluster, err := controlplane.Start(ctx, controlplane.Options{})
	must(t, err)
	defer func() { _ = cluster.Stop() }()
	env := newEnvOn(t, cluster)
	ms := env.manifests(webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	must(t, cluster.RestartAPIServer(ctx))
	elapse(t, time.Second)
	env.requests.take()
	env.await("the API server to recover", func() bool {
		_, err := env.kube.CoreV1().ConfigMaps(env.ns).Patch(ctx, "settings", types.MergePatchType, []byte(fmt.Sprintf(`{"data":{"a":"%d"}}`, time.Now().UnixNano())), metav1.PatchOptions{FieldManager: "kubectl-edit"})
		return err == nil
	})
	env.await("the repair after the outage", func() bool {
		a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a")
		return a == "1"
	})

	// Objects that were applied after the backup are applied again after its
	// restore, although the records have newer versions.
	backup := t.TempDir() + "/backup"
	must(t, cluster.Snapshot(ctx, backup))
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1) + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: later, namespace: NS}\ndata: {k: v}\n")
	env.apply(next, Updating)
	env.awaitEvents(next)
	must(t, cluster.Restore(ctx, backup))
	env.await("the state after the backup", func() bool {
		b, err := env.kube.CoreV1().ConfigMaps(env.ns).Get(ctx, "settings", metav1.GetOptions{})
		_, missing := env.kube.CoreV1().ConfigMaps(env.ns).Get(ctx, "later", metav1.GetOptions{})
		return err == nil && b.Data["b"] == "3" && !apierrors.IsNotFound(missing)
	})
}

func TestUnwatchableKindIsApplied(t *testing.T) {
	env := newEnv(t)
	env.crash()
	env.watcher = "nobody"
	env.start()
	ms := env.manifests(webSet)
	for _, ch := range env.apply(ms, Updating) {
		if ch.Action != Created {
			t.Errorf("%s: %s, want Created", ch.ID, ch.Action)
		}
	}
	// Without a watch, each object costs one paced verification, and the scalable
	// Deployment a read.
	env.patch(ms[0].ID, "kubectl-edit", `{"data":{"a":"hacked"}}`)
	env.requests.take()
	env.apply(ms, Reconciling)
	env.apply(ms, Reconciling)
	if got := env.requests.take(); len(got) > len(ms)+1 {
		t.Errorf("%d requests for %d objects in two syncs", len(got), len(ms))
	}
	if a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a"); a != "1" {
		t.Errorf("data.a is %q, want it repaired", a)
	}
	if got := env.cache.Unwatchable(); len(got) != len(ms) {
		t.Errorf("%d kinds are unwatchable, want %d", len(got), len(ms))
	}
	result, err := env.engine.Prune(t.Context(), keepOf(ms[:5]), generous)
	must(t, err)
	if len(result.Deleted) != 1 || env.exists(ms[5].ID) {
		t.Errorf("%+v, want the Secret deleted", result)
	}
}
