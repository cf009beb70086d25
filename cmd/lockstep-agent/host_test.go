// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

func TestSignedImageIsStagedActivatedBootedAndCommitted(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	next := b.image(sim.Document{Version: "2.1.0", KubeletVersion: "v1.36.4"}, true)
	before := b.until("idle", func(s fleet.State) bool { return s.Connected && s.Facts.Operation == nil })
	pid := b.agentPID()
	if before.Facts.NodeName != "node-1" || before.Facts.Booted.Version != "2.0.0" || before.About.TrustVersion != 1 {
		t.Errorf("facts before: %+v, %+v", before.Facts, before.About)
	}

	if _, err := b.fleet.Stage(t.Context(), "h1", b.order("stage-1"), next); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("stage-1"); got.State != nodeos.OperationSucceeded {
		t.Fatalf("stage: %+v", got)
	}
	staged := b.until("staged", func(s fleet.State) bool { return s.Facts.Staged != nil })
	if staged.Facts.Staged.Image.Ref.Digest != next.Ref.Digest || staged.Facts.BootID != before.Facts.BootID {
		t.Errorf("facts after staging: %+v", staged.Facts)
	}

	trial := b.onTrial("up-1", fleet.Activation{Image: next})
	if trial.Facts.BootID == before.Facts.BootID || b.agentPID() == pid {
		t.Errorf("boot id %s or process %d did not change", trial.Facts.BootID, pid)
	}
	if trial.Facts.Booted.Digest != next.Ref.Digest || trial.Facts.Booted.Confirmed || trial.Facts.Trial == nil {
		t.Errorf("facts on trial: %+v", trial.Facts)
	}
	if _, err := b.fleet.Extend(t.Context(), "h1", b.order("up-1"), next.Ref.Digest); err != nil {
		t.Error(err)
	}
	if _, err := b.fleet.Commit(t.Context(), "h1", b.order("up-1"), next.Ref.Digest); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("up-1"); got.State != nodeos.OperationSucceeded {
		t.Fatalf("upgrade: %+v", got)
	}
	facts, _, err := b.fleet.Facts(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	if !facts.Booted.Confirmed || facts.HighWater["platform-os"] != "2.1.0" || facts.Previous == nil || facts.Trial != nil {
		t.Errorf("facts after the commit: %+v", facts)
	}
	again, err := b.fleet.Activate(t.Context(), "h1", b.order("up-1"), fleet.Activation{Image: next})
	if err != nil || !again.Repeated || again.Operation.State != nodeos.OperationSucceeded {
		t.Errorf("the same order again = %+v, %v; want the same operation", again, err)
	}
}

func TestAfterACommitOnlyARollbackRestoresThePreviousOS(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	next := b.image(sim.Document{Version: "2.1.0"}, true)
	older := b.image(sim.Document{Version: "2.0.5"}, true)
	b.onTrial("up-1", fleet.Activation{Image: next})
	if _, err := b.fleet.Commit(t.Context(), "h1", b.order("up-1"), next.Ref.Digest); err != nil {
		t.Fatal(err)
	}
	b.ended("up-1")
	if _, err := b.fleet.Stage(t.Context(), "h1", b.order("down-1"), older); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("down-1"); got.State != nodeos.OperationFailed || got.Reason != "BelowFloor" {
		t.Errorf("an older version after the commit of a newer one: %+v", got)
	}
	facts, _, err := b.fleet.Facts(t.Context(), "h1")
	if err != nil || facts.Previous == nil || facts.Previous.Image.Version != "2.0.0" {
		t.Fatalf("facts: %+v, %v", facts, err)
	}
	if _, err := b.fleet.Rollback(t.Context(), "h1", b.order("back-1"), facts.Previous.Image.Ref.Digest); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("back-1"); got.State != nodeos.OperationSucceeded {
		t.Errorf("rollback: %+v", got)
	}
	b.until("on 2.0.0 again", func(s fleet.State) bool {
		return s.Connected && s.Facts.Booted.Version == "2.0.0" && s.Facts.Booted.Confirmed
	})
}

func TestUnhealthyOSRollsBackAutomaticallyAndIsDenied(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	sick := b.image(sim.Document{Version: "2.1.0", Faults: sim.Faults{Unhealthy: true}}, true)
	if _, err := b.fleet.Activate(t.Context(), "h1", b.order("up-1"), fleet.Activation{Image: sick}); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("up-1"); got.State != nodeos.OperationRolledBack || got.Message == "" {
		t.Errorf("upgrade: %+v", got)
	}
	facts, _, err := b.fleet.Facts(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	if facts.Booted.Version != "2.0.0" || !facts.Booted.Confirmed || len(facts.Denied) != 1 || facts.Denied[0].Digest != sick.Ref.Digest {
		t.Errorf("facts: %+v", facts)
	}
}

func TestFirmwareFallsBackFromAnOSThatDoesNotBoot(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	stuck := b.image(sim.Document{Version: "2.1.0", Faults: sim.Faults{HangAtBoot: true}}, true)
	if _, err := b.fleet.Activate(t.Context(), "h1", b.order("up-1"), fleet.Activation{Image: stuck}); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("up-1"); got.State != nodeos.OperationRolledBack {
		t.Errorf("upgrade: %+v", got)
	}
}

func TestHostWithoutReconcilerRollsBackAtTheDeadline(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	next := b.image(sim.Document{Version: "2.1.0"}, true)
	b.onTrial("up-1", fleet.Activation{Image: next, CommitDeadline: 5 * time.Second, OnDeadline: nodeos.DeadlineRollback})
	// No commit follows.
	if got := b.ended("up-1"); got.State != nodeos.OperationRolledBack {
		t.Errorf("upgrade: %+v", got)
	}
}

func TestUnreachableHostRollsBackAtTheDeadline(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	deaf := b.image(sim.Document{Version: "2.1.0", Faults: sim.Faults{NoNetwork: true}}, true)
	if _, err := b.fleet.Activate(t.Context(), "h1", b.order("up-1"), fleet.Activation{Image: deaf, CommitDeadline: 4 * time.Second}); err != nil {
		t.Fatal(err)
	}
	lost := b.until("unreachable", func(s fleet.State) bool {
		return !s.Connected && s.Err != nil && strings.Contains(s.Err.Error(), b.address)
	})
	if nodeos.ReasonOf(lost.Err, "") != "Unreachable" {
		t.Errorf("error = %v", lost.Err)
	}
	if got := b.ended("up-1"); got.State != nodeos.OperationRolledBack {
		t.Errorf("upgrade: %+v", got)
	}
}

func TestT5AgentRefusesImagesNotSignedUnderItsOwnPolicy(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	unsigned := b.image(sim.Document{Version: "2.1.0"}, false)
	renamed := b.image(sim.Document{Version: "2.2.0"}, true)
	renamed.Version = "9.9.0" // only compared with the image
	for id, tc := range map[string]struct {
		image  nodeos.Image
		reason string
	}{
		"unsigned": {unsigned, "Unsigned"}, "renamed": {renamed, "NameMismatch"},
	} {
		if _, err := b.fleet.Stage(t.Context(), "h1", b.order(id), tc.image); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		got := b.ended(id)
		if got.State != nodeos.OperationFailed || got.Reason != tc.reason {
			t.Errorf("%s: %+v, want reason %s", id, got, tc.reason)
		}
	}
	facts, _, err := b.fleet.Facts(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	if facts.Staged != nil {
		t.Errorf("a refused image was written: %+v", facts.Staged)
	}
}

func TestT5DeliveredTrustDocumentTakesEffectImmediately(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	next := b.image(sim.Document{Version: "2.1.0"}, true)
	second, _ := b.envelope(2, "revoked: {digests: [\""+next.Ref.Digest+"\"]}\n")
	if version, err := b.fleet.DeliverTrust(t.Context(), "h1", second); err != nil || version != 2 {
		t.Fatalf("deliver = %d, %v", version, err)
	}
	if _, err := b.fleet.Stage(t.Context(), "h1", b.order("stage-1"), next); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("stage-1"); got.State != nodeos.OperationFailed || got.Reason != "Revoked" {
		t.Errorf("a revoked image: %+v", got)
	}
	third, _ := b.envelope(4, "")
	if _, err := b.fleet.DeliverTrust(t.Context(), "h1", third); nodeos.ReasonOf(err, "") != "PolicyChangeRefused" {
		t.Errorf("a document with a gap = %v", err)
	}
}

func TestRotatedCertificateIsServedByTheSameProcess(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	_, before, err := b.fleet.Facts(t.Context(), "h1")
	if err != nil {
		t.Fatal(err)
	}
	pid := b.agentPID()
	if _, _, err := b.pki.IssueHost("h1", nil, nil, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		_, now, err := b.fleet.Facts(t.Context(), "h1")
		if err == nil && now.CertificateExpires.Before(before.CertificateExpires.Add(-50*time.Minute)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the certificate still expires at %s (%v)", now.CertificateExpires, err)
		}
	}
	if got := b.agentPID(); got != pid {
		t.Errorf("agent process is %d, want %d", got, pid)
	}
}

func TestHostKeepsItsIDAndRejectsTheCertificateOfAnotherHost(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := keepHostID(dir, "h1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepHostID(dir, "h2"); err == nil || !strings.Contains(err.Error(), "h1") {
		t.Errorf("another id = %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files = %v, %v; want only the host id", left, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "host-id")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("host id = %v, %v; want mode 0600", info, err)
	}
}

func TestClockIsNeverBeforeTheBuildTime(t *testing.T) {
	built := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct{ wall, want time.Time }{
		{time.Unix(0, 0), built}, {built.Add(time.Hour), built.Add(time.Hour)},
	} {
		if got := clock(func() time.Time { return tc.wall }, built)(); !got.Equal(tc.want) {
			t.Errorf("clock at %s is %s, want %s", tc.wall, got, tc.want)
		}
	}
}

func TestAgentCrashDuringATrialLosesNothing(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	next := b.image(sim.Document{Version: "2.1.0"}, true)
	trial := b.onTrial("up-1", fleet.Activation{Image: next})
	pid := b.agentPID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	back := b.until("back on trial", func(s fleet.State) bool {
		return s.Connected && s.LastSeen.After(trial.LastSeen.Add(500*time.Millisecond)) && s.Facts.Operation != nil && s.Facts.Operation.State == nodeos.OperationOnTrial
	})
	if b.agentPID() == pid || back.Facts.BootID != trial.Facts.BootID {
		t.Errorf("agent process is %d in boot %s, want another process in boot %s", b.agentPID(), back.Facts.BootID, trial.Facts.BootID)
	}
	if _, err := b.fleet.Commit(t.Context(), "h1", b.order("up-1"), next.Ref.Digest); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("up-1"); got.State != nodeos.OperationSucceeded {
		t.Errorf("upgrade: %+v", got)
	}
}

func TestAgentExitsWithItsSupervisor(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	pid := b.agentPID()
	if powered, err := sim.Powered(b.machine()); err != nil || !powered {
		t.Errorf("powered with a supervisor = %v, %v", powered, err)
	}
	if err := b.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		gone := err != nil || strings.Contains(string(state), ") Z ") // an uncollected zombie
		powered, err := sim.Powered(b.machine())
		if err != nil {
			t.Fatal(err)
		}
		if gone && !powered {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the supervisor died: agent gone: %v, machine powered: %v", gone, powered)
		}
	}
}
