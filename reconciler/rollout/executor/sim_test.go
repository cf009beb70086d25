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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/gate"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
)

// This file simulates a cluster and its hosts for the property tests: every
// call of an executor goes through world.call, where a test may crash the
// leader, lose the answer, double the message or let the other leader run.
// What may never happen is checked at the moment at which it would.

const (
	simCluster = "cluster-uid"
	simPool    = "pool-uid"
	simRepo    = "registry.example.com/os"
)

func simDigest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// crash is what kills a leader in the middle of a pass.
type crash struct{}

// errLost is a message, or its answer, that got lost.
var errLost = errors.New("lost on the wire")

// fault is what happens to a call.
type fault int

const (
	faultNone fault = iota
	faultBefore
	faultAfter
	faultCrashBefore
	faultCrashAfter
	faultTwice
	faultOther // the other leader runs a whole pass first
)

type simNode struct {
	rollout.Node
	foreign bool // an administrator's cordon stands
	pods    int
	facts   nodeos.HostFacts
	down    bool // rebooting
	hostID  string
	pending []func() // what the host does at its next tick
	stuck   bool     // the host never comes back from its reboot
	// activated counts reboots into a new system, by attempt.
	activated map[string]int
	fence     uint64
}

// world is the truth.
type world struct {
	now      time.Time
	nodes    map[string]*simNode // by name
	doc      ledger.Document
	missing  bool
	version  int
	bad      map[string]bool // digests that don't pass their checks
	pool     *v1alpha1.NodeOS
	fault    func(call string) fault
	other    func()
	violated []string
	restored bool
	// firmware falls back from every bad system; else some of them boot and
	// only the gates find them bad.
	firmware bool
	serial   int
}

func (w *world) violation(format string, args ...any) {
	w.violated = append(w.violated, fmt.Sprintf(format, args...))
}

func (w *world) id(prefix string) string {
	w.serial++
	return fmt.Sprintf("%s-%d", prefix, w.serial)
}

// call runs f under whatever fault the test wants.
func (w *world) call(name string, f func() error) error {
	kind := faultNone
	if w.fault != nil {
		kind = w.fault(name)
	}
	switch kind {
	case faultBefore:
		return errLost
	case faultCrashBefore:
		panic(crash{})
	case faultOther:
		w.other()
	case faultTwice:
		_ = f()
	default:
	}
	err := f()
	switch kind {
	case faultAfter:
		return errLost
	case faultCrashAfter:
		panic(crash{})
	default:
		return err
	}
}

// --- ledger

// simMaps is the API server for the one ConfigMap, under the real Store.
type simMaps struct{ w *world }

func (m simMaps) Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error) {
	var out *corev1.ConfigMap
	err := m.w.call("load", func() error {
		if m.w.missing {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), ledger.Name)
		}
		raw, err := ledger.Encode(m.w.doc)
		if err != nil {
			return err
		}
		out = &corev1.ConfigMap{Data: map[string]string{ledger.Key: string(raw)}}
		out.ResourceVersion = strconv.Itoa(m.w.version)
		return nil
	})
	return out, err
}

func (m simMaps) Create(_ context.Context, cm *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return m.write(cm, true)
}

func (m simMaps) Update(_ context.Context, cm *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return m.write(cm, false)
}

func (m simMaps) write(cm *corev1.ConfigMap, create bool) (*corev1.ConfigMap, error) {
	var out *corev1.ConfigMap
	err := m.w.call("swap", func() error {
		if rv := cm.ResourceVersion; create != m.w.missing || rv != "" && rv != strconv.Itoa(m.w.version) {
			return apierrors.NewConflict(corev1.Resource("configmaps"), ledger.Name, errors.New("changed"))
		}
		decoded, err := ledger.Decode([]byte(cm.Data[ledger.Key]))
		if err != nil {
			return err
		}
		m.w.checkClaims(m.w.doc, decoded)
		m.w.doc, m.w.missing = decoded, false
		m.w.version++
		out = cm.DeepCopy()
		out.ResourceVersion = strconv.Itoa(m.w.version)
		return nil
	})
	return out, err
}

