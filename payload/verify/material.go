// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
)

// The media types and annotations of signature material, as in cosign.
const (
	TypeSimpleSigning   = "application/vnd.dev.cosign.simplesigning.v1+json"
	TypeBundlePrefix    = "application/vnd.dev.sigstore.bundle"
	AnnotationSignature = "dev.cosignproject.cosign/signature"
	AnnotationPredicate = "dev.sigstore.bundle.predicateType"
)

// Limits of the signature material of one image. Zero fields mean the defaults.
type Limits struct {
	// Layers is the number of signatures read from a manifest, and of signature
	// digests in a request.
	Layers int
	// Referrers is the number of referrers read per rank.
	Referrers int
	// Material is the size of one signature, in bytes.
	Material int64
	// Total is the size of all signatures fetched for one verification, in bytes.
	Total int64
}

func (l Limits) withDefaults() Limits {
	d := Limits{Layers: 16, Referrers: 256, Material: 1 << 20, Total: 32 << 20}
	if l.Layers > 0 {
		d.Layers = l.Layers
	}
	if l.Referrers > 0 {
		d.Referrers = l.Referrers
	}
	if l.Material > 0 {
		d.Material = l.Material
	}
	if l.Total > 0 {
		d.Total = l.Total
	}
	return d
}

// material is fetched content that may be a signature.
type material struct {
	digest trust.Digest
	// bundle is true for a Sigstore bundle. Otherwise bytes is a legacy payload
	// and signature its signature in base64.
	bundle    bool
	bytes     []byte
	signature string
}

// gatherer fetches signature material from its locations, within common limits.
type gatherer struct {
	registry Registry
	repo     string
	digest   trust.Digest
	limits   Limits

	spent    int64
	fetched  map[trust.Digest]bool
	contents map[trust.Digest][]byte // signers may share a payload
	failures []error                 // errors of fetching
	limited  []error                 // exceeded limits
}

// location yields the signature material of one location.
type location func(ctx context.Context) iter.Seq[material]

// locations returns the locations in the order in which they are tried: digests in
// the request, cosign's tag, then referrers.
func (g *gatherer) locations(pinned []trust.Digest) []location {
	g.fetched, g.contents = map[trust.Digest]bool{}, map[trust.Digest][]byte{}
	return []location{
		func(ctx context.Context) iter.Seq[material] { return g.pinned(ctx, pinned) },
		g.legacy,
		g.referrers,
	}
}

// pinned yields the material of the digests in the request.
func (g *gatherer) pinned(ctx context.Context, digests []trust.Digest) iter.Seq[material] {
	return func(yield func(material) bool) {
		for i, d := range digests {
			if i == g.limits.Layers {
				g.limited = append(g.limited, fmt.Errorf("%d digests in signatures, at most %d are read", len(digests), g.limits.Layers))
				return
			}
			m, err := g.registry.Manifest(ctx, g.repo, d)
			if err != nil {
				g.record("read signature "+d.Short(), err)
				continue
			}
			if !g.layers(ctx, m, yield) {
				return
			}
		}
	}
}

// legacy yields the material under the tag sha256-<hex>.sig.
func (g *gatherer) legacy(ctx context.Context) iter.Seq[material] {
	return func(yield func(material) bool) {
		found, err := g.registry.Tagged(ctx, g.repo, LegacyTag(g.digest))
		if err != nil {
			g.record("read signature tag", err)
			return
		}
		for _, m := range found {
			if !g.layers(ctx, m, yield) {
				return
			}
		}
	}
}

// LegacyTag returns cosign's tag for the legacy signatures of a digest.
func LegacyTag(d trust.Digest) string { return strings.Replace(d.String(), ":", "-", 1) + ".sig" }

// referrers yields the bundles among the referrers. Other referrers don't count
// towards the limit, and likely signatures come first, so that attestations can't
// hide signatures.
func (g *gatherer) referrers(ctx context.Context) iter.Seq[material] {
	return func(yield func(material) bool) {
		list, err := g.registry.Referrers(ctx, g.repo, g.digest)
		if err != nil {
			g.record("list referrers", err)
			return
		}
		byRank := [3][]registry.Descriptor{}
		for _, d := range list {
			if r, ok := rank(d); ok {
				byRank[r] = append(byRank[r], d)
			}
		}
		for _, candidates := range byRank {
			if len(candidates) > g.limits.Referrers {
				g.limited = append(g.limited, fmt.Errorf("%d referrers may be signatures, at most %d are read", len(candidates), g.limits.Referrers))
				candidates = candidates[:g.limits.Referrers]
			}
			for _, d := range candidates {
				if !g.referrer(ctx, d, yield) {
					return
				}
			}
		}
	}
}

