// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"strings"
)

// Reasons of a LoadError; they become condition reasons.
const (
	// ReasonInvalid is a payload that can't be read as one.
	ReasonInvalid = "PayloadInvalid"
	// ReasonForbidden is wall 1: an object that a payload may not carry.
	ReasonForbidden = "ForbiddenObject"
	// ReasonLimit is a payload that is larger or deeper than allowed.
	ReasonLimit = "LimitExceeded"
	// ReasonMismatch is a payload whose name or version isn't the signed one.
	ReasonMismatch = "NameMismatch"
)

// LoadError says why a payload was refused, and where. None is worth a retry
// with the same digest.
type LoadError struct {
	// Kind is one of the Reason constants.
	Kind string
	// File is the file's name within the payload, or "".
	File string
	// Document counts from 1 within the file, Line from 1; 0 is unknown.
	Document, Line int
	// Message says what was found and wanted.
	Message string
}

// Error names file, document and line before the message.
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

// Retriable reports that the same bytes will be refused again.
func (e *LoadError) Retriable() bool { return false }