// checkClaims holds I1, I4 and I5: what a claim adds never exceeds the limit,
// counting whoever is away for whatever reason.
func (w *world) checkClaims(before, after ledger.Document) {
	claimed := 0
	for uid, s := range after.Slots {
		old, had := before.Slots[uid]
		if had && old.Attempt != s.Attempt && s.State == ledger.Claimed {
			w.violation("I4: the slot of %s went from attempt %s to %s without being freed", s.Node, old.Attempt, s.Attempt)
		}
		if !had && s.State == ledger.Claimed { // one that was adopted is further
			claimed++
		}
	}
	for uid, s := range before.Slots {
		if _, still := after.Slots[uid]; still {
			continue
		}
		if n := w.nodes[s.Node]; n != nil && n.UID == uid && n.CordonedBy == s.Owner() {
			w.violation("I5: the slot of %s was freed before its cordon (%s)", s.Node, s.Owner())
		}
		if n := w.nodes[s.Node]; n != nil && n.UID == uid && n.facts.Trial != nil && strings.HasPrefix(n.facts.Trial.OperationID, s.Attempt) {
			w.violation("I5: the slot of %s (%s) was freed while it's on trial", s.Node, s.State)
		}
	}
	if claimed == 0 {
		return
	}
	away := map[string]bool{}
	for _, s := range after.Slots {
		away[s.Node] = true
	}
	for name, n := range w.nodes {
		if !n.Ready || n.Unschedulable {
			away[name] = true
		}
	}
	limit := int(w.pool.Spec.Strategy.MaxUnavailable.IntVal)
	if len(away) > limit {
		w.violation("I1: %d claims make %d hosts unavailable (%v), %d may be", claimed, len(away), slices.Sorted(maps.Keys(away)), limit)
	}
}

// --- cluster

type simWorld struct{ w *world }

func (s simWorld) Observe(_ context.Context, _ *v1alpha1.NodeOS, _ map[string]ledger.Slot) (Observation, error) {
	out := Observation{HostIDs: map[string]string{}, ClusterNodes: len(s.w.nodes)}
	err := s.w.call("observe", func() error {
		for _, name := range slices.Sorted(maps.Keys(s.w.nodes)) {
			n := s.w.nodes[name]
			out.Members = append(out.Members, rollout.Member{Node: n.Node, Selected: true})
			out.HostIDs[n.UID] = n.hostID
		}
		return nil
	})
	return out, err
}

func (s simWorld) Node(_ context.Context, name string) (rollout.Node, error) {
	var out rollout.Node
	err := s.w.call("node", func() error {
		n := s.w.nodes[name]
		if n == nil {
			return errors.New("no such node")
		}
		out = n.Node
		return nil
	})
	return out, err
}

func (s simWorld) Health(_ context.Context, slot ledger.Slot, f *nodeos.HostFacts, _ *gate.Checks) rollout.Health {
	n := s.w.nodes[slot.Node]
	if n == nil || !n.Ready || n.BootID != f.BootID || s.w.bad[f.Booted.Digest] {
		return rollout.Health{Known: true, Blocking: "not well"}
	}
	return rollout.Health{Known: true, OK: true}
}

type simCordoner struct{ w *world }

func (c simCordoner) Cordon(_ context.Context, name, uid, owner string) error {
	return c.w.call("cordon", func() error {
		n := c.w.nodes[name]
		switch {
		case n == nil || n.UID != uid:
			return drain.ErrGone
		case n.Unschedulable && n.CordonedBy == owner:
			return nil
		case n.Unschedulable:
			return drain.ErrCordonedExternally
		}
		n.Unschedulable, n.CordonedBy = true, owner
		return nil
	})
}

