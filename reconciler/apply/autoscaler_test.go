// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The autoscaler is the server's own: it raises what is below its minimum
// without asking for any metric.
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
	deadline := time.Now().Add(3 * patience) // It looks every fifteen seconds.
	for len(env.engine.Yielded()[ms[0].ID]) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("replicas are %d, nothing was yielded", env.replicas(ms[0].ID))
		}
		elapse(t, 20*time.Millisecond)
	}
	if y := env.engine.Yielded()[ms[0].ID]; len(y) != 1 || y[0].Pointer != "/spec/replicas" {
		t.Errorf("yielded %+v, want the replicas", y)
	}
	env.await("level", func() bool { return env.inSync(ms[0].ID) && env.inSync(ms[1].ID) })
	env.wantReplicas(ms[0].ID, 5, "after the autoscaler's turn")
	must(t, env.engine.Flush(t.Context()))

	env.restart()
	// The autoscaler's own object has a status and counts no generations: what
	// was written while nobody looked costs a verification.
	if chs := env.apply(ms, Reconciling); chs[0].Action != Unchanged || chs[1].Action != Unchanged && chs[1].Action != Verified {
		t.Errorf("after a restart: %v, want the Deployment Unchanged", actions(chs))
	}
	env.wantReplicas(ms[0].ID, 5, "after a restart")

	env.restartUnwatched()
	env.apply(ms, Reconciling)
	env.wantReplicas(ms[0].ID, 5, "in an outage of the watch")

	env.crash()
	env.watcher = ""
	env.start()
	env.await("the watch to be back", func() bool { return env.cache.Get(ms[0].ID).State == live.Present })
	env.apply(ms, Reconciling)
	env.await("level after the outage", func() bool { return env.inSync(ms[0].ID) })
	env.wantReplicas(ms[0].ID, 5, "after the outage")
	if n := len(env.engine.Yielded()[ms[0].ID]); n != 1 {
		t.Errorf("%d fields are yielded in the end, want the replicas", n)
	}
	if got := env.repairs(); got > 1 {
		t.Errorf("%d repairs, want the one by which the field was yielded", got)
	}
}
