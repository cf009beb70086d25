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

// webhook registers a webhook for ConfigMaps of the rig's namespace. Each
// change alters what is registered.
func (r *rig) webhook(kind, url, ca string, change ...func(hook map[string]any)) (remove func()) {
	r.t.Helper()
	client := r.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: strings.ToLower(kind) + "s"})
	hook := map[string]any{
		"name": "test.example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"}, "timeoutSeconds": int64(1),
		"clientConfig":      map[string]any{"url": url, "caBundle": ca},
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.ns}},
		"rules":             []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE", "UPDATE"}, "resources": []any{"configmaps"}}},
	}
	for _, c := range change {
		c(hook)
	}
	_, err := client.Create(r.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": map[string]any{"name": r.ns}, "webhooks": []any{hook},
	}}, metav1.CreateOptions{})
	must(r.t, err)
	remove = func() { _ = client.Delete(context.WithoutCancel(r.t.Context()), r.ns, metav1.DeleteOptions{}) }
	r.t.Cleanup(remove)
	return remove
}

// mutator answers each review with a JSON patch.
func mutator(t *testing.T, patch func(object map[string]any) string) (url, ca string) {
	t.Helper()
	return reviewer(t, func(_ *admissionv1.AdmissionRequest, object map[string]any) string { return patch(object) })
}

// reviewer is a mutator that sees the whole request.
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

