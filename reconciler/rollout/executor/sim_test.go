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

// This file simulates a cluster and its hosts for the property tests. Every call
// of an executor passes simulation.call, where a test may crash the leader, lose
// the response, repeat the request or run the other leader. Each write and order
// checks the invariants that it could violate.

const (
	simClusterUID = "cluster-uid"
	simPool       = "pool-uid"
	simRepo       = "registry.example.com/os"
)

func simDigest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// crash is the panic that ends a leader during Sync.
type crash struct{}

// errLost is a lost request or response.
var errLost = errors.New("message lost")

// fault is the fault of one call.
type fault int

const (
	faultNone fault = iota
	faultBefore
	faultAfter
	faultCrashBefore
	faultCrashAfter
	faultTwice
	faultOther // the other leader runs a Sync first
)

type simNode struct {
	rollout.Node
	externalCordon bool // cordoned by an administrator
	pods           int
	facts          nodeos.HostFacts
	down           bool // rebooting
	hostID         string
	pending        []func() // the host's actions, one per tick
	stuck          bool     // the host never finishes its reboot
	// activated counts the boots of a new image, by operation ID.
	activated map[string]int
	fence     uint64
}

// simulation is the state of the cluster and its hosts.
type simulation struct {
	now        time.Time
	nodes      map[string]*simNode // by name
	doc        ledger.Document
	missing    bool
	version    int
	bad        map[string]bool // digests that fail their checks
	pool       *v1alpha1.NodeOS
	fault      func(call string) fault
	other      func()
	violations []string
	restored   bool
	// firmware makes every bad image fall back; otherwise some boot and fail
	// only the gates.
	firmware bool
	serial   int
}

func (sim *simulation) addViolation(format string, args ...any) {
	sim.violations = append(sim.violations, fmt.Sprintf(format, args...))
}

func (sim *simulation) id(prefix string) string {
	sim.serial++
	return fmt.Sprintf("%s-%d", prefix, sim.serial)
}

