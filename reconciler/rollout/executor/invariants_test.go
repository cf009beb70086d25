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

func newWorld(hosts, maxUnavailable int) *world {
	w := &world{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), nodes: map[string]*simNode{}, bad: map[string]bool{}, missing: true}
	limit := intstr.FromInt(maxUnavailable)
	w.pool = &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers", UID: simPool, Generation: 1, Annotations: map[string]string{}}}
	w.pool.Spec.All = true
	w.pool.Spec.Drain.Mode = "Evict"
	w.pool.Spec.Strategy.MaxUnavailable = &limit
	w.pool.Spec.Gates.Timeout.Duration, w.pool.Spec.Gates.Soak.Duration = 15*time.Minute, time.Minute
	w.pool.Spec.Drain.Timeout.Duration = 15 * time.Minute
	w.pool.Spec.BootDeadline.Duration, w.pool.Spec.CommitDeadline.Duration = 10*time.Minute, 30*time.Minute
	w.setTarget(1)
	for i := range hosts {
		w.addNode(fmt.Sprintf("node-%02d", i), 1)
	}
	return w
}

// pass runs one pass; it returns false if the leader crashed in it.
func pass(ctx context.Context, w *world, e *Executor) (alive bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			alive, err = false, nil
		}
	}()
	_, err = e.Sync(ctx, Pool{NodeOS: w.pool.DeepCopy(), Product: "os"})
	return true, err
}

// TestTheLastLookBeforeAStepDecides changes the world between the plan and its
// steps: someone takes the cordon off when the order to boot is about to go.
func TestTheLastLookBeforeAStepDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(2, 1)
	w.setTarget(2)
	e := w.executor("leader")
	if err := e.Lead(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	interfered := false
	w.fault = func(call string) fault {
		for uid, s := range w.doc.Slots {
			if n := w.nodes[s.Node]; call == "node" && s.State == ledger.Rebooting && n.UID == uid {
				n.Unschedulable, interfered = false, true
			}
		}
		return faultNone
	}
	for range 60 {
		if _, err := pass(t.Context(), w, e); err != nil {
			t.Fatal(err)
		}
		w.tick(5 * time.Second)
	}
	if !interfered {
		t.Fatal("no host came as far as the order")
	}
	for name, n := range w.nodes {
		if len(n.activated) > 0 {
			t.Errorf("%s was activated though its cordon was taken off", name)
		}
	}
	if len(w.violated) > 0 {
		t.Errorf("violated: %v", w.violated)
	}
}

// leaders are two processes that both believe to lead.
type leaders struct {
	w    *world
	two  [2]*Executor
	next int
}

func (l *leaders) restart(ctx context.Context, i int) {
	l.next++
	l.two[i] = l.w.executor(fmt.Sprintf("leader-%d", l.next))
	var reported []uint64
	for _, n := range l.w.nodes {
		reported = append(reported, n.fence)
	}
	fault := l.w.fault
	l.w.fault = nil
	_ = l.two[i].Lead(ctx, reported)
	l.w.fault = fault
}

func (l *leaders) pass(ctx context.Context, t *rapid.T, i int) {
	alive, err := pass(ctx, l.w, l.two[i])
	switch {
	case !alive:
		l.restart(ctx, i)
	case errors.Is(err, ledger.ErrSuperseded), errors.Is(err, errLost), errors.Is(err, ledger.ErrConflict), err == nil:
	default:
		t.Fatalf("a pass failed: %v", err)
	}
}

// TestNoFaultBreaksAnInvariant lets two leaders work on a fleet while they
// crash, messages are lost and doubled, people change the pool and nodes come
// and go. What may never happen is checked in sim_test.go where it would.
func TestNoFaultBreaksAnInvariant(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 6).Draw(t, "hosts"), rapid.IntRange(0, 3).Draw(t, "maxUnavailable"))
		w.bad[simDigest(3)] = true
		l := &leaders{w: w}
		l.restart(ctx, 0)
		l.restart(ctx, 1)
		w.setTarget(2)
		var saved *world
		depth := 0
		active := 0
		calm := rapid.SampledFrom([]int{10, 40, 300}).Draw(t, "calm")
		w.fault = func(call string) fault {
			k := rapid.IntRange(0, calm).Draw(t, call)
			if fault(k) == faultOther && depth > 0 || k > int(faultOther) {
				return faultNone
			}
			return fault(k)
		}
		w.other = func() {
			depth++
			mine := active
			active = 1 - active
			l.pass(ctx, t, active)
			active = mine
			depth--
		}
		steps := rapid.IntRange(10, 120).Draw(t, "steps")
		for range steps {
			disturb(ctx, t, w, l, &saved, &active)
			if len(w.violated) > 0 {
				t.Fatalf("violated: %v", w.violated)
			}
		}
		settle(ctx, t, w, l)
	})
}

