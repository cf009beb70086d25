// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// knownSections are the top-level fields of Document.
var knownSections = []string{"version", "fence", "slots", "pools", "marks"} //nolint:gochecknoglobals // a constant list

// FormatError is a stored ledger that this version can't use. The ledger isn't
// modified.
type FormatError struct {
	// Problem is the found and the expected value.
	Problem string
	// Err is the cause, if any.
	Err error
}

// Error implements error.
func (e *FormatError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("read the ledger: %s: %v", e.Problem, e.Err)
	}
	return "read the ledger: " + e.Problem
}

// Unwrap returns the cause.
func (e *FormatError) Unwrap() error { return e.Err }

// Reason is the condition reason.
func (e *FormatError) Reason() string { return "LedgerUnreadable" }

// Encode encodes the document as JSON, with the unknown sections that Decode
// read from a newer format. A document that exceeds its limits is an error.
func Encode(d Document) ([]byte, error) {
	if err := checkLimits(d); err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	d.Version = max(d.Version, Version)
	raw, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	if len(d.extra) > 0 {
		if raw, err = withExtra(raw, d.extra); err != nil {
			return nil, err
		}
	}
	if len(raw) > MaxBytes {
		return nil, fmt.Errorf("encode the ledger: %d bytes exceed the limit of %d; remove unused pools", len(raw), MaxBytes)
	}
	return raw, nil
}

func withExtra(raw []byte, extra map[string][]byte) ([]byte, error) {
	sections := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &sections); err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	for name, section := range extra {
		sections[name] = section
	}
	out, err := json.Marshal(sections)
	if err != nil {
		return nil, fmt.Errorf("encode the ledger's sections of a newer format: %w", err)
	}
	return out, nil
}

// Decode decodes a document of format Version-1, Version or Version+1.
func Decode(raw []byte) (Document, error) {
	if len(raw) > MaxBytes {
		return Document{}, &FormatError{Problem: fmt.Sprintf("%d bytes exceed the limit of %d", len(raw), MaxBytes)}
	}
	var d Document
	if err := json.Unmarshal(raw, &d); err != nil {
		return Document{}, &FormatError{Problem: "invalid JSON", Err: err}
	}
	if d.Version < max(1, Version-1) || d.Version > Version+1 {
		return Document{}, &FormatError{Problem: fmt.Sprintf(
			"unsupported format %d, this version reads %d to %d; run a version that supports it",
			d.Version, max(1, Version-1), Version+1)}
	}
	if err := checkLimits(d); err != nil {
		return Document{}, &FormatError{Problem: "limits exceeded", Err: err}
	}
	sections := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &sections); err != nil {
		return Document{}, &FormatError{Problem: "not a JSON object", Err: err}
	}
	for _, name := range knownSections {
		delete(sections, name)
	}
	if len(sections) > 0 {
		d.extra = map[string][]byte{}
		for name, section := range sections {
			d.extra[name] = bytes.Clone(section)
		}
	}
	return d, nil
}

func checkLimits(d Document) error {
	for _, l := range []struct {
		what       string
		have, most int
	}{
		{"slots", len(d.Slots), MaxSlots},
		{"pools", len(d.Pools), MaxPools},
		{"marks", len(d.Marks), MaxMarks},
	} {
		if l.have > l.most {
			return fmt.Errorf("%d %s, at most %d", l.have, l.what, l.most)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(d.Slots)) {
		if s := d.Slots[uid]; uid == "" || s.Attempt == "" || s.State == "" {
			return fmt.Errorf("slot %q of node %q has no node UID, attempt or state", uid, s.Node)
		}
	}
	return nil
}
