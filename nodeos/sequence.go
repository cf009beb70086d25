// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"fmt"
	"slices"
)

// Sequence is what a host does as a whole.
type Sequence int

// The sequences of a host.
const (
	// SequenceBoot starts the host's services after a boot.
	SequenceBoot Sequence = iota
	// SequenceBootstrap starts the host's services for the first time.
	SequenceBootstrap
	// SequenceInitialize loads the machine configuration.
	SequenceInitialize
	// SequenceInstall writes the first system to a machine.
	SequenceInstall
	// SequenceShutdown stops the services and powers the machine off.
	SequenceShutdown
	// SequenceUpgrade replaces the system and boots it on trial.
	SequenceUpgrade
	// SequenceStageUpgrade writes a system to the inactive slot; it isn't
	// booted.
	SequenceStageUpgrade
	// SequenceReset wipes what the request names.
	SequenceReset
	// SequenceReboot stops the services and reboots.
	SequenceReboot
	// SequenceNoop does nothing: it starts and stops.
	SequenceNoop
	// SequenceRollback boots the previous system again. The document has no
	// such sequence (there a rollback is an untracked reboot); here it's an
	// operation like any other.
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

// ParseSequence returns the sequence of that name; the spelling is exact.
func ParseSequence(s string) (Sequence, error) {
	if i := slices.Index(sequenceNames(), s); i >= 0 {
		return Sequence(i), nil
	}
	return 0, fmt.Errorf("unknown runtime sequence: %q; known are %v", s, sequenceNames())
}

// String returns the name that ParseSequence reads; an unknown sequence gives
// its number.
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

// Needs says which capabilities a mode must have for the sequence.
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

// Restarts says whether a run of the sequence takes the machine down.
func (s Sequence) Restarts() bool { return s.Needs()&(Reboot|Shutdown) != 0 }

// Takeover says by which right a sequence may interrupt a running one.
type Takeover int

// The rights to interrupt.
const (
	// TakeoverNever needs WithTakeover.
	TakeoverNever Takeover = iota
	// TakeoverForced needs WithForce or WithTakeover.
	TakeoverForced
	// TakeoverAlways needs no option.
	TakeoverAlways
)

// takeovers says which sequence may interrupt which: a pair that isn't here
// needs WithTakeover.
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

// always turns a condition into a right.
func always(yes bool) Takeover {
	if yes {
		return TakeoverAlways
	}
	return TakeoverNever
}

// CanTakeOver says by which right next may interrupt running. An idle host
// takes anything and isn't asked about here.
func CanTakeOver(running, next Sequence) Takeover { return takeovers(running, next) }
