// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// exampleState returns a state with all fields set.
func exampleState(tb testing.TB, n int) State {
	tb.Helper()
	r := nodeos.UpgradeRequest{
		Order: nodeos.Order{OperationID: fmt.Sprint("op", n), Caller: "spiffe://c1/caller/reconciler", Fence: &nodeos.Fence{ClusterUID: "c1", Epoch: 3}, Remote: true},
		Image: nodeos.ImageRef{Repository: "registry.test/os", Digest: digest("2.0.0")}, Product: "os", Version: "2.0.0",
	}
	plan, err := nodeos.Plan(nodeos.SequenceUpgrade, nodeos.ModeMetal, r)
	if err != nil {
		tb.Fatal(err)
	}
	op, err := newOperation(Order{Sequence: nodeos.SequenceUpgrade, Request: r, Plan: plan}, "hash", epoch)
	if err != nil {
		tb.Fatal(err)
	}
	op.Index, op.State, op.TrialID, op.PhaseBootID = 4, nodeos.OperationRebooting, op.ID, "boot1"
	return State{
		InstallationID: "install", BootID: "boot1", Starts: 2,
		Running: nodeos.Booted{Slot: "A", Product: "os", Version: "1.0.0", Digest: digest("1.0.0"), Confirmed: true},
		Fence:   nodeos.Fence{ClusterUID: "c1", Epoch: 3}, Op: op,
		Trial: &nodeos.Trial{
			OperationID: op.ID, Caller: op.Caller, Image: nodeos.Image{Ref: r.Image, Product: "os", Version: "2.0.0"},
			FromBootID: "boot1", ArmedAt: epoch, Deadline: epoch.Add(time.Hour), Window: time.Hour, OnDeadline: nodeos.DeadlineRollback,
		},
		LastRestart: Restart{At: epoch, Sequence: nodeos.SequenceUpgrade, Remote: true},
		Denied:      []nodeos.Denial{{Digest: digest("3.0.0"), Why: "it fell back", At: epoch}},
		Committed:   []nodeos.Committed{{Digest: digest("1.0.0"), Product: "os", Version: "1.0.0", At: epoch}},
		HighWater:   map[string]string{"os": "1.0.0"},
		Recent:      []nodeos.OperationStatus{{ID: "op0", State: nodeos.OperationSucceeded, Started: epoch, Ended: epoch}},
	}
}

// journalBytes returns a journal with n records.
func journalBytes(tb testing.TB, n int) []byte {
	tb.Helper()
	out := binary.BigEndian.AppendUint32([]byte(journalMagic), journalVersion)
	for i := range n {
		s := exampleState(tb, i)
		s.Number = uint64(i)
		record, err := frame(s)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, record...)
	}
	return out
}

func TestJournalTruncatedAnywhereYieldsACompleteState(t *testing.T) {
	data := journalBytes(t, 3)
	record := (len(data) - headerSize) / 3
	for n := range data {
		c, err := ReadJournal(data[:n])
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if want := max(0, (n-headerSize)/record); c.Records != want || c.Damaged != 0 {
			t.Fatalf("cut at %d: %d records and %d damaged, want %d and 0", n, c.Records, c.Damaged, want)
		}
		if c.Records > 0 && c.State.Number != uint64(c.Records-1) {
			t.Fatalf("cut at %d: state number is %d, want %d", n, c.State.Number, c.Records)
		}
	}
}

func TestDamagedByteLosesAtMostItsRecordOrTheFollowingOnes(t *testing.T) {
	data := journalBytes(t, 3)
	record := (len(data) - headerSize) / 3
	for i := headerSize; i < len(data); i += 5 {
		bad := bytes.Clone(data)
		bad[i] ^= 0x40
		c, err := ReadJournal(bad)
		if err != nil {
			t.Fatalf("byte %d: %v", i, err)
		}
		hit := (i - headerSize) / record
		if c.Records < min(hit, 2) || c.Records > 2 || (c.Damaged == 0 && !c.Torn) {
			t.Fatalf("byte %d of record %d: %+v", i, hit, c)
		}
	}
}

