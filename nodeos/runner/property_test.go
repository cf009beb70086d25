// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// model is a minimal machine with two slots that executes the activities of the
// pure core; a fault may occur between any two tasks.
type model struct {
	t     *rapid.T
	s     State // the journaled state
	now   time.Time
	boots int

	good    string // the version of the default OS
	inSlot  string // the other slot's version
	slotBad bool
	trying  bool // the other slot boots next
	tries   int
	running string
	sick    map[string]bool // versions that fail their health checks
	hangs   map[string]bool // versions that never boot
	acts    map[string]int  // activations by operation
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, now: epoch, good: "1.0.0", sick: map[string]bool{}, hangs: map[string]bool{}, acts: map[string]int{}}
	for _, v := range []string{"2.0.0", "3.0.0"} {
		m.sick[v] = rapid.Bool().Draw(t, "sick "+v)
		m.hangs[v] = rapid.Bool().Draw(t, "hangs "+v)
	}
	m.power()
	return m
}

// power power-cycles the machine.
func (m *model) power() {
	for {
		m.boots++
		m.running = m.good
		if m.trying && m.tries > 0 {
			m.tries--
			if m.hangs[m.inSlot] {
				continue
			}
			m.running = m.inSlot
		} else if m.trying {
			m.trying, m.slotBad = false, true
		}
		break
	}
	m.agent()
}

// agent starts the agent's process.
func (m *model) agent() { m.step(Started{Inventory: m.inventory()}) }

func (m *model) inventory() nodeos.Inventory {
	inv := nodeos.Inventory{
		BootID: fmt.Sprint("boot", m.boots),
		Booted: nodeos.Booted{Product: "os", Version: m.running, Digest: digest(m.running), Confirmed: m.running == m.good},
	}
	if m.inSlot != "" {
		state := nodeos.SlotStaged
		switch {
		case m.slotBad:
			state = nodeos.SlotBad
		case m.trying:
			state = nodeos.SlotTrying
		}
		inv.Slots = []nodeos.Slot{{Name: "B", State: state, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digest(m.inSlot)}}}}
	}
	return inv
}

// step applies an event, checks that its input is unchanged, and round-trips the
// new state through a journal record.
func (m *model) step(e Event) {
	before, err := json.Marshal(m.s)
	if err != nil {
		m.t.Fatal(err)
	}
	next, actions := Step(m.s, e, m.now)
	if after, err := json.Marshal(m.s); err != nil || string(before) != string(after) {
		m.t.Fatalf("Step(%T) changed its input: %v", e, err)
	}
	m.take(next, actions)
}

func (m *model) take(next State, actions []Action) {
	record, err := frame(next)
	if err != nil {
		m.t.Fatal(err)
	}
	var c Contents
	if _, ok := c.record(record); !ok || c.Records != 1 {
		m.t.Fatalf("cannot decode a state of the core: %+v", next)
	}
	m.s = c.State
	m.check()
	for _, a := range actions {
		if _, ok := a.(Exit); ok {
			m.power()
			return
		}
	}
}

// check checks the invariants of every step.
func (m *model) check() {
	s := m.s
	for _, d := range s.Denied {
		if s.Running.Digest == d.Digest && s.Running.Confirmed {
			m.t.Fatalf("%s is denied and confirmed", version(d.Digest))
		}
	}
	for _, c := range s.Committed {
		if cmpVersions(m.t, c.Version, s.HighWater["os"]) > 0 {
			m.t.Fatalf("%s was committed, the high-water mark is %s", c.Version, s.HighWater["os"])
		}
	}
	if s.Trial != nil && s.Trial.Boots > maxTrialBoots+4 {
		m.t.Fatalf("an OS on trial booted %d times", s.Trial.Boots)
	}
}

