// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package hosttest is the conformance suite of nodeos.Host, which the tests of each
// backend run.
//
// A backend implements Machine: it boots, creates bootable images, and loses power
// before any write. The name of each test is the rule that it checks.
package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Kind is the behavior of a test image.
type Kind int

// The kinds of images.
const (
	// Healthy boots and passes its health checks.
	Healthy Kind = iota
	// Hangs never starts its agent.
	Hangs
	// Unhealthy boots and fails its health checks.
	Unhealthy
)

// Machine is a powered-off machine under test with a good OS of version 1.0.0.
type Machine interface {
	// Boot power-cycles the machine and returns the Host of the booted OS.
	Boot(t *testing.T) nodeos.Host
	// Image returns a new image of a version and its content.
	Image(t *testing.T, version string, kind Kind) (nodeos.Image, []byte)
	// CutPower allows n more writes, then none until the next Boot, and returns
	// the number of attempted writes since the last call. A negative n allows
	// all.
	CutPower(n int) int
}

// Run runs the suite; newMachine returns a new machine for each test.
func Run(t *testing.T, newMachine func(*testing.T) Machine) {
	t.Helper()
	for _, tc := range []struct {
		name string
		test func(*testing.T, Machine)
	}{
		{"a boot has a new boot id and the same OS", bootIDs},
		{"staging twice is the same as once", stageTwice},
		{"staging does not change the next boot", stageOnly},
		{"content with another digest is not staged", stageWrongContent},
		{"a wrong size is refused and leaves no staged image", stageWrongSize},
		{"content that ends in an error is not staged", stageBrokenContent},
		{"a canceled stage is not staged", stageCanceled},
		{"an activated image boots and is not confirmed", activate},
		{"setting the next boot to an image that is not staged is refused", activateUnknown},
		{"clearing the next boot boots the old slot", clearNext},
		{"a hanging new slot falls back automatically", hangs},
		{"an unhealthy new slot falls back automatically after its tries", unhealthy},
		{"a restored try is not used up", keepTry},
		{"commit makes the new slot the default and is idempotent", commits},
		{"committing another digest is refused", commitsOther},
		{"the last good slot is not overwritten while the other is unconfirmed", protectsGood},
		{"restore boots the good slot and marks the one on trial as bad", restores},
		{"restore after a commit boots the previous OS", restoresCommitted},
		{"restore without a good slot is refused", restoresNothing},
		{"stopped services are unhealthy until they are started", services},
		{"a restart returns a RebootError", restarts},
		{"wiping does not affect the running OS", wipes},
		{"power loss at any write of a stage leaves the old OS", cutStage},
		{"power loss at any write of an activation leaves one bootable slot", cutActivate},
		{"power loss at any write of a commit leaves one of the two OSes", cutCommit},
		{"power loss at any write of a restore leaves one of the two OSes", cutRestore},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, newMachine(t)) })
	}
}

func inspect(t *testing.T, h nodeos.Host) nodeos.Inventory {
	t.Helper()
	inv, err := h.Inspect(t.Context())
	if err != nil {
		t.Fatalf("inspect: %v", err)
	}
	if inv.BootID == "" || inv.Booted.Digest == "" || len(inv.Slots) < 2 {
		t.Fatalf("the inventory lacks a boot id, a digest or slots: %+v", inv)
	}
	return inv
}

// stage stages an image of a version and returns it.
func stage(t *testing.T, m Machine, h nodeos.Host, version string, kind Kind) nodeos.Image {
	t.Helper()
	image, content := m.Image(t, version, kind)
	if _, err := h.Stage(t.Context(), image, bytes.NewReader(content)); err != nil {
		t.Fatalf("stage %s: %v", version, err)
	}
	return image
}

