// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
)

var at = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func digest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func image(c, version string) nodeos.Image {
	return nodeos.Image{
		Ref:     nodeos.ImageRef{Repository: "registry.example.com/platform/os", Digest: digest(c)},
		Product: "platform-os", Version: version,
	}
}

// throughWire encodes and decodes a message as a connection does.
func throughWire[M proto.Message](t *testing.T, in, out M) M {
	t.Helper()
	data, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func facts() (nodeos.HostFacts, About) {
	slots := []nodeos.Slot{
		{Name: "A", State: nodeos.SlotGood, Image: image("a", "2.0.0")},
		{Name: "B", State: nodeos.SlotTrying, Image: image("b", "2.1.0"), TriesLeft: 2, NextBoot: true},
		{Name: "C", State: nodeos.SlotStaged, Image: image("c", "2.2.0"), TriesLeft: -1},
		{Name: "D", State: nodeos.SlotEmpty},
	}
	booted := nodeos.Booted{Slot: "B", Product: "platform-os", Version: "2.1.0", Digest: digest("b"), KubeletVersion: "v1.36.3"}
	f := nodeos.HostFacts{
		HostID: "h1", InstallationID: "i1", NodeName: "node-1", Mode: nodeos.ModeMetal,
		Inventory: nodeos.Inventory{
			Backend: "sim", Capabilities: nodeos.HostCapabilities{Atomic: true, BootOnce: true, AutoRollback: true, Verify: true},
			BootID: "boot-2", Booted: booted, Slots: slots, FreeBytes: 1 << 40, ServicesStopped: true,
		},
		Staged: &slots[2], Previous: &slots[0],
		Denied:    []nodeos.Denial{{Digest: digest("d"), Why: "failed its health check", At: at, OperationID: "op-0"}},
		HighWater: map[string]string{"platform-os": "2.0.0"},
		Fence:     nodeos.Fence{ClusterUID: "uid-1", Epoch: 7},
		Trial: &nodeos.Trial{
			OperationID: "op-1", Image: image("b", "2.1.0"), From: nodeos.Booted{Slot: "A", Version: "2.0.0", Digest: digest("a"), Confirmed: true},
			BootID: "boot-2", Boots: 1, Unordered: 2, ArmedAt: at, Deadline: at.Add(time.Hour), OnDeadline: nodeos.DeadlineRollback,
		},
		Operation: &nodeos.OperationStatus{
			ID: "op-1", Sequence: nodeos.SequenceUpgrade, Caller: "spiffe://uid-1/caller/reconciler", Method: "Activate", Attempt: "a1",
			RequestHash: "00ff", Digest: digest("b"), State: nodeos.OperationOnTrial, Phase: "verify", PhaseIndex: 7, PhaseCount: 8,
			Tasks: []string{"verify-booted"}, Try: 1, Started: at,
		},
		Last: &nodeos.OperationStatus{
			ID: "op-0", Sequence: nodeos.SequenceUpgrade, State: nodeos.OperationRolledBack, Started: at, Ended: at.Add(time.Minute),
			Reason: "Unhealthy", Message: "health check kubelet failed",
		},
		ObservedAt: at,
	}
	return f, About{Version: "1.2.3", TrustVersion: 3, TrustDigest: digest("e"), CertificateExpires: at.Add(90 * 24 * time.Hour)}
}

func TestFactsRoundTrip(t *testing.T) {
	want, about := facts()
	got, gotAbout := FactsFromProto(throughWire(t, FactsToProto(want, about), &agentpb.Facts{}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(about, gotAbout); diff != "" {
		t.Errorf("about (-want +got):\n%s", diff)
	}
}

func TestEveryEventRoundTrips(t *testing.T) {
	for _, payload := range []nodeos.Payload{
		nodeos.EventSequenceStart{Sequence: nodeos.SequenceUpgrade, Phases: 8, Resumed: true},
		nodeos.EventSequenceStop{
			Sequence: nodeos.SequenceReboot, State: nodeos.OperationFailed, Reason: "Timeout", Error: "took too long", Duration: time.Minute,
		},
		nodeos.EventSequenceRefused{Sequence: nodeos.SequenceReset, Reason: "Locked", Error: "locked"},
		nodeos.EventFatalSequencerError{Sequence: nodeos.SequenceReset, Error: "broke"},
		nodeos.EventPhase{
			Sequence: nodeos.SequenceUpgrade, Phase: "stage", Index: 2, Count: 8, Try: 3, Action: nodeos.ActionStop, Error: "disk full", Duration: time.Second,
		},
		nodeos.EventTask{
			Sequence: nodeos.SequenceUpgrade, Phase: "stage", Task: "stage-image", Index: 1, Count: 1, Action: nodeos.ActionStart,
		},
		nodeos.EventProgress{Task: "stage-image", Done: 5, Total: 10, Unit: "bytes"},
		nodeos.EventTrial{What: "armed", Digest: digest("b"), Deadline: at, Message: "until then"},
		nodeos.EventRestart{Cmd: nodeos.RebootPowerOff},
		nodeos.EventServiceState{Service: "kubelet", State: "stopped", Message: "for an upgrade"},
		nodeos.EventConfigError{Error: "unknown field"},
	} {
		t.Run(payload.TypeName(), func(t *testing.T) {
			want := nodeos.EventInfo{Event: nodeos.Event{
				TypeURL: nodeos.TypeURLOf(payload), ID: nodeos.EventID{BootID: "boot-1", Seq: 9}, Time: at, OperationID: "op-1", Payload: payload,
			}}
			got := EventFromProto(throughWire(t, EventToProto(want.Event), &agentpb.Event{}))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		})
	}
	for count, unknown := range map[uint64]bool{0: true, 3: false} {
		if got := EventFromProto(LostToProto(count)); got.Lost != count || got.LostUnknown != unknown {
			t.Errorf("lost %d was decoded as %+v", count, got)
		}
	}
}

func TestEveryStateAndDeadlineActionHasAWireValue(t *testing.T) {
	for number := range agentpb.OperationState_name {
		state := agentpb.OperationState(number)
		if got := StateToProto(StateFromProto(state)); got != state {
			t.Errorf("state %s was decoded as %s", state, got)
		}
	}
	for number := range agentpb.OnDeadline_name {
		word := agentpb.OnDeadline(number)
		if got := DeadlineToProto(DeadlineFromProto(word)); got != word {
			t.Errorf("deadline %s was decoded as %s", word, got)
		}
	}
	if got := StateFromProto(99); got.Done() {
		t.Errorf("an unknown state was decoded as terminal: %s", got)
	}
}

func TestT10UntrustedHostStringsAreSanitizedAndBounded(t *testing.T) {
	in := &agentpb.Facts{HostId: "h1\n\nSigned-off-by: root", HighWater: map[string]string{}}
	for i := range 1000 {
		in.Denied = append(in.Denied, &agentpb.Denial{Digest: strings.Repeat("x", 500), Why: "\x1b[31mred"})
		in.Slots = append(in.Slots, &agentpb.Slot{Name: "A"})
		in.HighWater[fmt.Sprintf("p%04d", i)] = "1.0.0"
	}
	got, _ := FactsFromProto(in)
	if strings.Contains(got.HostID, "\n") {
		t.Errorf("host id has a line break: %q", got.HostID)
	}
	if len(got.Denied) != MaxDenied || len(got.Slots) != MaxSlots || len(got.HighWater) != MaxMarks {
		t.Errorf("%d denials, %d slots, %d marks were accepted", len(got.Denied), len(got.Slots), len(got.HighWater))
	}
	if strings.ContainsRune(got.Denied[0].Why, 0x1b) || len(got.Denied[0].Digest) > 256 {
		t.Errorf("denial %+v was not sanitized", got.Denied[0])
	}
}

func FuzzEventFromProto(f *testing.F) {
	seed, err := proto.Marshal(EventToProto(nodeos.Event{ID: nodeos.EventID{BootID: "b", Seq: 1}, Time: at, Payload: nodeos.EventRestart{}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var event agentpb.Event
		if proto.Unmarshal(data, &event) == nil {
			EventFromProto(&event)
		}
		var reported agentpb.Facts
		if proto.Unmarshal(data, &reported) == nil {
			if got, _ := FactsFromProto(&reported); len(got.Denied) > MaxDenied {
				t.Errorf("%d denials were accepted", len(got.Denied))
			}
		}
	})
}
