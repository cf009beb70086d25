// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// TestScenarios runs the scripts of testdata: they set up a pool, its hosts and
// its ledger, and print the plan. Update the expected output with
// go test ./reconciler/rollout -run TestScenarios -rewrite, then read the diff.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		s := newScenario()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			return s.command(t, d)
		})
	})
}

// scenario is the state of one script.
type scenario struct {
	in  Input
	now time.Time
}

var digests = map[string]string{"1.0.0": "sha256:" + strings.Repeat("1", 64), "2.0.0": "sha256:" + strings.Repeat("2", 64), "3.0.0": "sha256:" + strings.Repeat("3", 64)}

func newScenario() *scenario {
	s := &scenario{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	s.in = Input{Epoch: 7, ClusterNodes: 10}
	s.in.Pool = Pool{
		UID: "pool", Name: "workers", MaxUnavailable: intstr.FromInt32(1), MaxParallelStaging: 10, FailureThreshold: 1,
		DrainTimeout: 15 * time.Minute, DrainDeadline: DeadlineAbort, GateTimeout: 15 * time.Minute, Soak: 2 * time.Minute,
		BootDeadline: 10 * time.Minute, CommitDeadline: 30 * time.Minute,
	}
	s.target("2.0.0")
	s.in.Ledger = ledger.Document{Fence: ledger.Fence{Epoch: 7}, Pools: map[string]ledger.Pool{"pool": {Name: "workers", Since: s.now.Add(-time.Hour)}}}
	return s
}

func (s *scenario) target(version string) {
	p := &s.in.Pool
	p.Target = ledger.Image{Version: version, Digest: digests[version]}
	p.Ref = nodeos.ImageRef{Repository: "registry.example.com/os", Digest: digests[version]}
}

func (s *scenario) command(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "pool":
		s.pool(t, d)
	case "host":
		s.host(t, d)
	case "remove":
		s.in.Members = slices.DeleteFunc(s.in.Members, func(m Member) bool { return m.Node.Name == d.CmdArgs[0].Key })
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now = s.now.Add(wait)
	case "mark":
		s.in.Pool.Product = "os"
		s.in.Ledger.Marks = map[string]ledger.Mark{"os": {Image: ledger.Image{Version: d.CmdArgs[0].Key}}}
	case "new-leader":
		s.in.Epoch++
		s.in.Ledger.Fence.Epoch = s.in.Epoch
	case "lose-ledger":
		s.in.Ledger = ledger.Document{Fence: s.in.Ledger.Fence}
	case "plan":
		return s.plan(d)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

// pool sets the named fields of the pool.
func (s *scenario) pool(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	p := &s.in.Pool
	for _, a := range d.CmdArgs {
		v := strings.Join(a.Vals, ",")
		switch a.Key {
		case "target":
			s.target(v)
		case "maxUnavailable":
			p.MaxUnavailable = intstr.Parse(v)
		case "staging":
			p.MaxParallelStaging = number(t, d, v)
		case "threshold":
			p.FailureThreshold = number(t, d, v)
		case "maxQuarantined":
			p.MaxQuarantined = number(t, d, v)
		case "nodes":
			s.in.ClusterNodes = number(t, d, v)
		case "paused":
			p.Paused = v
		case "resume":
			p.Resume = v
		case "suspended":
			p.Suspended = v == "true"
		case "deleting":
			p.Deleting = v == "true"
		case "unverified":
			p.Unverified = v
		case "onDeadline":
			p.DrainDeadline = OnDeadline(v)
		case "halt":
			p.HaltOnFailure = v == "true"
		case "stageOnly":
			p.StageOnly = v == "true"
		case "canary":
			p.Canary = nil
			for _, one := range a.Vals {
				hosts, soak, _ := strings.Cut(one, "/")
				wait, err := time.ParseDuration(soak)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				p.Canary = append(p.Canary, CanaryStep{Hosts: intstr.Parse(hosts), Soak: wait})
			}
		case "window":
			w, err := ParseWindow(strings.ReplaceAll(a.Vals[0], "_", " "), 4*time.Hour, "UTC")
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			p.Windows = []Window{w}
		case "voters":
			healthy, all, _ := strings.Cut(v, "/")
			s.in.Quorum = Quorum{Observed: true, Healthy: number(t, d, healthy), Voters: number(t, d, all), HealthyOn: map[string]bool{}}
			for i := range s.in.Members {
				s.in.Quorum.HealthyOn[s.in.Members[i].Node.Name] = true
			}
		case "quorum":
			s.in.Quorum = Quorum{None: v == "none"}
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
}

func number(t *testing.T, d *datadriven.TestData, v string) int {
	t.Helper()
	n, err := strconv.Atoi(v)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

// host adds a host that runs 1.0.0 if there is none of that name, and sets its
// named fields.
func (s *scenario) host(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	name := d.CmdArgs[0].Key
	i := slices.IndexFunc(s.in.Members, func(m Member) bool { return m.Node.Name == name })
	if i < 0 {
		s.in.Members = append(s.in.Members, Member{Selected: true, Node: Node{
			Name: name, UID: "uid-" + name, Labels: map[string]string{}, Ready: true, Created: s.now.Add(-time.Duration(1+len(s.in.Members)) * time.Hour), BootID: "b1",
		}, Pods: Pods{Observed: true, Remaining: 2, Blocking: "2 pods"}})
		i = len(s.in.Members) - 1
		m := &s.in.Members[i]
		m.Agent.Facts = &nodeos.HostFacts{Inventory: nodeos.Inventory{BootID: "b1", Slots: []nodeos.Slot{{Name: "A"}, {Name: "B"}}}}
		setBooted(m, "1.0.0")
	}
	m := &s.in.Members[i]
	for _, a := range d.CmdArgs[1:] {
		s.set(t, d, m, a.Key, strings.Join(a.Vals, ","))
	}
}

func setBooted(m *Member, version string) {
	f := m.Agent.Facts
	f.Booted = nodeos.Booted{Slot: "A", Version: version, Digest: digests[version], Confirmed: true}
	f.Slots[0] = nodeos.Slot{Name: "A", State: nodeos.SlotGood, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digests[version]}}}
}

func (s *scenario) set(t *testing.T, d *datadriven.TestData, m *Member, key, v string) {
	t.Helper()
	if s.setNode(m, key, v) || s.setAgent(m, key, v) {
		return
	}
	switch key {
	case "pods":
		m.Pods = Pods{Observed: true, Remaining: number(t, d, v)}
		if m.Pods.Remaining > 0 {
			m.Pods.Blocking = v + " pods"
		}
	case "healthy":
		m.Health = Health{Observed: true, OK: v == "true"}
		if v != "true" {
			m.Health.Blocking = "node: not Ready"
		}
	case "hold":
		m.Hold = v
	case "last-error":
		m.LastError = v
	case "nonce":
		m.Nonce = v
	case "conflict":
		m.Conflict = v
	case "selected":
		m.Selected = v == "true"
	case "reconciler":
		m.RunsReconciler = true
	case "expires":
		in, err := time.ParseDuration(v)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		m.Agent.CertificateExpires = s.now.Add(in)
	default:
		d.Fatalf(t, "unknown argument %s", key)
	}
}

// attempt returns the pool's attempt in the ledger's round.
func (s *scenario) attempt(nonce string) string {
	pool := s.in.Pool
	pool.Round = s.in.Ledger.Pools[pool.UID].Round
	return pool.Attempt(nonce)
}

func (s *scenario) setNode(m *Member, key, v string) bool {
	n := &m.Node
	switch key {
	case "ready":
		n.Ready, n.ReadySince = v == "true", s.now
	case "cordon": // lockstep, external or none
		n.Unschedulable, n.CordonedBy = v != "none", ""
		if v == "lockstep" {
			n.CordonedBy = ledger.Slot{Attempt: s.attempt(m.Nonce), Epoch: s.in.Epoch}.Owner()
			if slot, ok := s.in.Ledger.Slots[n.UID]; ok {
				n.CordonedBy = slot.Owner()
			}
		}
	case "late-cordon": // owned by a freed slot
		n.Unschedulable = true
		if r := s.in.Ledger.Pools["pool"].Released; len(r) > 0 {
			n.CordonedBy = r[len(r)-1].Owner
		}
	case "zone":
		n.Labels["topology.kubernetes.io/zone"] = v
	case "controlPlane":
		n.ControlPlane = true
	case "nodeBoot":
		n.BootID = v
	case "uid":
		n.UID = v
	default:
		return false
	}
	return true
}

func (s *scenario) setAgent(m *Member, key, v string) bool {
	f := m.Agent.Facts
	if f == nil {
		f = &nodeos.HostFacts{Inventory: nodeos.Inventory{BootID: "b1", Slots: []nodeos.Slot{{Name: "A"}, {Name: "B"}}}}
	}
	attempt := s.attempt(m.Nonce)
	if slot, ok := s.in.Ledger.Slots[m.Node.UID]; ok {
		attempt = slot.Attempt
	}
	switch key {
	case "unreachable":
		m.Agent = Agent{Problem: "no route to 10.0.0.1:50700"}
		return true
	case "staged":
		m.Agent.Facts = f
		f.Slots[1] = nodeos.Slot{Name: "B", State: nodeos.SlotStaged, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digests[v]}}}
		f.Last = &nodeos.OperationStatus{ID: attempt + "-stage-1-00000000", Attempt: attempt, State: nodeos.OperationSucceeded}
	case "stage-failed":
		f.Last = &nodeos.OperationStatus{ID: attempt + "-stage-" + v + "-00000000", Attempt: attempt, State: nodeos.OperationFailed, Ended: s.now, Message: "no space left"}
	case "staging":
		f.Operation = &nodeos.OperationStatus{ID: "x", Sequence: nodeos.SequenceStageUpgrade, State: nodeos.OperationRunning}
	case "trial": // version: booted, not committed yet
		m.Agent = Agent{Facts: f}
		f.Booted = nodeos.Booted{Slot: "B", Version: v, Digest: digests[v]}
		f.Trial = &nodeos.Trial{OperationID: attempt + "-activate", BootID: "b2", Image: nodeos.Image{Version: v, Ref: nodeos.ImageRef{Repository: "registry.example.com/os", Digest: digests[v]}}, From: nodeos.Booted{Digest: digests["1.0.0"]}}
		f.Operation, f.Last = &nodeos.OperationStatus{ID: attempt + "-activate", Attempt: attempt, Sequence: nodeos.SequenceUpgrade, State: nodeos.OperationOnTrial}, nil
		f.BootID, m.Node.BootID, m.Node.Ready = "b2", "b2", true
	case "runs": // version: booted and committed
		m.Agent = Agent{Facts: f}
		setBooted(m, v)
		f.Trial, f.Operation = nil, nil
	case "fell-back":
		m.Agent = Agent{Facts: f}
		setBooted(m, "1.0.0")
		f.Trial, f.Operation = nil, nil
		f.BootID, m.Node.BootID, m.Node.Ready = "b3", "b3", true
		f.Denied = append(f.Denied, nodeos.Denial{Digest: s.in.Pool.Target.Digest, Why: "3 failed boots"})
	case "denials-lifted":
		f.Denied = nil
	case "boot":
		f.BootID = v
	default:
		return false
	}
	return true
}

// plan makes a plan, keeps its ledger and prints it.
func (s *scenario) plan(d *datadriven.TestData) string {
	out := Plan(s.in, s.now)
	s.in.Ledger = out.Ledger
	var b strings.Builder
	for _, uid := range slices.Sorted(maps.Keys(out.Ledger.Slots)) {
		slot := out.Ledger.Slots[uid]
		fmt.Fprintf(&b, "slot %s %s", slot.Node, slot.State)
		if slot.Reason != "" {
			fmt.Fprintf(&b, " (%s)", slot.Reason)
		}
		b.WriteString("\n")
	}
	for _, step := range out.Steps {
		fmt.Fprintf(&b, "do %s %s", strings.ToLower(string(step.Kind)), step.Node)
		if step.Force {
			b.WriteString(" by force")
		}
		if step.AutoCommit {
			b.WriteString(" with auto-commit")
		}
		if step.Rollback {
			b.WriteString(" as a rollback")
		}
		b.WriteString("\n")
	}
	for _, w := range out.Waiting {
		fmt.Fprintf(&b, "wait %s %s: %s\n", w.Host, w.Reason, w.Message)
	}
	for _, arg := range d.CmdArgs {
		s.show(&b, out, arg.Key)
	}
	if b.Len() == 0 {
		return "nothing to do\n"
	}
	return b.String()
}

func (s *scenario) show(b *strings.Builder, out Decision, what string) {
	switch what {
	case "counts":
		fmt.Fprintf(b, "counts %+v\n", out.Status.Counts)
	case "conditions":
		for _, c := range out.Status.Conditions {
			fmt.Fprintf(b, "condition %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	case "denied":
		for _, x := range out.Status.Denied {
			fmt.Fprintf(b, "denied %.14s scope=%s hosts=%v reason=%s\n", x.Digest, x.Scope, x.Hosts, x.Reason)
		}
	case "next":
		fmt.Fprintf(b, "next plan %s\n", out.Next.Format(time.RFC3339))
	case "inFlight":
		for _, f := range out.Status.InFlight {
			fmt.Fprintf(b, "in flight %s %s: %s\n", f.Host, f.State, f.Blocking)
		}
	case "end":
		fmt.Fprintf(b, "estimated end %s\n", out.Status.EstimatedEnd.Format(time.RFC3339))
	}
}

// TestPlanFor5000HostsIsFast allows 20 ms per plan.
func TestPlanFor5000HostsIsFast(t *testing.T) {
	t.Parallel()
	in := largePool()
	best := time.Hour
	for range 5 {
		start := time.Now()
		Plan(in, newScenario().now)
		best = min(best, time.Since(start))
	}
	t.Logf("a plan for 5,000 hosts takes %s", best)
	if best > 20*time.Millisecond*raceFactor {
		t.Errorf("a plan for 5,000 hosts takes %s, want at most 20 ms", best)
	}
}

func BenchmarkPlan(b *testing.B) {
	in, now := largePool(), newScenario().now
	b.ReportAllocs()
	for b.Loop() {
		Plan(in, now)
	}
}

func largePool() Input {
	s := newScenario()
	s.in.Pool.MaxUnavailable = intstr.FromString("5%")
	s.in.ClusterNodes = 5000
	attempt := s.in.Pool.Attempt("")
	for i := range 5000 {
		name := fmt.Sprintf("node-%04d", i)
		m := Member{Selected: true, Node: Node{
			Name: name, UID: "uid-" + name, Ready: true, BootID: "b1", Created: s.now.Add(-time.Duration(i%977) * time.Hour),
			Labels: map[string]string{"topology.kubernetes.io/zone": strconv.Itoa(i % 3)},
		}}
		m.Agent.Facts = &nodeos.HostFacts{Inventory: nodeos.Inventory{BootID: "b1", Slots: []nodeos.Slot{{Name: "A"}, {Name: "B"}}}}
		setBooted(&m, []string{"1.0.0", "2.0.0"}[i%2])
		if i%4 == 0 {
			m.Agent.Facts.Slots[1] = nodeos.Slot{Name: "B", State: nodeos.SlotStaged, Image: nodeos.Image{Ref: s.in.Pool.Ref}}
			m.Agent.Facts.Last = &nodeos.OperationStatus{ID: attempt + "-stage-1-0", Attempt: attempt, State: nodeos.OperationSucceeded}
		}
		s.in.Members = append(s.in.Members, m)
	}
	return s.in
}