func (c simCordoner) Uncordon(_ context.Context, name, uid, owner string) error {
	return c.w.call("uncordon", func() error {
		n := c.w.nodes[name]
		if n == nil || n.UID != uid || n.CordonedBy != owner {
			return nil
		}
		if n.foreign {
			c.w.violation("I2: %s uncordons %s, which an administrator cordoned", owner, name)
		}
		n.Unschedulable, n.CordonedBy, n.pods = false, "", 2
		return nil
	})
}

type simEvictor struct{ w *world }

func (e simEvictor) Inspect(_ context.Context, r drain.Request, _ time.Time) (drain.Report, error) {
	var out drain.Report
	err := e.w.call("inspect", func() error {
		if n := e.w.nodes[r.Node]; n != nil {
			out.Remaining = n.pods
		}
		return nil
	})
	return out, err
}

func (e simEvictor) Round(_ context.Context, r drain.Request, _ time.Time) (drain.Report, error) {
	var out drain.Report
	err := e.w.call("evict", func() error {
		n := e.w.nodes[r.Node]
		if n == nil || n.pods == 0 {
			return nil
		}
		if n.foreign && n.CordonedBy == "" {
			e.w.violation("I2: %s is drained though an administrator cordoned it", r.Node)
		}
		n.pods--
		out.Remaining = n.pods
		return nil
	})
	return out, err
}

// --- agents

type simAgents struct{ w *world }

func (a simAgents) find(hostID string) *simNode {
	for _, n := range a.w.nodes {
		if n.hostID == hostID {
			return n
		}
	}
	return nil
}

func (a simAgents) Observed(hostID string) rollout.Agent {
	n := a.find(hostID)
	if n == nil || n.down {
		return rollout.Agent{Problem: "unreachable"}
	}
	f := n.copyFacts()
	return rollout.Agent{Facts: &f}
}

func (a simAgents) Facts(_ context.Context, hostID string) (nodeos.HostFacts, error) {
	var out nodeos.HostFacts
	err := a.w.call("facts", func() error {
		n := a.find(hostID)
		if n == nil || n.down {
			return errors.New("unreachable")
		}
		out = n.copyFacts()
		return nil
	})
	return out, err
}

func (n *simNode) copyFacts() nodeos.HostFacts {
	f := n.facts
	f.Slots, f.Denied = slices.Clone(f.Slots), slices.Clone(f.Denied)
	if f.Trial != nil {
		t := *f.Trial
		t.FromBootID = "" // the wire doesn't carry it
		f.Trial = &t
	}
	if f.Operation != nil {
		o := *f.Operation
		f.Operation = &o
	}
	return f
}

// fencedError is an agent's refusal of a low fence.
type fencedError struct{ fence nodeos.Fence }

func (e fencedError) Error() string        { return fmt.Sprintf("the fence is %d by now", e.fence.Epoch) }
func (e fencedError) Stored() nodeos.Fence { return e.fence }

func (a simAgents) Order(_ context.Context, hostID string, o Order) error {
	return a.w.call(strings.ToLower(string(o.Kind)), func() error {
		n := a.find(hostID)
		if n == nil || n.down {
			return errors.New("unreachable")
		}
		if o.Fence.Epoch < n.fence {
			return fencedError{nodeos.Fence{ClusterUID: simCluster, Epoch: n.fence}}
		}
		if err := a.w.take(n, o); err != nil {
			return err
		}
		n.fence = o.Fence.Epoch
		return nil
	})
}

// take is what an agent does with an order.
func (w *world) take(n *simNode, o Order) error {
	switch o.Kind {
	case rollout.StepStage:
		return w.takeStage(n, o)
	case rollout.StepActivate:
		return w.takeActivate(n, o)
	case rollout.StepCommit:
		t := n.facts.Trial
		if t == nil || t.OperationID != o.OperationID {
			return nil // known and over, or never begun
		}
		if n.facts.Booted.Digest != o.Digest {
			return errors.New("another system runs")
		}
		w.commit(n)
		return nil
	case rollout.StepRollback:
		t := n.facts.Trial
		if t == nil || t.OperationID != o.OperationID {
			return errors.New("nothing of that name is on trial")
		}
		n.pending = append(n.pending, func() {
			if n.facts.Trial != nil && n.facts.Trial.OperationID == o.OperationID {
				w.goBack(n)
			}
		})
		return nil
	default:
		return fmt.Errorf("order %s", o.Kind)
	}
}

