// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"strings"
	"time"
)

// Accepted is the active policy, with a pending revision if there is one. It is a
// value: Accept and Settle return new ones. Store it where only its owner can
// write; Marshal and Load encode it.
type Accepted struct {
	// Document is the active document.
	Document *Document
	// Envelope contains Document.
	Envelope []byte
	// Pending was signed by the recovery role and is activated later; nil if
	// there is none.
	Pending *Pending
	// Replacements records every manual replacement, oldest first.
	Replacements []Replacement
}

// Pending is a revision signed by the recovery role, activated at Effective.
type Pending struct {
	Document  *Document
	Envelope  []byte
	Effective time.Time
	// SignedBy lists the names of the signing keys.
	SignedBy []string
}

// Replacement records a manual replacement of the policy, which the previous
// policy didn't sign.
type Replacement struct {
	Old  Digest    `json:"old"`
	New  Digest    `json:"new"`
	Time time.Time `json:"time"`
}

// maxReplacements bounds Replacements; the newest are kept.
const maxReplacements = 16

// Pin accepts the first revision: its document must have the pinned digest, which
// is delivered separately (at bootstrap or provisioning), and be signed by its
// own root threshold.
func Pin(raw []byte, pinned Digest, now time.Time) (Accepted, error) {
	next, e, err := openRevision(raw)
	if err != nil {
		return Accepted{}, err
	}
	subject := revision(next)
	if next.digest != pinned {
		return Accepted{}, &Refusal{
			Cause: PolicyChangeRefused, Subject: subject,
			Found: "digest " + next.digest.String(), Wanted: "the pinned digest " + pinned.String(),
			Fix: []string{"compare the digest with the one that `lockstep trust init` printed"},
		}
	}
	if err := selfSigned(next, e, now); err != nil {
		return Accepted{}, err
	}
	if !next.Expires.After(now) {
		return Accepted{}, expired(next)
	}
	return Accepted{Document: next, Envelope: raw}, nil
}

// Accept returns the policy after an envelope was delivered. The active or the
// pending envelope changes nothing and isn't an error. A refusal has reason
// PolicyChangeRefused (PolicyMissing without a current policy) and leaves the
// current policy unchanged.
//
// A revision that the current recovery threshold signed becomes pending for the
// role's delay; see Settle. A revision that the root threshold signed is
// activated immediately, so that the root can stop a stolen recovery key.
func Accept(current *Accepted, raw []byte, now time.Time) (Accepted, error) {
	if current == nil || current.Document == nil {
		return Accepted{}, &Refusal{
			Cause: PolicyMissing, Subject: "trust policy",
			Found: "no active policy", Wanted: "a policy pinned by its digest",
			Fix: []string{"lockstep bootstrap --root-digest sha256:…"},
		}
	}
	cur := current.Settle(now)
	next, e, err := openRevision(raw)
	if err != nil {
		return cur, err
	}
	if next.digest == cur.Document.digest {
		return cur, nil
	}
	if err := successor(cur.Document, next, now); err != nil {
		return cur, err
	}
	if err := selfSigned(next, e, now); err != nil {
		return cur, err
	}
	root := e.signedBy(cur.Document, RoleRoot, now)
	if want := cur.Document.threshold(RoleRoot); len(root) >= want {
		return Accepted{Document: next, Envelope: raw, Replacements: cur.Replacements}, nil
	}
	return recoverInto(cur, next, raw, e, now)
}

// recoverInto makes a revision pending that the recovery threshold signed.
func recoverInto(cur Accepted, next *Document, raw []byte, e envelope, now time.Time) (Accepted, error) {
	if cur.Pending != nil && cur.Pending.Document.digest == next.digest {
		return cur, nil
	}
	keys := e.signedBy(cur.Document, RoleRecovery, now)
	want := cur.Document.threshold(RoleRecovery)
	if want == 0 || len(keys) < want {
		return cur, notEnough(cur.Document, next, e, now)
	}
	out := cur
	out.Pending = &Pending{
		Document: next, Envelope: raw, SignedBy: names(keys),
		Effective: now.Add(cur.Document.Roles[RoleRecovery].Delay),
	}
	return out.Settle(now), nil
}

// Settle activates the pending revision once it is due. It returns the receiver
// if nothing changes.
func (a Accepted) Settle(now time.Time) Accepted {
	if a.Pending == nil || now.Before(a.Pending.Effective) {
		return a
	}
	return Accepted{Document: a.Pending.Document, Envelope: a.Pending.Envelope, Replacements: a.Replacements}
}

