// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
)

func TestScaleByAUserIsRepaired(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(scaledText)
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.scale(ms[0].ID, "kubectl", "7")
	env.await("the repair", func() bool { return env.replicas(ms[0].ID) == 3 })
	if y := env.engine.Yielded(); len(y) != 0 {
		t.Errorf("yielded %v to a user", y)
	}
	env.scale(ms[0].ID, "keda-operator", "8")
	env.await("a yield", func() bool { return len(env.engine.Yielded()[ms[0].ID]) == 1 })
	env.await("the object to be in sync", func() bool { return env.inSync(ms[0].ID) })
	env.wantReplicas(ms[0].ID, 8, "after an autoscaler's turn")
}
