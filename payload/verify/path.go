// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// SignatureFile is the file with the signatures of a payload path. They cover all
// other files.
const SignatureFile = "release.sig.json"

// TypeInToto is the DSSE payload type of an in-toto statement.
const TypeInToto = "application/vnd.in-toto+json"

// ModeTag is the mode of a revision verified by a signed tag.
const ModeTag = "tag"

// Commit describes the verified revision of a path.
type Commit struct {
	// Mode of the verification: "tag", "head", "range" or "".
	Mode string
	// Revision for evidence.
	Revision string
	// Signer is the name of the key of the git role that signed the revision.
	Signer string
}

// PathRequest describes a payload path in a verified snapshot.
type PathRequest struct {
	Request // Image and Signatures are ignored

	// FS is the snapshot, and Dir the directory of the payload in it.
	FS  fs.FS
	Dir string
	// Commit describes the verification of the snapshot.
	Commit Commit
}

// ReleasePath verifies a payload path in a Git repository for a ClusterRelease.
// SignatureFile contains a DSSE envelope with a statement about the digest of all
// other files, which must satisfy the same rules as an image. For products under
// allowGitPayload, a signed tag is sufficient. The files are read once;
// Signed.Tree returns them. Errors are *trust.Refusal.
func (v *Verifier) ReleasePath(ctx context.Context, r PathRequest) (Signed, error) {
	if err := ctx.Err(); err != nil {
		return Signed{}, err
	}
	doc := v.cfg.Policy()
	all, err := tree.Copy(r.FS, path.Clean("./"+r.Dir), tree.Limits{})
	if err != nil {
		return Signed{}, invalidPath(r.Dir, err)
	}
	files := all.Without(SignatureFile)
	t := trust.Target{
		Cluster: v.cfg.Cluster, Kind: trust.KindRelease, Name: r.Name, Source: r.Source, Digest: files.Digest(),
		WantProduct: r.Product, WantVersion: r.Version, PreviouslyAccepted: r.PreviouslyAccepted,
	}
	if t.Product, t.Version, err = metadata(files); err != nil {
		return Signed{}, invalidPath(r.Dir, err)
	}
	found, err := v.signatureFile(doc, t, all, r)
	if err != nil {
		return Signed{}, err
	}
	ev, err := trust.Evaluate(doc, t, found, v.cfg.Now())
	if trust.ReasonOf(err) == trust.Unsigned && signedByTag(doc, t, r.Commit) {
		ev, err = tagEvidence(doc, t, r.Commit, v.cfg.Now()), nil
	}
	if err != nil {
		return Signed{}, err
	}
	if err := doc.CheckVersion(t.Product, t.Version, r.Mark); err != nil {
		return Signed{}, err
	}
	return Signed{kind: t.Kind, digest: t.Digest, product: t.Product, version: t.Version, evidence: ev, tree: files}, nil
}

// signatureFile checks the envelope in SignatureFile if it exists.
func (v *Verifier) signatureFile(doc *trust.Document, t trust.Target, all *tree.Tree, r PathRequest) ([]trust.CheckedSignature, error) {
	raw, err := all.ReadFile(SignatureFile)
	if errors.Is(err, fs.ErrNotExist) || doc == nil {
		return nil, nil
	}
	if err != nil {
		return nil, invalidPath(r.Dir, err)
	}
	return envelopeFindings(doc, t, raw, v.firstSeen(r.Request)), nil
}

// envelopeFindings checks an envelope. An unreadable one is a finding, as
// unreadable material in a registry, and not an error.
func envelopeFindings(doc *trust.Document, t trust.Target, raw []byte, seen func(trust.Digest) time.Time) []trust.CheckedSignature {
	payload, keys, err := doc.OpenSigned(TypeInToto, raw, doc.Candidates(t))
	if err != nil {
		detail := sanitize.Line("unreadable " + SignatureFile + ": " + err.Error())
		return []trust.CheckedSignature{{Finding: trust.Unreadable, Format: formatDSSE, Detail: detail}}
	}
	finding := statementFinding(payload, t.Digest)
	var out []trust.CheckedSignature
	for _, k := range keys {
		m := trust.DigestOf(append([]byte(k+"\n"), payload...))
		out = append(out, trust.CheckedSignature{
			Finding: finding, Key: k, Format: formatDSSE, Material: m, Seen: seen(m), Detail: k + " in " + SignatureFile,
		})
	}
	if len(out) == 0 {
		out = append(out, trust.CheckedSignature{
			Finding: trust.UnknownKey, Format: formatDSSE, Detail: SignatureFile + " by an unknown key",
		})
	}
	return out
}