// Replace activates an envelope that an operator installed by hand and records
// the replacement. The current policy needn't have signed it; it must be signed by
// its own root threshold and have the given digest.
func Replace(current Accepted, raw []byte, pinned Digest, now time.Time) (Accepted, error) {
	out, err := Pin(raw, pinned, now)
	if err != nil {
		return current, err
	}
	if current.Document == nil || current.Document.digest == out.Document.digest {
		out.Replacements = current.Replacements
		return out, nil
	}
	out.Replacements = append(out.Replacements, current.Replacements...)
	out.Replacements = append(out.Replacements, Replacement{Old: current.Document.digest, New: out.Document.digest, Time: now})
	if n := len(out.Replacements); n > maxReplacements {
		out.Replacements = out.Replacements[n-maxReplacements:]
	}
	return out, nil
}

// openRevision decodes an envelope and its document.
func openRevision(raw []byte) (*Document, envelope, error) {
	e, err := openEnvelope(raw, PayloadType)
	if err == nil {
		var d *Document
		if d, err = Decode(e.payload); err == nil {
			return d, e, nil
		}
	}
	return nil, envelope{}, &Refusal{
		Cause: PolicyChangeRefused, Subject: "trust policy", Found: "an unreadable envelope",
		Wanted: "a DSSE envelope of " + PayloadType, Fix: []string{"lockstep trust sign trust.yaml --key …"}, Err: err,
	}
}

// successor checks name, version and expiry of the next revision.
func successor(cur, next *Document, now time.Time) error {
	r := &Refusal{Cause: PolicyChangeRefused, Subject: revision(next)}
	switch {
	case next.Name != cur.Name:
		r.Found, r.Wanted = "policy "+next.Name, "policy "+cur.Name
	case next.Version == cur.Version:
		r.Found = fmt.Sprintf("version %d with different content (%s)", next.Version, next.digest.Short())
		r.Wanted = fmt.Sprintf("version %d", cur.Version+1)
		r.Fix = []string{fmt.Sprintf("set version: %d and sign again", cur.Version+1)}
	case next.Version < cur.Version:
		r.Found, r.Wanted = fmt.Sprintf("version %d", next.Version), fmt.Sprintf("version %d", cur.Version+1)
	case next.Version > cur.Version+1:
		r.Found, r.Wanted = fmt.Sprintf("version %d", next.Version), fmt.Sprintf("version %d first", cur.Version+1)
		r.Fix = []string{"deliver the intermediate revisions in order"}
		r.Retry = true
	case !next.Expires.After(now):
		return expired(next)
	default:
		return nil
	}
	return r
}

// selfSigned checks the next revision's own root threshold, so that its root is
// able to sign.
func selfSigned(next *Document, e envelope, now time.Time) error {
	keys := e.signedBy(next, RoleRoot, now)
	if len(keys) >= next.threshold(RoleRoot) {
		return nil
	}
	return &Refusal{
		Cause: PolicyChangeRefused, Subject: revision(next),
		Found:  fmt.Sprintf("%d signatures by its own root (%s)", len(keys), list(names(keys))),
		Wanted: fmt.Sprintf("%d of %s", next.threshold(RoleRoot), list(names(next.RoleKeys(RoleRoot)))),
		Fix:    []string{"lockstep trust sign ENVELOPE --key " + firstMissing(next.RoleKeys(RoleRoot), keys) + ".key"},
	}
}

// notEnough reports the missing signatures of the current root.
func notEnough(cur, next *Document, e envelope, now time.Time) error {
	keys := e.signedBy(cur, RoleRoot, now)
	return &Refusal{
		Cause: PolicyChangeRefused, Subject: revision(next),
		Found:  fmt.Sprintf("%d signatures by the root of version %d (%s)", len(keys), cur.Version, list(names(keys))),
		Wanted: fmt.Sprintf("%d of %s", cur.threshold(RoleRoot), list(names(cur.RoleKeys(RoleRoot)))),
		Fix:    []string{"lockstep trust sign ENVELOPE --key " + firstMissing(cur.RoleKeys(RoleRoot), keys) + ".key"},
	}
}

func expired(d *Document) error {
	return &Refusal{
		Cause: PolicyChangeRefused, Subject: revision(d),
		Found:  "expiry " + d.Expires.UTC().Format(time.RFC3339),
		Wanted: "an expiry in the future", Fix: []string{"set a later expires and sign again"},
	}
}

// revision returns name and version of a document for messages.
func revision(d *Document) string { return fmt.Sprintf("trust policy %s@%d", d.Name, d.Version) }

func names(keys []Key) []string {
	out := make([]string, 0, len(keys))
	for _, k := range keys {
		out = append(out, k.Name)
	}
	return out
}

// list joins names for messages.
func list(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// firstMissing returns the name of the first key of all that isn't in have.
func firstMissing(all, have []Key) string {
	signed := map[string]bool{}
	for _, k := range have {
		signed[k.Name] = true
	}
	for _, k := range all {
		if !signed[k.Name] {
			return k.Name
		}
	}
	return "KEY"
}