// activated stages and activates an image of version 2.0.0 and boots.
func activated(t *testing.T, m Machine, kind Kind) (nodeos.Host, nodeos.Image) {
	t.Helper()
	h := m.Boot(t)
	image := stage(t, m, h, "2.0.0", kind)
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
	return m.Boot(t), image
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantVersion(t *testing.T, h nodeos.Host, version string, confirmed bool) {
	t.Helper()
	if b := inspect(t, h).Booted; b.Version != version || b.Confirmed != confirmed {
		t.Fatalf("running %s, confirmed %v; want %s, %v", b.Version, b.Confirmed, version, confirmed)
	}
}

func bootIDs(t *testing.T, m Machine) {
	a := inspect(t, m.Boot(t))
	b := inspect(t, m.Boot(t))
	if a.BootID == b.BootID {
		t.Errorf("two boots have boot id %s", a.BootID)
	}
	if a.Booted != b.Booted || !a.Booted.Confirmed {
		t.Errorf("first boot: %+v, second boot: %+v", a.Booted, b.Booted)
	}
}

// countingReader counts reads.
type countingReader struct {
	r     io.Reader
	reads int
}

func (c *countingReader) Read(p []byte) (int, error) {
	c.reads++
	return c.r.Read(p)
}

func stageTwice(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, content := m.Image(t, "2.0.0", Healthy)
	first, err := h.Stage(t.Context(), image, bytes.NewReader(content))
	must(t, err)
	again := &countingReader{r: bytes.NewReader(content)}
	second, err := h.Stage(t.Context(), image, again)
	must(t, err)
	if first != second || second.State != nodeos.SlotStaged {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if again.reads > 0 {
		t.Errorf("the content of a staged image was read %d times", again.reads)
	}
	if got, ok := inspect(t, h).Staged(); !ok || got != second {
		t.Errorf("inventory: %+v", got)
	}
}

func stageOnly(t *testing.T, m Machine) {
	stage(t, m, m.Boot(t), "2.0.0", Healthy)
	h := m.Boot(t)
	wantVersion(t, h, "1.0.0", true)
	if _, ok := inspect(t, h).Staged(); !ok {
		t.Error("a boot lost the staged image")
	}
}

// notStaged checks that a refused image is in no slot and that the old OS boots.
func notStaged(t *testing.T, m Machine, h nodeos.Host, image nodeos.Image) {
	t.Helper()
	if s, ok := inspect(t, h).Staged(); ok {
		t.Errorf("%s is staged", s.Image.Version)
	}
	if err := h.SetNextBoot(t.Context(), image.Ref.Digest); err == nil {
		t.Error("an image that is not staged was activated")
	}
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

func stageWrongContent(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, content := m.Image(t, "2.0.0", Healthy)
	content[len(content)/2] ^= 1
	if _, err := h.Stage(t.Context(), image, bytes.NewReader(content)); err == nil {
		t.Error("content with another digest was staged")
	}
	notStaged(t, m, h, image)
}

func stageWrongSize(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, content := m.Image(t, "2.0.0", Healthy)
	for _, c := range [][]byte{content[:len(content)-1], append(bytes.Clone(content), ' ')} {
		if _, err := h.Stage(t.Context(), image, bytes.NewReader(c)); err == nil {
			t.Errorf("%d bytes were staged as %d", len(c), image.Size)
		}
	}
	notStaged(t, m, h, image)
}

func stageBrokenContent(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, content := m.Image(t, "2.0.0", Healthy)
	broken := io.MultiReader(bytes.NewReader(content[:len(content)/2]), errorReader{})
	if _, err := h.Stage(t.Context(), image, broken); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want the reader's error", err)
	}
	notStaged(t, m, h, image)
}

var errBroken = errors.New("the connection broke")

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errBroken }

func stageCanceled(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, content := m.Image(t, "2.0.0", Healthy)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Stage(ctx, image, bytes.NewReader(content)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	notStaged(t, m, h, image)
}

func activate(t *testing.T, m Machine) {
	h := m.Boot(t)
	image := stage(t, m, h, "2.0.0", Healthy)
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
	wantVersion(t, h, "1.0.0", true)
	h = m.Boot(t)
	wantVersion(t, h, "2.0.0", false)
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest)) // it's already running
	must(t, h.Health(t.Context()))
	if p, ok := inspect(t, h).Previous(); !ok || p.Image.Version != "1.0.0" {
		t.Errorf("previous slot: %+v", p)
	}
}

