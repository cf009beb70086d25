// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package sources defines the types for declared content: a Revision names one
// state of a source, a Snapshot contains its files at that revision, and a Source
// returns snapshots.
//
// sources/git and sources/dir implement Source and share the conformance tests of
// sources/sourcetest; sources/desired decodes the files.
package sources

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Revision names one state of a source, in the format of Flux' RFC-0005.
type Revision struct {
	// Ref is where the revision was found: a branch ("main"), a tag
	// ("v1.2.0"), a full reference name, or "" for a bare commit.
	Ref string
	// Hash is the commit's SHA-1, 40 lower-case hexadecimal digits; empty for a
	// source without commits (a directory).
	Hash string
	// Tree is the digest of the canonical tree, "sha256:<hex>"; see Tree.Sum.
	// Empty in a parsed Revision with a commit.
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

// Short returns the first seven digits of the commit or tree, for messages.
func (r Revision) Short() string {
	s := r.Hash
	if s == "" {
		s = strings.TrimPrefix(r.Tree, "sha256:")
	}
	return s[:min(7, len(s))]
}

// IsZero reports whether r has neither commit nor tree.
func (r Revision) IsZero() bool { return r.Hash == "" && r.Tree == "" }

// Same reports whether r and o name the same content: the same commit, or the
// same tree if there are no commits. References are ignored.
func (r Revision) Same(o Revision) bool {
	if r.Hash != "" || o.Hash != "" {
		return r.Hash == o.Hash
	}
	return r.Tree == o.Tree
}

// ParseRevision parses the result of String.
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
		return Revision{}, fmt.Errorf("parse revision %q: want [<ref>@]sha1:<40 hexadecimal digits> or [<ref>@]sha256:<64>", s)
	}
	return r, nil
}

// Signer is the verified signer of a revision; never the commit's author.
type Signer struct {
	// Name of the authority whose key signed.
	Name string
	// Fingerprint identifies the key: "SHA256:…" for SSH, the hexadecimal
	// fingerprint for OpenPGP.
	Fingerprint string
	// Format is the signature's format: "ssh" or "openpgp".
	Format string
}

// Snapshot is the content of a source at one revision. It is immutable.
type Snapshot struct {
	Revision Revision
	// FS contains all files of the source, in memory; see Tree.
	FS *Tree
	// Subject is the first line of the commit's message, an untrusted string.
	Subject string
	// Time is the commit's time, as its author set it.
	Time time.Time
	// Signer is the verified signer; nil means unverified.
	Signer *Signer
}

// Request is the state of the caller of a Source.
type Request struct {
	// Accepted is the revision that the caller accepted last; zero if none. The
	// source uses it to detect rewinds and moved tags.
	Accepted Revision
	// AcceptRewind is the hash of one commit to which the reference may be
	// rewound; it has no effect once that commit is accepted.
	AcceptRewind string
}

// Source returns snapshots of one declared source. Implementations are safe for
// concurrent use; calls may wait for each other.
type Source interface {
	// Fetch returns the current snapshot. If the source hasn't changed, it
	// transfers nothing and returns the same *Snapshot. An error may have the
	// methods Reason() string and Attempted() Revision.
	Fetch(ctx context.Context, req Request) (*Snapshot, error)
	// At returns the snapshot at a previously accepted revision, also if the
	// source has changed or is unreachable.
	At(ctx context.Context, rev Revision) (*Snapshot, error)
}

var _ fs.FS = (*Tree)(nil)
