// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	sgverify "github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// PredicateSign is the predicate type of signatures. Bundles with another type are
// attestations about the image, not signatures (GHSA-vjxv-45g9-9296).
const PredicateSign = "https://sigstore.dev/cosign/sign/v1"

// The signature formats in evidence.
const (
	formatLegacy = "cosign"
	formatBundle = "bundle"
	formatDSSE   = "dsse"
)

// keyVerifier is a key of the trust document with its verifier.
type keyVerifier struct {
	key      trust.Key
	verifier signature.Verifier
}

// checker checks material against the keys that may sign the target.
type checker struct {
	digest    trust.Digest
	hash      v1.Hash // digest, as go-containerregistry has it
	keys      []keyVerifier
	firstSeen func(trust.Digest) time.Time
}

func newChecker(doc *trust.Document, t trust.Target, seen func(trust.Digest) time.Time) (*checker, error) {
	hash, err := v1.NewHash(t.Digest.String())
	if err != nil {
		return nil, fmt.Errorf("digest %s: %w", t.Digest, err)
	}
	c := &checker{digest: t.Digest, hash: hash, firstSeen: seen}
	for _, k := range doc.Candidates(t) {
		pub, ok := doc.PublicKey(k.Name)
		if !ok {
			continue
		}
		v, err := signature.LoadVerifier(pub, crypto.SHA256)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k.Name, err)
		}
		c.keys = append(c.keys, keyVerifier{k, v})
	}
	return c, nil
}

// check verifies material with each key.
func (c *checker) check(ctx context.Context, m material) trust.CheckedSignature {
	out := trust.CheckedSignature{Format: formatLegacy, Material: m.digest, Seen: c.firstSeen(m.digest)}
	if m.bundle {
		out.Format = formatBundle
	}
	out.Finding, out.Key = c.examine(ctx, m)
	out.Detail = c.detail(out, m)
	return out
}

// examine verifies material in its format. Untrusted material that makes a library
// panic is reported as unreadable.
func (c *checker) examine(ctx context.Context, m material) (f trust.Finding, key string) {
	defer func() {
		if p := recover(); p != nil {
			f, key = trust.Unreadable, ""
		}
	}()
	if m.bundle {
		return c.bundle(ctx, m)
	}
	return c.legacy(ctx, m)
}

func (c *checker) detail(s trust.CheckedSignature, m material) string {
	switch s.Finding {
	case trust.OtherType:
		return "an attestation " + m.digest.Short() + " that isn't a signature"
	case trust.Unreadable:
		return "unreadable material " + m.digest.Short()
	case trust.OtherDigest:
		return s.Key + " signed other content with " + m.digest.Short()
	case trust.UnknownKey:
		if id := m.hint(); id != "" {
			return fmt.Sprintf("%s by key %q", m.digest.Short(), sanitize.Clip(id, 64))
		}
		return m.digest.Short() + " by an unknown key"
	default:
		return s.Key + " with " + m.digest.Short()
	}
}

// legacy verifies a payload in cosign's simple signing format. ClaimVerifier is
// required: without it, cosign v2 doesn't compare the digest in the payload with
// that of the image, and accepts signatures of other images.
func (c *checker) legacy(ctx context.Context, m material) (trust.Finding, string) {
	sig, err := static.NewSignature(m.bytes, m.signature)
	if err != nil || m.signature == "" {
		return trust.Unreadable, ""
	}
	for _, k := range c.keys {
		opts := c.options(k)
		opts.ClaimVerifier = cosign.SimpleClaimVerifier
		if _, err := cosign.VerifyImageSignature(ctx, sig, c.hash, opts); err == nil {
			return trust.Valid, k.key.Name
		}
		// Only for the error: the same check without the claim.
		opts.ClaimVerifier = nil
		if _, err := cosign.VerifyImageSignature(ctx, sig, c.hash, opts); err == nil {
			return trust.OtherDigest, k.key.Name
		}
	}
	return trust.UnknownKey, ""
}

// bundle verifies a Sigstore bundle. The artifact policy checks the digest. The
// predicate type is checked here, since cosign v2 ignores it.
func (c *checker) bundle(ctx context.Context, m material) (trust.Finding, string) {
	b, err := parseBundle(m.bytes)
	if err != nil {
		return trust.Unreadable, ""
	}
	raw := c.digest.Bytes()
	for _, k := range c.keys {
		opts := c.options(k)
		opts.NewBundleFormat = true
		res, err := cosign.VerifyNewBundle(ctx, opts, sgverify.WithArtifactDigest("sha256", raw), b)
		if err == nil {
			return predicate(res), k.key.Name
		}
		// Only for the error: the same check without the artifact.
		if _, err := cosign.VerifyNewBundle(ctx, opts, sgverify.WithoutArtifactUnsafe(), b); err == nil {
			return trust.OtherDigest, k.key.Name
		}
	}
	return trust.UnknownKey, ""
}

// options returns cosign's options for one key and no network.
func (c *checker) options(k keyVerifier) *cosign.CheckOpts {
	return &cosign.CheckOpts{
		SigVerifier: k.verifier, TrustedMaterial: &root.BaseTrustedMaterial{},
		IgnoreTlog: true, IgnoreSCT: true, Offline: true,
	}
}

func predicate(res *sgverify.VerificationResult) trust.Finding {
	if res == nil || res.Statement == nil || res.Statement.GetPredicateType() != PredicateSign {
		return trust.OtherType
	}
	return trust.Valid
}

// parseBundle parses a Sigstore bundle with a DSSE envelope.
func parseBundle(raw []byte) (*bundle.Bundle, error) {
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	if b.GetDsseEnvelope() == nil {
		return nil, errors.New("bundle contains no DSSE envelope")
	}
	return b, nil
}

// hint returns the unverified key hint of a bundle, for display.
func (m material) hint() string {
	if !m.bundle {
		return ""
	}
	var b struct {
		VerificationMaterial struct {
			PublicKey struct {
				Hint string `json:"hint"`
			} `json:"publicKey"`
		} `json:"verificationMaterial"`
	}
	if json.NewDecoder(bytes.NewReader(m.bytes)).Decode(&b) != nil {
		return ""
	}
	return b.VerificationMaterial.PublicKey.Hint
}
