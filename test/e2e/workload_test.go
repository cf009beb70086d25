// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// TestAReleaseOfRealisticSizeSettles applies the benchmarks' release beside an
// autoscaler and a webhook.
func TestAReleaseOfRealisticSizeSettles(t *testing.T) {
	t.Parallel()
	w := newEnvWith(t, env.Options{Audit: true, Pods: true})
	must(t, w.Control.AddNodes(t.Context(), 3, nil))
	withStamper(t, w)
	source, err := env.ReleaseOf(platform, first, workload.Release("shaped"))
	must(t, err)
	ref := release(t, w, source)
	push(t, w, "a release in a real one's shape", map[string]string{platformFile: declare(platform, first, ref) + "  interval: 10s\n"})
	start(t, w)
	waitApplied(t, w, platform, first)

	obj, err := getRelease(t.Context(), w, platform)
	must(t, err)
	if p := obj.Status.Progress; p == nil || p.Total != workload.ReleaseSize || p.Done != p.Total {
		t.Errorf("progress is %+v, want all of %d done", p, workload.ReleaseSize)
	}
	if n := stampedMaps(t, w); n == 0 {
		t.Error("the webhook changed no ConfigMap, so that nothing of it is tested")
	} else {
		t.Logf("the webhook changed a declared field of %d ConfigMaps", n)
	}
	deployment := client.ObjectKey{Namespace: "shaped-ns-0", Name: "shaped-0"}
	withAutoscaler(t, w, deployment)
	contains(t, waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionFieldYielded, "True", ""), deployment.Name, "/spec/replicas")
	threeSyncsWriteNothing(t, w, platform)
	must(t, hasReplicas(t.Context(), w, deployment, autoscaled))
}
