// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/reconciler/rollout"
	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/workload"
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

func TestARowReportsWhetherItMetItsGoal(t *testing.T) {
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

func TestTheApplicationsDifferAsTheRowDescribes(t *testing.T) {
	t.Parallel()
	files := func(changed int) map[string]string {
		r, err := application("1.0.0", changed)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, c := range r.Components {
			for name, content := range c.Files {
				out[c.Name+"/"+name] = content
			}
		}
		return out
	}
	before, after := files(0), files(50)
	differ := 0
	for name, content := range before {
		if after[name] != content {
			differ++
		}
	}
	if len(before) != mixSize || len(after) != mixSize || differ != 50 {
		t.Errorf("%d and %d objects of which %d differ, want %d and 50", len(before), len(after), differ, mixSize)
	}
}

func TestRequestsAreCountedWithoutLeasesAndOtherClients(t *testing.T) {
	t.Parallel()
	a := asked{all: []controlplane.Audited{
		{Verb: "update", Resource: "leases"},
		{Verb: "watch", Resource: "configmaps"},
		{Verb: "patch", Resource: "deployments"},
		{Verb: "patch", Resource: "deployments", DryRun: true},
	}}
	if got := []float64{a.count(isLease), a.count(noLease), a.count(otherWrites)}; !cmp.Equal(got, []float64{1, 3, 1}) {
		t.Errorf("counted %v", got)
	}
	if got, want := words(a.table()), "2 patch deployments, 1 update leases, 1 watch configmaps"; got != want {
		t.Errorf("told as %q, want %q", got, want)
	}
}

func TestResidentMemoryIsRead(t *testing.T) {
	t.Parallel()
	r, err := residentOf("self")
	if err != nil {
		t.Fatal(err)
	}
	if r.own < 1<<20 || r.all < r.own {
		t.Errorf("resident %.0f bytes, %.0f of them its own", r.all, r.own)
	}
	if _, err := residentOf("none"); err == nil {
		t.Error("a process that isn't there has memory")
	}
}

func TestAnEditIsSeenAndSoIsItsRepair(t *testing.T) {
	t.Parallel()
	for i, e := range workload.Editables() {
		o, err := e.Make(0, "edits")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := e.Patch()
		if err != nil {
			t.Fatal(err)
		}
		var edit map[string]any
		if err := json.Unmarshal(raw, &edit); err != nil {
			t.Fatal(err)
		}
		if holds(edit, o.Content) {
			t.Errorf("%d: the object of %s has its edit from the beginning", i, e.Resource)
		}
		if !holds(edit, edit) {
			t.Errorf("%d: the edit of %s isn't seen", i, e.Resource)
		}
	}
}
