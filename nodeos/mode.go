// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"fmt"
	"strings"
)

// Mode is the environment of a host; it determines the supported operations.
type Mode int

// The modes of a host.
const (
	// ModeCloud is a virtual machine with an image that the cloud provider writes.
	ModeCloud Mode = iota
	// ModeContainer is a host inside a container: the machine below it can't be
	// changed.
	ModeContainer
	// ModeMetal is a physical or virtual machine with disks that Lockstep
	// writes.
	ModeMetal
)

// ModeCapability is a set of flags: the capabilities of a mode.
type ModeCapability uint64

// The capabilities of a mode.
const (
	// Reboot means that the host can be rebooted.
	Reboot ModeCapability = 1 << iota
	// Rollback means that the host can boot its previous OS.
	Rollback
	// Shutdown means that the host can be powered off.
	Shutdown
	// Upgrade means that the host's OS can be replaced.
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
// lower case.
func ParseMode(s string) (Mode, error) {
	for _, m := range []Mode{ModeCloud, ModeContainer, ModeMetal} {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("unknown runtime mode: %q; want cloud, container or metal", s)
}

// String returns the name that ParseMode accepts, or the number of an unknown
// mode.
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

// RequiresInstall reports whether an OS must be installed on the machine before
// it can boot.
func (m Mode) RequiresInstall() bool { return m == ModeMetal }

// Supports reports whether the mode has all capabilities of feature.
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