func TestJournalRejectsOtherFilesAndUnsupportedVersions(t *testing.T) {
	data := journalBytes(t, 1)
	version := func(v uint32) []byte {
		out := bytes.Clone(data)
		binary.BigEndian.PutUint32(out[len(journalMagic):], v)
		return out
	}
	for name, tc := range map[string]struct {
		data []byte
		ok   bool
	}{
		"this version":     {version(journalVersion), true},
		"the next version": {version(journalVersion + 1), true},
		"the one after":    {version(journalVersion + 2), false},
		"no version":       {version(0), false},
		"another file":     {[]byte("#!/bin/sh\necho hello, not a journal\n"), false},
		"empty":            {nil, true},
	} {
		if _, err := ReadJournal(tc.data); (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrJournal)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStateOfTheNextVersionMayHaveMoreFields(t *testing.T) {
	record, err := frame(exampleState(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte(`{"colour":"blue",`), record[frameSize+1:]...)
	data := journalBytes(t, 0)
	data[headerSize-1] = journalVersion + 1
	data = binary.BigEndian.AppendUint32(data, uint32(len(body)))
	data = binary.BigEndian.AppendUint32(data, crcOf(body))
	c, err := ReadJournal(append(data, body...))
	if err != nil || c.Records != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if diff := cmp.Diff(exampleState(t, 1), c.State); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var update = flag.Bool("update", false, "write the golden journal")

func TestGoldenJournalIsReadable(t *testing.T) {
	name := filepath.Join("testdata", "journal-v1")
	if *update {
		if err := os.WriteFile(name, journalBytes(t, 2), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ReadJournal(data)
	if err != nil || c.Records != 2 || c.Damaged != 0 || c.Torn {
		t.Fatalf("%+v, %v", c, err)
	}
	want := exampleState(t, 1)
	want.Number = 1
	if diff := cmp.Diff(want, c.State); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJournalPersistsAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	id := j.State().InstallationID
	if id == "" {
		t.Error("a new journal has no installation id")
	}
	want := exampleState(t, 1)
	want.InstallationID = id
	if err := j.Append(want); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(dir); err == nil {
		t.Error("the journal was opened twice")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	want.Number = 1
	if diff := cmp.Diff(want, again.State()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := again.StartIn("boot1"); got != 3 {
		t.Errorf("the next start in the boot is %d, want 3", got)
	}
	if got := again.StartIn("boot2"); got != 1 {
		t.Errorf("the first start in a new boot is %d", got)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTornRecordIsDiscardedAndOverwritten(t *testing.T) {
	dir := t.TempDir()
	data := journalBytes(t, 2)
	if err := os.WriteFile(filepath.Join(dir, journalName), data[:len(data)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir)
	if got := j.State().Op.ID; got != "op0" {
		t.Errorf("the state is from %s, want op0", got)
	}
	s := j.State()
	s.Starts = 99
	if err := errors.Join(j.Append(s), j.Close()); err != nil {
		t.Fatal(err)
	}
	if j = open(t, dir); j.State().Starts != 99 || j.Damaged() != 0 {
		t.Errorf("after the repair: %d starts, %d damaged", j.State().Starts, j.Damaged())
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestJournalIsCompacted(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	for i := range 1000 {
		if err := j.Append(exampleState(t, i)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, journalName))
	if err != nil || info.Size() > compactSize {
		t.Errorf("1000 records: %d bytes, %v", info.Size(), err)
	}
	if got := j.State().Number; got != 1000 {
		t.Errorf("the last record is number %d", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFailedWriteKeepsTheLastState(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Append(exampleState(t, 1)); err != nil {
		t.Fatal(err)
	}
	if err := j.file.Close(); err != nil { // emulates a failing disk
		t.Fatal(err)
	}
	if err := j.Append(exampleState(t, 2)); err == nil {
		t.Fatal("a write to a closed file succeeded")
	}
	if got := j.State().Op.ID; got != "op1" {
		t.Errorf("the state is of %s after a failed write", got)
	}
	if err := j.Append(exampleState(t, 3)); err != nil {
		t.Errorf("the next write: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j = open(t, dir); j.State().Op.ID != "op3" {
		t.Errorf("on disk is %s", j.State().Op.ID)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(journalBytes(f, 0))
	f.Add(journalBytes(f, 1))
	f.Add(journalBytes(f, 2)[:700])
	f.Add([]byte(journalMagic + "\x00\x00\x00\x01\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		c, err := ReadJournal(data)
		if err != nil {
			return
		}
		// The core must accept any decoded state.
		s, _ := Step(c.State, Started{Inventory: nodeos.Inventory{BootID: "b", Booted: nodeos.Booted{Digest: digest("1.0.0")}}}, epoch)
		s, _ = Step(s, Ticked{}, epoch.Add(time.Hour))
		ActivityOf(s, epoch)
		Wake(s, epoch)
	})
}

// FuzzResumeFromAnyRecord decodes records with a valid checksum and any body.
func FuzzResumeFromAnyRecord(f *testing.F) {
	for i := range 2 {
		record, err := frame(exampleState(f, i))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(record[frameSize:])
	}
	f.Add([]byte(`{"op":{"plan":[{}],"state":"OnTrial","back":true},"trial":{}}`))
	f.Add([]byte(`{"op":{"plan":[{"ends":"boot"}],"state":"Rebooting","stop":{"takeover":true}},"next":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		record := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
		record = append(binary.BigEndian.AppendUint32(record, crcOf(body)), body...)
		c, err := ReadJournal(append(journalBytes(t, 0), record...))
		if err != nil {
			t.Fatal(err)
		}
		s := c.State
		for i := range 20 {
			now := epoch.Add(time.Duration(i) * time.Minute)
			var e Event = Ticked{}
			switch a := ActivityOf(s, now); {
			case i%7 == 0:
				e = Started{Inventory: nodeos.Inventory{BootID: string(rune('a' + i)), Booted: nodeos.Booted{Digest: digest("1.0.0")}}}
			case a.Kind == Stopping:
				e = Stopped{OperationID: a.OperationID}
			case a.Kind == RunUndo:
				e = UndoEnded{OperationID: a.OperationID}
			case a.Kind == RunPhase:
				e = PhaseEnded{OperationID: a.OperationID, Index: a.Index, Try: a.Try, Failure: map[bool]*Failure{true: {Reason: "r"}}[i%3 == 0]}
			}
			s, _ = Step(s, e, now)
			Wake(s, now)
		}
	})
}