// disturb does one thing of many.
func disturb(ctx context.Context, t *rapid.T, w *world, l *leaders, saved **world, active *int) {
	node := func() *simNode {
		names := slices.Sorted(maps.Keys(w.nodes))
		return w.nodes[names[rapid.IntRange(0, len(names)-1).Draw(t, "node")]]
	}
	switch what := rapid.IntRange(0, 30).Draw(t, "what"); what {
	default:
		*active = what % 2
		l.pass(ctx, t, *active)
	case 16, 17, 18, 19:
		w.tick(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
	case 20:
		limit := intstr.FromInt(rapid.IntRange(0, 3).Draw(t, "maxUnavailable"))
		w.pool.Spec.Strategy.MaxUnavailable = &limit
		w.pool.Generation++
	case 21:
		w.setTarget(rapid.IntRange(1, 4).Draw(t, "target"))
	case 22:
		if n := node(); !n.Unschedulable {
			n.Unschedulable, n.foreign, n.CordonedBy = true, true, ""
		}
	case 23:
		if n := node(); n.foreign {
			n.Unschedulable, n.foreign = false, false
		}
	case 24:
		if n := node(); !n.down {
			n.Ready, n.ReadySince = !n.Ready, w.now
		}
	case 25:
		n := node()
		delete(w.nodes, n.Name)
		w.addNode(n.Name, 1)
	case 26:
		w.pool.Annotations[v1alpha1.AnnotationPaused] = "by a test"
	case 27:
		delete(w.pool.Annotations, v1alpha1.AnnotationPaused)
		w.pool.Annotations[v1alpha1.AnnotationResume] = "all"
	case 28:
		l.restart(ctx, rapid.IntRange(0, 1).Draw(t, "leader"))
		delete(w.pool.Annotations, v1alpha1.AnnotationResume)
	case 29:
		w.backup(saved)
	case 30:
		w.restore(*saved)
	}
}

// backup keeps what etcd holds; restore brings it back, or loses the ledger
// where nothing was kept. It happens once in a run: after two such losses an
// agent may have forgotten the attempt that cordoned its node, and a person
// must uncordon it.
func (w *world) backup(saved **world) {
	kept := &world{doc: w.doc.Clone(), missing: w.missing, nodes: map[string]*simNode{}}
	for name, n := range w.nodes {
		kept.nodes[name] = &simNode{Node: n.Node, foreign: n.foreign}
	}
	*saved = kept
}

func (w *world) restore(saved *world) {
	if w.restored {
		return
	}
	w.restored = true
	w.version++
	if saved == nil {
		w.doc, w.missing = ledger.Document{}, true
		return
	}
	w.doc, w.missing = saved.doc.Clone(), saved.missing
	for name, n := range w.nodes {
		if old := saved.nodes[name]; old != nil && n.UID == old.UID {
			n.Unschedulable, n.CordonedBy, n.foreign = old.Unschedulable, old.CordonedBy, old.foreign
			continue
		}
		// etcd doesn't know this Node: the kubelet registers it anew.
		n.UID, n.Unschedulable, n.CordonedBy, n.foreign = w.id("uid"), false, "", false
	}
}

// settle takes all disturbance away: the pool must then reach its target.
func settle(ctx context.Context, t *rapid.T, w *world, l *leaders) {
	w.fault = nil
	w.setTarget(5)
	one := intstr.FromInt(1)
	w.pool.Spec.Strategy.MaxUnavailable = &one
	delete(w.pool.Annotations, v1alpha1.AnnotationPaused)
	for _, n := range w.nodes {
		if n.foreign || n.Unschedulable && n.CordonedBy == "" {
			n.Unschedulable, n.foreign = false, false
		}
		if !n.down {
			n.Ready = true
		}
	}
	l.restart(ctx, 0)
	for i := range 3000 {
		if i%200 == 0 {
			w.pool.Annotations[v1alpha1.AnnotationResume] = "all"
			w.pool.Annotations[v1alpha1.AnnotationRerun] = strconv.Itoa(i)
		} else if i%200 == 100 {
			delete(w.pool.Annotations, v1alpha1.AnnotationResume)
		}
		l.pass(ctx, t, 0)
		w.tick(20 * time.Second)
		if len(w.violated) > 0 {
			t.Fatalf("violated while settling: %v", w.violated)
		}
		if w.settled() {
			return
		}
	}
	r, err := l.two[0].Sync(ctx, Pool{NodeOS: w.pool.DeepCopy(), Product: "os"})
	t.Fatalf("the pool never reaches its target: err=%v\nslots %+v\nwaiting %+v\nconditions %+v\nnodes %v", err, w.doc.Slots, r.Decision.Waiting, r.Decision.Status.Conditions, w.describe())
}

func (w *world) settled() bool {
	for _, n := range w.nodes {
		if n.facts.Booted.Digest != simDigest(5) || n.Unschedulable || !n.facts.Booted.Confirmed {
			return false
		}
	}
	return len(w.doc.Slots) == 0
}

func (w *world) describe() string {
	out := ""
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		out += fmt.Sprintf("\n%s uid=%s ready=%v cordon=%v by=%q foreign=%v pods=%d down=%v booted=%s/%v trial=%+v op=%+v last=%+v denied=%v",
			name, n.UID, n.Ready, n.Unschedulable, n.CordonedBy, n.foreign, n.pods, n.down, n.facts.Booted.Version, n.facts.Booted.Confirmed, n.facts.Trial, n.facts.Operation, n.facts.Last, n.facts.Denied)
	}
	return out
}
