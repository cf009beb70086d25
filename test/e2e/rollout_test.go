// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/test/env"
)

// TestARolloutStaysWithinItsBudgets runs cases with two hosts in sequence:
// pauses, an admin's cordon, an agent that disappears, and two leaders.
func TestARolloutStaysWithinItsBudgets(t *testing.T) {
	w := newEnv(t, 2)
	push(t, w, "hosts at 1.0.0", map[string]string{declarePath + "workers.yaml": pool("1.0.0", w.FirstOS())})
	start(t, w)
	waitCondition(t, w, poolObject(), v1alpha1.ConditionReady, "True", "")
	for _, tc := range []struct {
		rule, version string
		play          func(t *testing.T, w *env.Env, version string)
	}{
		{"Wall3AnEditOfThePoolIsPutBack", "1.0.1", testEditedPool},
		{"BrakesHoldAndRelease", "1.1.0", testPauses},
		{"AnAdminsCordonIsNotTouched", "1.2.0", testExternalCordon},
		{"AnAgentThatGoesAwayIsWaitedFor", "1.3.0", testAgentAway},
		{"AFrozenLeaderNeverActsAgain", "1.4.0", testTwoLeaders},
	} {
		if !t.Run(tc.rule, func(t *testing.T) { tc.play(t, w, tc.version) }) {
			return // the next case would start from an undefined state
		}
	}
}

// declarePool pushes a version of the pool; changes are pairs of old and new
// text in its manifest.
func declarePool(t *testing.T, w *env.Env, version string, changes ...string) {
	t.Helper()
	doc := pool(version, system(t, w, sim.Document{Version: version}))
	push(t, w, "hosts to "+version, map[string]string{declarePath + "workers.yaml": strings.NewReplacer(changes...).Replace(doc)})
}

// bothAtOnce raises the budget to two hosts.
var bothAtOnce = []string{"  gates:", "  strategy: {maxUnavailable: 2}\n  gates:"} //nolint:gochecknoglobals // a constant list

// getPool reads the pool.
func getPool(ctx context.Context, w *env.Env) (*v1alpha1.NodeOS, error) {
	obj := poolObject()
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	return obj, err
}

// waitPool waits until the pool has the wanted state.
func waitPool(t *testing.T, w *env.Env, check func(*v1alpha1.NodeOS) error) {
	t.Helper()
	must(t, env.Wait(t.Context(), 2*time.Minute, func(ctx context.Context) error {
		obj, err := getPool(ctx, w)
		if err != nil {
			return err
		}
		return check(obj)
	}))
}

// waitHost waits until one host runs a version.
func waitHost(t *testing.T, w *env.Env, name, version string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 2*time.Minute, func(ctx context.Context) error {
		got, err := w.Booted(ctx, name)
		if err != nil || got == version {
			return err
		}
		return fmt.Errorf("%s runs %s, want %s", name, got, version)
	}))
}

// runs fails unless the host runs a version now.
func runs(t *testing.T, w *env.Env, name, version string) {
	t.Helper()
	got, err := w.Booted(t.Context(), name)
	must(t, err)
	if got != version {
		t.Errorf("%s runs %s, want %s", name, got, version)
	}
}

// finished waits until all hosts run a version and the pool is Ready.
func finished(t *testing.T, w *env.Env, version string) {
	t.Helper()
	waitBooted(t, w, version)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != "True" || obj.Status.Committed == nil || obj.Status.Committed.Version != version {
			return fmt.Errorf("committed is %+v, want %s; Ready is %+v", obj.Status.Committed, version, ready)
		}
		return nil
	})
}

// watchBudget samples the nodes until the returned function is called, which
// fails the test if more than most nodes were ever out of service at the same
// time.
func watchBudget(t *testing.T, w *env.Env, most int) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		wg    sync.WaitGroup
		worst []string
	)
	wg.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if out := outOfService(ctx, w); len(out) > len(worst) {
				worst = out
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		if len(worst) > most {
			t.Errorf("%v were out of service at once, the budget is %d", worst, most)
		}
	}
}