// call runs f with the fault that the test chooses.
func (sim *simulation) call(name string, f func() error) error {
	kind := faultNone
	if sim.fault != nil {
		kind = sim.fault(name)
	}
	switch kind {
	case faultBefore:
		return errLost
	case faultCrashBefore:
		panic(crash{})
	case faultOther:
		sim.other()
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

// simMaps is the ledger's ConfigMap, for the real Store.
type simMaps struct{ sim *simulation }

func (m simMaps) Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error) {
	var out *corev1.ConfigMap
	err := m.sim.call("load", func() error {
		if m.sim.missing {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), ledger.Name)
		}
		raw, err := ledger.Encode(m.sim.doc)
		if err != nil {
			return err
		}
		out = &corev1.ConfigMap{Data: map[string]string{ledger.Key: string(raw)}}
		out.ResourceVersion = strconv.Itoa(m.sim.version)
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
	err := m.sim.call("swap", func() error {
		if rv := cm.ResourceVersion; create != m.sim.missing || rv != "" && rv != strconv.Itoa(m.sim.version) {
			return apierrors.NewConflict(corev1.Resource("configmaps"), ledger.Name, errors.New("changed"))
		}
		decoded, err := ledger.Decode([]byte(cm.Data[ledger.Key]))
		if err != nil {
			return err
		}
		m.sim.checkClaims(m.sim.doc, decoded)
		m.sim.doc, m.sim.missing = decoded, false
		m.sim.version++
		out = cm.DeepCopy()
		out.ResourceVersion = strconv.Itoa(m.sim.version)
		return nil
	})
	return out, err
}

// checkClaims checks that claims never exceed maxUnavailable, that a slot is freed
// before another attempt claims it, and that it is freed only after the uncordon
// and the trial. Hosts that are unavailable for any reason count.
func (sim *simulation) checkClaims(before, after ledger.Document) {
	claimed := 0
	for uid, s := range after.Slots {
		old, had := before.Slots[uid]
		if had && old.Attempt != s.Attempt && s.State == ledger.Claimed {
			sim.addViolation("the slot of %s went from attempt %s to %s without being freed", s.Node, old.Attempt, s.Attempt)
		}
		if !had && s.State == ledger.Claimed { // an adopted slot has a later state
			claimed++
		}
	}
	for uid, s := range before.Slots {
		if _, still := after.Slots[uid]; still {
			continue
		}
		if n := sim.nodes[s.Node]; n != nil && n.UID == uid && n.CordonedBy == s.Owner() {
			sim.addViolation("the slot of %s was freed before the uncordon (%s)", s.Node, s.Owner())
		}
		if n := sim.nodes[s.Node]; n != nil && n.UID == uid && n.facts.Trial != nil && strings.HasPrefix(n.facts.Trial.OperationID, s.Attempt) {
			sim.addViolation("the slot of %s (%s) was freed during its trial", s.Node, s.State)
		}
	}
	if claimed == 0 {
		return
	}
	unavailable := map[string]bool{}
	for _, s := range after.Slots {
		unavailable[s.Node] = true
	}
	for name, n := range sim.nodes {
		if !n.Ready || n.Unschedulable {
			unavailable[name] = true
		}
	}
	limit := int(sim.pool.Spec.Strategy.MaxUnavailable.IntVal)
	if len(unavailable) > limit {
		sim.addViolation("%d claims make %d hosts unavailable (%v), the limit is %d", claimed, len(unavailable), slices.Sorted(maps.Keys(unavailable)), limit)
	}
}

// --- cluster

type simFacts struct{ sim *simulation }

func (s simFacts) Observe(_ context.Context, _ *v1alpha1.NodeOS, _ map[string]ledger.Slot) (Observation, error) {
	out := Observation{HostIDs: map[string]string{}, ClusterNodes: len(s.sim.nodes)}
	err := s.sim.call("observe", func() error {
		for _, name := range slices.Sorted(maps.Keys(s.sim.nodes)) {
			n := s.sim.nodes[name]
			out.Members = append(out.Members, rollout.Member{Node: n.Node, Selected: true})
			out.HostIDs[n.UID] = n.hostID
		}
		return nil
	})
	return out, err
}

func (s simFacts) Node(_ context.Context, name string) (rollout.Node, error) {
	var out rollout.Node
	err := s.sim.call("node", func() error {
		n := s.sim.nodes[name]
		if n == nil {
			return errors.New("no such node")
		}
		out = n.Node
		return nil
	})
	return out, err
}

func (s simFacts) Health(_ context.Context, slot ledger.Slot, f *nodeos.HostFacts, _ *gate.Checks) rollout.Health {
	n := s.sim.nodes[slot.Node]
	if n == nil || !n.Ready || n.BootID != f.BootID || s.sim.bad[f.Booted.Digest] {
		return rollout.Health{Observed: true, Blocking: "unhealthy"}
	}
	return rollout.Health{Observed: true, OK: true}
}

type simCordoner struct{ sim *simulation }

func (c simCordoner) Cordon(_ context.Context, name, uid, owner string) error {
	return c.sim.call("cordon", func() error {
		n := c.sim.nodes[name]
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
	return c.sim.call("uncordon", func() error {
		n := c.sim.nodes[name]
		if n == nil || n.UID != uid || n.CordonedBy != owner {
			return nil
		}
		if n.externalCordon {
			c.sim.addViolation("%s uncordons %s, which an administrator cordoned", owner, name)
		}
		n.Unschedulable, n.CordonedBy, n.pods = false, "", 2
		return nil
	})
}

type simEvictor struct{ sim *simulation }

func (e simEvictor) Inspect(_ context.Context, r drain.Request, _ time.Time) (drain.Report, error) {
	var out drain.Report
	err := e.sim.call("inspect", func() error {
		if n := e.sim.nodes[r.Node]; n != nil {
			out.Remaining = n.pods
		}
		return nil
	})
	return out, err
}

func (e simEvictor) Round(_ context.Context, r drain.Request, _ time.Time) (drain.Report, error) {
	var out drain.Report
	err := e.sim.call("evict", func() error {
		n := e.sim.nodes[r.Node]
		if n == nil || n.pods == 0 {
			return nil
		}
		if n.externalCordon && n.CordonedBy == "" {
			e.sim.addViolation("%s is drained although an administrator cordoned it", r.Node)
		}
		n.pods--
		out.Remaining = n.pods
		return nil
	})
	return out, err
}

// --- agents

type simAgents struct{ sim *simulation }

func (a simAgents) find(hostID string) *simNode {
	for _, n := range a.sim.nodes {
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
	err := a.sim.call("facts", func() error {
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
		t.FromBootID = "" // not part of the protocol
		f.Trial = &t
	}
	if f.Operation != nil {
		o := *f.Operation
		f.Operation = &o
	}
	return f
}

// fencedError is the agent's error for a lower fence.
type fencedError struct{ fence nodeos.Fence }

func (e fencedError) Error() string        { return fmt.Sprintf("the fence is %d", e.fence.Epoch) }
func (e fencedError) Stored() nodeos.Fence { return e.fence }

func (a simAgents) Order(_ context.Context, hostID string, o Order) error {
	return a.sim.call(strings.ToLower(string(o.Kind)), func() error {
		n := a.find(hostID)
		if n == nil || n.down {
			return errors.New("unreachable")
		}
		if o.Fence.Epoch < n.fence {
			return fencedError{nodeos.Fence{ClusterUID: simClusterUID, Epoch: n.fence}}
		}
		if err := a.sim.handleOrder(n, o); err != nil {
			return err
		}
		n.fence = o.Fence.Epoch
		return nil
	})
}

// handleOrder is the agent's handling of an order.
func (sim *simulation) handleOrder(n *simNode, o Order) error {
	switch o.Kind {
	case rollout.StepStage:
		return sim.handleStage(n, o)
	case rollout.StepActivate:
		return sim.handleActivate(n, o)
	case rollout.StepCommit:
		t := n.facts.Trial
		if t == nil || t.OperationID != o.OperationID {
			return nil // already ended or never started
		}
		if n.facts.Booted.Digest != o.Digest {
			return errors.New("another image runs")
		}
		sim.commit(n)
		return nil
	case rollout.StepRollback:
		t := n.facts.Trial
		if t == nil || t.OperationID != o.OperationID {
			return errors.New("no such trial")
		}
		n.pending = append(n.pending, func() {
			if n.facts.Trial != nil && n.facts.Trial.OperationID == o.OperationID {
				sim.rollBack(n)
			}
		})
		return nil
	default:
		return fmt.Errorf("order %s", o.Kind)
	}
}

func (sim *simulation) handleStage(n *simNode, o Order) error {
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

func (sim *simulation) handleActivate(n *simNode, o Order) error {
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
	sim.checkActivation(n, o)
	n.activated[o.OperationID]++
	n.facts.Operation = &nodeos.OperationStatus{ID: o.OperationID, Attempt: o.Attempt, Sequence: nodeos.SequenceUpgrade, State: nodeos.OperationRebooting}
	n.facts.Trial = &nodeos.Trial{
		OperationID: o.OperationID, Image: o.Image, From: n.facts.Booted, FromBootID: n.facts.BootID,
		ArmedAt: sim.now, Deadline: sim.now.Add(o.CommitDeadline), OnDeadline: o.OnDeadline,
	}
	n.pending = append(n.pending, func() { n.down, n.Ready, n.ReadySince = true, false, sim.now }, func() { sim.bootTarget(n) })
	return nil
}

// checkActivation checks that a host is activated only with a slot and a cordon of
// the attempt, drained, once per attempt and with the highest fence.
func (sim *simulation) checkActivation(n *simNode, o Order) {
	s, ok := sim.doc.Slots[n.UID]
	switch {
	case !ok:
		sim.addViolation("%s is activated without a slot", n.Name)
	case s.Attempt != o.Attempt:
		sim.addViolation("%s is activated for %s, its slot is %s", n.Name, o.Attempt, s.Attempt)
	case !n.Unschedulable || n.CordonedBy != s.Owner():
		sim.addViolation("%s is activated although its cordon is %q, not %q", n.Name, n.CordonedBy, s.Owner())
	case n.pods > 0:
		sim.addViolation("%s is activated with %d pods on it", n.Name, n.pods)
	}
	for id, times := range n.activated {
		if strings.HasPrefix(id, o.Attempt) && times > 0 {
			sim.addViolation("%s is activated twice for %s", n.Name, o.Attempt)
		}
	}
	if o.Fence.Epoch < n.fence {
		sim.addViolation("%s accepts epoch %d after %d", n.Name, o.Fence.Epoch, n.fence)
	}
}

func (sim *simulation) boot(n *simNode, slot int) {
	s := n.facts.Slots[slot]
	n.facts.BootID = sim.id("boot")
	n.facts.Booted = nodeos.Booted{Slot: s.Name, Version: s.Image.Version, Digest: s.Image.Ref.Digest, Confirmed: s.State == nodeos.SlotGood}
	n.down, n.BootID, n.Ready, n.ReadySince = false, n.facts.BootID, true, sim.now
}

func (sim *simulation) bootTarget(n *simNode) {
	i := n.inactive()
	if n.stuck {
		return
	}
	if sim.bad[n.facts.Slots[i].Image.Ref.Digest] && (sim.firmware || sim.serial%2 == 0) {
		sim.rollBack(n)
		return
	}
	n.facts.Slots[i].State = nodeos.SlotTrying
	sim.boot(n, i)
	if t := n.facts.Trial; t != nil {
		t.BootID, t.Boots = n.facts.BootID, t.Boots+1
		n.facts.Operation.State = nodeos.OperationOnTrial
	}
}

// rollBack boots the previous image and denies the digest of the trial.
func (sim *simulation) rollBack(n *simNode) {
	t := n.facts.Trial
	old := slices.IndexFunc(n.facts.Slots, func(s nodeos.Slot) bool { return s.Name == t.From.Slot })
	n.facts.Slots[1-old].State = nodeos.SlotBad
	n.facts.Denied = append(n.facts.Denied, nodeos.Denial{Digest: t.Image.Ref.Digest, Why: "rolled back", At: sim.now, OperationID: t.OperationID})
	n.facts.Trial = nil
	if op := n.facts.Operation; op != nil {
		op.State, n.facts.Last, n.facts.Operation = nodeos.OperationRolledBack, op, nil
	}
	n.pending = nil
	sim.boot(n, old)
}

func (sim *simulation) commit(n *simNode) {
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

// tick advances the time, runs one action per host and expires commit deadlines.
func (sim *simulation) tick(d time.Duration) {
	sim.now = sim.now.Add(d)
	for _, name := range slices.Sorted(maps.Keys(sim.nodes)) {
		n := sim.nodes[name]
		if len(n.pending) > 0 {
			next := n.pending[0]
			n.pending = n.pending[1:]
			next()
		}
		if t := n.facts.Trial; t != nil && t.BootID != "" && !n.down && sim.now.After(t.Deadline) && t.OnDeadline == nodeos.DeadlineRollback {
			sim.rollBack(n)
		}
	}
}

func (sim *simulation) addNode(name string, digest int) *simNode {
	n := &simNode{
		Node: rollout.Node{Name: name, UID: sim.id("uid"), Created: sim.now, Ready: true, ReadySince: sim.now},
		pods: 2, hostID: sim.id("host"), activated: map[string]int{},
	}
	img := nodeos.Image{Ref: nodeos.ImageRef{Repository: simRepo, Digest: simDigest(digest)}, Version: fmt.Sprintf("%d.0.0", digest)}
	n.facts = nodeos.HostFacts{HostID: n.hostID, NodeName: name}
	n.facts.Slots = []nodeos.Slot{{Name: "A", State: nodeos.SlotGood, Image: img}, {Name: "B", State: nodeos.SlotEmpty}}
	sim.nodes[name] = n
	sim.boot(n, 0)
	return n
}

func (sim *simulation) setTarget(n int) {
	sim.pool.Spec.OS = v1alpha1.OSImage{Version: fmt.Sprintf("%d.0.0", n), Image: simRepo + "@" + simDigest(n)}
	sim.pool.Generation++
}

func (sim *simulation) executor(holder string) *Executor {
	return &Executor{lastErrors: map[string]string{}, cfg: Config{
		Ledger: ledger.NewStore(simMaps{sim}), Facts: simFacts{sim}, Agents: simAgents{sim}, Cordoner: simCordoner{sim}, Evictor: simEvictor{sim},
		ClusterUID: simClusterUID, Holder: holder, Now: func() time.Time { return sim.now }, Workers: 1, Poll: defaultPoll,
	}}
}
