// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// RuntimeConfig is what a Runtime is made of.
type RuntimeConfig struct {
	// Config holds the machine configuration.
	Config nodeos.ConfigManager
	// Platform is where the host runs.
	Platform nodeos.Platform
	// Machine is the machine's state; the same one that Config.Machine of a
	// Controller keeps up to date.
	Machine nodeos.MachineState
	// Journal says what the host knows of its cluster.
	Journal *Journal
	// Resources are the host's resources; may be nil.
	Resources nodeos.V1Alpha2State
	// Events and Logging are the host's event stream and logs.
	Events nodeos.EventStream
	// Logging are the host's logs.
	Logging nodeos.LoggingManager
	// NodeName is the node's name where the configuration has none.
	NodeName string
}

// Runtime joins the parts of a host for its tasks; it implements
// nodeos.Runtime and nodeos.State. It's safe for several goroutines as far as
// its parts are.
type Runtime struct {
	nodeos.ConfigManager
	cfg RuntimeConfig
}

var (
	_ nodeos.Runtime = (*Runtime)(nil)
	_ nodeos.State   = (*Runtime)(nil)
)

// NewRuntime joins the parts.
func NewRuntime(cfg RuntimeConfig) (*Runtime, error) {
	if cfg.Config == nil || cfg.Platform == nil || cfg.Machine == nil || cfg.Journal == nil || cfg.Events == nil || cfg.Logging == nil {
		return nil, errors.New("a runtime needs configuration, platform, machine, journal, events and logs")
	}
	return &Runtime{ConfigManager: cfg.Config, cfg: cfg}, nil
}

// State implements nodeos.Runtime.
func (r *Runtime) State() nodeos.State { return r }

// Events implements nodeos.Runtime.
func (r *Runtime) Events() nodeos.EventStream { return r.cfg.Events }

// Logging implements nodeos.Runtime.
func (r *Runtime) Logging() nodeos.LoggingManager { return r.cfg.Logging }

// NodeName implements nodeos.Runtime: the configuration's node name, its host
// name, or the name that the runtime was made with.
func (r *Runtime) NodeName() (string, error) {
	if p := r.Config(); p != nil {
		for _, name := range []string{p.NodeName(), p.Hostname()} {
			if name != "" {
				return name, nil
			}
		}
	}
	if r.cfg.NodeName == "" {
		return "", errors.New("the host has no name: set nodeName or hostname in its configuration")
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

// cluster reads what the journal says about the cluster.
type cluster struct{ journal *Journal }

func (c cluster) ClusterUID() string { return c.journal.State().Fence.ClusterUID }
func (c cluster) Epoch() uint64      { return c.journal.State().Fence.Epoch }

// Machine is the machine's state as it was last observed; it implements
// nodeos.MachineState and nodeos.Machine and is safe for several goroutines.
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

// NewMachine returns a machine that nobody has observed yet.
func NewMachine(config nodeos.ConfigManager) *Machine { return &Machine{config: config} }

// Observe takes in what the machine says now.
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

// Close implements nodeos.MachineState; nothing is held open.
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

// StagedInstallOptions implements nodeos.MachineState; nil when nothing is
// staged.
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