func outOfService(ctx context.Context, w *env.Env) []string {
	var nodes corev1.NodeList
	if err := w.Client.List(ctx, &nodes); err != nil {
		return nil
	}
	var out []string
	for i := range nodes.Items {
		n := &nodes.Items[i]
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || n.Spec.Unschedulable {
			out = append(out, n.Name)
		}
	}
	return out
}

// testEditedPool changes the pool in the cluster to another signed image:
// nothing is staged before Git declares it.
func testEditedPool(t *testing.T, w *env.Env, version string) {
	image := system(t, w, sim.Document{Version: version})
	patch := fmt.Sprintf(`{"spec":{"os":{"version":%q,"image":%q}}}`, version, image)
	withoutAdmission(t, w)
	// While the source is paused, nothing restores the spec; it still isn't
	// acted on.
	_, err := w.Lockstep(t.Context(), "pause", "gitsource/fleet", "--reason", "a look at wall 3")
	must(t, err)
	waitCondition(t, w, sourceObject(), v1alpha1.ConditionReady, "False", "Paused")
	edit(t, w, poolObject(), patch)
	waitCondition(t, w, poolObject(), v1alpha1.ConditionReady, "False", "NotFromSource")
	_, err = w.Lockstep(t.Context(), "resume", "gitsource/fleet")
	must(t, err)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if obj.Spec.OS.Version != "1.0.0" || ready == nil || ready.Status != "True" || ready.ObservedGeneration != obj.Generation {
			return fmt.Errorf("OS %s, Ready is %+v; want 1.0.0 put back", obj.Spec.OS.Version, ready)
		}
		if obj.Status.Counts.Staged > 0 || obj.Status.Counts.InFlight > 0 {
			t.Errorf("counts are %+v, want that nothing began", obj.Status.Counts)
		}
		return nil
	})
	for name := range w.Hosts {
		runs(t, w, name, "1.0.0")
	}
}

// testPauses pauses the pool and holds a host with the command line.
func testPauses(t *testing.T, w *env.Env, version string) {
	_, err := w.Lockstep(t.Context(), "pause", "nodeos/workers", "--reason", "maintenance of the network")
	must(t, err)
	_, err = w.Lockstep(t.Context(), "pause", "host/node-1", "--reason", "a disk is replaced")
	must(t, err)
	declarePool(t, w, version)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionPaused)
		if obj.Spec.OS.Version != version || c == nil || c.Status != "True" || c.ObservedGeneration != obj.Generation || !strings.Contains(c.Message, "maintenance of the network") {
			return fmt.Errorf("Paused is %+v at OS %s, want True with its reason", c, obj.Spec.OS.Version)
		}
		return nil
	})
	runs(t, w, "node-1", "1.0.0")
	runs(t, w, "node-2", "1.0.0")
	_, err = w.Lockstep(t.Context(), "resume", "nodeos/workers")
	must(t, err)
	waitHost(t, w, "node-2", version)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		if obj.Status.Counts.Updated != 1 || obj.Status.Counts.Held != 1 || obj.Status.Counts.InFlight != 0 {
			return fmt.Errorf("counts are %+v, want one updated and one held", obj.Status.Counts)
		}
		return nil
	})
	runs(t, w, "node-1", "1.0.0")
	_, err = w.Lockstep(t.Context(), "resume", "host/node-1")
	must(t, err)
	finished(t, w, version)
}

