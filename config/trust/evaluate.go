// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// Finding is the result of checking one piece of signature material.
type Finding string

// The findings; only Valid counts.
const (
	// Valid: signed by a key of the document over the target's digest.
	Valid Finding = "Valid"
	// UnknownKey: signed by no key of the matching rules.
	UnknownKey Finding = "UnknownKey"
	// OtherDigest: signed by a key of the document over different content.
	OtherDigest Finding = "OtherDigest"
	// OtherType: an attestation that isn't a signature.
	OtherType Finding = "OtherType"
	// Unreadable: not parseable, or over a limit.
	Unreadable Finding = "Unreadable"
)

// CheckedSignature is one piece of signature material that payload/verify checked
// cryptographically.
type CheckedSignature struct {
	// Finding is Valid if the signature counts.
	Finding Finding
	// Key is the name of the signing key, for Valid and OtherDigest.
	Key string
	// Format is "cosign", "bundle" or "dsse".
	Format string
	// Material is the digest of the bytes that contain the signature.
	Material Digest
	// Seen is compared with the key's validity period: the proven time of
	// signing, or when this installation first observed the material.
	Seen time.Time
	// Detail is one line for messages.
	Detail string
}

// Target is the requested content and the metadata in its signed bytes.
type Target struct {
	// Cluster is the cluster's name; empty on a host without that setting.
	Cluster string
	// Kind is KindRelease or KindNodeOS.
	Kind string
	// Name is the object's name. If it is unknown (to an agent) and empty, the
	// rules for every name must hold.
	Name string
	// Source is the URL of the declaring source; empty as for Name.
	Source string
	// Image is the logical repository, without digest; empty for a path.
	Image string
	// Digest is the content's digest.
	Digest Digest
	// Product and Version come from bytes under Digest.
	Product, Version string
	// WantProduct and WantVersion are the requested values; empty: any.
	WantProduct, WantVersion string
	// PreviouslyAccepted marks the running release and the one before it, which
	// an expired policy doesn't block.
	PreviouslyAccepted bool
}

// Evaluate decides whether checked signatures satisfy the document for a target.
// It is pure. All matching rules must hold; without one the reason is
// PolicyMissing. Keys are counted once by their material.
func Evaluate(d *Document, t Target, found []CheckedSignature, now time.Time) (Evidence, error) {
	if d == nil || d.digest == "" { // not checked by Decode
		return Evidence{}, missingPolicy(t, "no active trust policy")
	}
	if err := eligible(d, t, now); err != nil {
		return Evidence{}, err
	}
	rules, err := d.matching(t)
	if err != nil {
		return Evidence{}, err
	}
	ev := Evidence{
		Format: evidenceFormat, Policy: fmt.Sprintf("%s@%d", d.Name, d.Version), PolicyDigest: d.digest,
		Digest: t.Digest, Product: t.Product, Version: t.Version, Checked: now.UTC(),
	}
	for _, r := range rules {
		signers, err := d.satisfy(r, t, found)
		if err != nil {
			return Evidence{}, err
		}
		ev.add(r, d.threshold(r.Role), signers)
	}
	return ev, nil
}

// Candidates returns the keys that may sign a target: those of the roles of all
// matching rules, each once. payload/verify tries only these.
func (d *Document) Candidates(t Target) []Key {
	rules, err := d.matching(t)
	if err != nil {
		return nil
	}
	var out []Key
	for _, r := range rules {
		for _, k := range d.Keys { // revoked keys too, so that a refusal can report them
			named := slices.Contains(d.Roles[r.Role].Keys, k.Name)
			if named && !slices.ContainsFunc(out, func(o Key) bool { return o.Name == k.Name }) {
				out = append(out, k)
			}
		}
	}
	return out
}

