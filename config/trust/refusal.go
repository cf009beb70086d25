// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"errors"
	"strings"
)

// Reason is the word that a condition shows for a trust decision.
type Reason string

// The reasons of trust decisions. Verified is the only one that isn't a
// refusal.
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
)

// Refusal is a decision against something: what it is about, what was found,
// what was wanted, how to mend it and whether it's looked at again by itself.
type Refusal struct {
	// Cause is the word for the condition.
	Cause Reason
	// Subject is what was refused, such as a digest or a reference.
	Subject string
	// Found and Wanted are one line each.
	Found, Wanted string
	// Fix holds the commands that mend it, the likeliest first.
	Fix []string
	// Retry says that time alone may mend it, as when a signature appears.
	Retry bool
	// Err is the error beneath, if there is one.
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

// Text returns the refusal in several lines, for a terminal: the answer, what
// was found, what was wanted, the ways to mend it, and whether it's looked at
// again by itself.
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
		b.WriteString("\n  it may mend itself: a signature may appear, a registry may answer")
	}
	return b.String()
}

// Reason returns the word for the condition.
func (r *Refusal) Reason() string { return string(r.Cause) }

// Retriable says whether it's worth looking again without any change.
func (r *Refusal) Retriable() bool { return r.Retry }

// Unwrap returns the error beneath.
func (r *Refusal) Unwrap() error { return r.Err }

// ReasonOf returns the reason of the refusal in err's chain, or "" if there is
// none.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Cause
	}
	return ""
}
