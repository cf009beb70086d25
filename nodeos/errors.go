// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"errors"
	"fmt"
	"time"
)

// Errors of a controller.
var (
	// ErrLocked means that another sequence is running. Errors that match it
	// are of type *LockedError.
	ErrLocked = errors.New("locked")
	// ErrInvalidSequenceData means that the request doesn't fit the sequence.
	ErrInvalidSequenceData = errors.New("invalid sequence data")
	// ErrUndefinedRuntime means that a controller has no runtime.
	ErrUndefinedRuntime = errors.New("undefined runtime")
	// ErrDontRetry means that a log event must not be sent again: it's
	// invalid or was sent in part.
	ErrDontRetry = errors.New("don't retry")
)

// LockedError describes the operation that holds the lock; it matches
// ErrLocked.
type LockedError struct {
	// By is the operation id of the holder.
	By string
	// Sequence is the sequence of the holder.
	Sequence Sequence
	// Since is the time when the holder was accepted.
	Since time.Time
	// Wanted is the sequence that was not started.
	Wanted Sequence
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("start %s: locked by operation %s (%s) since %s", e.Wanted, e.By, e.Sequence, e.Since.UTC().Format(time.RFC3339))
}

// Is makes the error match ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Reason is the condition reason.
func (e *LockedError) Reason() string { return "Locked" }

// UnsupportedError means that a mode lacks a capability that the sequence
// needs. Nothing was changed.
type UnsupportedError struct {
	// Sequence is the requested sequence.
	Sequence Sequence
	// Mode is the host's mode.
	Mode Mode
	// Missing are the capabilities that the mode lacks.
	Missing ModeCapability
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported in %s mode: missing capability %s", e.Sequence, e.Mode, e.Missing)
}

// Reason is the condition reason.
func (e *UnsupportedError) Reason() string { return "Unsupported" }

// RebootCommand is the way in which the machine restarts or powers off.
type RebootCommand int

// The reboot commands.
const (
	// RebootRestart restarts the machine through its firmware.
	RebootRestart RebootCommand = iota
	// RebootPowerOff powers the machine off.
	RebootPowerOff
	// RebootKexec starts the next kernel without the firmware; boot counting
	// doesn't apply.
	RebootKexec
)

// String names the command.
func (c RebootCommand) String() string {
	switch c {
	case RebootRestart:
		return "restart"
	case RebootPowerOff:
		return "power-off"
	case RebootKexec:
		return "kexec"
	default:
		return fmt.Sprintf("command(%d)", int(c))
	}
}

// RebootError means that the machine is going down. It's the successful result
// of a sequence that ends in a reboot: it's found by errors.As and never
// reported as a failure.
type RebootError struct {
	// Cmd is the way in which the machine goes down.
	Cmd RebootCommand
}

// Error implements error.
func (e RebootError) Error() string { return fmt.Sprintf("the machine is going down: %s", e.Cmd) }

// IsRebootError reports whether err is, or wraps, a RebootError.
func IsRebootError(err error) bool {
	_, ok := errors.AsType[RebootError](err)
	return ok
}

// ReasonOf returns the condition reason of an error that has one, else fallback.
func ReasonOf(err error, fallback string) string {
	type reasoned interface {
		error
		Reason() string
	}
	if r, ok := errors.AsType[reasoned](err); ok {
		return r.Reason()
	}
	return fallback
}

// Refusal is the error of an order that a host rejects.
type Refusal struct {
	// Why is the condition reason: BelowFloor, DeniedDigest, …
	Why string
	// Message states the actual and the expected value and how to fix it.
	Message string
}

// Refuse returns a Refusal.
func Refuse(why, format string, args ...any) error {
	return &Refusal{Why: why, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *Refusal) Error() string { return e.Message }

// Reason is the condition reason.
func (e *Refusal) Reason() string { return e.Why }

// ErrNoResource means that a host has no such resource.
var ErrNoResource = errors.New("no such resource")