// referrer yields the signatures in one referrer and reports whether to continue.
func (g *gatherer) referrer(ctx context.Context, d registry.Descriptor, yield func(material) bool) bool {
	m, err := g.registry.Manifest(ctx, g.repo, d.Digest)
	if err != nil {
		g.record("read referrer "+d.Digest.Short(), err)
		return true
	}
	return g.layers(ctx, m, yield)
}

// rank returns the likelihood that a referrer is a signature, from 0 for the
// highest, or false if it can't be one. Some registries return no artifact type
// or that of the config; then the manifest must be read.
func rank(d registry.Descriptor) (int, bool) {
	predicate, annotated := d.Annotations[AnnotationPredicate]
	switch {
	case annotated && predicate != PredicateSign:
		return 0, false
	case annotated:
		return 0, true
	case strings.HasPrefix(d.ArtifactType, TypeBundlePrefix):
		return 1, true
	case d.ArtifactType == "", d.ArtifactType == registry.TypeEmpty, d.ArtifactType == registry.TypeImageConfig:
		return 2, true
	}
	return 0, false
}

// layers yields the signatures in a manifest and reports whether to continue.
func (g *gatherer) layers(ctx context.Context, m registry.Manifest, yield func(material) bool) bool {
	n := 0
	for _, l := range m.Layers {
		bundle := strings.HasPrefix(l.MediaType, TypeBundlePrefix)
		if !bundle && l.MediaType != TypeSimpleSigning {
			continue
		}
		if n == g.limits.Layers {
			g.limited = append(g.limited, fmt.Errorf("manifest %s has more than %d signatures", m.Digest.Short(), g.limits.Layers))
			return true
		}
		n++
		out := material{bundle: bundle, signature: l.Annotations[AnnotationSignature]}
		out.digest = l.Digest
		if !bundle { // signers may share a payload and its digest
			out.digest = trust.DigestOf([]byte(l.Digest.String() + "\n" + out.signature))
		}
		if g.fetched[out.digest] {
			continue
		}
		b, ok := g.bytes(ctx, l)
		if !ok {
			continue
		}
		g.fetched[out.digest] = true
		out.bytes = b
		if !yield(out) {
			return false
		}
	}
	return true
}

// bytes fetches a layer within the limits.
func (g *gatherer) bytes(ctx context.Context, l registry.Descriptor) ([]byte, bool) {
	if b, ok := g.contents[l.Digest]; ok {
		return b, true
	}
	if l.Size > g.limits.Material || g.spent+l.Size > g.limits.Total {
		g.limited = append(g.limited, fmt.Errorf("signature %s has %d bytes, at most %d each and %d in total are fetched",
			l.Digest.Short(), l.Size, g.limits.Material, g.limits.Total))
		return nil, false
	}
	g.spent += l.Size
	b, err := g.registry.Bytes(ctx, g.repo, l, g.limits.Material)
	if err != nil {
		g.record("read signature "+l.Digest.Short(), err)
		return nil, false
	}
	g.contents[l.Digest] = b
	return b, true
}

// record records an error unless it is ErrNotFound.
func (g *gatherer) record(what string, err error) {
	var limit *files.LimitError
	switch {
	case errors.Is(err, registry.ErrNotFound):
	case errors.As(err, &limit):
		g.limited = append(g.limited, fmt.Errorf("%s: %w", what, err))
	default:
		g.failures = append(g.failures, fmt.Errorf("%s: %w", what, err))
	}
}

// explain replaces a refusal for missing signatures if not all material was read,
// since the rest may satisfy the policy. Refusals for revoked signatures or other
// content remain.
func (g *gatherer) explain(err error, image string) error {
	var r *trust.Refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.Cause {
	case trust.Unsigned, trust.WrongAuthority, trust.ThresholdNotMet:
	default:
		return err
	}
	switch {
	case len(g.failures) > 0:
		return &trust.Refusal{
			Cause: trust.FetchFailed, Subject: image, Found: "incomplete signature material, " + string(r.Cause) + " without the rest",
			Wanted: r.Wanted, Retry: true, Err: g.failures[0],
		}
	case len(g.limited) > 0:
		return &trust.Refusal{
			Cause: trust.LimitExceeded, Subject: image, Found: g.limited[0].Error(), Wanted: r.Wanted,
			Fix: []string{"list the digests of the signature manifests in spec.desired.signatures", "remove unrelated referrers from the registry"},
		}
	}
	return err
}
