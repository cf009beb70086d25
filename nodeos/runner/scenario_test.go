// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// scenario runs the pure core with a script: a machine, its version and a clock.
type scenario struct {
	s    State
	inv  nodeos.Inventory
	now  time.Time
	pol  Policy
	boot int
}

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newScenario() *scenario {
	sc := &scenario{now: epoch, pol: Policy{RestartInterval: DefaultRestartInterval}}
	sc.s.InstallationID = "install"
	return sc
}

// digest returns the digest of a version's image.
func digest(version string) string {
	if version == "" {
		return ""
	}
	return "sha256:" + fmt.Sprintf("%064x", version)
}

// version is the inverse of digest.
func version(d string) string {
	for _, v := range []string{"0.9.0", "1.0.0", "2.0.0", "3.0.0"} {
		if digest(v) == d {
			return v
		}
	}
	return d
}

func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		t.Helper()
		sc := newScenario()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			old := sc.s
			before := asJSON(t, old)
			out := sc.command(t, d)
			if before != asJSON(t, old) {
				t.Fatalf("%s: %s changed its input state", path, d.Cmd)
			}
			return out
		})
	})
}

func asJSON(t *testing.T, s State) string {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// command runs one line of a script.
func (sc *scenario) command(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "boot": // boot VERSION [confirmed] [bad=VERSION]: the machine boots
		sc.boot++
		return sc.start(d)
	case "crash": // the agent restarts in the same boot
		return sc.step(Started{Inventory: sc.inv})
	case "run":
		return sc.run(t, d)
	case "decide":
		return sc.decide(t, d)
	case "extend":
		s, acts, until, err := Extend(sc.s, nodeos.Extension{Order: order(d)}, sc.pol, sc.now)
		return sc.result(s, acts, err, "until="+until.Sub(epoch).String())
	case "done":
		return sc.phase(nil, nil)
	case "down":
		cmd := nodeos.RebootRestart
		return sc.phase(nil, &cmd)
	case "fail":
		return sc.phase(&Failure{Reason: arg(d, "reason", "TaskFailed"), Message: arg(d, "message", "it broke"), Permanent: d.HasArg("permanent")}, nil)
	case "undone":
		var f *Failure
		if d.HasArg("message") {
			f = &Failure{Reason: "TaskFailed", Message: arg(d, "message", "")}
		}
		return sc.step(UndoEnded{OperationID: sc.s.Op.ID, Failure: f})
	case "bootloop": // bootloop N VERSION: N boots, each verified
		return sc.bootloop(t, d)
	case "stopped":
		return sc.step(Stopped{OperationID: sc.s.Op.ID})
	case "advance": // advance DURATION: time passes
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		sc.now = sc.now.Add(wait)
		return sc.step(Ticked{})
	default:
		t.Fatalf("unknown command %s", d.Cmd)
		return ""
	}
}

func arg(d *datadriven.TestData, name, fallback string) string {
	for _, a := range d.CmdArgs {
		if a.Key == name && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return fallback
}

// order reads id, caller, remote and fence.
func order(d *datadriven.TestData) nodeos.Order {
	o := nodeos.Order{OperationID: arg(d, "id", "op1"), Caller: arg(d, "caller", "reconciler"), Remote: !d.HasArg("local")}
	if f := arg(d, "fence", ""); f != "" {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			panic(err)
		}
		o.Fence = &nodeos.Fence{ClusterUID: arg(d, "cluster", "c1"), Epoch: n}
	}
	return o
}

// start boots the machine into the version of the command.
func (sc *scenario) start(d *datadriven.TestData) string {
	v := d.CmdArgs[0].Key
	sc.inv = nodeos.Inventory{
		Backend: "script", BootID: fmt.Sprint("boot", sc.boot),
		Booted: nodeos.Booted{Slot: "A", Product: "os", Version: v, Digest: digest(v), Confirmed: d.HasArg("confirmed")},
		Slots:  []nodeos.Slot{{Name: "A", State: nodeos.SlotGood}},
	}
	if bad := arg(d, "bad", ""); bad != "" {
		sc.inv.Slots = append(sc.inv.Slots, nodeos.Slot{Name: "B", State: nodeos.SlotBad, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digest(bad)}}})
	}
	return sc.step(Started{Inventory: sc.inv})
}

