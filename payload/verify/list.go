// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
)

// Claim describes signature material for display. Nothing in it is verified.
type Claim struct {
	Material trust.Digest `json:"material"`
	Format   string       `json:"format"`
	// Predicate is the predicate type of the statement; "" in the legacy format.
	Predicate string `json:"predicate,omitempty"`
	// Hint is the key hint of a bundle. cosign sets it to the base64 SHA-256 of the
	// public key.
	Hint string `json:"hint,omitempty"`
}

// List lists the signature material of an image in a registry, unverified, and the
// problems of fetching it.
func List(ctx context.Context, r Registry, image string, l Limits) (claims []Claim, problems []error, err error) {
	repo, digest, err := ParseReference(image)
	if err != nil {
		return nil, nil, err
	}
	g := &gatherer{registry: r, repo: repo, digest: digest, limits: l.withDefaults()}
	for _, place := range g.locations(nil) {
		for m := range place(ctx) {
			claims = append(claims, m.claim())
		}
	}
	return claims, slices.Concat(g.failures, g.limited), nil
}

func (m material) claim() Claim {
	c := Claim{Material: m.digest, Format: formatLegacy}
	if !m.bundle {
		return c
	}
	c.Format, c.Hint = formatBundle, sanitize.Clip(m.hint(), 64)
	var b struct {
		Envelope struct {
			Payload []byte `json:"payload"`
		} `json:"dsseEnvelope"`
	}
	var s Statement
	if json.Unmarshal(m.bytes, &b) == nil && json.Unmarshal(b.Envelope.Payload, &s) == nil {
		c.Predicate = sanitize.Line(s.PredicateType)
	}
	return c
}

// Manifest returns the manifest of an image reference, for display.
func Manifest(ctx context.Context, r Registry, image string) (registry.Manifest, error) {
	repo, digest, err := ParseReference(image)
	if err != nil {
		return registry.Manifest{}, err
	}
	m, err := r.Manifest(ctx, repo, digest)
	if err != nil {
		return m, fetchFailed(image, err)
	}
	return m, nil
}