func TestWebhookThatRewritesOurLabelCausesNoLoop(t *testing.T) {
	r := newRig(t)
	url, ca := mutator(t, func(o map[string]any) string {
		if o["metadata"].(map[string]any)["name"] != "settings" {
			return ""
		}
		return `[{"op":"add","path":"/metadata/labels/app","value":"rewritten"},{"op":"add","path":"/data/a","value":"stamped"}]`
	})
	r.webhook("MutatingWebhookConfiguration", url, ca)
	ms := r.manifests(webSet)[:1]
	r.await("the webhook", func() bool {
		cm, err := r.kube.CoreV1().ConfigMaps(r.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", Labels: map[string]string{"app": "x"}}, Data: map[string]string{"a": "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && cm.Labels["app"] == "rewritten"
	})
	r.apply(ms, Updating)
	r.seen(ms)
	if a, _, _ := unstructured.NestedString(r.get(ms[0].ID).Object, "data", "a"); a != "stamped" {
		t.Fatalf("data.a is %q: the webhook didn't act", a)
	}
	r.quiet(300 * time.Millisecond)
	if ch := r.apply(ms, Reconciling)[0]; ch.Action != Unchanged {
		t.Errorf("%s, want what admission made of our apply to be level", ch.Action)
	}
}

func TestWebhookThatIsDownIsRetriedThenNamed(t *testing.T) {
	r := newRig(t)
	r.webhook("ValidatingWebhookConfiguration", "https://127.0.0.1:1/", "")
	ms := r.manifests(webSet)[:1]
	must(t, r.engine.Begin(t.Context(), ms, nil))
	var refused *Error
	r.await("the webhook to be in force", func() bool {
		_, err := r.engine.Apply(t.Context(), &ms[0], Updating)
		if err == nil {
			must(t, r.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
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

// finish completes the Job as its controller does.
func (r *rig) finish(id payload.ObjectID) {
	r.t.Helper()
	r.end(id, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete)
}

// end brings a Job to an end by its two conditions, as its controller does.
func (r *rig) end(id payload.ObjectID, target, final batchv1.JobConditionType) {
	r.t.Helper()
	now := metav1.Now()
	r.await("the Job's end", func() bool {
		job, err := r.kube.BatchV1().Jobs(r.ns).Get(r.t.Context(), id.Name, metav1.GetOptions{})
		must(r.t, err)
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
		_, err = r.kube.BatchV1().Jobs(r.ns).UpdateStatus(r.t.Context(), job, metav1.UpdateOptions{})
		return err == nil
	})
}

func TestFinishedJobThatItsTTLRemovedIsDone(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(strings.Replace(jobText, "TTL", "1", 1))
	r.apply(ms, Updating)
	r.seen(ms)
	r.finish(ms[0].ID)
	r.await("the TTL", func() bool { return !r.exists(ms[0].ID) })
	elapse(t, 300*time.Millisecond)
	if r.exists(ms[0].ID) {
		t.Fatal("the Job was run again")
	}
	if ch := r.apply(ms, Reconciling)[0]; ch.Action != Unchanged || !ch.Finished {
		t.Errorf("%+v, want a finished Job", ch)
	}
	r.restart()
	if ch := r.apply(ms, Reconciling)[0]; ch.Action != Unchanged || !ch.Finished {
		t.Errorf("after the restart: %+v, want a finished Job", ch)
	}
}

func TestFailedJobThatItsTTLRemovedStaysFailed(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(strings.Replace(jobText, "TTL", "1", 1))
	r.apply(ms, Updating)
	r.seen(ms)
	r.end(ms[0].ID, batchv1.JobFailureTarget, batchv1.JobFailed)
	r.await("the TTL", func() bool { return !r.exists(ms[0].ID) })
	elapse(t, 300*time.Millisecond)
	if r.exists(ms[0].ID) {
		t.Fatal("the Job was run again")
	}
	wantFailed := func(when string) {
		t.Helper()
		ch := r.apply(ms, Updating)[0]
		var failed *Error
		if ch.Finished || !errors.As(ch.Failed, &failed) || failed.Reason() != ReasonJobFailed || failed.Retriable() {
			t.Errorf("%s: %+v, want a Job that failed for good", when, ch)
		}
	}
	wantFailed("at once")
	r.restart()
	wantFailed("after a restart")
	if r.exists(ms[0].ID) {
		t.Fatal("the Job was run again")
	}
	next := r.manifests(strings.NewReplacer("TTL", "1", "x:1", "x:2").Replace(jobText))
	if ch := r.apply(next, Updating)[0]; ch.Action != Created && ch.Action != Updated || ch.Failed != nil || !r.exists(ms[0].ID) {
		t.Errorf("%+v, want a Job whose manifest changed to be run", ch)
	}
}

func TestFailedJobThatAPersonDeletesIsRunAgain(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(strings.Replace(jobText, "ttlSecondsAfterFinished: TTL, ", "", 1))
	r.apply(ms, Updating)
	r.seen(ms)
	uid := r.get(ms[0].ID).GetUID()
	r.end(ms[0].ID, batchv1.JobFailureTarget, batchv1.JobFailed)
	background := metav1.DeletePropagationBackground
	must(t, r.resource(ms[0].ID).Delete(t.Context(), ms[0].ID.Name, metav1.DeleteOptions{PropagationPolicy: &background}))
	r.await("another run", func() bool {
		o, err := r.resource(ms[0].ID).Get(t.Context(), ms[0].ID.Name, metav1.GetOptions{})
		return err == nil && o.GetUID() != uid
	})
}

func TestJobWithAChangedTemplateIsReplaced(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(strings.Replace(jobText, "TTL", "1000", 1))
	r.apply(ms, Updating)
	r.seen(ms)
	uid := r.get(ms[0].ID).GetUID()
	next := r.manifests(strings.NewReplacer("TTL", "1000", "x:1", "x:2").Replace(jobText))
	r.patientFor(patience)
	if ch := r.apply(next, Updating)[0]; ch.Action != Replaced {
		t.Errorf("%s, want Replaced", ch.Action)
	}
	if r.get(ms[0].ID).GetUID() == uid {
		t.Error("the Job is the old one")
	}
}

func TestRefusedRepairBacksOff(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	r.patch(ms[0].ID, "someone", `{"immutable":true,"data":{"a":"frozen"}}`)
	elapse(t, 1500*time.Millisecond)
	if got := count(r.requests.take(), "PATCH"); got > 4 {
		t.Errorf("%d patches for a repair that the server refuses", got)
	}
}

func TestOutageAndRestoreOfTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane of its own")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cluster, err := controlplane.Start(ctx, controlplane.Options{})
	must(t, err)
	defer func() { _ = cluster.Stop() }()
	r := newRigOn(t, cluster)
	ms := r.manifests(webSet)
	r.apply(ms, Updating)
	r.seen(ms)
	must(t, cluster.RestartAPIServer(ctx))
	elapse(t, time.Second)
	r.requests.take()
	r.await("the watches to be back", func() bool {
		_, err := r.kube.CoreV1().ConfigMaps(r.ns).Patch(ctx, "settings", types.MergePatchType, []byte(fmt.Sprintf(`{"data":{"a":"%d"}}`, time.Now().UnixNano())), metav1.PatchOptions{FieldManager: "kubectl-edit"})
		return err == nil
	})
	r.await("the repair after the outage", func() bool {
		a, _, _ := unstructured.NestedString(r.get(ms[0].ID).Object, "data", "a")
		return a == "1"
	})

	// What was applied after the backup must be applied again after it's
	// restored, although the records are of newer versions.
	backup := t.TempDir() + "/backup"
	must(t, cluster.Snapshot(ctx, backup))
	next := r.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1) + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: later, namespace: NS}\ndata: {k: v}\n")
	r.apply(next, Updating)
	r.seen(next)
	must(t, cluster.Restore(ctx, backup))
	r.await("the state from after the backup", func() bool {
		b, err := r.kube.CoreV1().ConfigMaps(r.ns).Get(ctx, "settings", metav1.GetOptions{})
		_, missing := r.kube.CoreV1().ConfigMaps(r.ns).Get(ctx, "later", metav1.GetOptions{})
		return err == nil && b.Data["b"] == "3" && !apierrors.IsNotFound(missing)
	})
}

func TestKindThatCantBeWatchedIsAppliedAllTheSame(t *testing.T) {
	r := newRig(t)
	r.kill()
	r.watcher = "nobody"
	r.start()
	ms := r.manifests(webSet)
	for _, ch := range r.apply(ms, Updating) {
		if ch.Action != Created {
			t.Errorf("%s: %s, want Created", ch.ID, ch.Action)
		}
	}
	// Without a watch only a request can tell: one a pass, at its pace, and a
	// read of the Deployment, which somebody may scale.
	r.patch(ms[0].ID, "kubectl-edit", `{"data":{"a":"hacked"}}`)
	r.requests.take()
	r.apply(ms, Reconciling)
	r.apply(ms, Reconciling)
	if got := r.requests.take(); len(got) > len(ms)+1 {
		t.Errorf("%d requests for %d objects in two passes", len(got), len(ms))
	}
	if a, _, _ := unstructured.NestedString(r.get(ms[0].ID).Object, "data", "a"); a != "1" {
		t.Errorf("data.a is %q, want the pass to have repaired it", a)
	}
	if got := r.cache.Unwatchable(); len(got) != len(ms) {
		t.Errorf("%d kinds are unwatchable, want %d", len(got), len(ms))
	}
	result, err := r.engine.Prune(t.Context(), keepOf(ms[:5]), generous)
	must(t, err)
	if len(result.Deleted) != 1 || r.exists(ms[5].ID) {
		t.Errorf("%+v, want the Secret deleted", result)
	}
}
