// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/shape"
	"github.com/lockstep-dev/lockstep/test/world"
)

// shapedRelease is the generated release in the shape of a real platform's.
func shapedRelease(t *testing.T, version string, placed []shape.Placed) world.Release {
	t.Helper()
	r := world.Release{Product: platform, Version: version}
	index := map[string]int{}
	for i, p := range placed {
		name := fmt.Sprintf("%s-%d", p.Component, p.Level)
		at, known := index[name]
		if !known {
			at = len(r.Components)
			index[name] = at
			r.Components = append(r.Components, world.Component{Name: name, RunLevel: p.Level, Files: map[string]string{}})
		}
		raw, err := yaml.Marshal(p.Content)
		must(t, err)
		r.Components[at].Files[fmt.Sprintf("%04d.yaml", i)] = string(raw)
	}
	return r
}

// TestAReleaseInARealOnesShapeComesToRest applies the release that the
// measurements are about, beside an autoscaler and a webhook.
func TestAReleaseInARealOnesShapeComesToRest(t *testing.T) {
	w := newWorldWith(t, world.Options{Audit: true, Pods: true})
	must(t, w.Control.AddNodes(t.Context(), 3, nil))
	withStamper(t, w)
	placed := shape.Release("shaped")
	ref := release(t, w, shapedRelease(t, first, placed))
	push(t, w, "a release in a real one's shape", map[string]string{platformFile: declare(platform, first, ref) + "  interval: 10s\n"})
	start(t, w)
	waitApplied(t, w, platform, first)

	obj, err := getRelease(t.Context(), w, platform)
	must(t, err)
	if p := obj.Status.Progress; p == nil || p.Total != shape.ReleaseSize || p.Done != p.Total {
		t.Errorf("progress is %+v, want all of %d done", p, shape.ReleaseSize)
	}
	if n := stampedMaps(t, w); n == 0 {
		t.Error("the webhook changed no ConfigMap, so that nothing of it is tested")
	} else {
		t.Logf("the webhook changed a declared field of %d ConfigMaps", n)
	}
	deployment := client.ObjectKey{Namespace: "shaped-ns-0", Name: "shaped-0"}
	withAutoscaler(t, w, deployment)
	contains(t, waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionFieldYielded, "True", ""), deployment.Name, "/spec/replicas")
	threePassesWriteNothing(t, w, platform)
	must(t, hasReplicas(t.Context(), w, deployment, autoscaled))
}
