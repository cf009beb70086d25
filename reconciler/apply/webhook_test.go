// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// forDeploymentsToo adds Deployments to the rules of a webhook.
func forDeploymentsToo(hook map[string]any) {
	hook["rules"] = append(hook["rules"].([]any), map[string]any{
		"apiGroups": []any{"apps"}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE", "UPDATE"}, "resources": []any{"deployments"},
	})
}

// byFieldManager returns the field manager of a request.
func byFieldManager(req *admissionv1.AdmissionRequest) string {
	var options struct {
		FieldManager string `json:"fieldManager"`
	}
	_ = json.Unmarshal(req.Options.Raw, &options)
	return options.FieldManager
}

// managedFields doesn't contain the changes of a webhook: admission runs after the
// fields are tracked.
func TestFieldsChangedByAWebhookOnOtherWritesAreRepaired(t *testing.T) {
	env := newEnv(t)
	url, ca := reviewer(t, func(req *admissionv1.AdmissionRequest, o map[string]any) string {
		switch {
		case byFieldManager(req) != "someone":
			return ""
		case o["kind"] == "Deployment":
			return `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.com/evil:1"}]`
		default:
			return `[{"op":"replace","path":"/data/a","value":"evil"}]`
		}
	})
	env.webhook("MutatingWebhookConfiguration", url, ca, forDeploymentsToo)
	ms := env.manifests(webSet)[:3]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	acted := func(i int) bool {
		o := env.patch(ms[i].ID, "someone", fmt.Sprintf(`{"metadata":{"labels":{"theirs":"%d"}}}`, time.Now().UnixNano()))
		a, _, _ := unstructured.NestedString(o.Object, "data", "a")
		return a == "evil" || strings.Contains(fmt.Sprint(o.Object["spec"]), "evil")
	}
	for _, i := range []int{0, 2} {
		env.await("the webhook to be called", func() bool { return acted(i) })
	}
	env.await("the repairs", func() bool {
		a, _, _ := unstructured.NestedString(env.get(ms[0].ID).Object, "data", "a")
		return a == "1" && !strings.Contains(fmt.Sprint(env.get(ms[2].ID).Object["spec"]), "evil")
	})
}

func TestWebhookThatStampsEveryWriteCausesNoLoop(t *testing.T) {
	env := newEnv(t)
	var stamps atomic.Int64
	url, ca := mutator(t, func(o map[string]any) string {
		metadata, _ := o["metadata"].(map[string]any)
		if metadata["annotations"] == nil {
			return ""
		}
		return fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/stamp","value":"%d"},{"op":"add","path":"/metadata/annotations/stamped-too","value":"%d"}]`, stamps.Add(1), stamps.Load())
	})
	env.webhook("MutatingWebhookConfiguration", url, ca, forDeploymentsToo)
	env.await("the webhook", func() bool {
		cm, err := env.kube.CoreV1().ConfigMaps(env.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Annotations: map[string]string{"a": "b"}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && cm.Annotations["stamp"] != ""
	})
	ms := env.manifests(strings.ReplaceAll(webSet, "labels: {app: web}}\n", "labels: {app: web}, annotations: {stamp: ours}}\n"))[:3]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.wantNoRequests(300 * time.Millisecond)
	for _, ch := range env.apply(ms, Reconciling) {
		if ch.Action != Unchanged {
			t.Errorf("%s: %s, want Unchanged: changes by admission are no drift", ch.ID, ch.Action)
		}
	}
	// Other writes are stamped too, at a bounded cost.
	env.requests.take()
	for _, i := range []int{0, 2} {
		env.awaitVersion(env.patch(ms[i].ID, "someone", `{"metadata":{"labels":{"theirs":"x"}}}`), ms[i].ID)
	}
	env.await("both to be in sync", func() bool { return env.inSync(ms[0].ID) && env.inSync(ms[2].ID) })
	elapse(t, 300*time.Millisecond)
	if got := env.requests.take(); len(got) > 4 {
		t.Errorf("%d requests after two other writes: %q", len(got), got)
	}
	env.wantNoRequests(500 * time.Millisecond)
}

// converter is a conversion webhook that can fail.
type converter struct {
	url, ca string
	down    atomic.Bool
}

func newConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if c.down.Load() {
			http.Error(w, "unavailable", http.StatusInternalServerError)
			return
		}
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			var o unstructured.Unstructured
			if err := o.UnmarshalJSON(raw.Raw); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			o.SetAPIVersion(review.Request.DesiredAPIVersion)
			response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: &o})
		}
		review.Response, review.Request = response, nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	c.ca = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return c
}

func TestUnavailableConversionBlocksOnlyItsKind(t *testing.T) {
	env := newEnv(t)
	c := newConverter(t)
	text := strings.Replace(env.twoVersions(), "  scope: Namespaced\n", `  scope: Namespaced
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: "`+c.url+`", caBundle: `+c.ca+`}}}
`, 1)
	ms := env.manifests(text + "---" + webSet)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	widget := ms[1]
	env.restart() // A kind that was created after its watch started is watched in its stored version.
	env.await("the watch", func() bool { return env.cache.Get(widget.ID).State == live.Present })
	c.down.Store(true)
	// The stored version needs no conversion. The server's cache of the other version
	// can't convert the object, and fails all lists.
	_, err := env.resource(widget.ID).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widget.GVK.Group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "two"},
	}}, metav1.CreateOptions{})
	must(t, err)
	env.restart()
	// Other kinds are repaired and applied as usual.
	env.patch(ms[2].ID, "kubectl-edit", `{"data":{"a":"hacked"}}`)
	env.await("another kind's repair", func() bool {
		a, _, _ := unstructured.NestedString(env.get(ms[2].ID).Object, "data", "a")
		return a == "1"
	})
	began := time.Now()
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))
	must(t, env.engine.Begin(t.Context(), append(ms[:2:2], next...), nil))
	for i := range next {
		if _, err := env.engine.Apply(t.Context(), &next[i], Updating); err != nil {
			t.Errorf("%s: %v", next[i].ID, err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the other kinds took %s", took)
	}
	refused := func() time.Duration {
		began := time.Now()
		_, err := env.engine.Apply(t.Context(), &widget, Updating)
		var refused *Error
		if !errors.As(err, &refused) || refused.Reason() != ReasonWebhookFailed || !refused.Retriable() {
			t.Errorf("err = %v, want a retriable %s", err, ReasonWebhookFailed)
		}
		return time.Since(began)
	}
	refused() // It waits for the watch.
	if got := env.cache.Unwatchable(); len(got) != 1 || got[0].Kind != widget.ID.GroupKind() {
		t.Errorf("unwatchable: %v, want only Widgets", got)
	}
	if took := refused(); took > 5*time.Second {
		t.Errorf("the next apply of the kind waited for its watch again: %s", took)
	}
	c.down.Store(false)
	env.await("the kind to be watched again", func() bool { return env.cache.Get(widget.ID).State == live.Present })
	env.patch(widget.ID, "kubectl-edit", `{"spec":{"size":9}}`)
	env.await("the Widget's repair", func() bool {
		n, _, _ := unstructured.NestedInt64(env.get(widget.ID).Object, "spec", "size")
		return n == 1
	})
}
