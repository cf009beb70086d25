// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
)

// The annotations of a manifest with its product and version.
const (
	AnnotationProduct = "lockstep.dev/product"
	AnnotationVersion = "org.opencontainers.image.version"
)

// defaultTimeout limits a verification, including requests.
const defaultTimeout = 2 * time.Minute

// Registry provides manifests and signature material. registry.Client implements
// it.
type Registry interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (registry.Manifest, error)
	Tagged(ctx context.Context, repo, tag string) ([]registry.Manifest, error)
	Referrers(ctx context.Context, repo string, d trust.Digest) ([]registry.Descriptor, error)
	Bytes(ctx context.Context, repo string, d registry.Descriptor, limit int64) ([]byte, error)
}

// Config configures a Verifier.
type Config struct {
	// Registry may be nil if only paths are verified.
	Registry Registry
	// Policy returns the active trust document. With nil, everything is refused.
	Policy func() *trust.Document
	// Cluster is the cluster that the document must include; "" on hosts without a
	// cluster name.
	Cluster string
	// Now is the clock, for expiry and for the time when material is first seen.
	Now func() time.Time
	// Limits of signature material; zero fields mean the defaults.
	Limits Limits
	// Timeout of a verification; the default is two minutes.
	Timeout time.Duration
}

// Verifier verifies content against the active policy. It is safe for concurrent
// use and stateless: revoked keys are rejected from the next call.
type Verifier struct{ cfg Config }

// New returns a Verifier.
func New(cfg Config) (*Verifier, error) {
	if cfg.Policy == nil || cfg.Now == nil {
		return nil, errors.New("create verifier: policy and clock are required")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Limits = cfg.Limits.withDefaults()
	return &Verifier{cfg: cfg}, nil
}

// Request describes the content to verify.
type Request struct {
	// Name of the object, and Source, the URL of the source that declared it.
	// Agents leave both empty and must satisfy every rule of the kind.
	Name, Source string
	// Image is repository@sha256:….
	Image string
	// Product and Version are compared with the signed content unless empty.
	Product, Version string
	// Signatures are digests of signature manifests, which are tried before those
	// that the registry lists.
	Signatures []trust.Digest
	// Seen is the time when material was first seen, from earlier evidence.
	Seen map[trust.Digest]time.Time
	// Mark is the high-water mark that the version must reach, if not zero.
	Mark trust.Mark
	// PreviouslyAccepted is true for content that runs or ran before: see
	// trust.Target.
	PreviouslyAccepted bool
}

// Release verifies a release image for a ClusterRelease.
func (v *Verifier) Release(ctx context.Context, r Request) (Signed, error) {
	return v.image(ctx, trust.KindRelease, r)
}

// OS verifies an OS image for a NodeOS or on a host.
func (v *Verifier) OS(ctx context.Context, r Request) (Signed, error) {
	return v.image(ctx, trust.KindNodeOS, r)
}

// image verifies an image. Errors are *trust.Refusal.
func (v *Verifier) image(ctx context.Context, kind string, r Request) (Signed, error) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	repo, digest, err := ParseReference(r.Image)
	if err != nil {
		return Signed{}, err
	}
	doc := v.cfg.Policy()
	t := trust.Target{
		Cluster: v.cfg.Cluster, Kind: kind, Name: r.Name, Source: r.Source, Image: repo, Digest: digest,
		WantProduct: r.Product, WantVersion: r.Version, PreviouslyAccepted: r.PreviouslyAccepted,
	}
	if doc == nil {
		_, err := trust.Evaluate(nil, t, nil, v.cfg.Now())
		return Signed{}, err
	}
	if v.cfg.Registry == nil {
		return Signed{}, fetchFailed(r.Image, errors.New("verifier has no registry"))
	}
	m, err := v.cfg.Registry.Manifest(ctx, repo, digest)
	if err != nil {
		return Signed{}, fetchFailed(r.Image, err)
	}
	t.Product, t.Version = m.Annotations[AnnotationProduct], m.Annotations[AnnotationVersion]
	ev, err := v.search(ctx, doc, t, r)
	if err != nil {
		return Signed{}, err
	}
	if err := doc.CheckVersion(t.Product, t.Version, r.Mark); err != nil {
		return Signed{}, err
	}
	return Signed{kind: kind, image: repo, digest: digest, product: t.Product, version: t.Version, evidence: ev}, nil
}

