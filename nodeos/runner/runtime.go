// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// RuntimeConfig configures a Runtime.
type RuntimeConfig struct {
	// Config holds the machine configuration.
	Config nodeos.ConfigManager
	// Platform is the platform of the host.
	Platform nodeos.Platform
	// Machine is the machine's state, the same as Config.Machine of the
	// Controller, which keeps it up to date.
	Machine nodeos.MachineState
	// Journal contains the fence of the host's cluster.
	Journal *Journal
	// Resources are the host's resources; optional.
	Resources nodeos.V1Alpha2State
	// Events is the host's event stream.
	Events nodeos.EventStream
	// Logging are the host's logs.
	Logging nodeos.LoggingManager
	// NodeName is the node name if the configuration has none.
	NodeName string
}

// Runtime combines the parts of a host for its tasks; it implements
// nodeos.Runtime and nodeos.State. It's safe for concurrent use if its parts are.
type Runtime struct {
	nodeos.ConfigManager
	cfg RuntimeConfig
}

var (
	_ nodeos.Runtime = (*Runtime)(nil)
	_ nodeos.State   = (*Runtime)(nil)
)

// NewRuntime returns a Runtime of the given parts.
func NewRuntime(cfg RuntimeConfig) (*Runtime, error) {
	if cfg.Config == nil || cfg.Platform == nil || cfg.Machine == nil || cfg.Journal == nil || cfg.Events == nil || cfg.Logging == nil {
		return nil, errors.New("runtime configuration: Config, Platform, Machine, Journal, Events and Logging are required")
	}
	return &Runtime{ConfigManager: cfg.Config, cfg: cfg}, nil
}

// State implements nodeos.Runtime.
func (r *Runtime) State() nodeos.State { return r }

// Events implements nodeos.Runtime.
func (r *Runtime) Events() nodeos.EventStream { return r.cfg.Events }

// Logging implements nodeos.Runtime.
func (r *Runtime) Logging() nodeos.LoggingManager { return r.cfg.Logging }

// NodeName implements nodeos.Runtime: the configured node name, else the
// configured host name, else RuntimeConfig.NodeName.
func (r *Runtime) NodeName() (string, error) {
	if p := r.Config(); p != nil {
		for _, name := range []string{p.NodeName(), p.Hostname()} {
			if name != "" {
				return name, nil
			}
		}
	}
	if r.cfg.NodeName == "" {
		return "", errors.New("the host has no node name: set nodeName or hostname in its configuration")
	}
	return r.cfg.NodeName, nil
}

// Platform implements nodeos.State.
func (r *Runtime) Platform() nodeos.Platform { return r.cfg.Platform }

// Machine implements nodeos.State.
func (r *Runtime) Machine() nodeos.MachineState { return r.cfg.Machine }

// Cluster implements nodeos.State.
func (r *Runtime) Cluster() nodeos.ClusterState { return cluster{r.cfg.Journal} }

// V1Alpha2 implements nodeos.State; nil when the host has no resources.
func (r *Runtime) V1Alpha2() nodeos.V1Alpha2State { return r.cfg.Resources }

// cluster implements nodeos.ClusterState from the journal.
type cluster struct{ journal *Journal }

func (c cluster) ClusterUID() string { return c.journal.State().Fence.ClusterUID }
func (c cluster) Epoch() uint64      { return c.journal.State().Fence.Epoch }

// Machine is the last observed state of the machine; it implements
// nodeos.MachineState and nodeos.Machine and is safe for concurrent use.
type Machine struct {
	config nodeos.ConfigManager

	mu    sync.Mutex
	inv   nodeos.Inventory
	kexec bool
}

var (
	_ nodeos.MachineState = (*Machine)(nil)
	_ nodeos.Machine      = (*Machine)(nil)
)

// NewMachine returns a Machine without an observed state.
func NewMachine(config nodeos.ConfigManager) *Machine { return &Machine{config: config} }

// Observe stores the current state of the machine.
func (m *Machine) Observe(inv nodeos.Inventory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv = inv
}

// State implements nodeos.Machine.
func (m *Machine) State() nodeos.MachineState { return m }

// Config implements nodeos.Machine.
func (m *Machine) Config() nodeos.Provider { return m.config.Config() }

// Disk implements nodeos.MachineState: slots are its labels.
func (m *Machine) Disk(label string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.inv.Slots {
		if s.Name == label {
			return s.Device, s.Device != ""
		}
	}
	return "", false
}

// Close implements nodeos.MachineState; there is nothing to release.
func (m *Machine) Close() error { return nil }

// Installed implements nodeos.MachineState.
func (m *Machine) Installed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.inv.Slots {
		if s.State == nodeos.SlotGood || s.State == nodeos.SlotTrying {
			return true
		}
	}
	return false
}

// IsInstallStaged implements nodeos.MachineState.
func (m *Machine) IsInstallStaged() bool { return m.StagedInstallImageRef() != "" }

// StagedInstallImageRef implements nodeos.MachineState.
func (m *Machine) StagedInstallImageRef() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, ok := m.inv.Staged(); ok {
		return s.Image.Ref.String()
	}
	return ""
}

// StagedInstallOptions implements nodeos.MachineState; nil without a staged OS.
func (m *Machine) StagedInstallOptions() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.inv.Staged()
	if !ok {
		return nil
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	return data
}

// KexecPrepared implements nodeos.MachineState.
func (m *Machine) KexecPrepared(prepared bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kexec = prepared
}

// IsKexecPrepared implements nodeos.MachineState.
func (m *Machine) IsKexecPrepared() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kexec
}
