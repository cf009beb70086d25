// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"maps"
	"slices"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
)

// FactsToProto converts a host's facts.
func FactsToProto(f nodeos.HostFacts, about About) *agentpb.Facts {
	out := &agentpb.Facts{
		HostId: f.HostID, InstallationId: f.InstallationID, NodeName: f.NodeName, BootId: f.BootID,
		AgentVersion: about.Version, Mode: f.Mode.String(), Backend: f.Backend,
		Capabilities: &agentpb.HostCapabilities{
			Atomic: f.Capabilities.Atomic, BootOnce: f.Capabilities.BootOnce,
			AutoRollback: f.Capabilities.AutoRollback, Verify: f.Capabilities.Verify,
		},
		Booted: bootedToProto(f.Booted), FreeBytes: f.FreeBytes, ServicesStopped: f.ServicesStopped,
		HighWater: maps.Clone(f.HighWater), Fence: FenceToProto(&f.Fence),
		Operation: OperationToProto(f.Operation), Last: OperationToProto(f.Last), Observed: stamp(f.ObservedAt),
		TrustVersion: uint64(max(about.TrustVersion, 0)), TrustDigest: about.TrustDigest,
		CertificateExpires: stamp(about.CertificateExpires),
	}
	for _, slot := range cut(f.Slots, MaxSlots) {
		out.Slots = append(out.Slots, &agentpb.Slot{
			Name: slot.Name, State: string(slot.State), Image: ImageToProto(slot.Image),
			TriesLeft: int32(min(max(slot.TriesLeft, -1), 1000)), NextBoot: slot.NextBoot,
		})
	}
	for _, denied := range cut(f.Denied, MaxDenied) {
		out.Denied = append(out.Denied, &agentpb.Denial{
			Digest: denied.Digest, Why: sanitize.Line(denied.Why), At: stamp(denied.At), OperationId: denied.OperationID,
		})
	}
	if t := f.Trial; t != nil {
		out.Trial = &agentpb.Trial{
			OperationId: t.OperationID, Image: ImageToProto(t.Image), From: bootedToProto(t.From), BootId: t.BootID,
			Armed: stamp(t.ArmedAt), Deadline: stamp(t.Deadline), OnDeadline: DeadlineToProto(t.OnDeadline),
			Boots: count(t.Boots), Unordered: count(t.Unordered),
		}
	}
	return out
}

// FactsFromProto converts the facts that a host reported. Fields that the protocol
// lacks (sizes, content digests, a trial's caller) are zero.
func FactsFromProto(f *agentpb.Facts) (nodeos.HostFacts, About) {
	mode, err := nodeos.ParseMode(f.GetMode())
	if err != nil {
		mode = nodeos.ModeContainer // the mode without capabilities
	}
	out := nodeos.HostFacts{
		HostID: line(f.GetHostId()), InstallationID: line(f.GetInstallationId()), NodeName: line(f.GetNodeName()), Mode: mode,
		Inventory: nodeos.Inventory{
			Backend: line(f.GetBackend()),
			Capabilities: nodeos.HostCapabilities{
				Atomic: f.GetCapabilities().GetAtomic(), BootOnce: f.GetCapabilities().GetBootOnce(),
				AutoRollback: f.GetCapabilities().GetAutoRollback(), Verify: f.GetCapabilities().GetVerify(),
			},
			BootID: line(f.GetBootId()), Booted: bootedFromProto(f.GetBooted()),
			FreeBytes: f.GetFreeBytes(), ServicesStopped: f.GetServicesStopped(),
		},
		HighWater: marks(f.GetHighWater()), Operation: OperationFromProto(f.GetOperation()), Last: OperationFromProto(f.GetLast()),
		ObservedAt: moment(f.GetObserved()),
	}
	if fence := FenceFromProto(f.GetFence()); fence != nil {
		out.Fence = *fence
	}
	for _, slot := range cut(f.GetSlots(), MaxSlots) {
		image, err := ImageFromProto(slot.GetImage())
		if err != nil {
			image = nodeos.Image{} // an empty slot, or invalid image
		}
		out.Slots = append(out.Slots, nodeos.Slot{
			Name: line(slot.GetName()), State: nodeos.SlotState(line(slot.GetState())), Image: image,
			TriesLeft: int(slot.GetTriesLeft()), NextBoot: slot.GetNextBoot(),
		})
	}
	for _, denied := range cut(f.GetDenied(), MaxDenied) {
		out.Denied = append(out.Denied, nodeos.Denial{
			Digest: line(denied.GetDigest()), Why: line(denied.GetWhy()), At: moment(denied.GetAt()), OperationID: line(denied.GetOperationId()),
		})
	}
	if slot, ok := out.Inventory.Staged(); ok {
		out.Staged = &slot
	}
	if slot, ok := out.Inventory.Previous(); ok {
		out.Previous = &slot
	}
	out.Trial = trialFromProto(f.GetTrial())
	return out, About{
		Version: line(f.GetAgentVersion()), TrustVersion: int64(f.GetTrustVersion() & (1<<62 - 1)),
		TrustDigest: line(f.GetTrustDigest()), CertificateExpires: moment(f.GetCertificateExpires()),
	}
}

func trialFromProto(t *agentpb.Trial) *nodeos.Trial {
	if t == nil {
		return nil
	}
	image, err := ImageFromProto(t.GetImage())
	if err != nil {
		image = nodeos.Image{}
	}
	return &nodeos.Trial{
		OperationID: line(t.GetOperationId()), Image: image, From: bootedFromProto(t.GetFrom()), BootID: line(t.GetBootId()),
		ArmedAt: moment(t.GetArmed()), Deadline: moment(t.GetDeadline()), OnDeadline: DeadlineFromProto(t.GetOnDeadline()),
		Boots: int(t.GetBoots()), Unordered: int(t.GetUnordered()),
	}
}

func bootedToProto(b nodeos.Booted) *agentpb.Booted {
	return &agentpb.Booted{
		Slot: b.Slot, Product: b.Product, Version: b.Version, Digest: b.Digest,
		Confirmed: b.Confirmed, KubeletVersion: b.KubeletVersion,
	}
}

func bootedFromProto(b *agentpb.Booted) nodeos.Booted {
	return nodeos.Booted{
		Slot: line(b.GetSlot()), Product: line(b.GetProduct()), Version: line(b.GetVersion()), Digest: line(b.GetDigest()),
		Confirmed: b.GetConfirmed(), KubeletVersion: line(b.GetKubeletVersion()),
	}
}

// marks returns at most MaxMarks products, the first by name.
func marks(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, product := range slices.Sorted(maps.Keys(in)) {
		if len(out) == MaxMarks {
			break
		}
		out[line(product)] = line(in[product])
	}
	return out
}
