// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// SlotState is what a slot holds.
type SlotState string

// The states of a slot.
const (
	// SlotEmpty holds nothing that boots.
	SlotEmpty SlotState = "empty"
	// SlotStaged holds a whole image that was never activated.
	SlotStaged SlotState = "staged"
	// SlotTrying is activated and not committed yet.
	SlotTrying SlotState = "trying"
	// SlotGood was committed.
	SlotGood SlotState = "good"
	// SlotBad used up its tries, or was rolled back.
	SlotBad SlotState = "bad"
)

// Slot is one place for a system.
type Slot struct {
	// Name is the backend's name for the slot.
	Name string `json:"name"`
	// State is what the slot holds.
	State SlotState `json:"state"`
	// Device is the partition, directory or file that holds the slot.
	Device string `json:"device,omitempty"`
	// Image is the slot's image; zero when empty.
	Image Image `json:"image,omitzero"`
	// TriesLeft counts the boots that a trying slot has left; -1 when the
	// backend can't tell.
	TriesLeft int `json:"triesLeft,omitempty"`
	// NextBoot says that the firmware boots this slot next.
	NextBoot bool `json:"nextBoot,omitempty"`
}

// Booted is the system that runs.
type Booted struct {
	// Slot, Version, Product and Digest name it.
	Slot string `json:"slot"`
	// Product is the system's product.
	Product string `json:"product,omitempty"`
	// Version is the system's version.
	Version string `json:"version"`
	// Digest is the signed digest of its image.
	Digest string `json:"digest"`
	// Confirmed says that the slot was committed.
	Confirmed bool `json:"confirmed"`
	// KubeletVersion is the version of the kubelet in it, if there is one.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
}

// HostCapabilities are what a backend can do.
type HostCapabilities struct {
	// Atomic says that a system is replaced as a whole or not at all.
	Atomic bool `json:"atomic"`
	// BootOnce says that a system can be booted without becoming the default.
	BootOnce bool `json:"bootOnce"`
	// AutoRollback says that the firmware goes back by itself.
	AutoRollback bool `json:"autoRollback"`
	// Verify says that what was written is read back and compared.
	Verify bool `json:"verify"`
}

// Inventory is what the machine says about itself.
type Inventory struct {
	// Backend names the mechanism: sim, uki, …
	Backend string `json:"backend"`
	// Capabilities are the backend's.
	Capabilities HostCapabilities `json:"capabilities"`
	// BootID is new at each boot of the machine.
	BootID string `json:"bootID"`
	// Booted is the running system.
	Booted Booted `json:"booted"`
	// Slots are all slots.
	Slots []Slot `json:"slots"`
	// FreeBytes is what the inactive slot can take.
	FreeBytes int64 `json:"freeBytes"`
	// ServicesStopped says that the services were stopped for an operation.
	ServicesStopped bool `json:"servicesStopped,omitempty"`
}

// SlotOf returns the slot with that digest, the best state first (good,
// trying, staged, bad).
func (i Inventory) SlotOf(digest string) (Slot, bool) {
	for _, state := range []SlotState{SlotGood, SlotTrying, SlotStaged, SlotBad} {
		for _, s := range i.Slots {
			if s.State == state && s.Image.Ref.Digest == digest {
				return s, true
			}
		}
	}
	return Slot{}, false
}

// Previous returns the good slot that isn't running: where a rollback goes.
func (i Inventory) Previous() (Slot, bool) {
	for _, s := range i.Slots {
		if s.State == SlotGood && s.Name != i.Booted.Slot {
			return s, true
		}
	}
	return Slot{}, false
}

// Staged returns the slot that was written and not activated.
func (i Inventory) Staged() (Slot, bool) {
	for _, s := range i.Slots {
		if s.State == SlotStaged {
			return s, true
		}
	}
	return Slot{}, false
}

// Denial is a digest that this host doesn't boot again.
type Denial struct {
	// Digest is the denied image.
	Digest string `json:"digest"`
	// Why says what happened.
	Why string `json:"why"`
	// At is when.
	At time.Time `json:"at"`
	// OperationID is the operation that failed.
	OperationID string `json:"operationID,omitempty"`
}

// Committed is a system that was committed on this host.
type Committed struct {
	// Digest is the image's signed digest.
	Digest string `json:"digest"`
	// Product is the image's product.
	Product string `json:"product"`
	// Version is the image's version.
	Version string `json:"version"`
	// At is when it was committed.
	At time.Time `json:"at"`
}

// Trial is a system that was activated and not committed: the dead-man timer.
type Trial struct {
	// OperationID is the operation that activated it.
	OperationID string `json:"operationID"`
	// Caller ordered it.
	Caller string `json:"caller"`
	// Image is what is on trial.
	Image Image `json:"image"`
	// From is what ran before and is gone back to.
	From Booted `json:"from"`
	// FromBootID is the boot in which the trial was armed.
	FromBootID string `json:"fromBootID"`
	// BootID is the boot that is on trial; empty before it.
	BootID string `json:"bootID,omitempty"`
	// Boots counts the boots of the new system.
	Boots int `json:"boots,omitempty"`
	// Unordered counts those of them that nobody ordered.
	Unordered int `json:"unordered,omitempty"`
	// ArmedAt and Deadline are wall-clock times.
	ArmedAt time.Time `json:"armedAt"`
	// Deadline is when OnDeadline happens.
	Deadline time.Time `json:"deadline"`
	// Window is how far progress moves the deadline.
	Window time.Duration `json:"window"`
	// OnDeadline is what happens at the deadline.
	OnDeadline DeadlineAction `json:"onDeadline"`
}

