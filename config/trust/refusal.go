// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"errors"
	"strings"
)

// Reason is the condition reason of a trust decision.
type Reason string

// The reasons of trust decisions; all but Verified are refusals.
const (
	Verified            Reason = "Verified"
	Unsigned            Reason = "Unsigned"
	WrongAuthority      Reason = "WrongAuthority"
	WrongDigest         Reason = "WrongDigest"
	NameMismatch        Reason = "NameMismatch"
	ThresholdNotMet     Reason = "ThresholdNotMet"
	Revoked             Reason = "Revoked"
	Expired             Reason = "Expired"
	BelowFloor          Reason = "BelowFloor"
	Rollback            Reason = "Rollback"
	FetchFailed         Reason = "FetchFailed"
	LimitExceeded       Reason = "LimitExceeded"
	UnpinnedImage       Reason = "UnpinnedImage"
	PolicyMissing       Reason = "PolicyMissing"
	PolicyChangeRefused Reason = "PolicyChangeRefused"
	ForbiddenContent    Reason = "ForbiddenContent"
	RootReplaced        Reason = "RootReplaced"
	WaiverInvalid       Reason = "WaiverInvalid"
)

// Refusal is a negative trust decision, with the actual and the required state and
// the ways to fix it.
type Refusal struct {
	// Cause is the condition reason.
	Cause Reason
	// Subject is the rejected thing, such as a digest or a reference.
	Subject string
	// Found and Wanted are the actual and the required state, one line each.
	Found, Wanted string
	// Fix lists actions or commands that fix it, the most likely first.
	Fix []string
	// Retry is true if it may resolve automatically, as when a signature
	// appears.
	Retry bool
	// Err is the cause, if there is one.
	Err error
}

// Error returns the refusal in one line.
func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(string(r.Cause))
	if r.Subject != "" {
		b.WriteString(": " + r.Subject)
	}
	if r.Found != "" {
		b.WriteString(": found " + r.Found)
	}
	if r.Wanted != "" {
		b.WriteString(", wanted " + r.Wanted)
	}
	if r.Err != nil {
		b.WriteString(": " + r.Err.Error())
	}
	if len(r.Fix) > 0 {
		b.WriteString("; to fix: " + strings.Join(r.Fix, ", or: "))
	}
	return b.String()
}

// Text returns the refusal in several lines, for a terminal.
func (r *Refusal) Text() string {
	var b strings.Builder
	b.WriteString(string(r.Cause) + ": " + r.Subject)
	line := func(label, text string) {
		if text != "" {
			b.WriteString("\n  " + label + strings.Repeat(" ", max(0, len("because")-len(label))+1) + text)
		}
	}
	line("found", r.Found)
	line("wanted", r.Wanted)
	if r.Err != nil {
		line("because", r.Err.Error())
	}
	for i, f := range r.Fix {
		line([]string{"to fix", "  or"}[min(i, 1)], f)
	}
	if r.Retry {
		b.WriteString("\n  retried automatically: a signature may appear, a registry may answer")
	}
	return b.String()
}

// Reason returns the condition reason.
func (r *Refusal) Reason() string { return string(r.Cause) }

// Retriable reports whether a retry without any change may succeed.
func (r *Refusal) Retriable() bool { return r.Retry }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// ReasonOf returns the reason of the refusal in err's chain, or "" if there is
// none.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Cause
	}
	return ""
}
