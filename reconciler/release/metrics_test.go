// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
	m := NewMetrics()
	obj := &v1alpha1.ClusterRelease{}
	obj.Name = "platform"
	m.Record(obj, &worker.SyncWorkerStatus{Actual: worker.Release{Desired: worker.Desired{Identity: payload.Identity{Version: "1.0.0"}}}, Done: 5, Skipped: 1, Total: 10, Failed: 2, BlockingTotal: 3})
	got := map[string]float64{}
	for labels, s := range samples(t, "lockstep_release_manifests", m.Collectors()...) {
		got[labels] = s.GetGauge().GetValue()
	}
	want := map[string]float64{"platform done": 5, "platform skipped": 1, "platform failed": 2, "platform blocked": 1, "platform total": 10}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
	m.delete("platform")
	if left := samples(t, "lockstep_release_manifests", m.Collectors()...); len(left) > 0 {
		t.Errorf("metrics of a deleted release: %v", left)
	}
}

func TestVerificationsAreMeasuredByResult(t *testing.T) {
	m := NewMetrics()
	m.verified("platform", time.Second, nil)
	m.verified("platform", 3*time.Second, errors.New("no signature"))
	for labels, want := range map[string]float64{"platform ok": 1, "platform error": 3} {
		if s := samples(t, "lockstep_release_verify_seconds", m.Collectors()...)[labels]; s.GetHistogram().GetSampleSum() != want {
			t.Errorf("%s: %v, want %v s", labels, s, want)
		}
	}
}

// failingDryRun is a builder whose dry run fails.
type failingDryRun struct {
	worker.ResourceBuilder
	err error
}

func (b failingDryRun) DryRun(context.Context, *payload.Payload) error { return b.err }

func TestRejectionsOfTheDryRunAreCounted(t *testing.T) {
	m := NewMetrics()
	for _, err := range []error{nil, errors.New("x"), &worker.UpdateError{Code: "ResourceInvalid"}, &worker.UpdateError{Code: "ResourceInvalid"}} {
		b := countedDryRun{failingDryRun{err: err}, func(reason string) { m.rejected("platform", reason) }}
		if got := b.DryRun(t.Context(), nil); !errors.Is(got, err) {
			t.Errorf("DryRun = %v, want %v", got, err)
		}
	}
	got := map[string]float64{}
	for labels, s := range samples(t, "lockstep_release_payload_errors_total", m.Collectors()...) {
		got[labels] = s.GetCounter().GetValue()
	}
	if diff := cmp.Diff(map[string]float64{"DryRunRefused platform": 1, "ResourceInvalid platform": 2}, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestRejectionsOfPreconditionsAreCounted(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}}}
	m, err := payload.NewManifest(u)
	must(t, err)
	m.Health = "self.status +"
	var got []string
	c := &checks{rejected: func(reason string) { got = append(got, reason) }}
	if _, err := c.Check(t.Context(), worker.Desired{}, &payload.Payload{Manifests: []payload.Manifest{m}}, worker.Current{}); err == nil {
		t.Error("an invalid health rule was accepted")
	}
	if err := checkHealthRules(&payload.Payload{Manifests: []payload.Manifest{m}}, map[payload.ObjectID]bool{m.ID: true}); err != nil {
		t.Errorf("the rule of an unmanaged object: %v", err)
	}
	c.count([]precondition.Violation{
		{Reason: "GiantHop", Blocking: true}, {Reason: "PruneGuard", Blocking: true, Waived: true}, {Reason: "UnpinnedImage"}, {Reason: "HostSkew", Blocking: true},
	})
	if diff := cmp.Diff([]string{"InvalidHealthRule", "GiantHop", "HostSkew"}, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}