func cmpVersions(t *rapid.T, a, b string) int {
	c, err := nodeos.CompareVersions(a, b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// work performs the activity of the state, if any; with faults, the power or the
// agent may fail after any task.
func (m *model) work(faults bool) bool {
	a := ActivityOf(m.s, m.now)
	op := m.s.Op
	switch a.Kind {
	case Stopping:
		m.step(Stopped{OperationID: op.ID})
	case RunUndo:
		for _, task := range op.undoTasks() {
			if f := m.do(task.Name); f != nil {
				m.t.Fatalf("undo failed: %+v", f)
			}
			if faults && m.fault() {
				return true
			}
		}
		m.step(UndoEnded{OperationID: op.ID})
	case RunPhase:
		end := PhaseEnded{OperationID: op.ID, Index: op.Index, Try: op.Try}
		for _, task := range op.phase().Tasks {
			if task.Name == nodeos.TaskRestart {
				cmd := nodeos.RebootRestart
				end.Restart = &cmd
				continue
			}
			if end.Failure = m.do(task.Name); end.Failure != nil {
				break
			}
			if faults && m.fault() {
				return true
			}
		}
		m.step(end)
	default:
		return false
	}
	return true
}

// fault randomly fails the power or the agent.
func (m *model) fault() bool {
	switch rapid.IntRange(0, 30).Draw(m.t, "fault") {
	case 0:
		m.power()
		return true
	case 1:
		m.agent()
		return true
	default:
		return false
	}
}

// do performs a task on the machine.
func (m *model) do(task string) *Failure {
	refuse := func(why string) *Failure { return &Failure{Reason: why, Message: why, Permanent: true} }
	op := m.s.Op
	target := version(op.Digest)
	switch task {
	case nodeos.TaskPrecheckImage:
		if _, denied := (nodeos.Memory{Denied: m.s.Denied}).DeniedBy(op.Digest); denied || m.running == target || m.running != m.good {
			return refuse("Refused")
		}
	case nodeos.TaskStageImage:
		if m.running != m.good {
			return refuse("Unconfirmed")
		}
		if m.inSlot != target || m.slotBad {
			m.inSlot, m.slotBad, m.trying = target, false, false
		}
	case nodeos.TaskSetNextBoot:
		if m.s.Trial == nil {
			m.t.Fatal("boot switch without an armed trial")
		}
		if m.running == m.good && m.inSlot == target && !m.trying {
			m.trying, m.tries = true, 3
			m.acts[op.ID]++
		}
	case nodeos.TaskClearNextBoot:
		if m.running == m.good {
			m.trying = false
		}
	case nodeos.TaskVerifyBooted:
		if m.running != target {
			return refuse("WrongSystem")
		}
		if m.sick[target] {
			return &Failure{Reason: "Unhealthy", Message: "sick"}
		}
		m.tries = 2
	case nodeos.TaskCommit:
		if m.running != target {
			return refuse("WrongSystem")
		}
		if m.running != m.good {
			m.inSlot, m.good = m.good, m.running
			m.trying, m.slotBad = false, false
		}
	case nodeos.TaskPrecheckRollback, nodeos.TaskVerifyRestored, nodeos.TaskStartServices, nodeos.TaskStopServices:
	case nodeos.TaskRestore:
		if m.running != m.good {
			m.trying, m.slotBad = false, true
		}
	}
	return nil
}

// upgrade orders an upgrade.
func (m *model) upgrade(id, to string) {
	r := nodeos.UpgradeRequest{
		Order: nodeos.Order{OperationID: id, Caller: "test"}, Image: nodeos.ImageRef{Repository: "r", Digest: digest(to)},
		Product: "os", Version: to, CommitDeadline: 10 * time.Minute,
		OnDeadline: rapid.SampledFrom([]nodeos.DeadlineAction{nodeos.DeadlineRollback, nodeos.DeadlineCommit}).Draw(m.t, "on"),
	}
	m.order(nodeos.SequenceUpgrade, r, nodeos.ControllerOptions{})
}

func (m *model) order(seq nodeos.Sequence, r nodeos.Request, opts nodeos.ControllerOptions) {
	plan, err := nodeos.Plan(seq, nodeos.ModeMetal, r)
	if err != nil {
		m.t.Fatal(err)
	}
	next, actions, _, err := Admit(m.s, Order{Sequence: seq, Request: r, Plan: plan, Options: opts}, Policy{}, m.now)
	if err == nil {
		m.take(next, actions)
	}
}

// TestHostAlwaysReachesAConsistentState applies orders, verdicts, crashes, power
// losses and time in random order. Then, without further faults, all operations
// must end in a consistent state.
func TestHostAlwaysReachesAConsistentState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		ids := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"work", "work", "work", "work", "upgrade", "commit", "rollback", "reboot", "power", "agent", "pass"}).Draw(t, "what") {
			case "work":
				m.work(true)
			case "upgrade":
				ids++
				m.upgrade(fmt.Sprint("op", ids), rapid.SampledFrom([]string{"2.0.0", "3.0.0"}).Draw(t, "to"))
			case "commit":
				m.verdict(nodeos.VerdictCommit, ids)
			case "rollback":
				m.verdict(nodeos.VerdictRollback, ids)
			case "reboot":
				ids++
				m.order(nodeos.SequenceReboot, nodeos.PlainRequest{Order: nodeos.Order{OperationID: fmt.Sprint("op", ids), Caller: "test"}},
					nodeos.ControllerOptions{Takeover: rapid.Bool().Draw(t, "takeover")})
			case "power":
				m.power()
			case "agent":
				m.agent()
			case "pass":
				m.pass(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
			}
		}
		m.rest()
	})
}

