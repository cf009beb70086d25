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
	// ErrLocked says that another sequence is running; errors that match it
	// are of type *LockedError.
	ErrLocked = errors.New("locked")
	// ErrInvalidSequenceData says that a sequence was given data that it
	// can't work with.
	ErrInvalidSequenceData = errors.New("invalid sequence data")
	// ErrUndefinedRuntime says that a controller has no runtime.
	ErrUndefinedRuntime = errors.New("undefined runtime")
	// ErrDontRetry says that a log event must not be sent again: it's
	// invalid, or a part of it went out.
	ErrDontRetry = errors.New("don't retry")
)

// LockedError says who holds the lock; it matches ErrLocked.
type LockedError struct {
	// By is the operation id of the holder, Sequence what it runs.
	By string
	// Sequence is what the holder runs.
	Sequence Sequence
	// Since is when the holder was accepted.
	Since time.Time
	// Wanted is the sequence that was refused.
	Wanted Sequence
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s not started: locked by operation %s (%s) since %s", e.Wanted, e.By, e.Sequence, e.Since.UTC().Format(time.RFC3339))
}

// Is makes the error match ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Reason is the condition reason.
func (e *LockedError) Reason() string { return "Locked" }

// UnsupportedError says that a mode can't do what a sequence needs. Nothing
// was touched.
type UnsupportedError struct {
	// Sequence is what was asked for.
	Sequence Sequence
	// Mode is the host's mode.
	Mode Mode
	// Missing are the capabilities that the mode hasn't got.
	Missing ModeCapability
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported in %s mode, which can't %s", e.Sequence, e.Mode, e.Missing)
}

// Reason is the condition reason.
func (e *UnsupportedError) Reason() string { return "Unsupported" }

// RebootCommand is how the machine goes down.
type RebootCommand int

// The reboot commands.
const (
	// RebootRestart restarts the machine through its firmware.
	RebootRestart RebootCommand = iota
	// RebootPowerOff powers the machine off.
	RebootPowerOff
	// RebootKexec starts the next kernel without the firmware; no boot
	// counter runs then.
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

// RebootError says that the machine is going down. It's how a sequence that
// ends in a reboot succeeds: it travels by errors.As and is never reported as
// a failure.
type RebootError struct {
	// Cmd is how the machine goes down.
	Cmd RebootCommand
}

// Error implements error.
func (e RebootError) Error() string { return fmt.Sprintf("the machine is going down: %s", e.Cmd) }

// IsRebootError says whether err is, or wraps, a RebootError.
func IsRebootError(err error) bool {
	_, ok := errors.AsType[RebootError](err)
	return ok
}

// ReasonOf returns the condition reason that an error carries, or fallback.
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

// Refusal is an order that a host doesn't carry out, with the reason that a
// condition shows.
type Refusal struct {
	// Why is the condition reason: BelowFloor, DeniedDigest, …
	Why string
	// Message says what was found and wanted, and how to fix it.
	Message string
}

// Refuse makes a Refusal.
func Refuse(why, format string, args ...any) error {
	return &Refusal{Why: why, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *Refusal) Error() string { return e.Message }

// Reason is the condition reason.
func (e *Refusal) Reason() string { return e.Why }

// ErrNoResource says that a host has no such resource.
var ErrNoResource = errors.New("no such resource")
