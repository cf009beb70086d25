// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
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

// found creates the manifest's object as another tool did, before the set.
func (env *testEnv) found(m payload.Manifest, manager string) {
	env.t.Helper()
	_, err := env.resource(m.ID).Create(env.t.Context(), m.Object.DeepCopy(), metav1.CreateOptions{FieldManager: manager})
	must(env.t, err)
}

func TestReplicasOfAnAutoscalerSurviveAdoption(t *testing.T) {
	for _, manager := range []string{"kubectl-client-side-apply", "installer"} {
		t.Run(manager, func(t *testing.T) {
			env := newEnv(t)
			ms := env.manifests(scaledText)
			env.found(ms[0], manager)
			env.scale(ms[0].ID, "kube-controller-manager", "50")
			env.apply(ms, Updating)
			env.wantReplicas(ms[0].ID, 50, "after the adoption")
			if n := env.noticesOf(ms[0].ID, ReasonFieldYielded, "/spec/replicas to kube-controller-manager"); n != 1 {
				t.Errorf("%d notices of the yield, want 1", n)
			}
			env.awaitEvents(ms)
			env.apply(ms, Reconciling)
			env.scale(ms[0].ID, "kube-controller-manager", "60")
			env.await("the object to be in sync", func() bool { return env.inSync(ms[0].ID) })
			env.apply(env.manifests(strings.Replace(scaledText, "web:1", "web:2", 1)), Updating)
			env.wantReplicas(ms[0].ID, 60, "after the next release")
			env.apply(env.manifests(strings.NewReplacer("web:1", "web:2", "replicas: 3", "replicas: 4").Replace(scaledText)), Updating)
			env.wantReplicas(ms[0].ID, 4, "after a release that sets them")
		})
	}
}

func TestReplicasThatAnAutoscalerTookWhileTheProcessWasDownAreYieldedToIt(t *testing.T) {
	for name, next := range map[string]string{"the same release": scaledText, "a new release": strings.Replace(scaledText, "web:1", "web:2", 1)} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			ms := env.manifests(scaledText)
			env.apply(ms, Updating)
			env.crash()
			env.scale(ms[0].ID, "keda-operator", "50")
			env.start()
			env.apply(env.manifests(next), Updating)
			env.wantReplicas(ms[0].ID, 50, "after the restart")
			if n := env.noticesOf(ms[0].ID, ReasonFieldYielded, "/spec/replicas to keda-operator"); n != 1 {
				t.Errorf("%d notices of the yield, want 1", n)
			}
		})
	}
}
