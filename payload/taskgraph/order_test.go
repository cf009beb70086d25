// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
)

// parse returns the manifests of component c at run level 20. Documents are
// separated by newlines.
func parse(tb testing.TB, docs ...string) []payload.Manifest {
	tb.Helper()
	out := make([]payload.Manifest, len(docs))
	for i, doc := range docs {
		var content map[string]any
		if err := yaml.Unmarshal([]byte(doc), &content); err != nil {
			tb.Fatal(err)
		}
		// As payload decodes them: integers are int64.
		u := &unstructured.Unstructured{Object: content}
		raw, err := u.MarshalJSON()
		if err == nil {
			err = u.UnmarshalJSON(raw)
		}
		if err != nil {
			tb.Fatal(err)
		}
		if out[i], err = payload.NewManifest(u); err != nil {
			tb.Fatal(err)
		}
		out[i].RunLevel, out[i].Component, out[i].File, out[i].Line = 20, "c", fmt.Sprintf("%d.yaml", i), 1
	}
	return out
}

// cluster models what the API server, the kubelet and controllers require. Objects
// exist once they are applied; an object is ready once it has what it needs.
type cluster struct {
	// rejects returns why an object can't be applied now, unready why it isn't ready.
	rejects, unready func(exists map[string]bool, m *payload.Manifest) string

	mu      sync.Mutex
	changed chan struct{}
	exists  map[string]bool
	log     []string
}

func newCluster() *cluster { return &cluster{exists: map[string]bool{}, changed: make(chan struct{})} }

func key(m *payload.Manifest) string { return m.ID.Kind + " " + m.ID.Name }

func (c *cluster) apply(_ context.Context, m *payload.Manifest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rejects != nil {
		if why := c.rejects(c.exists, m); why != "" {
			return errors.New(why)
		}
	}
	c.exists[key(m)] = true
	c.log = append(c.log, "apply "+key(m))
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

var errNotReady = errors.New("not ready")

// await waits until the object is ready. It fails once nothing else runs: the caller
// counts running waits.
func (c *cluster) await(ctx context.Context, m *payload.Manifest) error {
	for {
		c.mu.Lock()
		ready := c.unready == nil || c.unready(c.exists, m) == ""
		if ready {
			c.log = append(c.log, "ready "+key(m))
		}
		changed := c.changed
		c.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errNotReady
		}
	}
}

func (c *cluster) before(tb testing.TB, first, second string) {
	tb.Helper()
	i, j := slices.Index(c.log, first), slices.Index(c.log, second)
	if i < 0 || j < 0 || i > j {
		tb.Errorf("%q isn't before %q in %q", first, second, c.log)
	}
}

const (
	serviceAccount = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: web}}`
	secret         = `{apiVersion: v1, kind: Secret, metadata: {name: web, namespace: web}}`
	deployment     = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: web}, spec: {template: {metadata: {labels: {app: web}},
  spec: {serviceAccountName: web, volumes: [{name: s, secret: {secretName: web}}]}}}}`
	webhook = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: hook},
  webhooks: [{name: a.example.com, clientConfig: {service: {namespace: web, name: web}}, rules: [{apiGroups: ["*"], resources: ["*/*"], operations: ["*"]}]}]}`
	service      = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: web}, spec: {selector: {app: web}}}`
	loadBalancer = `{apiVersion: v1, kind: Service, metadata: {name: lb, namespace: web}, spec: {type: LoadBalancer, selector: {app: web}}}`
	claim        = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: web}}`
	namespace    = `{apiVersion: v1, kind: Namespace, metadata: {name: web}}`
	widget       = `{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: web}}`
	widgetCRD    = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, names: {kind: Widget}}}`
	job          = `{apiVersion: batch/v1, kind: Job, metadata: {name: migrate, namespace: web}}`
	certificate  = `{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: serving, namespace: web}, spec: {secretName: web, issuerRef: {name: issuer}}}`
	issuer       = `{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: issuer, namespace: web}}`
	otherIssuer  = `{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: unrelated, namespace: web}}`
)

func TestAnUpdateAppliesAComponentByStage(t *testing.T) {
	c := newCluster()
	ms := parse(t, webhook, widget, deployment, service, loadBalancer, claim, secret, serviceAccount, widgetCRD, namespace)
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 1, c.apply, c.await); !r.Complete() || r.Done != len(ms) {
		t.Fatalf("result %+v", r)
	}
	for _, pair := range [][2]string{
		{"ready Namespace web", "apply ServiceAccount web"},
		{"ready CustomResourceDefinition widgets.example.com", "apply ServiceAccount web"},
		{"ready ServiceAccount web", "apply Secret web"},
		{"ready Secret web", "apply Deployment web"},
		{"apply PersistentVolumeClaim data", "apply Deployment web"},
		{"apply Service web", "ready Deployment web"},
		{"apply Service lb", "ready Deployment web"},
		{"ready Deployment web", "apply Widget w"},
		{"ready Widget w", "apply ValidatingWebhookConfiguration hook"},
		{"ready Deployment web", "ready PersistentVolumeClaim data"},
		{"ready Deployment web", "ready Service lb"},
	} {
		c.before(t, pair[0], pair[1])
	}
}

