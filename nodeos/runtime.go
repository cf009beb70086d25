// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"net/netip"
)

// Runtime is the interface of tasks to their host.
type Runtime interface {
	ConfigManager
	// State returns the host's state.
	State() State
	// Events returns the event stream.
	Events() EventStream
	// Logging returns the logs.
	Logging() LoggingManager
	// NodeName returns the name of the host's Node object.
	NodeName() (string, error)
}

// ConfigManager holds the machine configuration.
type ConfigManager interface {
	// Config returns the active configuration, or nil.
	Config() Provider
	// ValidateConfig parses and validates a configuration.
	ValidateConfig(data []byte) (Provider, error)
	// SetConfig validates a configuration, stores it and makes it active.
	SetConfig(data []byte) error
	// CanApplyImmediate returns nil when a change from the active to the given
	// configuration needs no reboot; the error names the fields that need one.
	CanApplyImmediate(data []byte) error
}

// Provider is a machine configuration; nodeos/config implements it.
type Provider interface {
	// Hostname is the configured host name; empty means the platform's.
	Hostname() string
	// NodeName is the configured node name; empty means the host name.
	NodeName() string
	// KernelArgs are the kernel arguments of the next boot.
	KernelArgs() []string
	// Bytes is the unmodified document.
	Bytes() []byte
}

// State is the host's state.
type State interface {
	// Platform is the platform of the host.
	Platform() Platform
	// Machine is the machine's state.
	Machine() MachineState
	// Cluster is the cluster that the host belongs to.
	Cluster() ClusterState
	// V1Alpha2 are the host's resources.
	V1Alpha2() V1Alpha2State
}

// Machine is the machine with its configuration.
type Machine interface {
	// State is the machine's state.
	State() MachineState
	// Config is the machine's configuration.
	Config() Provider
}

// MachineState is the state of the machine's disks and boots.
type MachineState interface {
	InstallState
	KexecState
	// Disk returns the path of the disk, directory or partition with that
	// label, and whether it exists.
	Disk(label string) (string, bool)
	// Close releases open resources.
	Close() error
}

// InstallState describes the installed and the staged OS.
type InstallState interface {
	// Installed reports whether an OS is installed on the machine.
	Installed() bool
	// IsInstallStaged reports whether an OS is staged.
	IsInstallStaged() bool
	// StagedInstallImageRef is the image of the staged OS; empty without one.
	StagedInstallImageRef() string
	// StagedInstallOptions is the record of the staged OS, as JSON.
	StagedInstallOptions() []byte
}

// KexecState reports whether the next kernel is loaded.
type KexecState interface {
	// KexecPrepared sets the state.
	KexecPrepared(prepared bool)
	// IsKexecPrepared returns the state.
	IsKexecPrepared() bool
}

// ClusterState describes the cluster that a host belongs to.
type ClusterState interface {
	// ClusterUID is the UID of the cluster that the host accepts orders from;
	// empty before the first order.
	ClusterUID() string
	// Epoch is the highest accepted fence epoch.
	Epoch() uint64
}

// Platform is the environment of a host: metal, container or a cloud.
type Platform interface {
	// Name is the platform's name.
	Name() string
	// Mode is the mode of its hosts.
	Mode() Mode
	PlatformData
	// KernelArgs are the kernel arguments that the platform needs.
	KernelArgs() []string
}

// PlatformData is the data that a platform provides to its hosts.
type PlatformData interface {
	// Configuration returns the machine configuration, or nil.
	Configuration(ctx context.Context) ([]byte, error)
	// Hostname returns the host name, or "".
	Hostname(ctx context.Context) (string, error)
	// ExternalIPs returns the addresses at which the host is reachable.
	ExternalIPs(ctx context.Context) ([]netip.Addr, error)
}

// Board describes the specifics of a single-board computer.
type Board interface {
	// Name is the board's name.
	Name() string
	// Install writes the board's boot files to a disk or directory.
	Install(disk string) error
	// KernelArgs are the kernel arguments that the board needs.
	KernelArgs() []string
	// PartitionOptions are the board's partition table options, or nil.
	PartitionOptions() *PartitionOptions
}

// PartitionOptions customize the partition table for a board.
type PartitionOptions struct {
	// PartitionsOffset is the first sector of the first partition.
	PartitionsOffset uint64
}
