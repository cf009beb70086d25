// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Reasons of a LoadError, used as condition reasons.
const (
	// ReasonInvalid is an invalid payload.
	ReasonInvalid = "PayloadInvalid"
	// ReasonForbidden is a payload with an object that trust boundary T1 forbids.
	ReasonForbidden = "ForbiddenObject"
	// ReasonLimit is a payload that exceeds a limit of size, number or depth.
	ReasonLimit = "LimitExceeded"
	// ReasonMismatch is a payload whose name or version differs from the signed
	// one.
	ReasonMismatch = "NameMismatch"
)

// LoadError reports why and where a payload was rejected. Retries with the same
// digest fail again.
type LoadError struct {
	// Kind is one of the Reason constants.
	Kind string
	// File is the path within the payload, or "".
	File string
	// Document within the file and Line, counted from 1; 0 if unknown.
	Document, Line int
	// Message describes what was found and what is required.
	Message string
}

// Error returns the message after file, line and document.
func (e *LoadError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		if e.Document > 0 {
			fmt.Fprintf(&b, " (document %d)", e.Document)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Reason returns the condition reason.
func (e *LoadError) Reason() string { return e.Kind }

// Retriable returns false: the same content is rejected again.
func (e *LoadError) Retriable() bool { return false }

// maxProblems limits the problems that one error lists.
const maxProblems = 20

// Problems collects the errors of a payload, in order, so that all of them are
// reported at once. The zero value is empty.
type Problems struct {
	list []error
	cut  int
}

// Add adds an error, or each of joined errors; nil is ignored.
func (p *Problems) Add(err error) {
	joined, isList := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
	case isList:
		for _, e := range joined.Unwrap() {
			p.Add(e)
		}
	case len(p.list) < maxProblems:
		p.list = append(p.list, err)
	default:
		p.cut++
	}
}

// Err returns nil without a problem, the only one, or an error that lists them,
// one per line: at most 20, and the number of the others.
func (p *Problems) Err() error {
	switch {
	case len(p.list) == 0:
		return nil
	case len(p.list) == 1:
		return p.list[0]
	case p.cut > 0:
		return errors.Join(append(slices.Clip(p.list), fmt.Errorf("and %d more problems", p.cut))...)
	default:
		return errors.Join(p.list...)
	}
}