func TestAStageIsAppliedBeforeAnyOfItIsAwaited(t *testing.T) {
	var docs []string
	for i := range 20 {
		docs = append(docs, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: d%d, namespace: web}}`, i))
	}
	c := newCluster()
	// Each Deployment is ready once all exist, as peers of a cluster are.
	c.unready = func(exists map[string]bool, _ *payload.Manifest) string {
		if len(exists) < len(docs) {
			return "waits for its peers"
		}
		return ""
	}
	if r := Walk(t.Context(), Build(parse(t, docs...), payload.Updating, Order{}), 2, c.apply, c.await); !r.Complete() {
		t.Errorf("result %+v", r)
	}
}

func TestWaitsOccupyNoWorker(t *testing.T) {
	ms := parse(t, deployment, secret)
	ms[1].Component = "other"
	c := newCluster()
	c.unready = func(exists map[string]bool, m *payload.Manifest) string {
		if m.ID.Kind == "Deployment" && !exists["Secret web"] {
			return "no Secret"
		}
		return ""
	}
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 1, c.apply, c.await); !r.Complete() {
		t.Errorf("result %+v", r)
	}
}

func TestACVOPayloadKeepsItsOrder(t *testing.T) {
	c := newCluster()
	ms := parse(t, deployment, secret, serviceAccount)
	Walk(t.Context(), Build(ms, payload.Updating, Order{Serial: true}), 4, c.apply, c.await)
	want := []string{"apply Deployment web", "ready Deployment web", "apply Secret web", "ready Secret web", "apply ServiceAccount web", "ready ServiceAccount web"}
	if !slices.Equal(c.log, want) {
		t.Errorf("order %q, want %q", c.log, want)
	}
}

func TestJobsRemainBarriersBetweenStages(t *testing.T) {
	c := newCluster()
	ms := parse(t, deployment, job, claim, secret)
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 2, c.apply, c.await); !r.Complete() {
		t.Fatalf("result %+v", r)
	}
	c.before(t, "ready Deployment web", "apply Job migrate")
	c.before(t, "ready Job migrate", "apply Secret web")
	c.before(t, "ready Secret web", "ready PersistentVolumeClaim data")
}

func TestAClaimIsAwaitedAfterTheJobsOfItsComponent(t *testing.T) {
	c := newCluster()
	c.unready = func(exists map[string]bool, m *payload.Manifest) string {
		if m.ID.Kind == "PersistentVolumeClaim" && !exists["Job migrate"] {
			return "waits for its first consumer"
		}
		return ""
	}
	if r := Walk(t.Context(), Build(parse(t, claim, job), payload.Updating, Order{}), 2, c.apply, c.await); !r.Complete() {
		t.Errorf("result %+v", r)
	}
}

func TestCustomResourcesThatWorkloadsWaitForComeBeforeThem(t *testing.T) {
	c := newCluster()
	ms := parse(t, serviceAccount, deployment, certificate, issuer, otherIssuer)
	c.unready = func(exists map[string]bool, m *payload.Manifest) string {
		if m.ID.Kind == "Deployment" && !(exists["Certificate serving"] && exists["Issuer issuer"]) {
			return "its Secret wasn't issued"
		}
		return ""
	}
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 1, c.apply, c.await); !r.Complete() {
		t.Fatalf("result %+v", r)
	}
	c.before(t, "apply Issuer issuer", "apply Deployment web")
	c.before(t, "ready Deployment web", "apply Issuer unrelated")
	c.before(t, "ready Deployment web", "ready Certificate serving")
}

// Its webhook can be a workload of the same component.
func TestARejectedCustomResourceDoesNotBlockTheWorkloadsBeforeIt(t *testing.T) {
	c := newCluster()
	c.rejects = func(exists map[string]bool, m *payload.Manifest) string {
		if m.ID.Kind == "Certificate" && !exists["Deployment web"] {
			return "no webhook"
		}
		return ""
	}
	ms := parse(t, deployment, certificate)
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 1, c.apply, c.await); r.Complete() || !c.exists["Deployment web"] {
		t.Fatalf("first attempt: %+v, applied %q", r, c.log)
	}
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 1, c.apply, c.await); !r.Complete() {
		t.Errorf("second attempt: %+v", r)
	}
}

func TestAWebhookThatFailsClosedWaitsForItsServer(t *testing.T) {
	for _, state := range []payload.State{payload.Initializing, payload.Updating, payload.RollingBack} {
		for _, component := range []string{"c", "other"} {
			c := newCluster()
			ms := parse(t, webhook, service, deployment)
			ms[0].Component = component
			if r := Walk(t.Context(), Build(ms, state, Order{}), 4, c.apply, c.await); !r.Complete() {
				t.Fatalf("result %+v", r)
			}
			c.before(t, "ready Deployment web", "apply ValidatingWebhookConfiguration hook")
		}
	}
}

func TestKindsOfAnAPIServiceWaitForIt(t *testing.T) {
	c := newCluster()
	ms := parse(t, widget, `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.example.com}, spec: {group: example.com, version: v1}}`, deployment)
	if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 4, c.apply, c.await); !r.Complete() {
		t.Fatalf("result %+v", r)
	}
	c.before(t, "ready APIService v1.example.com", "apply Widget w")
}

func TestComponentsOfARunLevelWaitForEachOthersNamespacesAndCRDs(t *testing.T) {
	for range 20 {
		c := newCluster()
		ms := parse(t, widget, widgetCRD, namespace)
		ms[1].Component, ms[2].Component = "crds", "namespaces"
		if r := Walk(t.Context(), Build(ms, payload.Updating, Order{}), 4, c.apply, c.await); !r.Complete() {
			t.Fatalf("result %+v", r)
		}
		c.before(t, "ready CustomResourceDefinition widgets.example.com", "apply Widget w")
		c.before(t, "ready Namespace web", "apply Widget w")
	}
}
