// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated machine with real files: two slots with image bytes, a
// boot configuration with boot counting, boot ids, and a firmware that selects the
// slot. Like real backends it passes nodeos/host/hosttest.
//
// A machine is a directory:
//
//	boot.json          the boot configuration, replaced atomically
//	slots/A/image      the image in a slot, slots/B/image likewise
//	faults.json        faults to inject, optional, written by tests
//	run/               state of the current boot: up, services.stopped
//
// The agent is the running OS of the machine. Boot implements the firmware: it
// counts the try of an activated slot, falls back to the good one when the tries
// are used up, generates a boot id and returns the booted OS. A restart ends the
// agent's process with one of the exit codes here; a supervisor then calls Boot and
// starts a new agent process. A power loss ends the process immediately, in the
// middle of a write.
//
// An image is a small JSON document (see Document): product, version, health, boot
// time and faults.
package sim

// The exit codes with which an agent's process reports the state of the machine to
// its supervisor.
const (
	// ExitRestart means that the machine restarts.
	ExitRestart = 86
	// ExitPowerOff means that the machine powers off.
	ExitPowerOff = 87
	// ExitPowerLoss is a power loss: boot immediately.
	ExitPowerLoss = 88
)

// DefaultTries is the default number of boot tries of an activated slot.
const DefaultTries = 3
