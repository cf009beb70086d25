// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/hosttest"
)

// machine is a simulated machine under test.
type machine struct {
	dir   string
	left  int // writes before the power loss; negative: none
	asked int
}

// content returns the content of an image.
func content(t *testing.T, d Document) []byte {
	t.Helper()
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir(), left: -1}
	image, data := m.Image(t, "1.0.0", hosttest.Healthy)
	if err := Create(m.dir, image, data); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) Boot(t *testing.T) nodeos.Host {
	t.Helper()
	m.left = -1
	if _, err := Boot(t.Context(), m.dir, BootOptions{}); err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Dir: m.dir, Power: m.power})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (m *machine) power(string) error {
	m.asked++
	switch {
	case m.left < 0:
		return nil
	case m.left == 0:
		return ErrPowerLoss
	default:
		m.left--
		return nil
	}
}

func (m *machine) CutPower(n int) int {
	asked := m.asked
	m.left, m.asked = n, 0
	return asked
}

func (m *machine) Image(t *testing.T, version string, kind hosttest.Kind) (nodeos.Image, []byte) {
	t.Helper()
	healthy := kind != hosttest.Unhealthy
	data := content(t, Document{
		Product: "os", Version: version, KubeletVersion: "v1.37.0", Healthy: &healthy,
		Faults: Faults{HangAtBoot: kind == hosttest.Hangs},
	})
	image, err := ImageOf("registry.test/os", data)
	if err != nil {
		t.Fatal(err)
	}
	return image, data
}

func TestSimulatedMachineConforms(t *testing.T) {
	hosttest.Run(t, func(t *testing.T) hosttest.Machine { t.Helper(); return newMachine(t) })
}

func TestCorruptedSlotNeverBoots(t *testing.T) {
	m := newMachine(t)
	h := m.Boot(t)
	image, data := m.Image(t, "2.0.0", hosttest.Healthy)
	if _, err := h.Stage(t.Context(), image, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := h.SetNextBoot(t.Context(), image.Ref.Digest); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "slots", "B", "image"), bytes.Replace(data, []byte("2.0.0"), []byte("9.9.9"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Boot(t.Context(), m.dir, BootOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Document.Version != "1.0.0" || r.Failed != DefaultTries {
		t.Errorf("%s booted after %d failures, want 1.0.0 after %d", r.Document.Version, r.Failed, DefaultTries)
	}
}

func TestCorruptedWriteIsDetectedByReadingBack(t *testing.T) {
	m := newMachine(t)
	h := m.Boot(t)
	if err := SetFaults(m.dir, Faults{CorruptStage: true}); err != nil {
		t.Fatal(err)
	}
	image, data := m.Image(t, "2.0.0", hosttest.Healthy)
	if _, err := h.Stage(t.Context(), image, bytes.NewReader(data)); err == nil {
		t.Error("corrupted bytes were staged")
	}
	if err := SetFaults(m.dir, Faults{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stage(t.Context(), image, bytes.NewReader(data)); err != nil {
		t.Errorf("stage on the repaired disk: %v", err)
	}
}

func TestPowerLossFromTheFaultsFileHappensOnce(t *testing.T) {
	for _, point := range Points() {
		t.Run(point, func(t *testing.T) {
			m := newMachine(t)
			m.Boot(t)
			cuts := 0
			h, err := Open(Config{Dir: m.dir, PowerCut: func() { cuts++ }})
			if err != nil {
				t.Fatal(err)
			}
			if err := SetFaults(m.dir, Faults{PowerLossAt: point}); err != nil {
				t.Fatal(err)
			}
			image, data := m.Image(t, "2.0.0", hosttest.Healthy)
			if _, err := h.Stage(t.Context(), image, bytes.NewReader(data)); !errors.Is(err, ErrPowerLoss) || cuts != 1 {
				t.Fatalf("got %v and %d cuts", err, cuts)
			}
			if _, err := h.Stage(t.Context(), image, bytes.NewReader(data)); err != nil {
				t.Errorf("stage after the power loss: %v", err)
			}
		})
	}
}

func TestBootTakesBootSecondsAndEndsWithItsContext(t *testing.T) {
	m := &machine{dir: t.TempDir()}
	data := content(t, Document{Product: "os", Version: "1.0.0", BootSeconds: 2.5})
	image, err := ImageOf("os", data)
	if err != nil {
		t.Fatal(err)
	}
	if err := Create(m.dir, image, data); err != nil {
		t.Fatal(err)
	}
	var slept time.Duration
	sleep := func(_ context.Context, d time.Duration) error {
		slept += d
		return nil
	}
	if _, err := Boot(t.Context(), m.dir, BootOptions{Sleep: sleep}); err != nil || slept != 2500*time.Millisecond {
		t.Errorf("slept %s, %v", slept, err)
	}
	ended := errors.New("ended")
	if _, err := Boot(t.Context(), m.dir, BootOptions{Sleep: func(context.Context, time.Duration) error { return ended }}); !errors.Is(err, ended) {
		t.Errorf("got %v", err)
	}
	if s, err := Inspect(m.dir); err != nil || s.Up {
		t.Errorf("a machine with a canceled boot is up: %+v, %v", s, err)
	}
}

func TestInspectReportsWhenTheMachineIsDown(t *testing.T) {
	m := newMachine(t)
	h := m.Boot(t)
	s, err := Inspect(m.dir)
	if err != nil || !s.Up || !s.Healthy || s.Document.KubeletVersion != "v1.37.0" {
		t.Fatalf("got %+v, %v", s, err)
	}
	if err := h.Restart(t.Context(), nodeos.RebootRestart); !nodeos.IsRebootError(err) {
		t.Fatal(err)
	}
	if s, err = Inspect(m.dir); err != nil || s.Up {
		t.Errorf("after a restart: %+v, %v", s, err)
	}
	m.Boot(t)
	if err := PowerOff(m.dir); err != nil {
		t.Fatal(err)
	}
	if s, err = Inspect(m.dir); err != nil || s.Up {
		t.Errorf("without power: %+v, %v", s, err)
	}
}

func TestCreateKeepsAnExistingMachine(t *testing.T) {
	m := newMachine(t)
	image, data := m.Image(t, "9.0.0", hosttest.Healthy)
	if err := Create(m.dir, image, data); err != nil {
		t.Fatal(err)
	}
	inv, err := m.Boot(t).Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := nodeos.Booted{Slot: "A", Product: "os", Version: "1.0.0", Digest: inv.Booted.Digest, Confirmed: true, KubeletVersion: "v1.37.0"}
	if diff := cmp.Diff(want, inv.Booted); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParseDocument(f *testing.F) {
	for _, s := range []string{`{"product":"os","version":"1.0.0"}`, `{"product":"os","version":"1","bootSeconds":-1}`, `{} {}`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDocument(data)
		if err == nil && (d.Product == "" || d.bootTime() < 0) {
			t.Errorf("%+v was accepted", d)
		}
	})
}