func activateUnknown(t *testing.T, m Machine) {
	h := m.Boot(t)
	image, _ := m.Image(t, "2.0.0", Healthy)
	if err := h.SetNextBoot(t.Context(), image.Ref.Digest); err == nil {
		t.Error("an image that is not staged was activated")
	}
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

func clearNext(t *testing.T, m Machine) {
	h := m.Boot(t)
	image := stage(t, m, h, "2.0.0", Healthy)
	must(t, h.ClearNextBoot(t.Context()))
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
	must(t, h.ClearNextBoot(t.Context()))
	must(t, h.ClearNextBoot(t.Context()))
	h = m.Boot(t)
	wantVersion(t, h, "1.0.0", true)
	must(t, h.SetNextBoot(t.Context(), image.Ref.Digest)) // still staged
}

func hangs(t *testing.T, m Machine) {
	h, image := activated(t, m, Hangs)
	wantVersion(t, h, "1.0.0", true)
	if s, ok := inspect(t, h).SlotOf(image.Ref.Digest); !ok || s.State != nodeos.SlotBad {
		t.Errorf("the hanging slot is %+v, want bad", s)
	}
}

func unhealthy(t *testing.T, m Machine) {
	h, _ := activated(t, m, Unhealthy)
	for range 20 {
		if inspect(t, h).Booted.Version == "1.0.0" {
			wantVersion(t, h, "1.0.0", true)
			wantVersion(t, m.Boot(t), "1.0.0", true)
			return
		}
		if err := h.Health(t.Context()); err == nil {
			t.Fatal("an unhealthy OS is reported as healthy")
		}
		h = m.Boot(t)
	}
	t.Error("an unhealthy OS still boots after 20 boots")
}

func keepTry(t *testing.T, m Machine) {
	h, _ := activated(t, m, Healthy)
	if !inspect(t, h).Capabilities.BootOnce {
		return
	}
	for range 10 {
		wantVersion(t, h, "2.0.0", false)
		must(t, h.KeepTry(t.Context()))
		must(t, h.KeepTry(t.Context()))
		h = m.Boot(t)
	}
}

func commits(t *testing.T, m Machine) {
	h, image := activated(t, m, Healthy)
	for range 2 {
		must(t, h.Commit(t.Context(), image.Ref.Digest))
		wantVersion(t, h, "2.0.0", true)
	}
	for range 5 {
		h = m.Boot(t)
		wantVersion(t, h, "2.0.0", true)
	}
	must(t, h.Commit(t.Context(), image.Ref.Digest))
}

func commitsOther(t *testing.T, m Machine) {
	h, _ := activated(t, m, Healthy)
	other, _ := m.Image(t, "3.0.0", Healthy)
	if err := h.Commit(t.Context(), other.Ref.Digest); err == nil {
		t.Error("a digest that is not running was committed")
	}
	wantVersion(t, h, "2.0.0", false)
}

func protectsGood(t *testing.T, m Machine) {
	h, _ := activated(t, m, Healthy)
	image, content := m.Image(t, "3.0.0", Healthy)
	_, err := h.Stage(t.Context(), image, bytes.NewReader(content))
	if err == nil || nodeos.ReasonOf(err, "") != "Unconfirmed" {
		t.Errorf("staging on an unconfirmed OS: %v, want refusal Unconfirmed", err)
	}
	_, err = h.Restore(t.Context())
	must(t, err)
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

func restores(t *testing.T, m Machine) {
	h, image := activated(t, m, Healthy)
	for range 2 {
		slot, err := h.Restore(t.Context())
		must(t, err)
		if slot.Image.Version != "1.0.0" {
			t.Errorf("restored %s", slot.Image.Version)
		}
	}
	h = m.Boot(t)
	wantVersion(t, h, "1.0.0", true)
	if s, ok := inspect(t, h).SlotOf(image.Ref.Digest); ok && s.State != nodeos.SlotBad {
		t.Errorf("the rolled back slot is %s, want bad", s.State)
	}
	stage(t, m, h, "3.0.0", Healthy)
}

func restoresCommitted(t *testing.T, m Machine) {
	h, image := activated(t, m, Healthy)
	must(t, h.Commit(t.Context(), image.Ref.Digest))
	_, err := h.Restore(t.Context())
	must(t, err)
	h = m.Boot(t)
	wantVersion(t, h, "1.0.0", true)
	if s, ok := inspect(t, h).Previous(); !ok || s.Image.Version != "2.0.0" {
		t.Errorf("the committed slot is lost: %+v", s)
	}
}

func restoresNothing(t *testing.T, m Machine) {
	h := m.Boot(t)
	if _, err := h.Restore(t.Context()); err == nil {
		t.Error("restored from an empty slot")
	}
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

func services(t *testing.T, m Machine) {
	h := m.Boot(t)
	for range 2 {
		must(t, h.StopServices(t.Context()))
	}
	if !inspect(t, h).ServicesStopped || h.Health(t.Context()) == nil {
		t.Error("stopped services are not reported")
	}
	for range 2 {
		must(t, h.StartServices(t.Context()))
	}
	if inspect(t, h).ServicesStopped {
		t.Error("started services are not reported")
	}
	must(t, h.Health(t.Context()))
	must(t, h.StopServices(t.Context()))
	if inspect(t, m.Boot(t)).ServicesStopped {
		t.Error("services are still stopped after a boot")
	}
}

func restarts(t *testing.T, m Machine) {
	h := m.Boot(t)
	var down nodeos.RebootError
	if err := h.Restart(t.Context(), nodeos.RebootPowerOff); !errors.As(err, &down) || down.Cmd != nodeos.RebootPowerOff {
		t.Errorf("got %v, want a RebootError", err)
	}
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

func wipes(t *testing.T, m Machine) {
	h := m.Boot(t)
	stage(t, m, h, "2.0.0", Healthy)
	all, err := h.Wipers(t.Context())
	must(t, err)
	for _, w := range all {
		if w.String() == "" {
			t.Error("a target has no name")
		}
		must(t, w.Format())
		must(t, w.Format())
	}
	if _, ok := inspect(t, h).Staged(); ok {
		t.Error("a staged image exists after wiping all targets")
	}
	wantVersion(t, m.Boot(t), "1.0.0", true)
}

// eachCut runs act with a power loss before its first write, its second, and so on
// until all writes succeed; check runs after each power loss.
func eachCut(t *testing.T, m Machine, act func(*testing.T) error, check func(t *testing.T, cut bool)) {
	t.Helper()
	for n := range 100 {
		m.CutPower(n)
		err := act(t)
		asked := m.CutPower(-1)
		cut := asked > n
		if cut == (err == nil) {
			t.Fatalf("cut before write %d of %d: got error %v", n+1, asked, err)
		}
		check(t, cut)
		if !cut {
			if asked == 0 {
				t.Error("nothing was written")
			}
			return
		}
	}
	t.Error("not done after 100 writes")
}

func cutStage(t *testing.T, m Machine) {
	i := 0
	eachCut(t, m, func(t *testing.T) error {
		t.Helper()
		m.CutPower(-1)
		h := m.Boot(t)
		image, content := m.Image(t, fmt.Sprintf("2.0.%d", i), Healthy)
		m.CutPower(i)
		i++
		_, err := h.Stage(t.Context(), image, bytes.NewReader(content))
		return err
	}, func(t *testing.T, cut bool) {
		t.Helper()
		h := m.Boot(t)
		wantVersion(t, h, "1.0.0", true)
		if s, ok := inspect(t, h).Staged(); ok == cut {
			t.Errorf("cut %v, staged %v %+v", cut, ok, s)
		}
	})
}

func cutActivate(t *testing.T, m Machine) {
	i := 0
	eachCut(t, m, func(t *testing.T) error {
		t.Helper()
		m.CutPower(-1)
		h := m.Boot(t)
		if !inspect(t, h).Booted.Confirmed {
			_, err := h.Restore(t.Context())
			must(t, err)
			h = m.Boot(t)
		}
		image := stage(t, m, h, fmt.Sprintf("2.0.%d", i), Healthy)
		m.CutPower(i)
		i++
		return h.SetNextBoot(t.Context(), image.Ref.Digest)
	}, func(t *testing.T, cut bool) {
		t.Helper()
		b := inspect(t, m.Boot(t)).Booted
		if !cut && b.Version == "1.0.0" {
			t.Error("an activated image did not boot")
		}
	})
}

func cutCommit(t *testing.T, m Machine) {
	last := "1.0.0"
	i := 0
	eachCut(t, m, func(t *testing.T) error {
		t.Helper()
		m.CutPower(-1)
		h := m.Boot(t)
		if b := inspect(t, h).Booted; !b.Confirmed {
			_, err := h.Restore(t.Context())
			must(t, err)
			h = m.Boot(t)
		}
		last = inspect(t, h).Booted.Version
		image := stage(t, m, h, fmt.Sprintf("2.0.%d", i), Healthy)
		must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
		h = m.Boot(t)
		m.CutPower(i)
		i++
		return h.Commit(t.Context(), image.Ref.Digest)
	}, func(t *testing.T, cut bool) {
		t.Helper()
		now := fmt.Sprintf("2.0.%d", i-1)
		b := inspect(t, m.Boot(t)).Booted
		if b.Version != now && b.Version != last {
			t.Errorf("running %s, want %s or %s", b.Version, now, last)
		}
		if !cut && (b.Version != now || !b.Confirmed) {
			t.Errorf("committed %s, running %+v", now, b)
		}
	})
}

func cutRestore(t *testing.T, m Machine) {
	i := 0
	eachCut(t, m, func(t *testing.T) error {
		t.Helper()
		m.CutPower(-1)
		h := m.Boot(t)
		if b := inspect(t, h).Booted; b.Version != "1.0.0" {
			_, err := h.Restore(t.Context())
			must(t, err)
			h = m.Boot(t)
		}
		image := stage(t, m, h, fmt.Sprintf("2.0.%d", i), Healthy)
		must(t, h.SetNextBoot(t.Context(), image.Ref.Digest))
		h = m.Boot(t)
		m.CutPower(i)
		i++
		_, err := h.Restore(t.Context())
		return err
	}, func(t *testing.T, cut bool) {
		t.Helper()
		b := inspect(t, m.Boot(t)).Booted
		if !cut && b.Version != "1.0.0" {
			t.Errorf("restored, running %s", b.Version)
		}
	})
}
