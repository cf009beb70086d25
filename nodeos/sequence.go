// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"fmt"
	"slices"
)

// Sequence is an operation of a host.
type Sequence int

// The sequences of a host.
const (
	// SequenceBoot starts the host's services after a boot.
	SequenceBoot Sequence = iota
	// SequenceBootstrap starts the host's services for the first time.
	SequenceBootstrap
	// SequenceInitialize loads the machine configuration.
	SequenceInitialize
	// SequenceInstall installs the first OS on a machine.
	SequenceInstall
	// SequenceShutdown stops the services and powers the machine off.
	SequenceShutdown
	// SequenceUpgrade replaces the OS and boots it on trial.
	SequenceUpgrade
	// SequenceStageUpgrade writes an OS to the inactive slot without activating
	// it.
	SequenceStageUpgrade
	// SequenceReset wipes the requested targets.
	SequenceReset
	// SequenceReboot stops the services and reboots.
	SequenceReboot
	// SequenceNoop runs no phases.
	SequenceNoop
	// SequenceRollback boots the previous OS. It's not in the Talos package,
	// where a rollback is an untracked reboot.
	SequenceRollback
)

// sequenceNames lists the names in the order of the constants.
func sequenceNames() []string {
	return []string{
		"boot", "bootstrap", "initialize", "install", "shutdown", "upgrade",
		"stageUpgrade", "reset", "reboot", "noop", "rollback",
	}
}

// Sequences lists all sequences in the order of the constants.
func Sequences() []Sequence {
	out := make([]Sequence, len(sequenceNames()))
	for i := range out {
		out[i] = Sequence(i)
	}
	return out
}

// ParseSequence returns the sequence with that exact name.
func ParseSequence(s string) (Sequence, error) {
	if i := slices.Index(sequenceNames(), s); i >= 0 {
		return Sequence(i), nil
	}
	return 0, fmt.Errorf("unknown runtime sequence: %q; want one of %v", s, sequenceNames())
}

// String returns the name that ParseSequence accepts, or the number of an
// unknown sequence.
func (s Sequence) String() string {
	if names := sequenceNames(); s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("sequence(%d)", int(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s Sequence) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sequence) UnmarshalText(text []byte) error {
	got, err := ParseSequence(string(text))
	if err != nil {
		return err
	}
	*s = got
	return nil
}

// Needs returns the capabilities that a mode must have for the sequence.
func (s Sequence) Needs() ModeCapability {
	switch s {
	case SequenceInstall, SequenceUpgrade:
		return Upgrade | Reboot
	case SequenceStageUpgrade:
		return Upgrade
	case SequenceReboot, SequenceReset:
		return Reboot
	case SequenceShutdown:
		return Shutdown
	case SequenceRollback:
		return Rollback | Reboot
	default:
		return 0
	}
}

// Restarts reports whether a run of the sequence takes the machine down.
func (s Sequence) Restarts() bool { return s.Needs()&(Reboot|Shutdown) != 0 }

// Takeover is the option that a sequence needs to interrupt a running one.
type Takeover int

// The values of Takeover.
const (
	// TakeoverNever requires WithTakeover.
	TakeoverNever Takeover = iota
	// TakeoverForced requires WithForce or WithTakeover.
	TakeoverForced
	// TakeoverAlways requires no option.
	TakeoverAlways
)

// takeovers is the take-over table; a pair that isn't listed requires
// WithTakeover.
func takeovers(running, next Sequence) Takeover {
	switch running {
	case SequenceInitialize:
		return always(next == SequenceReboot)
	case SequenceBoot:
		return always(next == SequenceReboot || next == SequenceReset ||
			next == SequenceUpgrade || next == SequenceStageUpgrade || next == SequenceRollback)
	case SequenceReset:
		return always(next == SequenceReboot)
	case SequenceReboot:
		if next == SequenceReboot {
			return TakeoverForced
		}
		return TakeoverNever
	case SequenceNoop:
		return TakeoverAlways
	default:
		return TakeoverNever
	}
}

// always returns TakeoverAlways if yes, else TakeoverNever.
func always(yes bool) Takeover {
	if yes {
		return TakeoverAlways
	}
	return TakeoverNever
}

// CanTakeOver returns the option that next needs to interrupt running.
func CanTakeOver(running, next Sequence) Takeover { return takeovers(running, next) }
