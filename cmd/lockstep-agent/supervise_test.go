// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// systemImage is a small image of the simulated machine.
func systemImage(t *testing.T, version string) []byte {
	t.Helper()
	content, err := json.Marshal(sim.Document{Product: "platform-os", Version: version, KubeletVersion: "v1.36.3"})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// newMachine creates a machine that was never booted and returns its directory.
func newMachine(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "machine")
	file := filepath.Join(t.TempDir(), "system.json")
	if err := os.WriteFile(file, systemImage(t, "2.0.0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := createMachine(simConfig{dir: dir, image: file}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lines waits until a file has n lines and returns them.
func lines(t *testing.T, file string, n int) []string {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(file)
		if got := strings.Fields(string(data)); err == nil && len(got) >= n {
			return got
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not %d lines in 20 s, but %q (%v)", file, n, data, err)
		}
	}
}

func TestRebootStartsANewProcessInANewBoot(t *testing.T) {
	dir, log := newMachine(t), filepath.Join(t.TempDir(), "log")
	// The first agent restarts the machine, the second one crashes, and the third
	// one powers the machine off.
	script := `echo "$$/$(cat "$1/run/up")" >> "$2"
case $(wc -l < "$2") in 1) exit 86;; 2) exit 3;; *) exit 87;; esac`
	s := supervisor{dir: dir, command: []string{"sh", "-c", script, "agent", dir, log}, stderr: io.Discard, log: zap.NewNop()}
	if err := s.power(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := lines(t, log, 3)
	var pids, boots []string
	for _, line := range got {
		pid, boot, _ := strings.Cut(line, "/")
		pids, boots = append(pids, pid), append(boots, boot)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(pids)))) != 3 {
		t.Errorf("pids %v, want three processes", pids)
	}
	if boots[0] == boots[1] {
		t.Errorf("the reboot did not change boot id %s", boots[0])
	}
	if boots[1] != boots[2] {
		t.Errorf("a crash of the agent rebooted the machine: %s, %s", boots[1], boots[2])
	}
	if status, err := sim.Inspect(dir); err != nil || status.Up {
		t.Errorf("a powered-off machine is up: %+v, %v", status, err)
	}
}

func TestStoppingTheSupervisorStopsTheAgent(t *testing.T) {
	dir, log := newMachine(t), filepath.Join(t.TempDir(), "log")
	script := `trap 'echo stopped >> "$2"; exit 0' TERM
echo up >> "$2"
while :; do sleep 0.05; done`
	ctx, cancel := context.WithCancel(t.Context())
	s := supervisor{dir: dir, command: []string{"sh", "-c", script, "agent", dir, log}, stderr: io.Discard, log: zap.NewNop()}
	done := make(chan error, 1)
	go func() { done <- s.power(ctx) }()
	lines(t, log, 1)
	if _, err := os.Stat(filepath.Join(dir, "power.lock")); err != nil {
		t.Errorf("the machine is not reported as powered: %v", err)
	}
	if status, err := sim.Inspect(dir); err != nil || !status.Up {
		t.Errorf("a running machine is down: %+v, %v", status, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("power = %v", err)
	}
	if got := lines(t, log, 2); got[1] != "stopped" {
		t.Errorf("the agent received no signal: %v", got)
	}
	if status, err := sim.Inspect(dir); err != nil || status.Up {
		t.Errorf("a machine without a supervisor is up: %+v, %v", status, err)
	}
}

func TestExitCodeSelectsTheSupervisorAction(t *testing.T) {
	for want, err := range map[int]error{
		0:                nil,
		1:                errors.New("anything"),
		sim.ExitRestart:  nodeos.RebootError{Cmd: nodeos.RebootRestart},
		sim.ExitPowerOff: nodeos.RebootError{Cmd: nodeos.RebootPowerOff},
	} {
		if got := exitCode(err); got != want {
			t.Errorf("exitCode(%v) = %d, want %d", err, got, want)
		}
	}
}

func TestAgentArgumentsAreTheSupervisorArgumentsWithoutSupervise(t *testing.T) {
	got := childArgs([]string{"-supervise", "--sim-dir", "x", "--supervise=true", "-state-dir=y"})
	if want := []string{"--sim-dir", "x", "-state-dir=y"}; !slices.Equal(got, want) {
		t.Errorf("childArgs = %q, want %q", got, want)
	}
}

func TestCommandLineReportsAllErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"-backend", "rauc", "-listen", "x", "-trust-policy", "file"}, &out)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"-backend", "-listen", "-trust-root-digest", "-cluster-uid"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q doesn't mention %s", err, want)
		}
	}
	if _, err := parse([]string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-state-dir") {
		t.Errorf("help = %v, %q", err, out.String())
	}
	if _, err := parse([]string{"-sim-dir", "m", "-cluster-uid", "uid-1", "surplus"}, &out); err == nil {
		t.Error("an extra argument was accepted")
	}
	good, err := parse([]string{"-sim-dir", "m", "-cluster-uid", "uid-1"}, &out)
	if err != nil || good.platform != "metal" || len(good.insecure.enabled()) != 0 {
		t.Errorf("parse = %+v, %v", good, err)
	}
}