// eligible checks everything but signatures.
func eligible(d *Document, t Target, now time.Time) error {
	r := &Refusal{Subject: t.subject()}
	switch {
	case t.Cluster != "" && !d.Governs(t.Cluster):
		return missingPolicy(t, fmt.Sprintf("policy %s for clusters %s, but this cluster is %q", revision(d), list(d.Clusters), t.Cluster))
	case slices.Contains(d.Revoked.Digests, t.Digest):
		r.Cause, r.Found, r.Wanted = Revoked, t.Digest.String()+" on the deny list", "content that isn't revoked"
	case t.Product == "" || t.Version == "":
		r.Cause = NameMismatch
		r.Found = fmt.Sprintf("product %q and version %q in the signed bytes", t.Product, t.Version)
		r.Wanted = "both: annotations lockstep.dev/product and org.opencontainers.image.version"
		r.Fix = []string{"lockstep release build", "lockstep os build --product … --version …"}
	case t.WantProduct != "" && t.WantProduct != t.Product:
		r.Cause, r.Found, r.Wanted = NameMismatch, "product "+quote(t.Product)+" in the signed bytes", "product "+quote(t.WantProduct)
	case t.WantVersion != "" && t.WantVersion != t.Version:
		r.Cause, r.Found, r.Wanted = NameMismatch, "version "+quote(t.Version)+" in the signed bytes", "version "+quote(t.WantVersion)
		r.Fix = []string{"declare version " + sanitize.Line(t.Version) + " or the digest of " + sanitize.Line(t.WantVersion)}
	case !t.PreviouslyAccepted && !d.Expires.After(now):
		r.Cause, r.Found, r.Wanted = Expired, revision(d)+", which expired "+d.Expires.UTC().Format(time.RFC3339), "a policy that hasn't expired, for a new release"
		r.Fix = []string{"set a later expires with lockstep trust edit, then sign"}
	default:
		return nil
	}
	return r
}

// matching returns the rules that a target must satisfy.
func (d *Document) matching(t Target) ([]Rule, error) {
	var named, out []Rule
	for _, r := range d.Rules {
		if !r.governs(t) {
			continue
		}
		named = append(named, r)
		if r.Product == t.Product && r.admitsImage(t.Image) {
			out = append(out, r)
		}
	}
	switch {
	case len(named) == 0:
		return nil, missingPolicy(t, "no matching rule")
	case len(out) > 0:
		return out, nil
	case slices.ContainsFunc(named, func(r Rule) bool { return r.Product == t.Product }):
		return nil, missingPolicy(t, fmt.Sprintf("no rule for product %s from %s", quote(t.Product), quote(t.Image)))
	default:
		return nil, &Refusal{
			Cause: NameMismatch, Subject: t.subject(), Found: "product " + quote(t.Product) + " in the signed bytes",
			Wanted: "a product of its rules: " + list(products(named)),
		}
	}
}

// governs reports whether the rule applies to the target, regardless of its
// content.
func (r Rule) governs(t Target) bool {
	return r.Match.Kind == t.Kind &&
		(t.Name == "" || glob(r.Match.Name, t.Name)) &&
		(t.Source == "" || r.Match.Source == "" || glob(r.Match.Source, t.Source))
}

// admitsImage reports whether the rule applies to the repository. It always does
// for a path in a Git repository.
func (r Rule) admitsImage(image string) bool {
	return len(r.Images) == 0 || image == "" ||
		slices.ContainsFunc(r.Images, func(p string) bool { return glob(p, image) })
}

// satisfy returns the distinct signers for a rule.
func (d *Document) satisfy(r Rule, t Target, found []CheckedSignature) ([]Signer, error) {
	var signers []Signer
	var c shortfall
	counted := map[string]bool{}
	for _, s := range found {
		k, ok := d.roleKey(r.Role, s.Key)
		switch {
		case s.Finding != Valid || !ok:
			c.note(s, ok)
		case d.keyRevoked(k.Name):
			c.revoked = append(c.revoked, k.Short())
		case !k.Covers(s.Seen):
			c.expired = append(c.expired, fmt.Sprintf("%s, seen %s", k.Short(), s.Seen.UTC().Format(time.RFC3339)))
		case !counted[k.fingerprint]:
			counted[k.fingerprint] = true
			signers = append(signers, Signer{
				Name: k.Name, Fingerprint: k.fingerprint, Algorithm: k.algorithm,
				Format: s.Format, Material: s.Material, Seen: s.Seen.UTC(),
			})
		}
	}
	if len(signers) < max(1, d.threshold(r.Role)) {
		return nil, c.refusal(d, r, t, signers)
	}
	return signers, nil
}

