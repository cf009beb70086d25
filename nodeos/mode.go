// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"fmt"
	"strings"
)

// Mode is where a host runs; it decides what can be done to the host.
type Mode int

// The modes of a host.
const (
	// ModeCloud is a virtual machine whose image the cloud writes.
	ModeCloud Mode = iota
	// ModeContainer is a host inside a container: nothing about the machine
	// below can be changed.
	ModeContainer
	// ModeMetal is a machine of its own, real or virtual, with disks that we
	// write.
	ModeMetal
)

// ModeCapability is a set of flags: what a mode can do.
type ModeCapability uint64

// The capabilities of a mode.
const (
	// Reboot says that the host can be rebooted.
	Reboot ModeCapability = 1 << iota
	// Rollback says that the host can go back to its previous system.
	Rollback
	// Shutdown says that the host can be powered off.
	Shutdown
	// Upgrade says that the host's system can be replaced.
	Upgrade
)

// capabilityNames names each flag, lowest first.
func capabilityNames() []string { return []string{"reboot", "rollback", "shutdown", "upgrade"} }

// String names the flags of the set, joined by "+"; the empty set is "none".
func (c ModeCapability) String() string {
	var out []string
	for i, name := range capabilityNames() {
		if c&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, "+")
}

// ParseMode returns the mode of that name: cloud, container or metal, in
// lower case, nothing else.
func ParseMode(s string) (Mode, error) {
	for _, m := range []Mode{ModeCloud, ModeContainer, ModeMetal} {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("unknown runtime mode: %q; known are cloud, container and metal", s)
}

// String returns the name that ParseMode reads; an unknown mode gives its
// number.
func (m Mode) String() string {
	switch m {
	case ModeCloud:
		return "cloud"
	case ModeContainer:
		return "container"
	case ModeMetal:
		return "metal"
	default:
		return fmt.Sprintf("mode(%d)", int(m))
	}
}

// RequiresInstall says whether a system has to be written to the machine
// before it can boot by itself.
func (m Mode) RequiresInstall() bool { return m == ModeMetal }

// Supports says whether the mode has all the flags of feature.
func (m Mode) Supports(feature ModeCapability) bool {
	switch m {
	case ModeCloud, ModeMetal:
		return (Reboot|Rollback|Shutdown|Upgrade)&feature == feature
	case ModeContainer:
		return feature == 0
	default:
		return false
	}
}

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	got, err := ParseMode(string(text))
	if err != nil {
		return err
	}
	*m = got
	return nil
}