// bootloop boots an OS on trial repeatedly; its checks pass.
func (sc *scenario) bootloop(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	n, err := strconv.Atoi(d.CmdArgs[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	d.CmdArgs = d.CmdArgs[1:]
	out := ""
	for i := range n {
		sc.boot++
		out = sc.start(d)
		for i < n-1 && sc.s.Op.State == nodeos.OperationRunning {
			out = sc.phase(nil, nil)
		}
	}
	return out
}

// run admits an order.
func (sc *scenario) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	seq, err := nodeos.ParseSequence(d.CmdArgs[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	o := Order{Sequence: seq, Options: nodeos.ControllerOptions{Force: d.HasArg("force"), Takeover: d.HasArg("takeover")}}
	switch seq {
	case nodeos.SequenceUpgrade, nodeos.SequenceStageUpgrade, nodeos.SequenceInstall:
		r := nodeos.UpgradeRequest{
			Order: order(d), Image: nodeos.ImageRef{Repository: "r", Digest: digest(arg(d, "to", "2.0.0"))}, Product: "os",
			Version: arg(d, "to", "2.0.0"), OnDeadline: nodeos.DeadlineAction(arg(d, "on", "")), AutoCommit: d.HasArg("auto"),
		}
		if r.CommitDeadline, err = time.ParseDuration(arg(d, "deadline", "30m")); err != nil {
			t.Fatal(err)
		}
		o.Request = r
	case nodeos.SequenceRollback:
		o.Request = nodeos.RollbackRequest{Order: order(d)}
	case nodeos.SequenceReset:
		o.Request = nodeos.ResetRequest{Order: order(d), Reboot: true, Graceful: true}
	default:
		o.Request = nodeos.PlainRequest{Order: order(d)}
	}
	if o.Plan, err = nodeos.Plan(seq, nodeos.ModeMetal, o.Request); err != nil {
		t.Fatal(err)
	}
	s, acts, ticket, err := Admit(sc.s, o, sc.pol, sc.now)
	note := "accepted"
	if ticket.Known {
		note = "known as " + string(ticket.State)
	}
	return sc.result(s, acts, err, note)
}

func (sc *scenario) decide(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	s, acts, err := Decide(sc.s, nodeos.Decision{Order: order(d), Verdict: nodeos.Verdict(d.CmdArgs[0].Key), Why: arg(d, "why", "")}, sc.pol, sc.now)
	return sc.result(s, acts, err, "applied")
}

// result prints the result and stores the state if there is no error.
func (sc *scenario) result(s State, acts []Action, err error, note string) string {
	if err != nil {
		msg := err.Error()
		if reason := nodeos.ReasonOf(err, ""); reason != "" {
			msg = reason + ": " + msg
		}
		return "refused " + shorten(msg) + "\n"
	}
	sc.s = s
	return note + "\n" + sc.print(acts)
}

// shorten replaces hashes and digests.
func shorten(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		if trimmed := strings.Trim(w, ":;,"); len(trimmed) == 64 {
			words[i] = strings.Replace(w, trimmed, "HASH", 1)
		}
	}
	return strings.Join(words, " ")
}

func (sc *scenario) step(e Event) string {
	s, acts := Step(sc.s, e, sc.now)
	sc.s = s
	return sc.print(acts)
}

// phase ends the try of the current phase.
func (sc *scenario) phase(f *Failure, restart *nodeos.RebootCommand) string {
	op := sc.s.Op
	return sc.step(PhaseEnded{OperationID: op.ID, Index: op.Index, Try: op.Try, Failure: f, Restart: restart})
}

// print prints the published events and the state.
func (sc *scenario) print(acts []Action) string {
	var b strings.Builder
	for _, a := range acts {
		switch a := a.(type) {
		case Exit:
			fmt.Fprintf(&b, "! exit %s\n", a.Cmd)
		case Publish:
			b.WriteString(published(a))
		}
	}
	if op := sc.s.Op; op != nil {
		fmt.Fprintf(&b, "%s %s %s", op.ID, op.Sequence, op.State)
		if len(op.Plan) > 0 {
			fmt.Fprintf(&b, " %d/%d %s try=%d", op.Index+1, len(op.Plan), op.Phase, op.Try)
		}
		if op.RollingBack {
			b.WriteString(" rolling-back")
		}
		if op.Stop != nil {
			b.WriteString(" stopping")
		}
		if op.Reason != "" {
			fmt.Fprintf(&b, " (%s)", op.Reason)
		}
		b.WriteByte('\n')
	}
	if sc.s.Next != nil {
		fmt.Fprintf(&b, "%s %s %s\n", sc.s.Next.ID, sc.s.Next.Sequence, sc.s.Next.State)
	}
	if tr := sc.s.Trial; tr != nil {
		fmt.Fprintf(&b, "trial %s of %s boots=%d", tr.Image.Version, tr.OperationID, tr.Boots)
		if !tr.Deadline.IsZero() {
			fmt.Fprintf(&b, " until %s", tr.Deadline.Sub(epoch))
		}
		b.WriteByte('\n')
	}
	for _, d := range sc.s.Denied {
		fmt.Fprintf(&b, "denied %s: %s\n", version(d.Digest), d.Why)
	}
	if a := ActivityOf(sc.s, sc.now); a.Kind != Idle {
		fmt.Fprintf(&b, "> %s\n", map[ActivityKind]string{RunPhase: "run phase", RunUndo: "undo", Stopping: "stop"}[a.Kind])
	}
	if b.Len() == 0 {
		return "idle\n"
	}
	return b.String()
}

// published prints the relevant events.
func published(p Publish) string {
	switch e := p.Payload.(type) {
	case nodeos.EventSequenceStop:
		out := fmt.Sprintf("! %s %s", p.OperationID, e.State)
		if e.Reason != "" {
			out += fmt.Sprintf(" %s: %s", e.Reason, e.Error)
		}
		return out + "\n"
	case nodeos.EventTrial:
		if e.Message != "" {
			return fmt.Sprintf("! trial %s: %s\n", e.What, e.Message)
		}
		return fmt.Sprintf("! trial %s\n", e.What)
	case nodeos.EventFatalSequencerError:
		return fmt.Sprintf("! fatal %s\n", e.Error)
	default:
		return ""
	}
}