// roleKey returns the key of this name if the role lists it.
func (d *Document) roleKey(role, name string) (Key, bool) {
	if name == "" || !slices.Contains(d.Roles[role].Keys, name) {
		return Key{}, false
	}
	i := slices.IndexFunc(d.Keys, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return d.Keys[i], true
}

// shortfall collects why signatures didn't count, to report the most helpful
// reason.
type shortfall struct {
	revoked, expired, wrongDigest, wrongKey, wrongType, unreadable []string
}

func (c *shortfall) note(s CheckedSignature, inRole bool) {
	text := sanitize.Line(s.Detail)
	switch {
	case s.Finding == OtherDigest:
		c.wrongDigest = append(c.wrongDigest, text)
	case s.Finding == UnknownKey, s.Finding == Valid && !inRole:
		c.wrongKey = append(c.wrongKey, text)
	case s.Finding == OtherType:
		c.wrongType = append(c.wrongType, text)
	default:
		c.unreadable = append(c.unreadable, text)
	}
}

// refusal reports the found and the missing signatures. Unsigned and
// ThresholdNotMet resolve automatically when a signature appears.
func (c *shortfall) refusal(d *Document, r Rule, t Target, have []Signer) error {
	want := d.threshold(r.Role)
	out := &Refusal{
		Subject: t.subject(), Fix: []string{t.command() + " sign " + t.reference() + " --key " + d.missingKey(r.Role, have) + ".key"},
		Wanted: fmt.Sprintf("%d of %s (role %s)", want, list(names(d.RoleKeys(r.Role))), r.Role),
	}
	switch {
	case len(have) > 0:
		out.Cause, out.Retry = ThresholdNotMet, true
		out.Found = fmt.Sprintf("%d of %d signatures: %s", len(have), want, list(signerNames(have)))
	case len(c.revoked) > 0:
		out.Cause, out.Found = Revoked, "a signature by revoked key "+some(c.revoked)
	case len(c.expired) > 0:
		out.Cause, out.Found = Expired, "a signature outside the key's validity period: "+some(c.expired)
	case len(c.wrongDigest) > 0:
		out.Cause, out.Found = WrongDigest, "a signature of different content: "+some(c.wrongDigest)
	case len(c.wrongKey) > 0:
		out.Cause, out.Found = WrongAuthority, "only signatures by other keys: "+some(c.wrongKey)
	default:
		out.Cause, out.Retry = Unsigned, true
		out.Found = "no signature"
		if rest := append(c.wrongType, c.unreadable...); len(rest) > 0 {
			out.Found = "no valid signature: " + some(rest)
		}
	}
	return out
}

// missingKey returns the name of a key of the role that hasn't signed.
func (d *Document) missingKey(role string, have []Signer) string {
	for _, k := range d.RoleKeys(role) {
		if !slices.ContainsFunc(have, func(s Signer) bool { return s.Name == k.Name }) {
			return k.Name
		}
	}
	return "KEY"
}

// some joins the first three entries of a list.
func some(s []string) string {
	const shown = 3
	if len(s) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(s[:shown], "; "), len(s)-shown)
	}
	return strings.Join(s, "; ")
}

func signerNames(s []Signer) []string {
	out := make([]string, 0, len(s))
	for _, x := range s {
		out = append(out, x.Name)
	}
	return out
}

// products returns the products of rules, each once.
func products(rules []Rule) []string {
	var out []string
	for _, r := range rules {
		if !slices.Contains(out, r.Product) {
			out = append(out, r.Product)
		}
	}
	return out
}

func missingPolicy(t Target, found string) error {
	return &Refusal{
		Cause: PolicyMissing, Subject: t.subject(), Found: found,
		Wanted: fmt.Sprintf("a rule for kind %s, name %s, product %s", t.Kind, quote(t.Name), quote(t.Product)),
		Fix:    []string{"lockstep trust edit, add the rule, then lockstep trust sign"},
	}
}

// subject returns the target for messages.
func (t Target) subject() string {
	name := t.Kind
	if t.Name != "" {
		name += "/" + t.Name
	}
	return name + " " + t.Digest.Short()
}

// command returns the command that signs content of this kind.
func (t Target) command() string {
	if t.Kind == KindNodeOS {
		return "lockstep os"
	}
	return "lockstep release"
}

// reference returns the content as a command argument.
func (t Target) reference() string {
	if t.Image == "" {
		return "PATH"
	}
	return sanitize.Line(t.Image) + "@" + t.Digest.String()
}

// quote sanitizes and quotes an untrusted string.
func quote(s string) string { return fmt.Sprintf("%q", sanitize.Line(s)) }
