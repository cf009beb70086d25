// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated machine with real files: two slots with image
// bytes, a boot configuration with a counter, boot ids, and a firmware that
// chooses the slot. It passes nodeos/host/hosttest as real backends do.
//
// A machine is a directory:
//
//	boot.json          the boot configuration, replaced atomically
//	slots/A/image      the image in a slot, slots/B/image likewise
//	faults.json        faults to inject, optional, written by whoever tests
//	run/               what a boot wipes: up, services.stopped
//
// The agent is the machine's running system. Boot plays the firmware: it
// counts the try of an activated slot, falls back to the good one when its
// tries are used up, mints a boot id and returns which system runs. A restart
// ends the agent's process with one of the exit codes here; a supervisor then
// calls Boot and starts the agent again: a real restart, with a new pid. A
// power loss ends the process at once, in the middle of a write.
//
// An image is a small JSON document (see Document): product, version, whether
// it's healthy, how long it boots, and its faults.
package sim

// The exit codes by which an agent process tells its supervisor what the
// machine does.
const (
	// ExitRestart asks for a boot.
	ExitRestart = 86
	// ExitPowerOff asks for nothing more.
	ExitPowerOff = 87
	// ExitPowerLoss is a power loss: boot at once.
	ExitPowerLoss = 88
)

// DefaultTries is how many boots an activated slot gets.
const DefaultTries = 3
