// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
)

func at(t time.Time) *metav1.Time {
	out := metav1.NewTime(t)
	return &out
}

func TestOverridesExpire(t *testing.T) {
	spec := &v1alpha1.ClusterReleaseSpec{Overrides: []v1alpha1.Override{
		{Kind: "Deployment", Name: "late", Unmanaged: true, Expires: at(epoch.Add(2 * time.Hour))},
		{Kind: "Deployment", Name: "soon", Unmanaged: true, Expires: at(epoch.Add(time.Hour))},
		{Kind: "Deployment", Name: "managed", Expires: at(epoch.Add(time.Minute))},
		{Kind: "Deployment", Name: "forever", Unmanaged: true},
	}}
	for _, c := range []struct {
		after time.Duration
		names []string
		next  time.Duration
	}{
		{0, []string{"forever", "late", "soon"}, time.Hour},
		{time.Hour, []string{"forever", "late"}, time.Hour},
		{2 * time.Hour, []string{"forever"}, 0},
	} {
		now := epoch.Add(c.after)
		var names []string
		for _, o := range overridesOf(spec, now) {
			names = append(names, o.ID.Name)
		}
		if diff := cmp.Diff(c.names, names); diff != "" {
			t.Errorf("overrides after %s (-want +got):\n%s", c.after, diff)
		}
		if got := nextExpiry(spec, now); got != c.next {
			t.Errorf("next expiry after %s is in %s, want %s", c.after, got, c.next)
		}
	}
}

func TestTheSelectionFollowsTheSpec(t *testing.T) {
	spec := &v1alpha1.ClusterReleaseSpec{
		Profile: "edge", FeatureSet: "TechPreview", FeatureGates: []string{"A"},
		Capabilities: &v1alpha1.Capabilities{Baseline: "None", Additional: []string{"console"}},
	}
	want := payload.Selection{
		Profile: "edge", FeatureSet: "TechPreview", FeatureGates: []string{"A"}, EvaluateGates: true, Baseline: "None", Capabilities: []string{"console"},
	}
	if diff := cmp.Diff(want, selectionOf(spec)); diff != "" {
		t.Errorf("selection (-want +got):\n%s", diff)
	}
	if got := selectionOf(&v1alpha1.ClusterReleaseSpec{}); got.Baseline != payload.BaselineAll || got.EvaluateGates {
		t.Errorf("the default selection is %+v", got)
	}
}

func TestThePolicyPrunesAtMostAFifthByDefault(t *testing.T) {
	if p := policyOf(&v1alpha1.ClusterReleaseSpec{}); !p.prune || p.maxPercent != 20 {
		t.Errorf("default policy %+v", p)
	}
	off, all := false, int32(100)
	p := policyOf(&v1alpha1.ClusterReleaseSpec{Prune: &v1alpha1.PrunePolicy{Enabled: &off, MaxPercent: &all}})
	if p.prune || p.maxPercent != 100 {
		t.Errorf("policy %+v", p)
	}
}
