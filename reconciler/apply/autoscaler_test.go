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
func TestTheServersAutoscalerIsYieldedToThroughRestartsAndOutages(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText + `---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: NS}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 5
  maxReplicas: 9
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
`)
	r.apply(ms, Updating)
	deadline := time.Now().Add(3 * patience) // It looks every fifteen seconds.
	for len(r.engine.Yielded()[ms[0].ID]) == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("replicas are %d, nothing was yielded", r.replicas(ms[0].ID))
		}
		elapse(t, 20*time.Millisecond)
	}
	if y := r.engine.Yielded()[ms[0].ID]; len(y) != 1 || y[0].Pointer != "/spec/replicas" {
		t.Errorf("yielded %+v, want the replicas", y)
	}
	r.await("level", func() bool { return r.level(ms[0].ID) && r.level(ms[1].ID) })
	r.wantReplicas(ms[0].ID, 5, "after the autoscaler's turn")
	must(t, r.engine.Flush(t.Context()))

	r.restart()
	// The autoscaler's own object has a status and counts no generations: what
	// was written while nobody looked costs a verification.
	if chs := r.apply(ms, Reconciling); chs[0].Action != Unchanged || chs[1].Action != Unchanged && chs[1].Action != Verified {
		t.Errorf("after a restart: %v, want the Deployment Unchanged", actions(chs))
	}
	r.wantReplicas(ms[0].ID, 5, "after a restart")

	r.blind()
	r.apply(ms, Reconciling)
	r.wantReplicas(ms[0].ID, 5, "in an outage of the watch")

	r.kill()
	r.watcher = ""
	r.start()
	r.await("the watch to be back", func() bool { return r.cache.Get(ms[0].ID).State == live.Present })
	r.apply(ms, Reconciling)
	r.await("level after the outage", func() bool { return r.level(ms[0].ID) })
	r.wantReplicas(ms[0].ID, 5, "after the outage")
	if n := len(r.engine.Yielded()[ms[0].ID]); n != 1 {
		t.Errorf("%d fields are yielded in the end, want the replicas", n)
	}
	if got := r.repairs(); got > 1 {
		t.Errorf("%d repairs, want the one by which the field was yielded", got)
	}
}
