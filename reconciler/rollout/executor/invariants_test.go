// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

func newSimulation(hosts, maxUnavailable int) *simulation {
	sim := &simulation{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), nodes: map[string]*simNode{}, bad: map[string]bool{}, missing: true}
	limit := intstr.FromInt(maxUnavailable)
	sim.pool = &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers", UID: simPool, Generation: 1, Annotations: map[string]string{}}}
	sim.pool.Spec.All = true
	sim.pool.Spec.Drain.Mode = "Evict"
	sim.pool.Spec.Strategy.MaxUnavailable = &limit
	sim.pool.Spec.Gates.Timeout.Duration, sim.pool.Spec.Gates.Soak.Duration = 15*time.Minute, time.Minute
	sim.pool.Spec.Drain.Timeout.Duration = 15 * time.Minute
	sim.pool.Spec.BootDeadline.Duration, sim.pool.Spec.CommitDeadline.Duration = 10*time.Minute, 30*time.Minute
	sim.setTarget(1)
	for i := range hosts {
		sim.addNode(fmt.Sprintf("node-%02d", i), 1)
	}
	return sim
}

// syncOnce runs one Sync; alive is false if the leader crashed.
func syncOnce(ctx context.Context, sim *simulation, e *Executor) (alive bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			alive, err = false, nil
		}
	}()
	_, err = e.Sync(ctx, Pool{NodeOS: sim.pool.DeepCopy(), Product: "os"})
	return true, err
}

// TestActivationRechecksTheCordon uncordons a node between the plan and the order
// to activate.
func TestActivationRechecksTheCordon(t *testing.T) {
	t.Parallel()
	sim := newSimulation(2, 1)
	sim.setTarget(2)
	e := sim.executor("leader")
	if err := e.Lead(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	interfered := false
	sim.fault = func(call string) fault {
		for uid, s := range sim.doc.Slots {
			if n := sim.nodes[s.Node]; call == "node" && s.State == ledger.Rebooting && n.UID == uid {
				n.Unschedulable, interfered = false, true
			}
		}
		return faultNone
	}
	for range 60 {
		if _, err := syncOnce(t.Context(), sim, e); err != nil {
			t.Fatal(err)
		}
		sim.tick(5 * time.Second)
	}
	if !interfered {
		t.Fatal("no host reached activation")
	}
	for name, n := range sim.nodes {
		if len(n.activated) > 0 {
			t.Errorf("%s was activated although it was uncordoned", name)
		}
	}
	if len(sim.violations) > 0 {
		t.Errorf("violations: %v", sim.violations)
	}
}

// leaders are two processes that both act as the leader.
type leaders struct {
	sim  *simulation
	two  [2]*Executor
	next int
}

func (l *leaders) restart(ctx context.Context, i int) {
	l.next++
	l.two[i] = l.sim.executor(fmt.Sprintf("leader-%d", l.next))
	var reported []uint64
	for _, n := range l.sim.nodes {
		reported = append(reported, n.fence)
	}
	fault := l.sim.fault
	l.sim.fault = nil
	_ = l.two[i].Lead(ctx, reported)
	l.sim.fault = fault
}

func (l *leaders) sync(ctx context.Context, t *rapid.T, i int) {
	alive, err := syncOnce(ctx, l.sim, l.two[i])
	switch {
	case !alive:
		l.restart(ctx, i)
	case errors.Is(err, ledger.ErrSuperseded), errors.Is(err, errLost), errors.Is(err, ledger.ErrConflict), err == nil:
	default:
		t.Fatalf("Sync failed: %v", err)
	}
}

// TestInvariantsHoldUnderFaults runs two leaders on one fleet while they crash,
// messages are lost or repeated, and users change the pool and its nodes. The
// simulation in sim_test.go checks the invariants.
func TestInvariantsHoldUnderFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		sim := newSimulation(rapid.IntRange(1, 6).Draw(t, "hosts"), rapid.IntRange(0, 3).Draw(t, "maxUnavailable"))
		sim.bad[simDigest(3)] = true
		l := &leaders{sim: sim}
		l.restart(ctx, 0)
		l.restart(ctx, 1)
		sim.setTarget(2)
		var saved *simulation
		depth := 0
		active := 0
		calm := rapid.SampledFrom([]int{10, 40, 300}).Draw(t, "calm")
		sim.fault = func(call string) fault {
			k := rapid.IntRange(0, calm).Draw(t, call)
			if fault(k) == faultOther && depth > 0 || k > int(faultOther) {
				return faultNone
			}
			return fault(k)
		}
		sim.other = func() {
			depth++
			mine := active
			active = 1 - active
			l.sync(ctx, t, active)
			active = mine
			depth--
		}
		steps := rapid.IntRange(10, 120).Draw(t, "steps")
		for range steps {
			disturb(ctx, t, sim, l, &saved, &active)
			if len(sim.violations) > 0 {
				t.Fatalf("violations: %v", sim.violations)
			}
		}
		converge(ctx, t, sim, l)
	})
}

