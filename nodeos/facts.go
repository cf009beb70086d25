// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// SlotState is the state of a slot.
type SlotState string

// The states of a slot.
const (
	// SlotEmpty has no bootable image.
	SlotEmpty SlotState = "empty"
	// SlotStaged has a complete image that was never activated.
	SlotStaged SlotState = "staged"
	// SlotTrying is activated and not committed yet.
	SlotTrying SlotState = "trying"
	// SlotGood is committed.
	SlotGood SlotState = "good"
	// SlotBad used up its boot tries or was rolled back.
	SlotBad SlotState = "bad"
)

// Slot is a place on disk for one OS image.
type Slot struct {
	// Name is the backend's name for the slot.
	Name string `json:"name"`
	// State is the state of the slot.
	State SlotState `json:"state"`
	// Device is the partition, directory or file that holds the slot.
	Device string `json:"device,omitempty"`
	// Image is the slot's image; zero when empty.
	Image Image `json:"image,omitzero"`
	// TriesLeft is the number of boot tries that a trying slot has left; -1
	// when the backend can't count them.
	TriesLeft int `json:"triesLeft,omitempty"`
	// NextBoot means that the firmware boots this slot next.
	NextBoot bool `json:"nextBoot,omitempty"`
}

// Booted is the running OS.
type Booted struct {
	// Slot is the name of the booted slot.
	Slot string `json:"slot"`
	// Product is the product of the OS.
	Product string `json:"product,omitempty"`
	// Version is the version of the OS.
	Version string `json:"version"`
	// Digest is the signed digest of its image.
	Digest string `json:"digest"`
	// Confirmed means that the slot is committed.
	Confirmed bool `json:"confirmed"`
	// KubeletVersion is the version of its kubelet, if it has one.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
}

// HostCapabilities are the capabilities of a backend.
type HostCapabilities struct {
	// Atomic means that an OS is replaced as a whole or not at all.
	Atomic bool `json:"atomic"`
	// BootOnce means that an OS can be booted once without becoming the default.
	BootOnce bool `json:"bootOnce"`
	// AutoRollback means that the firmware rolls back automatically.
	AutoRollback bool `json:"autoRollback"`
	// Verify means that written data is read back and compared.
	Verify bool `json:"verify"`
}

// Inventory is the state of the machine.
type Inventory struct {
	// Backend is the update mechanism: sim, uki, …
	Backend string `json:"backend"`
	// Capabilities are the capabilities of the backend.
	Capabilities HostCapabilities `json:"capabilities"`
	// BootID changes at each boot of the machine.
	BootID string `json:"bootID"`
	// Booted is the running OS.
	Booted Booted `json:"booted"`
	// Slots are all slots.
	Slots []Slot `json:"slots"`
	// FreeBytes is the capacity of the inactive slot in bytes.
	FreeBytes int64 `json:"freeBytes"`
	// ServicesStopped means that the services are stopped for an operation.
	ServicesStopped bool `json:"servicesStopped,omitempty"`
}

// SlotOf returns the slot with that digest; of several, the one with the best
// state (good, trying, staged, bad).
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

// Previous returns the good slot that isn't running: the target of a rollback.
func (i Inventory) Previous() (Slot, bool) {
	for _, s := range i.Slots {
		if s.State == SlotGood && s.Name != i.Booted.Slot {
			return s, true
		}
	}
	return Slot{}, false
}

// Staged returns the slot that is written but not activated.
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
	// Digest is the digest of the denied image.
	Digest string `json:"digest"`
	// Why is the cause of the denial.
	Why string `json:"why"`
	// At is the time of the denial.
	At time.Time `json:"at"`
	// OperationID is the operation that failed.
	OperationID string `json:"operationID,omitempty"`
}

// Committed is an OS image that was committed on this host.
type Committed struct {
	// Digest is the image's signed digest.
	Digest string `json:"digest"`
	// Product is the image's product.
	Product string `json:"product"`
	// Version is the image's version.
	Version string `json:"version"`
	// At is the time of the commit.
	At time.Time `json:"at"`
}

// Trial is an OS that is activated but not committed, with its dead-man timer.
type Trial struct {
	// OperationID is the operation that activated it.
	OperationID string `json:"operationID"`
	// Caller is the identity that ordered it.
	Caller string `json:"caller"`
	// Image is the image on trial.
	Image Image `json:"image"`
	// From is the previous OS, the target of a rollback.
	From Booted `json:"from"`
	// FromBootID is the boot id under which the trial was armed.
	FromBootID string `json:"fromBootID"`
	// BootID is the boot id of the OS on trial; empty before its first boot.
	BootID string `json:"bootID,omitempty"`
	// Boots is the number of boots of the new OS.
	Boots int `json:"boots,omitempty"`
	// Unordered is the number of boots that no operation ordered.
	Unordered int `json:"unordered,omitempty"`
	// ArmedAt is the wall-clock time when the trial was armed.
	ArmedAt time.Time `json:"armedAt"`
	// Deadline is the wall-clock time when OnDeadline applies.
	Deadline time.Time `json:"deadline"`
	// Window is the extension that progress adds to the deadline.
	Window time.Duration `json:"window"`
	// OnDeadline is the action at the deadline.
	OnDeadline DeadlineAction `json:"onDeadline"`
}

