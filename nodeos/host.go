// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"fmt"
	"io"
)

// Host is the machine behind an agent. Each part is a role of its own, so
// that a task takes no more than it needs; nodeos/host/hosttest holds what
// every implementation must do. All methods may be called from several
// goroutines, return when their context ends, and do the same as once when
// called twice.
type Host interface {
	Inspector
	Stager
	BootSwitch
	ServiceManager
	Power
}

// Inspector reads what the machine says about itself.
type Inspector interface {
	// Inspect returns slots, boot id and capabilities as they are now.
	Inspect(ctx context.Context) (Inventory, error)
	// Health returns nil when the running system's own checks pass; the error
	// names the check that doesn't.
	Health(ctx context.Context) error
}

// Stager writes systems.
type Stager interface {
	// Stage writes the image's content to a slot that neither runs nor is the
	// last good one, syncs it, reads it back and compares the digest. The
	// slot isn't booted. An image that is whole in a slot already isn't
	// written again, and content isn't read then. It refuses while the
	// running system is unconfirmed.
	Stage(ctx context.Context, image Image, content io.Reader) (Slot, error)
	// Wipers returns what a reset can wipe.
	Wipers(ctx context.Context) ([]PartitionTarget, error)
}

// BootSwitch decides which system boots next.
type BootSwitch interface {
	// SetNextBoot lets the firmware try the staged image of that digest at
	// the next boot, counted, without making it the default.
	SetNextBoot(ctx context.Context, digest string) error
	// ClearNextBoot undoes SetNextBoot; the image stays staged.
	ClearNextBoot(ctx context.Context) error
	// KeepTry gives back the try that this boot of an unconfirmed system
	// used, so that a reboot that nobody ordered costs none. Where the
	// backend can't, it does nothing.
	KeepTry(ctx context.Context) error
	// Commit makes the running system, which must have that digest, the
	// default and good.
	Commit(ctx context.Context, digest string) error
	// Restore makes the last good system other than the running one the
	// default of the next boot, marks an unconfirmed running system bad, and
	// returns the slot.
	Restore(ctx context.Context) (Slot, error)
}

// ServiceManager stops and starts the services that an upgrade must not pull
// the ground from under: the kubelet, the container runtime.
type ServiceManager interface {
	// StopServices stops them and returns when they're down.
	StopServices(ctx context.Context) error
	// StartServices starts them and returns when they're up.
	StartServices(ctx context.Context) error
}

// Power takes the machine down.
type Power interface {
	// Restart takes the machine down as cmd says. Its success is a
	// RebootError; nil is never returned.
	Restart(ctx context.Context, cmd RebootCommand) error
}

// PartitionTarget is a part of the machine's disks that a reset can wipe.
type PartitionTarget interface {
	fmt.Stringer
	// Format wipes it.
	Format() error
}
