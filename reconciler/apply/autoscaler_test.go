// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The HorizontalPodAutoscaler controller enforces the minimum without metrics.
func TestReplicasStayYieldedToAnAutoscalerThroughRestartsAndOutages(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText + `---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NS}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 5
  maxReplicas: 9
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
`)
	env.apply(ms, Updating)
	deadline := time.Now().Add(3 * patience) // It syncs every 15 seconds.
	for len(env.engine.Yielded()[ms[0].ID]) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d replicas, and no field was yielded", env.replicas(ms[0].ID))
		}
		elapse(t, 20*time.Millisecond)
	}
	if y := env.engine.Yielded()[ms[0].ID]; len(y) != 1 || y[0].Pointer != "/spec/replicas" {
		t.Errorf("yielded %+v, want the replicas", y)
	}
	env.await("the object to be in sync", func() bool { return env.inSync(ms[0].ID) && env.inSync(ms[1].ID) })
	env.wantReplicas(ms[0].ID, 5, "after the autoscaler scaled")
	must(t, env.engine.Flush(t.Context()))

	env.restart()
	// The HorizontalPodAutoscaler counts no generations: a status write during the
	// restart costs a verification.
	if chs := env.apply(ms, Reconciling); chs[0].Action != Unchanged || chs[1].Action != Unchanged && chs[1].Action != Verified {
		t.Errorf("after a restart: %v, want the Deployment Unchanged", actions(chs))
	}
	env.wantReplicas(ms[0].ID, 5, "after a restart")

	env.restartUnwatched()
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 5, "during a watch outage")

	env.crash()
	env.watcher = ""
	env.start()
	env.await("the watch to recover", func() bool { return env.cache.Get(ms[0].ID).State == live.Present })
	env.apply(ms, Reconciling)
	env.await("the object to be in sync after the outage", func() bool { return env.inSync(ms[0].ID) })
	env.wantReplicas(ms[0].ID, 5, "after the outage")
	if n := len(env.engine.Yielded()[ms[0].ID]); n != 1 {
		t.Errorf("%d fields are yielded, want the replicas", n)
	}
	if got := env.repairs(); got > 1 {
		t.Errorf("%d repairs, want at most the one that yields the field", got)
	}
}
