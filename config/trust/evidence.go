// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// evidenceFormat is the version of Evidence's encoding.
const evidenceFormat = 1

// MaxSummary is the maximum length of Evidence.Summary, in bytes.
const MaxSummary = 1 << 10

// Evidence records why a target was accepted: the signers, when their signatures
// were first seen, and the rules of the policy. It encodes as JSON.
type Evidence struct {
	Format       int       `json:"format"`
	Policy       string    `json:"policy"`
	PolicyDigest Digest    `json:"policyDigest"`
	Digest       Digest    `json:"digest"`
	Product      string    `json:"product"`
	Version      string    `json:"version"`
	Checked      time.Time `json:"checked"`
	Rules        []string  `json:"rules"`
	Signers      []Signer  `json:"signers"`
	// Commit is the signed revision of a path without its own signatures; empty
	// otherwise.
	Commit string `json:"commit,omitempty"`
	// Cut counts the signers that Summary omitted.
	Cut int `json:"cut,omitempty"`
}

// Signer is one key that signed.
type Signer struct {
	Name        string    `json:"name"`
	Fingerprint string    `json:"fingerprint"`
	Algorithm   string    `json:"algorithm"`
	Format      string    `json:"format"`
	Material    Digest    `json:"material,omitempty"`
	Seen        time.Time `json:"seen"`
}

// String returns the signer in one line, as in "ci (ecdsa-p256 …Xk3Q)".
func (s Signer) String() string {
	return fmt.Sprintf("%s (%s …%s)", s.Name, s.Algorithm, tail(s.Fingerprint))
}

// add records that a rule holds.
func (e *Evidence) add(r Rule, threshold int, signers []Signer) {
	e.Rules = append(e.Rules, fmt.Sprintf("%s/%s product %s: role %s, %d of %d",
		r.Match.Kind, r.Match.Name, r.Product, r.Role, len(signers), threshold))
	for _, s := range signers {
		if !e.has(s) {
			e.Signers = append(e.Signers, s)
		}
	}
}

func (e *Evidence) has(s Signer) bool {
	for _, o := range e.Signers {
		if o.Fingerprint == s.Fingerprint && o.Material == s.Material {
			return true
		}
	}
	return false
}

// Seen returns the time at which each signature was first seen, by the digest of
// its material, for the next check of the same target.
func (e Evidence) Seen() map[Digest]time.Time {
	out := make(map[Digest]time.Time, len(e.Signers))
	for _, s := range e.Signers {
		if s.Material != "" {
			out[s.Material] = s.Seen
		}
	}
	return out
}

// MaxLines is the maximum number of lines of Lines, each of at most
// sanitize.MaxLine bytes, as a status allows.
const MaxLines = 16

// Lines returns one line per signer, for a status.
func (e Evidence) Lines() []string {
	out := make([]string, 0, len(e.Signers)+1)
	for _, s := range e.Signers {
		out = append(out, sanitize.Line(fmt.Sprintf("%s, %s, seen %s", s, s.Format, s.Seen.UTC().Format(time.RFC3339))))
	}
	if e.Commit != "" {
		out = append(out, sanitize.Line("commit "+e.Commit))
	}
	if len(out) > MaxLines {
		out = append(out[:MaxLines-1], fmt.Sprintf("and %d more", len(out)-MaxLines+1))
	}
	return out
}

// Summary returns the evidence as JSON of at most MaxSummary bytes. It omits
// signers, counted in Cut, and then rules until it fits.
func (e Evidence) Summary() string {
	for {
		b, err := json.Marshal(e)
		switch {
		case err != nil:
			return "{}" // can't happen: no field can fail to encode
		case len(b) <= MaxSummary:
			return string(b)
		case len(e.Signers) > 0:
			e.Signers = e.Signers[:len(e.Signers)-1]
			e.Cut++
		case len(e.Rules) > 0:
			e.Rules = e.Rules[:len(e.Rules)-1]
		default:
			return fmt.Sprintf(`{"format":%d,"digest":%q,"policyDigest":%q}`, e.Format, e.Digest, e.PolicyDigest)
		}
	}
}
