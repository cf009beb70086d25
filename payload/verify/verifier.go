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

// The annotations of a manifest from which product and version are read.
const (
	AnnotationProduct = "lockstep.dev/product"
	AnnotationVersion = "org.opencontainers.image.version"
)

// defaultTimeout bounds one check, the network included.
const defaultTimeout = 2 * time.Minute

// Registry is where manifests and signature material come from;
// registry.Client is one.
type Registry interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (registry.Manifest, error)
	Tagged(ctx context.Context, repo, tag string) ([]registry.Manifest, error)
	Referrers(ctx context.Context, repo string, d trust.Digest) ([]registry.Descriptor, error)
	Bytes(ctx context.Context, repo string, d registry.Descriptor, limit int64) ([]byte, error)
}

// Config holds what a Verifier needs.
type Config struct {
	// Registry may be nil where only paths are verified.
	Registry Registry
	// Policy returns the document in force; nil means that there is none and
	// everything is refused.
	Policy func() *trust.Document
	// Cluster is the name that the document must govern; "" on a host that
	// isn't told one.
	Cluster string
	// Now is the clock: for expiry, and for when material was first seen.
	Now func() time.Time
	// Limits bound signature material; zero fields take the defaults.
	Limits Limits
	// Timeout bounds one check; zero: two minutes.
	Timeout time.Duration
}

// Verifier checks content against the policy in force at each call. It's safe
// for concurrent use and keeps nothing between calls, so that a revoked key
// counts for nothing from the next call on.
type Verifier struct{ cfg Config }

// New returns a Verifier.
func New(cfg Config) (*Verifier, error) {
	if cfg.Policy == nil || cfg.Now == nil {
		return nil, errors.New("verifier: policy and clock are needed")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	cfg.Limits = cfg.Limits.withDefaults()
	return &Verifier{cfg: cfg}, nil
}

// Request names what to check, and for whom.
type Request struct {
	// Name is the object's name, Source the URL of what declared it. An agent
	// that knows neither leaves them empty and is held to every rule of the
	// kind.
	Name, Source string
	// Image is repository@sha256:….
	Image string
	// Product and Version are what the request says; they're compared with the
	// signed bytes. Empty: not compared.
	Product, Version string
	// Signatures are digests of manifests with signature material, tried before
	// all that the registry lists.
	Signatures []trust.Digest
	// Seen is when material was first seen, from earlier evidence.
	Seen map[trust.Digest]time.Time
	// Mark is the high-water mark that the version must reach; zero: none.
	Mark trust.Mark
	// PreviouslyAccepted marks what runs already or ran before: see trust.Target.
	PreviouslyAccepted bool
}

// Release checks a release image for a ClusterRelease.
func (v *Verifier) Release(ctx context.Context, r Request) (Signed, error) {
	return v.image(ctx, trust.KindRelease, r)
}

// OS checks an operating system image for a NodeOS or on a host.
func (v *Verifier) OS(ctx context.Context, r Request) (Signed, error) {
	return v.image(ctx, trust.KindNodeOS, r)
}

// image checks an image. The errors are *trust.Refusal.
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
		return Signed{}, fetchFailed(r.Image, "the image", errors.New("this verifier has no registry"))
	}
	m, err := v.cfg.Registry.Manifest(ctx, repo, digest)
	if err != nil {
		return Signed{}, fetchFailed(r.Image, "the image", err)
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

// search looks at one place for signatures after the other until the policy is
// satisfied. What goes wrong in one place is remembered and told only if the
// others don't suffice.
func (v *Verifier) search(ctx context.Context, doc *trust.Document, t trust.Target, r Request) (trust.Evidence, error) {
	// Without signatures the policy says what else is wrong: there's no need to
	// fetch anything for a target that is revoked or that no rule knows.
	_, err := trust.Evaluate(doc, t, nil, v.cfg.Now())
	switch {
	case err == nil:
		return trust.Evidence{}, fmt.Errorf("image %s: the policy asks for no signature, which it can't", sanitize.Line(r.Image))
	case trust.ReasonOf(err) != trust.Unsigned:
		return trust.Evidence{}, err
	}
	c, cerr := newChecker(doc, t, v.seen(r))
	if cerr != nil {
		return trust.Evidence{}, cerr
	}
	g := &gatherer{registry: v.cfg.Registry, repo: t.Image, digest: t.Digest, limits: v.cfg.Limits}
	var found []trust.CheckedSignature
	for _, place := range g.places(r.Signatures) {
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

// seen returns when material was first seen: as the request remembers, else
// now.
func (v *Verifier) seen(r Request) func(trust.Digest) time.Time {
	now := v.cfg.Now()
	return func(d trust.Digest) time.Time {
		if t, ok := r.Seen[d]; ok && t.Before(now) {
			return t
		}
		return now
	}
}

// ParseReference splits repository@sha256:…; a reference without a digest is
// refused with reason UnpinnedImage.
func ParseReference(image string) (repo string, d trust.Digest, err error) {
	unpinned := &trust.Refusal{
		Cause: trust.UnpinnedImage, Subject: fmt.Sprintf("image %q", sanitize.Line(image)),
		Found: "no digest", Wanted: "repository@sha256:…: a tag can be moved, a digest can't",
		Fix: []string{"lockstep release inspect " + sanitize.Line(image) + ", which prints the digest"},
	}
	repo, digest, ok := strings.Cut(image, "@")
	if !ok || repo == "" {
		return "", "", unpinned
	}
	d, err = trust.ParseDigest(digest)
	if err != nil {
		unpinned.Found, unpinned.Err = "an unusable digest", err
		return "", "", unpinned
	}
	last := repo[strings.LastIndex(repo, "/")+1:]
	if strings.Contains(last, ":") && !strings.HasPrefix(repo, registry.LayoutPrefix) {
		unpinned.Found, unpinned.Wanted = "a tag beside the digest", "repository@sha256:… alone"
		return "", "", unpinned
	}
	return repo, d, nil
}

// fetchFailed says that content couldn't be fetched, and whether that may pass.
func fetchFailed(subject, what string, err error) error {
	r := &trust.Refusal{
		Cause: trust.FetchFailed, Subject: sanitize.Line(subject), Found: what + " can't be fetched",
		Wanted: "an answer of the registry", Retry: true, Err: err,
	}
	var limit *files.LimitError
	var refused *trust.Refusal
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &limit):
		r.Cause, r.Retry, r.Found, r.Wanted = trust.LimitExceeded, false, what+" is too large", "one within the limits"
	case errors.Is(err, registry.ErrNotFound):
		r.Found, r.Wanted = what+" isn't in the registry", "to find it there"
		r.Fix = []string{"push it, or declare the digest of one that is there"}
	}
	return r
}
