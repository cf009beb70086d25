// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
)

func TestAPersonsScaleIsRepaired(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(scaledText)
	r.apply(ms, Updating)
	r.seen(ms)
	r.scale(ms[0].ID, "kubectl", "7")
	r.await("the repair", func() bool { return r.replicas(ms[0].ID) == 3 })
	if y := r.engine.Yielded(); len(y) != 0 {
		t.Errorf("yielded %v to a person", y)
	}
	r.scale(ms[0].ID, "keda-operator", "8")
	r.await("a yield", func() bool { return len(r.engine.Yielded()[ms[0].ID]) == 1 })
	r.await("level", func() bool { return r.level(ms[0].ID) })
	r.wantReplicas(ms[0].ID, 8, "after an autoscaler's turn")
}