func (w *world) takeStage(n *simNode, o Order) error {
	if n.facts.Last != nil && n.facts.Last.ID == o.OperationID || n.facts.Operation != nil {
		return nil
	}
	n.facts.Operation = &nodeos.OperationStatus{ID: o.OperationID, Attempt: o.Attempt, Sequence: nodeos.SequenceStageUpgrade, State: nodeos.OperationRunning}
	n.pending = append(n.pending, func() {
		op := n.facts.Operation
		if op == nil || op.ID != o.OperationID {
			return
		}
		op.State, n.facts.Last, n.facts.Operation = nodeos.OperationSucceeded, op, nil
		i := n.inactive()
		n.facts.Slots[i] = nodeos.Slot{Name: n.facts.Slots[i].Name, State: nodeos.SlotStaged, Image: o.Image}
	})
	return nil
}

func (n *simNode) inactive() int {
	if n.facts.Booted.Slot == "A" {
		return 1
	}
	return 0
}

func (w *world) takeActivate(n *simNode, o Order) error {
	if n.activated[o.OperationID] > 0 {
		return nil // the same operation is the same run
	}
	slot := n.facts.Slots[n.inactive()]
	switch {
	case n.facts.Operation != nil || n.facts.Trial != nil:
		return errors.New("locked")
	case slot.State != nodeos.SlotStaged || slot.Image.Ref.Digest != o.Image.Ref.Digest:
		return errors.New("not staged")
	case slices.ContainsFunc(n.facts.Denied, func(d nodeos.Denial) bool { return d.Digest == o.Image.Ref.Digest }):
		return errors.New("denied")
	}
	w.checkActivation(n, o)
	n.activated[o.OperationID]++
	n.facts.Operation = &nodeos.OperationStatus{ID: o.OperationID, Attempt: o.Attempt, Sequence: nodeos.SequenceUpgrade, State: nodeos.OperationRebooting}
	n.facts.Trial = &nodeos.Trial{
		OperationID: o.OperationID, Image: o.Image, From: n.facts.Booted, FromBootID: n.facts.BootID,
		ArmedAt: w.now, Deadline: w.now.Add(o.CommitDeadline), OnDeadline: o.OnDeadline,
	}
	n.pending = append(n.pending, func() { n.down, n.Ready, n.ReadySince = true, false, w.now }, func() { w.bootTarget(n) })
	return nil
}

// checkActivation holds I2, I5, I6, I7 and I9 at the moment of no return.
func (w *world) checkActivation(n *simNode, o Order) {
	s, ok := w.doc.Slots[n.UID]
	switch {
	case !ok:
		w.violation("I5: %s is activated without a slot", n.Name)
	case s.Attempt != o.Attempt:
		w.violation("I4: %s is activated for %s, its slot is %s", n.Name, o.Attempt, s.Attempt)
	case !n.Unschedulable || n.CordonedBy != s.Owner():
		w.violation("I2: %s is activated though its cordon is %q, not %q", n.Name, n.CordonedBy, s.Owner())
	case n.pods > 0:
		w.violation("%s is activated with %d pods on it", n.Name, n.pods)
	}
	for id, times := range n.activated {
		if strings.HasPrefix(id, o.Attempt) && times > 0 {
			w.violation("I6: %s is activated twice for %s", n.Name, o.Attempt)
		}
	}
	if o.Fence.Epoch < n.fence {
		w.violation("I9: %s obeys epoch %d after %d", n.Name, o.Fence.Epoch, n.fence)
	}
}

func (w *world) boot(n *simNode, slot int) {
	s := n.facts.Slots[slot]
	n.facts.BootID = w.id("boot")
	n.facts.Booted = nodeos.Booted{Slot: s.Name, Version: s.Image.Version, Digest: s.Image.Ref.Digest, Confirmed: s.State == nodeos.SlotGood}
	n.down, n.BootID, n.Ready, n.ReadySince = false, n.facts.BootID, true, w.now
}

