// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/reconciler/rollout"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestThePlannedPoolHasWorkToDo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	if d := rollout.Plan(planInput(500, now), now); len(d.Steps) == 0 {
		t.Error("the plan has no steps, so that its time says nothing")
	}
}

func TestTheServersOwnRequestsAreNotCounted(t *testing.T) {
	t.Parallel()
	apply := controlplane.Request{Verb: "APPLY", Resource: "configmaps", Code: "201"}
	own := controlplane.Request{Verb: "POST", Group: "networking.k8s.io", Resource: "ipaddresses", Code: "201"}
	metrics := controlplane.Request{Verb: "GET", Code: "200"}
	got := difference(controlplane.Counts{apply: 5, own: 3, metrics: 9}, controlplane.Counts{apply: 2})
	if diff := cmp.Diff(controlplane.Counts{apply: 3}, got); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	values := []float64{4, 1, 3, 2}
	for name, tc := range map[string]struct{ got, want float64 }{
		"the median of an even number is between":      {median(values), 2.5},
		"the median of an odd number is in the middle": {median(values[:3]), 3},
		"nothing has no median":                        {median(nil), 0},
		"the 95th percentile of few is the largest":    {quantile(values, 0.95), 4},
		"half of four is the second":                   {quantile(values, 0.5), 2},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", name, tc.got, tc.want)
		}
	}
	if diff := cmp.Diff([]float64{2, 3}, ratios([]float64{4, 9, 7}, []float64{2, 3})); diff != "" {
		t.Errorf("ratios pair what was measured in one round (-want +got):\n%s", diff)
	}
}

func TestALineSaysWhetherItMetItsGoal(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		line result
		want string
	}{
		"at the limit":        {shown("", 1.1, "", "").atMost(1.1), "met"},
		"above it":            {shown("", 1.11, "", "").atMost(1.1), "MISSED"},
		"below a lower bound": {shown("", 2.1, "", "").atLeast(2.2), "MISSED"},
		"no goal":             {shown("", 5, "", ""), ""},
	} {
		if got := tc.line.verdict(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestTheTableIsMarkdown(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := writeTable(&b, []result{shown("a", 0.667, "kB", "peer").atMost(1), shown("b", 1234.6, "ms", "")}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if strings.Count(line, "|") != 6 {
			t.Errorf("%q has not five columns", line)
		}
	}
	if !strings.Contains(b.String(), "0.667 kB") || !strings.Contains(b.String(), "1235 ms") {
		t.Errorf("numbers are written otherwise:\n%s", b.String())
	}
}

func TestARowThatDoesNotExistIsAnError(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := run(t.Context(), []string{"-rows", "speed"}, &b, &b); err == nil || !strings.Contains(err.Error(), "repair") {
		t.Errorf("run says %v, want an error that names the rows", err)
	}
}
