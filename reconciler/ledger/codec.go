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

// known are the sections of the format that this package writes.
var knownSections = []string{"version", "fence", "slots", "pools", "marks"} //nolint:gochecknoglobals // a constant list

// FormatError says that the stored bytes aren't a ledger that this version can
// use. The bytes are left as they are.
type FormatError struct {
	// Problem is what was found and what was wanted.
	Problem string
	// Err is the cause, if there is one.
	Err error
}

// Error implements error.
func (e *FormatError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("ledger: %s: %v", e.Problem, e.Err)
	}
	return "ledger: " + e.Problem
}

// Unwrap returns the cause.
func (e *FormatError) Unwrap() error { return e.Err }

// Reason is the condition reason.
func (e *FormatError) Reason() string { return "LedgerUnreadable" }

// Encode writes the document as JSON. Sections that a newer version wrote are
// written back as they were read. It refuses a document beyond its limits.
func Encode(d Document) ([]byte, error) {
	if err := checkLimits(d); err != nil {
		return nil, err
	}
	d.Version = max(d.Version, Version)
	raw, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("ledger: encode: %w", err)
	}
	if len(d.extra) > 0 {
		if raw, err = withExtra(raw, d.extra); err != nil {
			return nil, err
		}
	}
	if len(raw) > MaxBytes {
		return nil, fmt.Errorf("ledger: %d bytes encoded, at most %d fit; free slots or remove old pools", len(raw), MaxBytes)
	}
	return raw, nil
}

func withExtra(raw []byte, extra map[string][]byte) ([]byte, error) {
	sections := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &sections); err != nil {
		return nil, fmt.Errorf("ledger: encode: %w", err)
	}
	for name, section := range extra {
		sections[name] = section
	}
	out, err := json.Marshal(sections)
	if err != nil {
		return nil, fmt.Errorf("ledger: encode the sections of a newer format: %w", err)
	}
	return out, nil
}

// Decode reads what Encode of this version, the one before or the one after
// wrote.
func Decode(raw []byte) (Document, error) {
	if len(raw) > MaxBytes {
		return Document{}, &FormatError{Problem: fmt.Sprintf("%d bytes, at most %d are read", len(raw), MaxBytes)}
	}
	var d Document
	if err := json.Unmarshal(raw, &d); err != nil {
		return Document{}, &FormatError{Problem: "not JSON of a ledger", Err: err}
	}
	if d.Version < max(1, Version-1) || d.Version > Version+1 {
		return Document{}, &FormatError{Problem: fmt.Sprintf(
			"format %d, this version reads %d to %d; run the version that wrote it or one beside it",
			d.Version, max(1, Version-1), Version+1)}
	}
	if err := checkLimits(d); err != nil {
		return Document{}, &FormatError{Problem: "beyond its limits", Err: err}
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
			return fmt.Errorf("ledger: %d %s, at most %d", l.have, l.what, l.most)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(d.Slots)) {
		if s := d.Slots[uid]; uid == "" || s.Attempt == "" || s.State == "" {
			return fmt.Errorf("ledger: slot %q of node %q lacks a node UID, an attempt or a state", uid, s.Node)
		}
	}
	return nil
}
