// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// logLine is a line of the reconciler's log.
type logLine struct {
	Msg     string `json:"msg"`
	Release string `json:"release"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Result  string `json:"result"`
}

// logLines reads the reconciler's log from an offset.
func logLines(w *env.Env, offset int64) ([]logLine, error) {
	raw, err := os.ReadFile(w.Reconciler.Log())
	if err != nil {
		return nil, err
	}
	var out []logLine
	for line := range bytes.Lines(raw[offset:]) {
		var s logLine
		if json.Unmarshal(line, &s) == nil { // a line that is being written isn't complete
			out = append(out, s)
		}
	}
	return out, nil
}

// logEnd returns the current end of the reconciler's log.
func logEnd(t *testing.T, w *env.Env) int64 {
	t.Helper()
	info, err := os.Stat(w.Reconciler.Log())
	must(t, err)
	return info.Size()
}

// waitSyncs waits until that many syncs with the result ended after an offset
// in the log.
func waitSyncs(t *testing.T, w *env.Env, offset int64, name, result string, n int, timeout time.Duration) {
	t.Helper()
	must(t, env.Wait(t.Context(), timeout, func(context.Context) error {
		all, err := logLines(w, offset)
		if err != nil {
			return err
		}
		found := 0
		for _, s := range all {
			if s.Msg == "sync ended" && s.Release == name && s.Result == result {
				found++
			}
		}
		if found < n {
			return fmt.Errorf("%d passes of %s ended %s, want %d", found, name, result, n)
		}
		return nil
	}))
}

// stamp is what the webhook writes: its own label, and a value over a declared
// field.
const (
	stampLabel = "stamped-by"
	stampValue = "webhook.example.com"
	stamped    = "\n# stamped\n"
)

// withStamper registers a mutating webhook, served by this process, for
// ConfigMaps outside the namespaces of Kubernetes and Lockstep.
func withStamper(t *testing.T, w *env.Env) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(stampReview))
	t.Cleanup(server.Close)
	path := server.URL
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	must(t, w.Client.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "stamper"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "stamper.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &path, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn,
				Values: []string{v1alpha1.Namespace, metav1.NamespaceSystem, metav1.NamespacePublic, metav1.NamespaceDefault},
			}}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}))
}

// stampReview answers a review of a ConfigMap. ConfigMaps of the
// controller-manager are left unchanged, because it would contest them.
func stampReview(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	var object corev1.ConfigMap
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if err := json.Unmarshal(review.Request.Object.Raw, &object); err == nil && object.Name != "kube-root-ca.crt" {
		patch, err := stampPatch(&object)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		kind := admissionv1.PatchTypeJSONPatch
		response.PatchType, response.Patch = &kind, patch
	}
	review.Response = response
	if err := json.NewEncoder(w).Encode(review); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func stampPatch(object *corev1.ConfigMap) ([]byte, error) {
	type operation struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	var patch []operation
	if object.Labels == nil {
		patch = append(patch, operation{"add", "/metadata/labels", json.RawMessage("{}")})
	}
	patch = append(patch, operation{"add", "/metadata/labels/" + stampLabel, json.RawMessage(`"` + stampValue + `"`)})
	for key, value := range object.Data {
		if !strings.HasSuffix(value, stamped) {
			escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			text, err := json.Marshal(value + stamped)
			if err != nil {
				return nil, err
			}
			patch = append(patch, operation{"add", "/data/" + escaped, text})
		}
	}
	return json.Marshal(patch)
}

// stampedMaps counts the ConfigMaps that the webhook changed.
func stampedMaps(t *testing.T, w *env.Env) int {
	t.Helper()
	var list corev1.ConfigMapList
	must(t, w.Client.List(t.Context(), &list, client.MatchingLabels{stampLabel: stampValue}))
	n := 0
	for i := range list.Items {
		for _, value := range list.Items[i].Data {
			if strings.HasSuffix(value, stamped) {
				n++
				break
			}
		}
	}
	return n
}

// autoscaled is the number of replicas that the HorizontalPodAutoscaler sets.
const autoscaled = 3

// withAutoscaler scales a Deployment with the controller-manager's
// HorizontalPodAutoscaler above the replicas in its manifest, and waits for
// it.
func withAutoscaler(t *testing.T, w *env.Env, deployment client.ObjectKey) {
	t.Helper()
	least := int32(autoscaled)
	must(t, w.Client.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: "scaler-of-the-test"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment.Name},
			MinReplicas:    &least, MaxReplicas: least,
		},
	}))
	must(t, env.Wait(t.Context(), 90*time.Second, func(ctx context.Context) error { return hasReplicas(ctx, w, deployment, autoscaled) }))
}

func hasReplicas(ctx context.Context, w *env.Env, key client.ObjectKey, want int32) error {
	var d appsv1.Deployment
	if err := w.Client.Get(ctx, key, &d); err != nil {
		return err
	}
	if d.Spec.Replicas == nil || *d.Spec.Replicas != want {
		return fmt.Errorf("deployment %s has %v replicas, want %d", key, d.Spec.Replicas, want)
	}
	return nil
}

// threeSyncsWriteNothing waits for three syncs and checks in the API server's
// audit log that neither identity of the reconciler changed anything but the
// lease. It skips one sync first, because status, Git and the inventory still
// record earlier changes.
func threeSyncsWriteNothing(t *testing.T, w *env.Env, name string) {
	t.Helper()
	waitSyncs(t, w, logEnd(t, w), name, "complete", 1, time.Minute)
	mark, err := w.Control.MarkAudit()
	must(t, err)
	waitSyncs(t, w, logEnd(t, w), name, "complete", 3, 2*time.Minute)
	requests, err := mark.Since()
	must(t, err)
	ours := 0
	for _, a := range requests {
		if !env.IsReconciler(a) {
			continue
		}
		ours++
		if a.Writes() && a.Resource != "leases" {
			t.Errorf("three passes over what is level wrote: %s", a)
		}
	}
	if ours == 0 {
		t.Error("the audit log has no request of the reconciler, not even for its lease")
	}
	t.Logf("three passes: %d requests of the reconciler", ours)
}