// Statement is an in-toto statement (v1) that signs content by digest.
type Statement struct {
	Type          string    `json:"_type"`
	PredicateType string    `json:"predicateType"`
	Subject       []Subject `json:"subject"`
	Predicate     struct{}  `json:"predicate"`
}

// Subject is a subject of a statement.
type Subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"`
}

// TypeStatement is the type of an in-toto statement.
const TypeStatement = "https://in-toto.io/Statement/v1"

// NewStatement returns a statement that signs a digest.
func NewStatement(d trust.Digest) Statement {
	return Statement{
		Type: TypeStatement, PredicateType: PredicateSign,
		Subject: []Subject{{Digest: map[string]string{"sha256": d.Hex()}}},
	}
}

// statementFinding evaluates a signed statement for a digest.
func statementFinding(payload []byte, d trust.Digest) trust.Finding {
	var s Statement
	if json.Unmarshal(payload, &s) != nil || s.Type != TypeStatement {
		return trust.Unreadable
	}
	if s.PredicateType != PredicateSign {
		return trust.OtherType
	}
	if !slices.ContainsFunc(s.Subject, func(x Subject) bool { return x.Digest["sha256"] == d.Hex() }) {
		return trust.OtherDigest
	}
	return trust.Valid
}

// metadata returns product and version in the payload's metadata.
func metadata(files *tree.Tree) (product, version string, err error) {
	var m struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	for _, p := range []string{"release-manifests/release-metadata", "release-metadata"} {
		b, err := files.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", p, err)
		}
		return m.Name, m.Version, nil
	}
	return "", "", errors.New("release-metadata not found")
}

// signedByTag reports whether a signed tag is sufficient for the target.
func signedByTag(doc *trust.Document, t trust.Target, c Commit) bool {
	return slices.Contains(doc.AllowGitPayload, t.Product) && c.Mode == ModeTag && c.Revision != "" &&
		slices.ContainsFunc(doc.RoleKeys(trust.RoleGit), func(k trust.Key) bool { return k.Name == c.Signer })
}

// tagEvidence returns the evidence of a signed tag.
func tagEvidence(doc *trust.Document, t trust.Target, c Commit, now time.Time) trust.Evidence {
	ev := trust.Evidence{
		Format: 1, Policy: fmt.Sprintf("%s@%d", doc.Name, doc.Version), PolicyDigest: doc.Digest(),
		Digest: t.Digest, Product: t.Product, Version: t.Version, Checked: now.UTC(),
		Rules:  []string{"allowGitPayload: " + t.Product + ", signed tag of role git"},
		Commit: sanitize.Line(c.Revision),
	}
	for _, k := range doc.RoleKeys(trust.RoleGit) {
		if k.Name == c.Signer {
			ev.Signers = []trust.Signer{{
				Name: k.Name, Fingerprint: k.Fingerprint(), Algorithm: k.Algorithm(), Format: "git-tag", Seen: now.UTC(),
			}}
		}
	}
	return ev
}

// invalidPath returns the refusal of an invalid payload path.
func invalidPath(dir string, err error) error {
	r := &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: fmt.Sprintf("payload path %q", sanitize.Line(dir)),
		Found: "an invalid payload", Wanted: "release-manifests with release-metadata, regular files only",
		Fix: []string{"lockstep release build DIR --output PATH"}, Err: err,
	}
	if t, ok := errors.AsType[*tree.Error](err); ok {
		r.Cause = t.Cause
	}
	return r
}
