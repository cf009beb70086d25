// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"fmt"
	"io"
)

// Host is the machine behind an agent. Each part is a separate role, so that a
// task depends only on the methods it uses. nodeos/host/hosttest is the
// conformance suite of implementations. All methods are safe for concurrent
// use, return when their context ends, and are idempotent.
type Host interface {
	Inspector
	Stager
	BootSwitch
	ServiceManager
	Power
}

// Inspector reads the state of the machine.
type Inspector interface {
	// Inspect returns the current slots, boot id and capabilities.
	Inspect(ctx context.Context) (Inventory, error)
	// Health returns nil when the health checks of the running OS pass; the
	// error names the check that fails.
	Health(ctx context.Context) error
}

// Stager writes OS images.
type Stager interface {
	// Stage writes the image's content to a slot that is neither running nor
	// the last good one, syncs it, reads it back and compares the digest. It
	// doesn't activate the slot. If a slot already has the complete image,
	// nothing is written and content isn't read. Stage fails while the running
	// OS is unconfirmed.
	Stage(ctx context.Context, image Image, content io.Reader) (Slot, error)
	// Wipers returns the targets that a reset can wipe.
	Wipers(ctx context.Context) ([]PartitionTarget, error)
}

// BootSwitch selects the OS that boots next.
type BootSwitch interface {
	// SetNextBoot lets the firmware try the staged image with that digest at
	// the next boot, with boot counting, without making it the default.
	SetNextBoot(ctx context.Context, digest string) error
	// ClearNextBoot undoes SetNextBoot; the image stays staged.
	ClearNextBoot(ctx context.Context) error
	// KeepTry restores the try that this boot of an unconfirmed OS used, so
	// that an unordered reboot costs none. It does nothing where the backend
	// doesn't support it.
	KeepTry(ctx context.Context) error
	// Commit marks the running OS, which must have that digest, as good and
	// makes it the default.
	Commit(ctx context.Context, digest string) error
	// Restore makes the last good OS other than the running one the default of
	// the next boot, marks an unconfirmed running OS as bad, and returns the
	// slot.
	Restore(ctx context.Context) (Slot, error)
}

// ServiceManager stops and starts the services that must be down during an
// upgrade: the kubelet and the container runtime.
type ServiceManager interface {
	// StopServices stops the services and returns when they're down.
	StopServices(ctx context.Context) error
	// StartServices starts the services and returns when they're up.
	StartServices(ctx context.Context) error
}

// Power restarts the machine or powers it off.
type Power interface {
	// Restart takes the machine down with cmd. Success is a RebootError; it
	// never returns nil.
	Restart(ctx context.Context, cmd RebootCommand) error
}

// PartitionTarget is a part of the machine's disks that a reset can wipe.
type PartitionTarget interface {
	fmt.Stringer
	// Format wipes the target.
	Format() error
}