// OperationState is the state of an operation.
type OperationState string

// The states of an operation.
const (
	// OperationWaiting is accepted and waits until the interrupted one has stopped.
	OperationWaiting OperationState = "Waiting"
	// OperationRunning runs a phase or waits to retry one.
	OperationRunning OperationState = "Running"
	// OperationRebooting has started a reboot.
	OperationRebooting OperationState = "Rebooting"
	// OperationOnTrial waits for commit or rollback.
	OperationOnTrial OperationState = "OnTrial"
	// OperationUndoing runs compensations.
	OperationUndoing OperationState = "Undoing"
	// OperationPaused waits for resume or abort.
	OperationPaused OperationState = "Paused"
	// OperationSucceeded ended successfully.
	OperationSucceeded OperationState = "Succeeded"
	// OperationFailed ended with an error.
	OperationFailed OperationState = "Failed"
	// OperationRolledBack ended with the previous OS running.
	OperationRolledBack OperationState = "RolledBack"
	// OperationCanceled was interrupted by another operation.
	OperationCanceled OperationState = "Canceled"
)

// Done reports whether the state is terminal.
func (s OperationState) Done() bool {
	switch s {
	case OperationSucceeded, OperationFailed, OperationRolledBack, OperationCanceled:
		return true
	default:
		return false
	}
}

// OperationStatus is the status of an operation, during and after its run.
type OperationStatus struct {
	// ID is the operation id.
	ID string `json:"id"`
	// Sequence is the sequence of the operation.
	Sequence Sequence `json:"sequence"`
	// Caller is the identity that ordered it.
	Caller string `json:"caller"`
	// Method is the RPC that ordered it.
	Method string `json:"method,omitempty"`
	// Attempt is the rollout attempt that it belongs to.
	Attempt string `json:"attempt,omitempty"`
	// RequestHash is the hash that the id is bound to.
	RequestHash string `json:"requestHash"`
	// Digest is the image digest of the operation, if any.
	Digest string `json:"digest,omitempty"`
	// State is the current state.
	State OperationState `json:"state"`
	// Phase is the name of the current or last phase.
	Phase string `json:"phase,omitempty"`
	// PhaseIndex is its number in the plan, from 1.
	PhaseIndex int `json:"phaseIndex,omitempty"`
	// PhaseCount is the number of phases in the plan.
	PhaseCount int `json:"phaseCount,omitempty"`
	// Tasks are the tasks of the current phase.
	Tasks []string `json:"tasks,omitempty"`
	// Try is the attempt at the phase, from 1.
	Try int `json:"try,omitempty"`
	// Started is the wall-clock time of the start.
	Started time.Time `json:"started"`
	// Ended is the wall-clock time of the end; zero while it runs.
	Ended time.Time `json:"ended,omitzero"`
	// Reason is the condition reason of a failure, pause or rollback.
	Reason string `json:"reason,omitempty"`
	// Message explains Reason.
	Message string `json:"message,omitempty"`
}

// HostFacts are the facts that a host reports: the machine's inventory and the
// agent's journal.
type HostFacts struct {
	// HostID is the identity of the host, generated once on its disk.
	HostID string `json:"hostID"`
	// InstallationID is generated with each new journal.
	InstallationID string `json:"installationID"`
	// NodeName is the name under which the host joins its cluster.
	NodeName string `json:"nodeName,omitempty"`
	// Mode is the host's mode.
	Mode Mode `json:"mode"`
	// Inventory is the state of the machine.
	Inventory `json:"inventory"`
	// Staged is the staged slot of the inventory, if any.
	Staged *Slot `json:"staged,omitempty"`
	// Previous is the target of a rollback, if any.
	Previous *Slot `json:"previous,omitempty"`
	// Denied are the digests that this host doesn't boot again.
	Denied []Denial `json:"denied,omitempty"`
	// Committed are the last committed images, newest last.
	Committed []Committed `json:"committed,omitempty"`
	// HighWater is the highest committed version per product.
	HighWater map[string]string `json:"highWater,omitempty"`
	// Fence is the highest accepted fence.
	Fence Fence `json:"fence,omitzero"`
	// Trial is the OS on trial, if any.
	Trial *Trial `json:"trial,omitempty"`
	// Operation is the running operation, or nil.
	Operation *OperationStatus `json:"operation,omitempty"`
	// Last is the operation that ended last, or nil; operations that each boot
	// starts automatically don't count.
	Last *OperationStatus `json:"last,omitempty"`
	// ObservedAt is the time of the inventory.
	ObservedAt time.Time `json:"observedAt"`
}
