// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// stateFormat is the format version of an encoded Accepted; Load reads the
// previous and the next version too.
const stateFormat = 1

// maxState bounds an encoded Accepted: two envelopes as base64, with a margin.
const maxState = 4 * maxEnvelope

// state is the encoding of Accepted.
type state struct {
	Format       int           `json:"format"`
	Envelope     []byte        `json:"envelope"`
	Digest       Digest        `json:"digest"`
	Pending      *pendingState `json:"pending,omitempty"`
	Replacements []Replacement `json:"replacements,omitempty"`
}

type pendingState struct {
	Envelope  []byte    `json:"envelope"`
	Effective time.Time `json:"effective"`
	SignedBy  []string  `json:"signedBy,omitempty"`
}

// Marshal encodes the accepted policy for a store that only its owner writes.
func (a Accepted) Marshal() ([]byte, error) {
	s := state{Format: stateFormat, Envelope: a.Envelope, Replacements: a.Replacements}
	if a.Document != nil {
		s.Digest = a.Document.digest
	}
	if a.Pending != nil {
		s.Pending = &pendingState{Envelope: a.Pending.Envelope, Effective: a.Pending.Effective, SignedBy: a.Pending.SignedBy}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode accepted trust policy: %w", err)
	}
	return b, nil
}

// Load decodes the output of Marshal. The store is trusted: signatures aren't
// checked again, because the document itself may revoke their keys; only its
// digest is compared.
func Load(b []byte) (Accepted, error) {
	if len(b) > maxState {
		return Accepted{}, fmt.Errorf("load trust policy: %d bytes, at most %d are allowed", len(b), maxState)
	}
	var s state
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&s); err != nil {
		return Accepted{}, fmt.Errorf("load trust policy: %w", err)
	}
	if s.Format < stateFormat-1 || s.Format > stateFormat+1 {
		return Accepted{}, fmt.Errorf("load trust policy: format %d is unsupported, only %d to %d are", s.Format, stateFormat-1, stateFormat+1)
	}
	d, _, err := openRevision(s.Envelope)
	if err != nil {
		return Accepted{}, fmt.Errorf("load trust policy: %w", err)
	}
	if d.digest != s.Digest {
		return Accepted{}, fmt.Errorf("load trust policy: digest is %s, but %s was accepted", d.digest, s.Digest)
	}
	a := Accepted{Document: d, Envelope: s.Envelope, Replacements: s.Replacements}
	if s.Pending == nil {
		return a, nil
	}
	p, _, err := openRevision(s.Pending.Envelope)
	if err != nil {
		return Accepted{}, fmt.Errorf("load pending trust policy: %w", err)
	}
	a.Pending = &Pending{Document: p, Envelope: s.Pending.Envelope, Effective: s.Pending.Effective, SignedBy: s.Pending.SignedBy}
	return a, nil
}
