// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// samples returns the samples of a metric, by the values of its labels.
func samples(t *testing.T, name string, collectors ...prometheus.Collector) map[string]*dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	families, err := registry.Gather()
	must(t, err)
	out := map[string]*dto.Metric{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, " ")] = m
		}
	}
	return out
}

func TestManifestsAreCountedByState(t *testing.T) {
	m := newReleaseMetrics()
	obj := &v1alpha1.ClusterRelease{}
	obj.Name = "platform"
	m.release(obj, &worker.SyncWorkerStatus{Done: 5, Skipped: 1, Total: 10, Failed: 2, BlockingTotal: 3})
	got := map[string]float64{}
	for labels, s := range samples(t, "lockstep_release_manifests", m.collectors()...) {
		got[labels] = s.GetGauge().GetValue()
	}
	want := map[string]float64{"platform done": 5, "platform skipped": 1, "platform failed": 2, "platform blocked": 1, "platform total": 10}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
	m.forget("platform")
	if left := samples(t, "lockstep_release_manifests", m.collectors()...); len(left) > 0 {
		t.Errorf("left after the release is gone: %v", left)
	}
}

func TestVerificationsAreTimedByTheirResult(t *testing.T) {
	m := newReleaseMetrics()
	m.verified("platform", time.Second, nil)
	m.verified("platform", 3*time.Second, errors.New("no signature"))
	for labels, want := range map[string]float64{"platform ok": 1, "platform error": 3} {
		if s := samples(t, "lockstep_release_verify_seconds", m.collectors()...)[labels]; s.GetHistogram().GetSampleSum() != want {
			t.Errorf("%s: %v, want %v s", labels, s, want)
		}
	}
}

// refusing is a builder whose dry run fails.
type refusing struct {
	worker.ResourceBuilder
	err error
}

func (r refusing) DryRun(context.Context, *payload.Payload) error { return r.err }

func TestRefusalsOfTheDryRunAreCounted(t *testing.T) {
	m := newReleaseMetrics()
	for _, err := range []error{nil, errors.New("x"), &worker.UpdateError{Code: "ResourceInvalid"}, &worker.UpdateError{Code: "ResourceInvalid"}} {
		b := countedDryRun{refusing{err: err}, func(reason string) { m.refused("platform", reason) }}
		if got := b.DryRun(t.Context(), nil); !errors.Is(got, err) {
			t.Errorf("DryRun = %v, want %v", got, err)
		}
	}
	got := map[string]float64{}
	for labels, s := range samples(t, "lockstep_release_payload_errors_total", m.collectors()...) {
		got[labels] = s.GetCounter().GetValue()
	}
	if diff := cmp.Diff(map[string]float64{"DryRunRefused platform": 1, "ResourceInvalid platform": 2}, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestRefusalsOfPreconditionsAreCounted(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}}}
	m, err := payload.NewManifest(u)
	must(t, err)
	m.Health = "self.status +"
	var got []string
	c := &checks{refused: func(reason string) { got = append(got, reason) }}
	if _, err := c.Check(t.Context(), worker.Desired{}, &payload.Payload{Manifests: []payload.Manifest{m}}, worker.Current{}); err == nil {
		t.Error("a rule that can't be read was taken")
	}
	if err := checkHealthRules(&payload.Payload{Manifests: []payload.Manifest{m}}, map[payload.ObjectID]bool{m.ID: true}); err != nil {
		t.Errorf("the rule of an object that is left to people: %v", err)
	}
	c.count([]precondition.Violation{
		{Reason: "GiantHop", Blocking: true}, {Reason: "PruneGuard", Blocking: true, Waived: true}, {Reason: "UnpinnedImage"}, {Reason: "HostSkew", Blocking: true},
	})
	if diff := cmp.Diff([]string{"InvalidHealthRule", "GiantHop", "HostSkew"}, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// schemeOnly is a client that knows its kinds and nothing else.
type schemeOnly struct {
	client.Client
	scheme *runtime.Scheme
}

func (c schemeOnly) Scheme() *runtime.Scheme { return c.scheme }

func TestAGoneObjectLeavesNoMetric(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, v1alpha1.AddToScheme(scheme))
	b := base{metrics: metrics.NewRecorder(), client: schemeOnly{scheme: scheme}}
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "platform"}}
	obj.Spec.Suspend = true
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "False"}}
	b.took(v1alpha1.KindClusterRelease, obj.Name, time.Now())
	b.record(obj)
	for name, want := range map[string]int{"gotk_reconcile_duration_seconds": 1, "gotk_suspend_status": 1, "gotk_reconcile_condition": 3} {
		if got := samples(t, name, b.metrics.Collectors()...); len(got) != want {
			t.Errorf("%s: %v, want %d samples", name, got, want)
		}
	}
	if s := samples(t, "gotk_suspend_status", b.metrics.Collectors()...)["ClusterRelease platform lockstep-system"]; s.GetGauge().GetValue() != 1 {
		t.Errorf("a suspended release: %v", s)
	}
	b.forget(v1alpha1.KindClusterRelease, obj.Name)
	for _, name := range []string{"gotk_reconcile_duration_seconds", "gotk_suspend_status", "gotk_reconcile_condition"} {
		if got := samples(t, name, b.metrics.Collectors()...); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
	}
}

func TestThePageNamesEachMetricWithItsLabels(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/metrics.md")
	must(t, err)
	named := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		named[name] = true
		have, ok := registered(t)[name]
		if !ok {
			t.Errorf("nobody serves %s", name)
		}
		var want []string
		for l := range strings.SplitSeq(cells[2], ",") {
			if l = strings.Trim(l, " `"); l != "–" {
				want = append(want, l)
			}
		}
		if !slices.Equal(want, have) {
			t.Errorf("%s has the labels %v, the page says %v", name, have, want)
		}
	}
	for name := range registered(t) {
		if strings.HasPrefix(name, "lockstep_") && !named[name] {
			t.Errorf("the page lacks %s", name)
		}
	}
}
