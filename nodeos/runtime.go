// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"net/netip"
)

// Runtime is what a task may use of its host.
type Runtime interface {
	ConfigManager
	// State returns the host's state.
	State() State
	// Events returns the event stream.
	Events() EventStream
	// Logging returns the logs.
	Logging() LoggingManager
	// NodeName returns the name under which the host joins its cluster.
	NodeName() (string, error)
}

// ConfigManager holds the machine configuration.
type ConfigManager interface {
	// Config returns the active configuration; nil before there is one.
	Config() Provider
	// ValidateConfig reads a configuration and says what is wrong with it.
	ValidateConfig(data []byte) (Provider, error)
	// SetConfig validates a configuration, stores it and makes it active.
	SetConfig(data []byte) error
	// CanApplyImmediate returns nil when the change from the active to the
	// given configuration needs no reboot; the error names what does.
	CanApplyImmediate(data []byte) error
}

// Provider is a machine configuration. nodeos/config has the document.
type Provider interface {
	// Hostname is the wanted host name; empty leaves it to the platform.
	Hostname() string
	// NodeName is the wanted name of the node; empty means the host name.
	NodeName() string
	// KernelArgs are the arguments of the next boot's kernel.
	KernelArgs() []string
	// Bytes is the document as it was given.
	Bytes() []byte
}

// State is the host's state.
type State interface {
	// Platform is where the host runs.
	Platform() Platform
	// Machine is the machine's state.
	Machine() MachineState
	// Cluster is what the host knows of its cluster.
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
	// label, and whether there is one.
	Disk(label string) (string, bool)
	// Close releases what the state holds open.
	Close() error
}

// InstallState is what is installed and staged.
type InstallState interface {
	// Installed says whether a system was written to the machine.
	Installed() bool
	// IsInstallStaged says whether a system waits to be activated.
	IsInstallStaged() bool
	// StagedInstallImageRef is the staged system's image; empty without one.
	StagedInstallImageRef() string
	// StagedInstallOptions is the staged system's record, as JSON.
	StagedInstallOptions() []byte
}

// KexecState says whether the next kernel is loaded already.
type KexecState interface {
	// KexecPrepared sets it.
	KexecPrepared(prepared bool)
	// IsKexecPrepared reads it.
	IsKexecPrepared() bool
}

// ClusterState is what a host knows of its cluster.
type ClusterState interface {
	// ClusterUID is the cluster whose orders the host obeys; empty before the
	// first one.
	ClusterUID() string
	// Epoch is the highest fence epoch that was accepted.
	Epoch() uint64
}

// Platform is where a host runs.
type Platform interface {
	// Name names the platform.
	Name() string
	// Mode is the mode of hosts on it.
	Mode() Mode
	PlatformData
	// KernelArgs are the kernel arguments that the platform needs.
	KernelArgs() []string
}

// PlatformData is what a platform tells its hosts.
type PlatformData interface {
	// Configuration returns the machine configuration; nil when there is
	// none.
	Configuration(ctx context.Context) ([]byte, error)
	// Hostname returns the host name; empty when the platform has none.
	Hostname(ctx context.Context) (string, error)
	// ExternalIPs returns the addresses by which others reach the host.
	ExternalIPs(ctx context.Context) ([]netip.Addr, error)
}

// Board is what a single-board computer needs besides its platform.
type Board interface {
	// Name names the board.
	Name() string
	// Install writes the board's boot files to a disk or directory.
	Install(disk string) error
	// KernelArgs are the kernel arguments that the board needs.
	KernelArgs() []string
	// PartitionOptions are the board's wishes for the partition table; nil
	// when it has none.
	PartitionOptions() *PartitionOptions
}

// PartitionOptions are a board's wishes for the partition table.
type PartitionOptions struct {
	// PartitionsOffset is the first sector of the first partition.
	PartitionsOffset uint64
}