// disturb performs one random event.
func disturb(ctx context.Context, t *rapid.T, sim *simulation, l *leaders, saved **simulation, active *int) {
	node := func() *simNode {
		names := slices.Sorted(maps.Keys(sim.nodes))
		return sim.nodes[names[rapid.IntRange(0, len(names)-1).Draw(t, "node")]]
	}
	switch what := rapid.IntRange(0, 30).Draw(t, "what"); what {
	default:
		*active = what % 2
		l.sync(ctx, t, *active)
	case 16, 17, 18, 19:
		sim.tick(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
	case 20:
		limit := intstr.FromInt(rapid.IntRange(0, 3).Draw(t, "maxUnavailable"))
		sim.pool.Spec.Strategy.MaxUnavailable = &limit
		sim.pool.Generation++
	case 21:
		sim.setTarget(rapid.IntRange(1, 4).Draw(t, "target"))
	case 22:
		if n := node(); !n.Unschedulable {
			n.Unschedulable, n.externalCordon, n.CordonedBy = true, true, ""
		}
	case 23:
		if n := node(); n.externalCordon {
			n.Unschedulable, n.externalCordon = false, false
		}
	case 24:
		if n := node(); !n.down {
			n.Ready, n.ReadySince = !n.Ready, sim.now
		}
	case 25:
		n := node()
		delete(sim.nodes, n.Name)
		sim.addNode(n.Name, 1)
	case 26:
		sim.pool.Annotations[v1alpha1.AnnotationPaused] = "by a test"
	case 27:
		delete(sim.pool.Annotations, v1alpha1.AnnotationPaused)
		sim.pool.Annotations[v1alpha1.AnnotationResume] = "all"
	case 28:
		l.restart(ctx, rapid.IntRange(0, 1).Draw(t, "leader"))
		delete(sim.pool.Annotations, v1alpha1.AnnotationResume)
	case 29:
		sim.backup(saved)
	case 30:
		sim.restore(*saved)
	}
}

// backup saves the content of etcd; restore restores it, or deletes the ledger if
// there is no backup. It happens once per run: after two restores an agent may no
// longer report the attempt that cordoned its node, so that an operator must
// uncordon it.
func (sim *simulation) backup(saved **simulation) {
	copied := &simulation{doc: sim.doc.Clone(), missing: sim.missing, nodes: map[string]*simNode{}}
	for name, n := range sim.nodes {
		copied.nodes[name] = &simNode{Node: n.Node, externalCordon: n.externalCordon}
	}
	*saved = copied
}

func (sim *simulation) restore(saved *simulation) {
	if sim.restored {
		return
	}
	sim.restored = true
	sim.version++
	if saved == nil {
		sim.doc, sim.missing = ledger.Document{}, true
		return
	}
	sim.doc, sim.missing = saved.doc.Clone(), saved.missing
	for name, n := range sim.nodes {
		if old := saved.nodes[name]; old != nil && n.UID == old.UID {
			n.Unschedulable, n.CordonedBy, n.externalCordon = old.Unschedulable, old.CordonedBy, old.externalCordon
			continue
		}
		// The backup doesn't contain this Node: the kubelet registers it again.
		n.UID, n.Unschedulable, n.CordonedBy, n.externalCordon = sim.id("uid"), false, "", false
	}
}

// converge stops all faults: the pool must then reach its target.
func converge(ctx context.Context, t *rapid.T, sim *simulation, l *leaders) {
	sim.fault = nil
	sim.setTarget(5)
	one := intstr.FromInt(1)
	sim.pool.Spec.Strategy.MaxUnavailable = &one
	delete(sim.pool.Annotations, v1alpha1.AnnotationPaused)
	for _, n := range sim.nodes {
		if n.externalCordon || n.Unschedulable && n.CordonedBy == "" {
			n.Unschedulable, n.externalCordon = false, false
		}
		if !n.down {
			n.Ready = true
		}
	}
	l.restart(ctx, 0)
	for i := range 3000 {
		if i%200 == 0 {
			sim.pool.Annotations[v1alpha1.AnnotationResume] = "all"
			sim.pool.Annotations[v1alpha1.AnnotationRerun] = strconv.Itoa(i)
		} else if i%200 == 100 {
			delete(sim.pool.Annotations, v1alpha1.AnnotationResume)
		}
		l.sync(ctx, t, 0)
		sim.tick(20 * time.Second)
		if len(sim.violations) > 0 {
			t.Fatalf("violations without faults: %v", sim.violations)
		}
		if sim.converged() {
			return
		}
	}
	r, err := l.two[0].Sync(ctx, Pool{NodeOS: sim.pool.DeepCopy(), Product: "os"})
	t.Fatalf("the pool doesn't reach its target: err=%v\nslots %+v\nwaiting %+v\nconditions %+v\nnodes %v", err, sim.doc.Slots, r.Decision.Waiting, r.Decision.Status.Conditions, sim.describe())
}

func (sim *simulation) converged() bool {
	for _, n := range sim.nodes {
		if n.facts.Booted.Digest != simDigest(5) || n.Unschedulable || !n.facts.Booted.Confirmed {
			return false
		}
	}
	return len(sim.doc.Slots) == 0
}

func (sim *simulation) describe() string {
	out := ""
	for _, name := range slices.Sorted(maps.Keys(sim.nodes)) {
		n := sim.nodes[name]
		out += fmt.Sprintf("\n%s uid=%s ready=%v cordon=%v by=%q externalCordon=%v pods=%d down=%v booted=%s/%v trial=%+v op=%+v last=%+v denied=%v",
			name, n.UID, n.Ready, n.Unschedulable, n.CordonedBy, n.externalCordon, n.pods, n.down, n.facts.Booted.Version, n.facts.Booted.Confirmed, n.facts.Trial, n.facts.Operation, n.facts.Last, n.facts.Denied)
	}
	return out
}
