// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

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

func TestEachPassThatEndsIsCounted(t *testing.T) {
	r := &releases{gauges: newReleaseMetrics()}
	tell := r.tellPasses("platform")
	tell(true)
	tell(false)
	tell(true)
	for result, want := range map[string]float64{passLevel: 2, passIncomplete: 1} {
		var m dto.Metric
		if err := r.gauges.passes.WithLabelValues("platform", result).Write(&m); err != nil || m.GetCounter().GetValue() != want {
			t.Errorf("%v passes %s (%v), want %v", m.GetCounter().GetValue(), result, err, want)
		}
	}
	r.gauges.forget("platform")
	left := make(chan prometheus.Metric, 10)
	r.gauges.passes.Collect(left)
	if n := len(left); n != 0 {
		t.Errorf("%d series of a release that is gone", n)
	}
}

func TestWhatKeepsAnObjectFromBeingLevelIsLoggedOnceAChange(t *testing.T) {
	var lines []string
	tell := tellEnds(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	missing := &worker.UpdateError{Code: "NamespaceMissing", Message: "no namespace web"}
	invalid := &worker.UpdateError{Code: "ResourceInvalid", Message: "spec is required"}
	canceled := &worker.UpdateError{Code: worker.ReasonFailed, Nested: context.Canceled}
	m := &payload.Manifest{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: "a"}, File: "0000_10_web_00.yaml", Line: 7}
	for _, err := range []*worker.UpdateError{nil, missing, missing, canceled, invalid, nil, nil, invalid} {
		tell(m, err)
	}
	wants := []string{"NamespaceMissing", "ResourceInvalid", "level after all", "ResourceInvalid"}
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
