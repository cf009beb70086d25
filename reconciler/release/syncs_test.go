// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

func TestEachEndedSyncIsCounted(t *testing.T) {
	r := &runtimes{metrics: NewMetrics()}
	count := r.countSyncs("platform")
	count(true)
	count(false)
	count(true)
	for result, want := range map[string]float64{syncComplete: 2, syncIncomplete: 1} {
		var m dto.Metric
		if err := r.metrics.syncs.WithLabelValues("platform", result).Write(&m); err != nil || m.GetCounter().GetValue() != want {
			t.Errorf("%v syncs %s (%v), want %v", m.GetCounter().GetValue(), result, err, want)
		}
	}
	r.metrics.delete("platform")
	left := make(chan prometheus.Metric, 10)
	r.metrics.syncs.Collect(left)
	if n := len(left); n != 0 {
		t.Errorf("%d series of a deleted release", n)
	}
}

func TestAManifestsErrorIsLoggedOncePerChange(t *testing.T) {
	var lines []string
	ended := logManifests(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	missing := &worker.UpdateError{Code: "NamespaceMissing", Message: "no namespace web"}
	invalid := &worker.UpdateError{Code: "ResourceInvalid", Message: "spec is required"}
	canceled := &worker.UpdateError{Code: worker.ReasonFailed, Nested: context.Canceled}
	m := &payload.Manifest{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: "a"}, File: "0000_10_web_00.yaml", Line: 7}
	for _, err := range []*worker.UpdateError{nil, missing, missing, canceled, invalid, nil, nil, invalid} {
		ended(m, err)
	}
	wants := []string{"NamespaceMissing", "ResourceInvalid", "recovered", "ResourceInvalid"}
	if len(lines) != len(wants) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(wants), strings.Join(lines, "\n"))
	}
	for i, want := range wants {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "ConfigMap web/a") {
			t.Errorf("line %d is %s, want it to name the object and %s", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "0000_10_web_00.yaml") || !strings.Contains(lines[0], "no namespace web") {
		t.Errorf("%s names neither the file nor the cause", lines[0])
	}
}