func (w *world) bootTarget(n *simNode) {
	i := n.inactive()
	if n.stuck {
		return
	}
	if w.bad[n.facts.Slots[i].Image.Ref.Digest] && (w.firmware || w.serial%2 == 0) {
		// The firmware gives up on it and falls back.
		w.goBack(n)
		return
	}
	n.facts.Slots[i].State = nodeos.SlotTrying
	w.boot(n, i)
	if t := n.facts.Trial; t != nil {
		t.BootID, t.Boots = n.facts.BootID, t.Boots+1
		n.facts.Operation.State = nodeos.OperationOnTrial
	}
}

// goBack boots what ran before the trial, and denies the trial's digest.
func (w *world) goBack(n *simNode) {
	t := n.facts.Trial
	old := slices.IndexFunc(n.facts.Slots, func(s nodeos.Slot) bool { return s.Name == t.From.Slot })
	n.facts.Slots[1-old].State = nodeos.SlotBad
	n.facts.Denied = append(n.facts.Denied, nodeos.Denial{Digest: t.Image.Ref.Digest, Why: "rolled back", At: w.now, OperationID: t.OperationID})
	n.facts.Trial = nil
	if op := n.facts.Operation; op != nil {
		op.State, n.facts.Last, n.facts.Operation = nodeos.OperationRolledBack, op, nil
	}
	n.pending = nil
	w.boot(n, old)
}

func (w *world) commit(n *simNode) {
	for i := range n.facts.Slots {
		if n.facts.Slots[i].Name == n.facts.Booted.Slot {
			n.facts.Slots[i].State = nodeos.SlotGood
		}
	}
	n.facts.Booted.Confirmed, n.facts.Trial = true, nil
	if op := n.facts.Operation; op != nil {
		op.State, n.facts.Last, n.facts.Operation = nodeos.OperationSucceeded, op, nil
	}
}

// tick lets time pass, hosts do one thing each, and dead men's timers run out.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[name]
		if len(n.pending) > 0 {
			next := n.pending[0]
			n.pending = n.pending[1:]
			next()
		}
		if t := n.facts.Trial; t != nil && t.BootID != "" && !n.down && w.now.After(t.Deadline) && t.OnDeadline == nodeos.DeadlineRollback {
			w.goBack(n)
		}
	}
}

func (w *world) addNode(name string, digest int) *simNode {
	n := &simNode{
		Node: rollout.Node{Name: name, UID: w.id("uid"), Created: w.now, Ready: true, ReadySince: w.now},
		pods: 2, hostID: w.id("host"), activated: map[string]int{},
	}
	img := nodeos.Image{Ref: nodeos.ImageRef{Repository: simRepo, Digest: simDigest(digest)}, Version: fmt.Sprintf("%d.0.0", digest)}
	n.facts = nodeos.HostFacts{HostID: n.hostID, NodeName: name}
	n.facts.Slots = []nodeos.Slot{{Name: "A", State: nodeos.SlotGood, Image: img}, {Name: "B", State: nodeos.SlotEmpty}}
	w.nodes[name] = n
	w.boot(n, 0)
	return n
}

func (w *world) setTarget(n int) {
	w.pool.Spec.OS = v1alpha1.OSImage{Version: fmt.Sprintf("%d.0.0", n), Image: simRepo + "@" + simDigest(n)}
	w.pool.Generation++
}

func (w *world) executor(holder string) *Executor {
	return &Executor{refused: map[string]string{}, cfg: Config{
		Ledger: ledger.NewStore(simMaps{w}), Facts: simWorld{w}, Agents: simAgents{w}, Cordoner: simCordoner{w}, Evictor: simEvictor{w},
		ClusterUID: simCluster, Holder: holder, Now: func() time.Time { return w.now }, Workers: 1, Poll: defaultPoll,
	}}
}