// testExternalCordon cordons a node as an admin before a rollout that could
// take both hosts at the same time.
func testExternalCordon(t *testing.T, w *env.Env, version string) {
	node := &corev1.Node{}
	node.Name = "node-1"
	cordon := func(on bool) {
		patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
		must(t, w.Client.Patch(t.Context(), node, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
	}
	before, err := w.Booted(t.Context(), "node-1")
	must(t, err)
	cordon(true)
	declarePool(t, w, version, bothAtOnce...)
	waitHost(t, w, "node-2", version)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		if obj.Status.Counts.Updated != 1 || obj.Status.Counts.InFlight != 0 {
			return fmt.Errorf("counts are %+v, want one updated", obj.Status.Counts)
		}
		return nil
	})
	runs(t, w, "node-1", before)
	must(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	if !node.Spec.Unschedulable || node.Annotations[v1alpha1.AnnotationCordonedBy] != "" {
		t.Errorf("node-1: unschedulable %t, annotations %v; want the admin's cordon as it was", node.Spec.Unschedulable, node.Annotations)
	}
	cordon(false)
	finished(t, w, version)
}

// testAgentAway powers off the host that isn't in flight: the one in flight
// finishes; the other one is reported with its address and awaited.
func testAgentAway(t *testing.T, w *env.Env, version string) {
	check := watchBudget(t, w, 2) // the one in flight, and the one without power
	declarePool(t, w, version)
	var flying string
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		if len(obj.Status.InFlight) != 1 {
			return fmt.Errorf("in flight are %+v, want one", obj.Status.InFlight)
		}
		flying = obj.Status.InFlight[0].Host
		return nil
	})
	other := "node-1"
	if flying == other {
		other = "node-2"
	}
	must(t, w.PowerOff(other))
	waitHost(t, w, flying, version)
	host := &v1alpha1.Host{}
	host.Namespace, host.Name = v1alpha1.Namespace, other
	contains(t, waitCondition(t, w, host, v1alpha1.ConditionAgentReachable, "False", "Unreachable"), w.Hosts[other].Address)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if obj.Status.Counts.Updated != 1 || obj.Status.Counts.InFlight != 0 || ready == nil || ready.Status != "False" {
			return fmt.Errorf("counts are %+v, Ready is %+v", obj.Status.Counts, ready)
		}
		return nil
	})
	must(t, w.PowerOn(other))
	finished(t, w, version)
	check()
}

// testTwoLeaders freezes the leader while a host is out of service: the other
// process takes over and completes the rollout. The first one must not act
// after it is resumed.
func testTwoLeaders(t *testing.T, w *env.Env, version string) {
	second, err := w.StartSecondReconciler()
	must(t, err)
	defer func() { _ = second.Stop(10 * time.Second) }()
	check := watchBudget(t, w, 1)
	declarePool(t, w, version)
	waitPool(t, w, func(obj *v1alpha1.NodeOS) error {
		for _, f := range obj.Status.InFlight {
			if slices.Contains([]string{"Draining", "Drained", "Rebooting", "Verifying"}, f.State) {
				return nil
			}
		}
		return fmt.Errorf("in flight are %+v, want one out of service", obj.Status.InFlight)
	})
	was := leader(t, w)
	must(t, w.Reconciler.Signal(syscall.SIGSTOP))
	must(t, env.Wait(t.Context(), 40*time.Second, func(context.Context) error {
		if now := leader(t, w); now == was || now == "" {
			return fmt.Errorf("the lease is held by %q still", now)
		}
		return nil
	}))
	must(t, w.Reconciler.Signal(syscall.SIGCONT))
	select {
	case <-w.Reconciler.Done():
	case <-time.After(30 * time.Second):
		t.Error("the leader that lost its lease goes on running, want it to end")
	}
	finished(t, w, version)
	check()
	if now := leader(t, w); now == was {
		t.Errorf("%s leads again", now)
	}
}

// leader returns the holder of the reconciler's lease.
func leader(t *testing.T, w *env.Env) string {
	t.Helper()
	var list coordinationv1.LeaseList
	must(t, w.Client.List(t.Context(), &list, client.InNamespace(v1alpha1.Namespace)))
	for i := range list.Items {
		if h := list.Items[i].Spec.HolderIdentity; h != nil && *h != "" {
			return *h
		}
	}
	return ""
}
