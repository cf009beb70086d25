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

// The media types of signature material; cosign defines them.
const (
	typeSimpleSigning   = "application/vnd.dev.cosign.simplesigning.v1+json"
	typeBundlePrefix    = "application/vnd.dev.sigstore.bundle"
	typeEmpty           = "application/vnd.oci.empty.v1+json"
	typeImageConfig     = "application/vnd.oci.image.config.v1+json"
	annotationSignature = "dev.cosignproject.cosign/signature"
	annotationPredicate = "dev.sigstore.bundle.predicateType"
)

// Limits bound the signature material of one image. Zero fields take the
// defaults.
type Limits struct {
	// Layers is how many signatures a legacy signature manifest may hold.
	Layers int
	// Referrers is how many referrers of each likelihood are looked at.
	Referrers int
	// Material is the size of one signature's bytes.
	Material int64
	// Total is the size of all that is fetched for one check.
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

// material is one fetched piece that claims to be a signature.
type material struct {
	digest trust.Digest
	// bundle says that bytes hold a Sigstore bundle; else they're a legacy
	// payload, with its signature in base64.
	bundle    bool
	bytes     []byte
	signature string
}

// gatherer fetches signature material from its places, within limits that hold
// for all of them together.
type gatherer struct {
	registry Registry
	repo     string
	digest   trust.Digest
	limits   Limits

	spent    int64
	fetched  map[trust.Digest]bool
	contents map[trust.Digest][]byte // several signers of one payload share it
	problems []error                 // of fetching
	cut      []error                 // of limits
}

// place is somewhere signatures may be.
type place func(ctx context.Context) iter.Seq[material]

// places lists them in the order in which they are tried: what the request
// names, then cosign's tag, then what refers to the image.
func (g *gatherer) places(pinned []trust.Digest) []place {
	g.fetched, g.contents = map[trust.Digest]bool{}, map[trust.Digest][]byte{}
	return []place{
		func(ctx context.Context) iter.Seq[material] { return g.pinned(ctx, pinned) },
		g.legacy,
		g.referrers,
	}
}

// pinned yields the material of manifests that the request names.
func (g *gatherer) pinned(ctx context.Context, digests []trust.Digest) iter.Seq[material] {
	return func(yield func(material) bool) {
		for i, d := range digests {
			if i == g.limits.Layers {
				g.cut = append(g.cut, fmt.Errorf("%d digests in signatures, at most %d are looked at", len(digests), g.limits.Layers))
				return
			}
			m, err := g.registry.Manifest(ctx, g.repo, d)
			if err != nil {
				g.problem("signature "+d.Short(), err)
				continue
			}
			if !g.layers(ctx, m, yield) {
				return
			}
		}
	}
}

// legacy yields the layers of the manifest under the tag sha256-<hex>.sig.
func (g *gatherer) legacy(ctx context.Context) iter.Seq[material] {
	return func(yield func(material) bool) {
		found, err := g.registry.Tagged(ctx, g.repo, LegacyTag(g.digest))
		if err != nil {
			g.problem("the signature tag", err)
			return
		}
		for _, m := range found {
			if !g.layers(ctx, m, yield) {
				return
			}
		}
	}
}

// LegacyTag returns the tag under which cosign keeps the legacy signatures of
// a digest.
func LegacyTag(d trust.Digest) string { return strings.Replace(d.String(), ":", "-", 1) + ".sig" }

// referrers yields the bundles that refer to the digest. Others are filtered
// out before anything is counted, and what says to be a signature comes first:
// many honest attestations hide none.
func (g *gatherer) referrers(ctx context.Context) iter.Seq[material] {
	return func(yield func(material) bool) {
		list, err := g.registry.Referrers(ctx, g.repo, g.digest)
		if err != nil {
			g.problem("the list of referrers", err)
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
				g.cut = append(g.cut, fmt.Errorf("%d referrers may be signatures, at most %d are looked at", len(candidates), g.limits.Referrers))
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

// referrer yields the signatures in one referrer and reports whether to go on.
func (g *gatherer) referrer(ctx context.Context, d registry.Descriptor, yield func(material) bool) bool {
	m, err := g.registry.Manifest(ctx, g.repo, d.Digest)
	if err != nil {
		g.problem("referrer "+d.Digest.Short(), err)
		return true
	}
	return g.layers(ctx, m, yield)
}

// rank says how likely a referrer is to be a signature, 0 being the likeliest,
// and false if it can't be. Some registries don't give the artifact's type but
// that of its config, or none: then the manifest says it.
func rank(d registry.Descriptor) (int, bool) {
	predicate, annotated := d.Annotations[annotationPredicate]
	switch {
	case annotated && predicate != PredicateSign:
		return 0, false
	case annotated:
		return 0, true
	case strings.HasPrefix(d.ArtifactType, typeBundlePrefix):
		return 1, true
	case d.ArtifactType == "", d.ArtifactType == typeEmpty, d.ArtifactType == typeImageConfig:
		return 2, true
	}
	return 0, false
}

// layers yields the signatures in a manifest and reports whether to go on.
func (g *gatherer) layers(ctx context.Context, m registry.Manifest, yield func(material) bool) bool {
	n := 0
	for _, l := range m.Layers {
		bundle := strings.HasPrefix(l.MediaType, typeBundlePrefix)
		if !bundle && l.MediaType != typeSimpleSigning {
			continue
		}
		if n == g.limits.Layers {
			g.cut = append(g.cut, fmt.Errorf("manifest %s has more than %d signatures", m.Digest.Short(), g.limits.Layers))
			return true
		}
		n++
		out := material{bundle: bundle, signature: l.Annotations[annotationSignature]}
		out.digest = l.Digest
		if !bundle { // equal payloads of two signers have one digest
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

// bytes fetches a layer if it fits what is left of the budget.
func (g *gatherer) bytes(ctx context.Context, l registry.Descriptor) ([]byte, bool) {
	if b, ok := g.contents[l.Digest]; ok {
		return b, true
	}
	if l.Size > g.limits.Material || g.spent+l.Size > g.limits.Total {
		g.cut = append(g.cut, fmt.Errorf("signature %s has %d bytes, at most %d and %d together are fetched",
			l.Digest.Short(), l.Size, g.limits.Material, g.limits.Total))
		return nil, false
	}
	g.spent += l.Size
	b, err := g.registry.Bytes(ctx, g.repo, l, g.limits.Material)
	if err != nil {
		g.problem("signature "+l.Digest.Short(), err)
		return nil, false
	}
	g.contents[l.Digest] = b
	return b, true
}

// problem remembers what went wrong; that something isn't there is no problem.
func (g *gatherer) problem(what string, err error) {
	var limit *files.LimitError
	switch {
	case errors.Is(err, registry.ErrNotFound):
	case errors.As(err, &limit):
		g.cut = append(g.cut, fmt.Errorf("%s: %w", what, err))
	default:
		g.problems = append(g.problems, fmt.Errorf("%s: %w", what, err))
	}
}

// explain gives the reason that helps: if not everything could be seen, what
// is missing may be there. Limits and failures don't hide that the signatures
// which were seen are revoked or of the wrong content.
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
	case len(g.problems) > 0:
		return &trust.Refusal{
			Cause: trust.FetchFailed, Subject: image, Found: "not all signature material: " + string(r.Cause) + " without it",
			Wanted: r.Wanted, Retry: true, Err: g.problems[0],
		}
	case len(g.cut) > 0:
		return &trust.Refusal{
			Cause: trust.LimitExceeded, Subject: image, Found: g.cut[0].Error(), Wanted: r.Wanted,
			Fix: []string{"name the digests of the signature manifests under spec.desired.signatures", "remove foreign referrers from the registry"},
		}
	}
	return err
}
