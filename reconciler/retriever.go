// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// origin is who declared a release: what the trust policy's rules match, and
// where a payload path is read.
type origin struct {
	// cluster is the cluster's name, url the source's.
	cluster, url string
	// serial changes when the source is read in another way.
	serial int
	// tree returns the files of a revision of that source, and how the
	// revision was verified; nil where no source is at hand.
	tree func(ctx context.Context, revision string) (fs.FS, verify.Commit, error)
}

// retriever verifies, fetches and loads releases for one ClusterRelease. It
// implements worker.PayloadRetriever.
type retriever struct {
	name     string
	registry *imageAccess
	policy   func() *trust.Document
	now      func() time.Time
	// refused hears of each refusal, by its reason; verified how long each
	// verification took, and what it came to.
	refused  func(reason string)
	verified func(took time.Duration, err error)

	mu     sync.Mutex
	origin origin
	// held says what is managed here.
	held func() held
	// standing says of a release that it runs here, was the one before it, or
	// may be gone back to.
	standing func(worker.Desired) bool
	// mark returns the highest version of a product that was completed here.
	mark func(ctx context.Context, product string) (string, error)
	// seen is when signature material was first seen, so that a key's window
	// is judged by that time and not by today's.
	seen map[trust.Digest]time.Time
}

// held is what of a release is managed here, as far as a load must know: what
// was enabled isn't taken away.
type held struct {
	// accepted is the payload that is being applied, nil before the first one
	// of this process.
	accepted *payload.Payload
	// enabled are the capabilities that are remembered, made the objects that a
	// prune would delete: with both, a new process takes nothing away either.
	enabled []string
	made    []payload.ObjectID
}

// options are those of a load beside it.
func (h held) options(selection payload.Selection) payload.LoadOptions {
	return payload.LoadOptions{Selection: selection, Previous: h.accepted, Enabled: h.enabled, Managed: h.made}
}

// imageAccess reaches registries for verification and content.
type imageAccess struct {
	registry verify.Registry
	fetcher  *image.Fetcher
}

// setOrigin says who declares the release now, and reports whether that is
// another than before.
func (r *retriever) setOrigin(o origin) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.origin
	r.origin = o
	return was.cluster != o.cluster || was.url != o.url || was.serial != o.serial
}

func (r *retriever) snapshot() (origin, map[trust.Digest]time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origin, maps.Clone(r.seen)
}

// RetrievePayload implements worker.PayloadRetriever. Refusals are counted.
func (r *retriever) RetrievePayload(ctx context.Context, desired worker.Desired) (worker.PayloadInfo, error) {
	info, err := r.retrieve(ctx, desired)
	if err != nil && ctx.Err() == nil {
		r.refused(reasonOf(err, "RetrievalFailed"))
	}
	return info, err
}

func (r *retriever) retrieve(ctx context.Context, desired worker.Desired) (worker.PayloadInfo, error) {
	from, seen := r.snapshot()
	worker.ReportStep(ctx, worker.StepVerifyPayload)
	verifier, err := verify.New(verify.Config{Registry: r.registry.registry, Policy: r.policy, Cluster: from.cluster, Now: r.now})
	if err != nil {
		return worker.PayloadInfo{}, err
	}
	request := verify.Request{
		Name: r.name, Source: from.url, Image: desired.Image, Version: desired.Version,
		Seen: seen, PreviouslyAccepted: r.standing(desired),
	}
	for _, s := range desired.Signatures {
		d, err := trust.ParseDigest(s)
		if err != nil {
			return worker.PayloadInfo{}, &reasonError{"InvalidSpec", false, fmt.Errorf("spec.desired.signatures: %w", err)}
		}
		request.Signatures = append(request.Signatures, d)
	}
	var signed verify.Signed
	began := r.now()
	if desired.Path != "" {
		signed, err = r.verifyPath(ctx, verifier, from, desired, request)
	} else {
		signed, err = verifier.Release(ctx, request)
	}
	if ctx.Err() == nil {
		r.verified(r.now().Sub(began), err)
	}
	if err != nil {
		return worker.PayloadInfo{}, err
	}
	// What fails from here on doesn't speak against the signatures.
	info := worker.PayloadInfo{Verified: true, Evidence: signed.Evidence().Lines()}
	if err := r.aboveMark(ctx, desired, signed); err != nil {
		return info, err
	}
	worker.ReportStep(ctx, worker.StepRetrievePayload)
	tree, ok := signed.Tree()
	if !ok {
		if tree, err = r.registry.fetcher.Tree(ctx, signed); err != nil {
			return info, err
		}
	}
	worker.ReportStep(ctx, worker.StepLoadPayload)
	opts := r.held().options(desired.Selection)
	opts.SelfUpdate = slices.Contains(r.policy().SelfUpdate, signed.Product())
	info.Payload, err = payload.Load(signed, tree, opts)
	if err != nil {
		return info, err
	}
	r.remember(signed.Evidence())
	return info, nil
}

// aboveMark refuses a version below the product's high-water mark, which is
// kept apart from the ClusterRelease: making the object anew doesn't open a way
// back. What runs, what ran before it, and what spec.rollback names may go
// below it.
func (r *retriever) aboveMark(ctx context.Context, desired worker.Desired, signed verify.Signed) error {
	if r.standing(desired) {
		return nil
	}
	version, err := r.mark(ctx, signed.Product())
	if err != nil {
		return err
	}
	return r.policy().CheckVersion(signed.Product(), signed.Version(), trust.Mark{Version: version})
}

// verifyPath checks a payload that lies in the declaring repository.
func (r *retriever) verifyPath(ctx context.Context, v *verify.Verifier, from origin, desired worker.Desired, request verify.Request) (verify.Signed, error) {
	if from.tree == nil {
		return verify.Signed{}, &reasonError{"InvalidSpec", false, errors.New("spec.desired.path needs a GitSource that declares the release")}
	}
	tree, commit, err := from.tree(ctx, desired.Revision)
	if err != nil {
		return verify.Signed{}, err
	}
	return v.ReleasePath(ctx, verify.PathRequest{Request: request, FS: tree, Dir: desired.Path, Commit: commit})
}

// remember keeps when the signatures of an accepted release were first seen.
func (r *retriever) remember(ev trust.Evidence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil || len(r.seen) > 1000 {
		r.seen = map[trust.Digest]time.Time{}
	}
	maps.Copy(r.seen, ev.Seen())
}
