// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/env"
)

// held is the number of replicas that the Deployment has before its adoption,
// statusWrites the number of writes to the status of each workload, and hung the
// number of objects behind the hanging webhook.
const (
	held         = 50
	statusWrites = 20
	hung         = 8
)

const (
	multiPortDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: platform}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: example.com/web:1, ports: [{containerPort: 80}, {containerPort: 443}, {containerPort: 10260}]}
`
	multiPortService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: platform}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80}, {name: https, port: 443}]
`
	scaledDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled, namespace: platform}
spec:
  replicas: 3
  selector: {matchLabels: {app: scaled}}
  template:
    metadata: {labels: {app: scaled}}
    spec:
      containers: [{name: scaled, image: example.com/scaled:1}]
`
)

// TestRepairsAreNeitherFalseNorBlocked adopts a Deployment that an autoscaler holds,
// writes the status of workloads with several ports, and repairs an object while
// the repairs of others hang.
func TestRepairsAreNeitherFalseNorBlocked(t *testing.T) {
	t.Parallel()
	w := newEnvWith(t, env.Options{Audit: true, Pods: true})
	must(t, w.Control.AddNodes(t.Context(), 2, nil))
	files := map[string]string{"web.yaml": multiPortDeployment, "service.yaml": multiPortService, "scaled.yaml": scaledDeployment}
	for i := range hung {
		files[hungName(i)+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + hungName(i) + ", namespace: platform}\ndata: {version: \"" + first + "\"}\n"
	}
	ref := release(t, w, configRelease(platform, first, files))
	withHeldReplicas(t, w)
	push(t, w, "several ports", map[string]string{platformFile: declare(platform, first, ref)})
	start(t, w)
	must(t, env.Wait(t.Context(), time.Minute, func(ctx context.Context) error { return writeAddress(ctx, w, 0) }))
	waitApplied(t, w, platform, first)
	must(t, hasReplicas(t.Context(), w, client.ObjectKey{Namespace: platform, Name: "scaled"}, held))

	mark, err := w.Control.MarkAudit()
	must(t, err)
	writeStatuses(t, w)
	// The repair of the Service shows that the status writes were handled.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: "web"}}
	must(t, w.Client.Patch(t.Context(), service, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"app":"other"}}}`))))
	took := waitRepair(t, 5*time.Second, func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
			return err
		}
		if service.Spec.Selector["app"] != "web" {
			return fmt.Errorf("the Service selects %v", service.Spec.Selector)
		}
		return nil
	})
	t.Logf("the Service was repaired after %s", took)
	wantWrites(t, mark, map[string]int{"services/web": 1})
	obj, err := getRelease(t.Context(), w, platform)
	must(t, err)
	for _, c := range obj.Status.Conditions {
		if c.Type == v1alpha1.ConditionFieldYielded && (!strings.Contains(c.Message, "scaled") || strings.Contains(c.Message, "web")) {
			t.Errorf("FieldYielded is %q, want the replicas of the scaled Deployment only", c.Message)
		}
	}
	wantRepairEvents(t, w, "Service platform/web")

	arrived := withHangingWebhook(t, w)
	for i := range hung {
		editUntil(t, w, hungName(i), arrived)
	}
	editVersion(t, w, "settings")
	took = waitRepair(t, 5*time.Second, func(ctx context.Context) error { return hasVersion(ctx, w, "settings") })
	t.Logf("the ninth object was repaired after %s", took)
}

func hungName(i int) string { return fmt.Sprintf("hung-%d", i) }

// withHeldReplicas creates the Deployment scaled, and scales it as the
// controller of HorizontalPodAutoscalers does.
func withHeldReplicas(t *testing.T, w *env.Env) {
	t.Helper()
	must(t, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platform}}))
	var d appsv1.Deployment
	must(t, yaml.Unmarshal([]byte(scaledDeployment), &d))
	must(t, w.Client.Create(t.Context(), &d, client.FieldOwner("kubectl-create")))
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: held}}
	must(t, w.Client.SubResource("scale").Update(t.Context(), &d, client.WithSubResourceBody(scale), client.FieldOwner("kube-controller-manager")))
}