// OperationState is where an operation stands.
type OperationState string

// The states of an operation.
const (
	// OperationWaiting is accepted, the one that it interrupts still stops.
	OperationWaiting OperationState = "Waiting"
	// OperationRunning runs a phase, or waits to retry one.
	OperationRunning OperationState = "Running"
	// OperationRebooting has sent the machine down.
	OperationRebooting OperationState = "Rebooting"
	// OperationOnTrial waits for commit or rollback.
	OperationOnTrial OperationState = "OnTrial"
	// OperationUndoing runs compensations.
	OperationUndoing OperationState = "Undoing"
	// OperationPaused waits for resume or abort.
	OperationPaused OperationState = "Paused"
	// OperationSucceeded ended well.
	OperationSucceeded OperationState = "Succeeded"
	// OperationFailed ended with an error.
	OperationFailed OperationState = "Failed"
	// OperationRolledBack ended on the previous system.
	OperationRolledBack OperationState = "RolledBack"
	// OperationCanceled was interrupted by another operation.
	OperationCanceled OperationState = "Canceled"
)

// Done says whether the state is a last one.
func (s OperationState) Done() bool {
	switch s {
	case OperationSucceeded, OperationFailed, OperationRolledBack, OperationCanceled:
		return true
	default:
		return false
	}
}

// OperationStatus is what is known about an operation, during and after it.
type OperationStatus struct {
	// ID, Sequence, Caller, Method, Attempt and RequestHash are as ordered.
	ID string `json:"id"`
	// Sequence is what runs.
	Sequence Sequence `json:"sequence"`
	// Caller ordered it.
	Caller string `json:"caller"`
	// Method is the call by which it was ordered.
	Method string `json:"method,omitempty"`
	// Attempt is the rollout's try.
	Attempt string `json:"attempt,omitempty"`
	// RequestHash is what the id is bound to.
	RequestHash string `json:"requestHash"`
	// Digest is the image that it's about, if any.
	Digest string `json:"digest,omitempty"`
	// State is where it stands.
	State OperationState `json:"state"`
	// Phase is the current or last phase, PhaseIndex its number from 1 and
	// PhaseCount how many there are.
	Phase string `json:"phase,omitempty"`
	// PhaseIndex counts from 1.
	PhaseIndex int `json:"phaseIndex,omitempty"`
	// PhaseCount is the length of the plan.
	PhaseCount int `json:"phaseCount,omitempty"`
	// Tasks are the tasks of the current phase.
	Tasks []string `json:"tasks,omitempty"`
	// Try counts the tries of the phase from 1.
	Try int `json:"try,omitempty"`
	// Started and Ended are wall-clock times; Ended is zero while it runs.
	Started time.Time `json:"started"`
	// Ended is zero while it runs.
	Ended time.Time `json:"ended,omitzero"`
	// Reason and Message say why it failed, was paused or rolled back.
	Reason string `json:"reason,omitempty"`
	// Message goes with Reason.
	Message string `json:"message,omitempty"`
}

// HostFacts is all that a host says about itself: the machine's own inventory
// and what the agent remembers.
type HostFacts struct {
	// HostID is minted once on the machine's disk.
	HostID string `json:"hostID"`
	// InstallationID is minted anew with each journal.
	InstallationID string `json:"installationID"`
	// NodeName is the name under which the host joins its cluster.
	NodeName string `json:"nodeName,omitempty"`
	// Mode is where the host runs.
	Mode Mode `json:"mode"`
	// Inventory is the machine's part.
	Inventory `json:"inventory"`
	// Staged and Previous are slots of the inventory, if there are such.
	Staged *Slot `json:"staged,omitempty"`
	// Previous is where a rollback would go.
	Previous *Slot `json:"previous,omitempty"`
	// Denied are digests that don't boot here again.
	Denied []Denial `json:"denied,omitempty"`
	// Committed are the last committed systems, newest last.
	Committed []Committed `json:"committed,omitempty"`
	// HighWater is the highest committed version of each product.
	HighWater map[string]string `json:"highWater,omitempty"`
	// Fence is the highest accepted fence.
	Fence Fence `json:"fence,omitzero"`
	// Trial is the system on trial, if one is.
	Trial *Trial `json:"trial,omitempty"`
	// Operation is the running operation, or nil.
	Operation *OperationStatus `json:"operation,omitempty"`
	// Last is the operation that ended last, or nil; what each boot does by
	// itself isn't one.
	Last *OperationStatus `json:"last,omitempty"`
	// ObservedAt is when the inventory was taken.
	ObservedAt time.Time `json:"observedAt"`
}
