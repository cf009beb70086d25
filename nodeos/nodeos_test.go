// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSequenceNamesRoundTrip(t *testing.T) {
	want := []string{"boot", "bootstrap", "initialize", "install", "shutdown", "upgrade", "stageUpgrade", "reset", "reboot", "noop", "rollback"}
	for i, name := range want {
		got, err := ParseSequence(name)
		if err != nil || got != Sequence(i) || got.String() != name {
			t.Errorf("%s is %d %s, %v", name, got, got, err)
		}
	}
	if n := len(Sequences()); n != len(want) {
		t.Errorf("there are %d sequences", n)
	}
	for _, name := range []string{"", "Boot", "stageupgrade", "boot ", "dance"} {
		if _, err := ParseSequence(name); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("unknown runtime sequence: %q", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, s := range []Sequence{-1, 99} {
		if got := s.String(); got != fmt.Sprintf("sequence(%d)", int(s)) {
			t.Errorf("%d prints as %s", int(s), got)
		}
	}
}

func TestModeNamesRoundTripAndModesHaveTheirCapabilities(t *testing.T) {
	all := Reboot | Rollback | Shutdown | Upgrade
	for name, tc := range map[string]struct {
		mode    Mode
		can     ModeCapability
		install bool
	}{
		"cloud": {ModeCloud, all, false}, "container": {ModeContainer, 0, false}, "metal": {ModeMetal, all, true},
	} {
		got, err := ParseMode(name)
		if err != nil || got != tc.mode || got.String() != name || got.RequiresInstall() != tc.install {
			t.Errorf("%s is %s, %v", name, got, err)
		}
		for bit := Reboot; bit <= Upgrade; bit <<= 1 {
			if got.Supports(bit) != (tc.can&bit != 0) {
				t.Errorf("%s supports %s: %v", name, bit, got.Supports(bit))
			}
		}
	}
	if Reboot != 1 || Rollback != 2 || Shutdown != 4 || Upgrade != 8 {
		t.Error("the flags have the wrong values")
	}
	if _, err := ParseMode("Metal"); err == nil || !strings.Contains(err.Error(), `unknown runtime mode: "Metal"`) {
		t.Errorf("Metal: %v", err)
	}
	if (Reboot|Upgrade).String() != "reboot+upgrade" || ModeCapability(0).String() != "none" || Mode(9).String() != "mode(9)" {
		t.Error("wrong String of flags or modes")
	}
}

func TestTakeoverTable(t *testing.T) {
	type pair struct{ running, next Sequence }
	want := map[pair]Takeover{
		{SequenceInitialize, SequenceReboot}: TakeoverAlways,
		{SequenceBoot, SequenceReboot}:       TakeoverAlways,
		{SequenceBoot, SequenceReset}:        TakeoverAlways,
		{SequenceBoot, SequenceUpgrade}:      TakeoverAlways,
		{SequenceBoot, SequenceStageUpgrade}: TakeoverAlways,
		{SequenceBoot, SequenceRollback}:     TakeoverAlways, // Talos reboots for a rollback
		{SequenceReboot, SequenceReboot}:     TakeoverForced,
		{SequenceReset, SequenceReboot}:      TakeoverAlways,
	}
	for _, running := range Sequences() {
		for _, next := range Sequences() {
			expected := want[pair{running, next}]
			if running == SequenceNoop {
				expected = TakeoverAlways
			}
			if got := CanTakeOver(running, next); got != expected {
				t.Errorf("%s during %s is %d, want %d", next, running, got, expected)
			}
		}
	}
}

func goodImage() ImageRef {
	return ImageRef{Repository: "registry.test/os", Digest: "sha256:" + strings.Repeat("ab", 32)}
}

// requestFor returns a valid request of a sequence.
func requestFor(seq Sequence) Request {
	o := Order{OperationID: "op", Caller: "me"}
	switch seq {
	case SequenceInstall, SequenceUpgrade, SequenceStageUpgrade:
		return UpgradeRequest{Order: o, Image: goodImage(), Product: "os", Version: "1.2.3"}
	case SequenceRollback:
		return RollbackRequest{Order: o}
	case SequenceReset:
		return ResetRequest{Order: o, Graceful: true, Reboot: true}
	default:
		return PlainRequest{Order: o}
	}
}

// describe returns a plan as readable text, one line per phase.
func describe(plan []Phase) []string {
	out := make([]string, 0, len(plan))
	for i, p := range plan {
		words := []string{fmt.Sprintf("%d. %s:", i+1, p.Name)}
		for _, t := range p.Tasks {
			words = append(words, t.Name)
		}
		line := strings.Join(words, " ")
		if p.Ends == EndBoot {
			line += ", then the machine boots"
		}
		if p.Ends == EndDecision {
			line += ", then waits for commit or rollback"
		}
		out = append(out, line)
	}
	return out
}

func TestEverySequenceHasItsPhases(t *testing.T) {
	want := map[Sequence]string{
		SequenceBoot:         "1. config: load-config\n2. services: start-services",
		SequenceBootstrap:    "1. config: load-config\n2. services: start-services",
		SequenceInitialize:   "1. config: load-config",
		SequenceShutdown:     "1. stop-services: stop-services\n2. power-off: restart, then the machine boots\n3. services: start-services",
		SequenceReboot:       "1. stop-services: stop-services\n2. reboot: restart, then the machine boots\n3. services: start-services",
		SequenceNoop:         "",
		SequenceReset:        "1. precheck: precheck-reset\n2. stop-services: stop-services\n3. wipe: wipe\n4. restart: restart, then the machine boots",
		SequenceStageUpgrade: "1. precheck: precheck-image\n2. stage: stage-image",
		SequenceInstall: "1. precheck: precheck-image\n2. stage: stage-image\n3. switch: set-next-boot\n4. reboot: restart, then the machine boots\n" +
			"5. verify: start-services verify-booted\n6. commit: commit",
		SequenceUpgrade: "1. precheck: precheck-image\n2. stage: stage-image\n3. stop-services: stop-services\n4. switch: set-next-boot\n" +
			"5. reboot: restart, then the machine boots\n6. services: start-services\n7. verify: verify-booted, then waits for commit or rollback\n8. commit: commit",
		SequenceRollback: "1. precheck: precheck-rollback\n2. stop-services: stop-services\n3. switch-back: restore\n" +
			"4. reboot: restart, then the machine boots\n5. services: start-services\n6. verify: verify-restored",
	}
	for _, seq := range Sequences() {
		plan, err := Plan(seq, ModeMetal, requestFor(seq))
		if err != nil {
			t.Errorf("%s: %v", seq, err)
		}
		if diff := cmp.Diff(want[seq], strings.Join(describe(plan), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", seq, diff)
		}
		for _, p := range plan {
			if p.Timeout <= 0 || p.OnFailure.Then == "" {
				t.Errorf("phase %s of %s has no timeout or no failure policy", p.Name, seq)
			}
		}
	}
}

func TestTrialIsArmedWithTheBootSwitchAndPrecheckIsFirst(t *testing.T) {
	for _, seq := range []Sequence{SequenceInstall, SequenceUpgrade} {
		plan, err := Plan(seq, ModeMetal, requestFor(seq))
		if err != nil {
			t.Fatal(err)
		}
		if plan[0].Tasks[0].Name != TaskPrecheckImage {
			t.Errorf("%s begins with %s", seq, plan[0].Name)
		}
		for _, p := range plan {
			for _, task := range p.Tasks {
				if (task.Name == TaskSetNextBoot) != (p.Effect == EffectArm) {
					t.Errorf("%s: phase %s with task %s has effect %q", seq, p.Name, task.Name, p.Effect)
				}
				if task.Name == TaskCommit && p.Effect != EffectCommit {
					t.Errorf("%s: phase %s commits without the effect", seq, p.Name)
				}
			}
		}
	}
}

func TestUnsupportedSequencesNameTheMissingCapability(t *testing.T) {
	for seq, want := range map[Sequence]string{
		SequenceUpgrade:  "upgrade is not supported in container mode: missing capability reboot+upgrade",
		SequenceReboot:   "reboot is not supported in container mode: missing capability reboot",
		SequenceShutdown: "shutdown is not supported in container mode: missing capability shutdown",
		SequenceRollback: "rollback is not supported in container mode: missing capability reboot+rollback",
		SequenceReset:    "reset is not supported in container mode: missing capability reboot",
	} {
		_, err := Plan(seq, ModeContainer, requestFor(seq))
		if err == nil || err.Error() != want || ReasonOf(err, "") != "Unsupported" {
			t.Errorf("%s: %v", seq, err)
		}
	}
	for _, seq := range []Sequence{SequenceBoot, SequenceBootstrap, SequenceInitialize, SequenceNoop} {
		if _, err := Plan(seq, ModeContainer, requestFor(seq)); err != nil {
			t.Errorf("%s: %v", seq, err)
		}
	}
}

func TestInvalidRequestsAreRejected(t *testing.T) {
	for _, seq := range Sequences() {
		for _, other := range Sequences() {
			request := requestFor(other)
			fits := fmt.Sprintf("%T", requestFor(seq)) == fmt.Sprintf("%T", request)
			if _, err := Plan(seq, ModeMetal, request); (err == nil) != fits || (err != nil && !errors.Is(err, ErrInvalidSequenceData)) {
				t.Errorf("%s with a %T: %v", seq, request, err)
			}
		}
	}
	bad := func(change func(*UpgradeRequest)) Request {
		r, _ := requestFor(SequenceUpgrade).(UpgradeRequest)
		change(&r)
		return r
	}
	for name, r := range map[string]Request{
		"no caller":                 bad(func(r *UpgradeRequest) { r.Caller = "" }),
		"a very long id":            bad(func(r *UpgradeRequest) { r.OperationID = strings.Repeat("x", 254) }),
		"a fence without a cluster": bad(func(r *UpgradeRequest) { r.Fence = &Fence{Epoch: 1} }),
		"a tag":                     bad(func(r *UpgradeRequest) { r.Image.Digest = "latest" }),
		"no repository":             bad(func(r *UpgradeRequest) { r.Image.Repository = "" }),
		"no version":                bad(func(r *UpgradeRequest) { r.Version = "" }),
		"negative deadline":         bad(func(r *UpgradeRequest) { r.CommitDeadline = -1 }),
		"a long deadline":           bad(func(r *UpgradeRequest) { r.CommitDeadline = 365 * 24 * time.Hour }),
		"an unknown action":         bad(func(r *UpgradeRequest) { r.OnDeadline = "explode" }),
	} {
		if err := CheckRequest(SequenceUpgrade, r); !errors.Is(err, ErrInvalidSequenceData) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckRequest(99, requestFor(SequenceNoop)); err == nil || !strings.Contains(err.Error(), "sequence not implemented") {
		t.Errorf("an unknown sequence: %v", err)
	}
}

func TestRequestsRoundTripThroughTheJournal(t *testing.T) {
	for _, seq := range Sequences() {
		want := requestFor(seq)
		data, err := MarshalRequest(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := UnmarshalRequest(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", seq, diff)
		}
	}
	for _, bad := range []string{"", "{}", `{"kind":"plain"}`, `{"kind":"nuke","body":{}}`, `{"kind":"plain","body":[]}`} {
		if _, err := UnmarshalRequest([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestRequestDigestCoversAllFieldsExceptTheFence(t *testing.T) {
	base, _ := requestFor(SequenceUpgrade).(UpgradeRequest)
	hash := func(seq Sequence, r Request) string {
		t.Helper()
		d, err := Digest(seq, r)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	want := hash(SequenceUpgrade, base)
	fenced := base
	fenced.Fence = &Fence{ClusterUID: "c", Epoch: 9}
	if hash(SequenceUpgrade, fenced) != want {
		t.Error("the fence changes the hash")
	}
	if fenced.Fence == nil {
		t.Error("the request lost its fence")
	}
	if hash(SequenceStageUpgrade, base) == want {
		t.Error("the sequence doesn't change the hash")
	}
	for name, change := range map[string]func(*UpgradeRequest){
		"caller":   func(r *UpgradeRequest) { r.Caller = "you" },
		"method":   func(r *UpgradeRequest) { r.Method = "Stage" },
		"digest":   func(r *UpgradeRequest) { r.Image.Digest = "sha256:" + strings.Repeat("cd", 32) },
		"version":  func(r *UpgradeRequest) { r.Version = "1.2.4" },
		"deadline": func(r *UpgradeRequest) { r.CommitDeadline = time.Minute },
	} {
		r := base
		change(&r)
		if hash(SequenceUpgrade, r) == want {
			t.Errorf("%s doesn't change the hash", name)
		}
	}
}

func TestIsRebootErrorUnwraps(t *testing.T) {
	err := fmt.Errorf("phase: %w", fmt.Errorf("task: %w", RebootError{Cmd: RebootPowerOff}))
	if !IsRebootError(err) || IsRebootError(errors.New("x")) || IsRebootError(nil) {
		t.Error("IsRebootError is wrong")
	}
	if RebootKexec.String() != "kexec" || RebootCommand(9).String() != "command(9)" {
		t.Error("wrong String of reboot commands")
	}
}

func TestImageReferencesRequireADigest(t *testing.T) {
	want := goodImage()
	got, err := ParseImageRef(want.String())
	if err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "os:latest", "os@latest", "os@sha256:abc", "@" + want.Digest, "os@SHA256:" + strings.Repeat("ab", 32), "o s@" + want.Digest} {
		if _, err := ParseImageRef(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestVersionsAreOrdered(t *testing.T) {
	ordered := []string{"0.9", "1.0.0-rc.1", "v1.0.0", "1.0.1", "1.10.0", "2026.11.30"}
	for i, a := range ordered {
		for j, b := range ordered {
			got, err := CompareVersions(a, b)
			if err != nil || (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s against %s: %d, %v", a, b, got, err)
			}
		}
	}
	for _, bad := range []string{"", "latest", "1.x", strings.Repeat("1", 200)} {
		if _, err := CompareVersions(bad, "1.0.0"); err == nil {
			t.Errorf("%q was accepted", bad)
		}
		if _, err := CompareVersions("1.0.0", bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestMajorMinor(t *testing.T) {
	if major, minor, err := MajorMinor("v1.20.3-rc.1+build"); err != nil || major != 1 || minor != 20 {
		t.Errorf("%d.%d, %v", major, minor, err)
	}
	if _, _, err := MajorMinor("newest"); err == nil {
		t.Error("newest was accepted")
	}
}

func TestEventIDsRoundTrip(t *testing.T) {
	for _, id := range []EventID{{}, {"boot", 0}, {"a/b", 1 << 60}} {
		if got, err := ParseEventID(id.String()); err != nil || got != id {
			t.Errorf("%v became %v, %v", id, got, err)
		}
	}
	for _, bad := range []string{"boot", "/1", "boot/x", "boot/-1", strings.Repeat("b", 300) + "/1"} {
		if _, err := ParseEventID(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestWatchAndLogOptions(t *testing.T) {
	var o WatchOptions
	if err := WithTailDuration(-1)(&o); err == nil {
		t.Error("a negative duration was accepted")
	}
	var l LogOptions
	if err := WithTailLines(-1)(&l); err == nil {
		t.Error("a negative number of lines was accepted")
	}
	if err := errors.Join(WithTailLines(3)(&l), WithFollow()(&l)); err != nil || !l.Follow || *l.TailLines != 3 {
		t.Errorf("%+v, %v", l, err)
	}
	c := DefaultControllerOptions()
	if err := errors.Join(WithForce()(&c), WithTakeover()(&c)); err != nil || !c.Force || !c.Takeover {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDrainWaitsForAllSubscribersIncludingLateOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrainer()
		first, second := d.Subscribe(), d.Subscribe()
		drained := make(chan error, 1)
		go func() { drained <- d.Drain(t.Context()) }()
		<-first.EventCh()
		<-second.EventCh()
		first.Cancel()
		first.Cancel()
		third := d.Subscribe()
		<-third.EventCh()
		second.Cancel()
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("drained with a subscription left: %v", err)
		default:
		}
		if err := d.Drain(t.Context()); err == nil {
			t.Error("drained twice")
		}
		third.Cancel()
		if err := <-drained; err != nil {
			t.Error(err)
		}
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDrainer()
		defer d.Subscribe().Cancel()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	if err := NewDrainer().Drain(t.Context()); err != nil {
		t.Errorf("drain without subscriptions: %v", err)
	}
}

func TestInventoryFindsSlots(t *testing.T) {
	slot := func(name string, state SlotState, digest string) Slot {
		return Slot{Name: name, State: state, Image: Image{Ref: ImageRef{Digest: digest}}}
	}
	inv := Inventory{Booted: Booted{Slot: "A"}, Slots: []Slot{slot("A", SlotGood, "x"), slot("B", SlotStaged, "y"), slot("C", SlotGood, "z"), slot("D", SlotBad, "x")}}
	if s, ok := inv.Previous(); !ok || s.Name != "C" {
		t.Errorf("previous is %+v", s)
	}
	if s, ok := inv.Staged(); !ok || s.Name != "B" {
		t.Errorf("staged is %+v", s)
	}
	if s, ok := inv.SlotOf("x"); !ok || s.Name != "A" {
		t.Errorf("x is in %+v", s)
	}
	if _, ok := inv.SlotOf("nowhere"); ok {
		t.Error("found a slot with an unknown digest")
	}
}

func FuzzUnmarshalRequest(f *testing.F) {
	for _, seq := range Sequences() {
		data, err := MarshalRequest(requestFor(seq))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := UnmarshalRequest(data)
		if err != nil {
			return
		}
		for _, seq := range Sequences() {
			if plan, err := Plan(seq, ModeMetal, r); err == nil && plan == nil && seq != SequenceNoop {
				t.Errorf("%s has no plan for %s", seq, data)
			}
		}
	})
}