func (m *model) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.step(Ticked{})
}

func (m *model) verdict(v nodeos.Verdict, id int) {
	next, actions, err := Decide(m.s, nodeos.Decision{Order: nodeos.Order{OperationID: fmt.Sprint("op", id), Caller: "test"}, Verdict: v}, Policy{}, m.now)
	if err == nil {
		m.take(next, actions)
	}
}

// rest works until nothing is left to do and checks the final state.
func (m *model) rest() {
	for range 500 {
		if m.work(false) {
			continue
		}
		at, due := Wake(m.s, m.now)
		if !due {
			break
		}
		m.pass(max(at.Sub(m.now), 0))
	}
	if m.s.Op != nil || m.s.Next != nil || m.s.Trial != nil {
		m.t.Fatalf("not finished: op %+v\nnext %+v\ntrial %+v", m.s.Op, m.s.Next, m.s.Trial)
	}
	if m.running != m.good {
		m.t.Fatalf("finished on %s, which is not committed; the good version is %s", m.running, m.good)
	}
	if m.trying {
		m.t.Fatalf("finished, but %s boots next without a dead-man timer", m.inSlot)
	}
	if got := m.s.Committed[len(m.s.Committed)-1].Version; got != m.good {
		m.t.Fatalf("last committed is %s in the journal, %s on the machine", got, m.good)
	}
	for id, n := range m.acts {
		if n > maxRestarts+1 {
			m.t.Fatalf("operation %s was activated %d times", id, n)
		}
	}
	if m.sick[m.good] || m.hangs[m.good] {
		m.t.Fatalf("%s is unhealthy but was committed", m.good)
	}
}

func TestFenceNeverDecreases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stored nodeos.Fence
		for range 50 {
			offered := nodeos.Fence{
				ClusterUID: rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cluster"),
				Epoch:      rapid.OneOf(rapid.Uint64Range(0, 3000), rapid.Uint64()).Draw(t, "epoch"),
			}
			next, err := checkFence(stored, &offered, "c1")
			if err != nil && next != stored {
				t.Fatalf("rejected fence %v replaced %v", offered, stored)
			}
			if err == nil && (next != offered || next.Epoch < stored.Epoch || next.ClusterUID != "c1") {
				t.Fatalf("%v over %v gave %v", offered, stored, next)
			}
			stored = next
		}
	})
}

func TestNewLeaderRepeatsAnOrderUnderItsOwnFence(t *testing.T) {
	r := nodeos.PlainRequest{Order: nodeos.Order{OperationID: "a", Caller: "c", Fence: &nodeos.Fence{ClusterUID: "u", Epoch: 1}}}
	admit := func(s State) (State, nodeos.Ticket) {
		t.Helper()
		next, _, ticket, err := Admit(s, Order{Sequence: nodeos.SequenceNoop, Request: r}, Policy{}, epoch)
		if err != nil {
			t.Fatal(err)
		}
		return next, ticket
	}
	s, first := admit(State{})
	r.Fence = &nodeos.Fence{ClusterUID: "u", Epoch: 2}
	s, second := admit(s)
	first.Known = true
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	if s.Fence.Epoch != 2 {
		t.Errorf("the fence is %v", s.Fence)
	}
}