// search reads signatures from one location after the other until the policy is
// satisfied. Errors of a location are reported only if the others don't suffice.
func (v *Verifier) search(ctx context.Context, doc *trust.Document, t trust.Target, r Request) (trust.Evidence, error) {
	// An evaluation without signatures finds other refusals, such as a revoked
	// target or a missing rule, before anything is fetched.
	_, err := trust.Evaluate(doc, t, nil, v.cfg.Now())
	switch {
	case err == nil:
		return trust.Evidence{}, fmt.Errorf("verify image %s: policy requires no signature", sanitize.Line(r.Image))
	case trust.ReasonOf(err) != trust.Unsigned:
		return trust.Evidence{}, err
	}
	c, cerr := newChecker(doc, t, v.firstSeen(r))
	if cerr != nil {
		return trust.Evidence{}, cerr
	}
	g := &gatherer{registry: v.cfg.Registry, repo: t.Image, digest: t.Digest, limits: v.cfg.Limits}
	var found []trust.CheckedSignature
	for _, place := range g.locations(r.Signatures) {
		for m := range place(ctx) {
			found = append(found, c.check(ctx, m))
		}
		var ev trust.Evidence
		if ev, err = trust.Evaluate(doc, t, found, v.cfg.Now()); err == nil {
			return ev, nil
		}
	}
	return trust.Evidence{}, g.explain(err, r.Image)
}

// firstSeen returns the time when material was first seen: that of the request, or
// now.
func (v *Verifier) firstSeen(r Request) func(trust.Digest) time.Time {
	now := v.cfg.Now()
	return func(d trust.Digest) time.Time {
		if t, ok := r.Seen[d]; ok && t.Before(now) {
			return t
		}
		return now
	}
}

// ParseReference parses repository@sha256:…. References without a digest are
// refused with reason UnpinnedImage.
func ParseReference(image string) (repo string, d trust.Digest, err error) {
	unpinned := &trust.Refusal{
		Cause: trust.UnpinnedImage, Subject: fmt.Sprintf("image %q", sanitize.Line(image)),
		Found: "no digest", Wanted: "repository@sha256:…, since tags can change",
		Fix: []string{"lockstep release inspect " + sanitize.Line(image) + ", which prints the digest"},
	}
	repo, digest, ok := strings.Cut(image, "@")
	if !ok || repo == "" {
		return "", "", unpinned
	}
	d, err = trust.ParseDigest(digest)
	if err != nil {
		unpinned.Found, unpinned.Err = "an invalid digest", err
		return "", "", unpinned
	}
	last := repo[strings.LastIndex(repo, "/")+1:]
	if strings.Contains(last, ":") && !strings.HasPrefix(repo, registry.LayoutPrefix) {
		unpinned.Found, unpinned.Wanted = "a tag and a digest", "only repository@sha256:…"
		return "", "", unpinned
	}
	return repo, d, nil
}

// fetchFailed returns a refusal for an image that can't be fetched, and whether a
// retry may succeed.
func fetchFailed(image string, err error) error {
	r := &trust.Refusal{
		Cause: trust.FetchFailed, Subject: sanitize.Line(image), Found: "an error fetching the image",
		Wanted: "the image from the registry", Retry: true, Err: err,
	}
	var limit *files.LimitError
	var refused *trust.Refusal
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &limit):
		r.Cause, r.Retry, r.Found, r.Wanted = trust.LimitExceeded, false, "an image above the size limit", "an image within the limit"
	case errors.Is(err, registry.ErrNotFound):
		r.Found, r.Wanted = "no such image in the registry", "an existing image"
		r.Fix = []string{"push the image, or declare the digest of an existing one"}
	}
	return r
}