// writeStatuses writes the status of both workloads as their controllers do.
func writeStatuses(t *testing.T, w *env.Env) {
	t.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: "web"}}
	for i := range statusWrites {
		patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil,
			`{"status":{"conditions":[{"type":"example.com/Counted","status":"True","reason":"Counted","message":"%d"}]}}`, i))
		must(t, w.Client.Status().Patch(t.Context(), deployment, patch, client.FieldOwner("counter")))
		must(t, writeAddress(t.Context(), w, i+1))
	}
}

// writeAddress writes an address of the load balancer.
func writeAddress(ctx context.Context, w *env.Env, i int) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: "web"}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.%d"}]}}}`, i))
	return w.Client.Status().Patch(ctx, service, patch, client.FieldOwner("cloud-controller-manager"))
}

// waitRepair returns how long the repair took.
func waitRepair(t *testing.T, limit time.Duration, repaired func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	must(t, env.Wait(t.Context(), limit, repaired))
	return time.Since(began).Round(time.Millisecond)
}

// wantWrites checks how often the reconciler wrote each object of the release.
func wantWrites(t *testing.T, mark controlplane.AuditMark, want map[string]int) {
	t.Helper()
	requests, err := mark.Since()
	must(t, err)
	got := map[string]int{}
	for _, a := range requests {
		if env.IsReconciler(a) && a.Writes() && a.Namespace == platform {
			got[a.Resource+"/"+a.Name]++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the reconciler wrote %v, want %v", got, want)
	}
}

// wantRepairEvents waits for an event about the repair of an object, and checks
// that it names no other.
func wantRepairEvents(t *testing.T, w *env.Env, object string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		var events corev1.EventList
		if err := w.Client.List(ctx, &events); err != nil {
			return err
		}
		found := false
		for i := range events.Items {
			e := &events.Items[i]
			if e.Reason != string(apply.ReasonDriftRepaired) {
				continue
			}
			found = true
			if !strings.HasSuffix(e.Message, ": "+object) {
				t.Fatalf("the event %q, want only %s", e.Message, object)
			}
		}
		if !found {
			return fmt.Errorf("no event about the repair of %s", object)
		}
		return nil
	}))
}

// editVersion changes the version in a ConfigMap.
func editVersion(t *testing.T, w *env.Env, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: name}}
	must(t, w.Client.Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, []byte(`{"data":{"version":"edited by hand"}}`))))
}

func hasVersion(ctx context.Context, w *env.Env, name string) error {
	var cm corev1.ConfigMap
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: platform, Name: name}, &cm); err != nil {
		return err
	}
	if cm.Data["version"] != first {
		return fmt.Errorf("%s has version %q, want %s", name, cm.Data["version"], first)
	}
	return nil
}

// editUntil edits a ConfigMap until its repair hangs: the API server may not know
// the webhook at once.
func editUntil(t *testing.T, w *env.Env, name string, arrived func(name string) bool) {
	t.Helper()
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		if arrived(name) {
			return nil
		}
		if hasVersion(ctx, w, name) == nil {
			editVersion(t, w, name)
		}
		return fmt.Errorf("the repair of %s doesn't hang", name)
	}))
}

// withHangingWebhook registers a webhook that doesn't answer for the reconciler's
// writes of the hung ConfigMaps. The result reports for which it was called.
func withHangingWebhook(t *testing.T, w *env.Env) (arrived func(name string) bool) {
	t.Helper()
	var mu sync.Mutex
	called, over := map[string]bool{}, make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		raw, err := io.ReadAll(req.Body)
		if err == nil && json.Unmarshal(raw, &review) == nil {
			mu.Lock()
			called[review.Request.Name] = true
			mu.Unlock()
		}
		select {
		case <-over:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	none, fail, timeout := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail, int32(30)
	must(t, w.Client.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hanging"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hanging.example.com", SideEffects: &none, FailurePolicy: &fail, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: platform}},
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "reconciler", Expression: `request.userInfo.username.startsWith("system:serviceaccount:` + v1alpha1.Namespace + `:")`},
				{Name: "hung", Expression: `request.name.startsWith("hung-")`},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}))
	return func(name string) bool {
		mu.Lock()
		defer mu.Unlock()
		return called[name]
	}
}
