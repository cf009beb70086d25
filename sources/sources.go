// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sources holds the words for declared content: a Revision names one
// state of a source, a Snapshot is its files at that revision, a Source
// yields snapshots. It fetches nothing: sources/git and sources/dir do, and
// sources/sourcetest holds what both must do. It knows nothing of the kinds
// that the files declare either: sources/desired decodes them.
package sources

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Revision names one state of a source, in the manner of Flux' RFC-0005.
type Revision struct {
	// Ref is where the revision was found: a branch ("main"), a tag
	// ("v1.2.0"), a full reference name, or "" for a bare commit.
	Ref string
	// Hash is the commit's name, 40 lower-case hexadecimal digits of SHA-1;
	// empty where a source has no commits (a directory).
	Hash string
	// Tree is the digest of the canonical tree, "sha256:<hex>"; see Tree.Sum.
	// A Revision that was parsed from its string form has none.
	Tree string
}

// String returns "main@sha1:<hex>", or "dir@sha256:<hex>" for a source without
// commits, or "" for the zero Revision.
func (r Revision) String() string {
	sum := r.Tree
	if r.Hash != "" {
		sum = "sha1:" + r.Hash
	}
	if r.Ref == "" || sum == "" {
		return sum
	}
	return r.Ref + "@" + sum
}

// Short returns the first seven digits of the commit or tree, for people.
func (r Revision) Short() string {
	s := r.Hash
	if s == "" {
		s = strings.TrimPrefix(r.Tree, "sha256:")
	}
	return s[:min(7, len(s))]
}

// IsZero reports whether r names nothing.
func (r Revision) IsZero() bool { return r.Hash == "" && r.Tree == "" }

// Same reports whether r and o name the same content: the same commit, or the
// same tree where there are no commits. References don't count.
func (r Revision) Same(o Revision) bool {
	if r.Hash != "" || o.Hash != "" {
		return r.Hash == o.Hash
	}
	return r.Tree == o.Tree
}

// ParseRevision reads what String wrote.
func ParseRevision(s string) (Revision, error) {
	var r Revision
	sum := s
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		r.Ref, sum = s[:i], s[i+1:]
	}
	algorithm, digits, _ := strings.Cut(sum, ":")
	raw, err := hex.DecodeString(digits)
	switch {
	case err == nil && digits == strings.ToLower(digits) && algorithm == "sha1" && len(raw) == 20:
		r.Hash = digits
	case err == nil && digits == strings.ToLower(digits) && algorithm == "sha256" && len(raw) == 32:
		r.Tree = sum
	default:
		return Revision{}, fmt.Errorf("revision %q: want [<ref>@]sha1:<40 hexadecimal digits> or [<ref>@]sha256:<64>", s)
	}
	return r, nil
}

// Signer is who signed a revision, as verified; never what the commit claims.
type Signer struct {
	// Name is the name of the authority whose key it was.
	Name string
	// Fingerprint identifies the key: "SHA256:…" for SSH, the hexadecimal
	// fingerprint for OpenPGP.
	Fingerprint string
	// Format is the signature's format: "ssh" or "openpgp".
	Format string
}

// Snapshot is the content of a source at one revision. It never changes.
type Snapshot struct {
	Revision Revision
	// FS holds all files of the source, in memory; see Tree.
	FS *Tree
	// Subject is the first line of the commit's message: a foreign string.
	Subject string
	// Time is the commit's own time, which whoever made it chose.
	Time time.Time
	// Signer is who signed it; nil means unverified.
	Signer *Signer
}

// Request is what the caller of a Source holds already.
type Request struct {
	// Accepted is the newest revision that the caller accepted; zero if none.
	// A source compares what it finds with it: rewinds, moved tags.
	Accepted Revision
	// AcceptRewind is the hash of one commit to which the reference may be
	// rewound; it's spent as soon as that commit is the accepted one.
	AcceptRewind string
}

// Source yields snapshots of one declared source. Implementations are safe for
// concurrent use; calls may wait for one another.
type Source interface {
	// Fetch looks at the source and returns what it declares now. Nothing is
	// transferred and the same *Snapshot is returned when it hasn't moved.
	// An error may carry Reason() string and Attempted() Revision.
	Fetch(ctx context.Context, req Request) (*Snapshot, error)
	// At returns the snapshot at a revision that was accepted before, also
	// when the source declares another one by now or can't be reached.
	At(ctx context.Context, rev Revision) (*Snapshot, error)
}

var _ fs.FS = (*Tree)(nil)
