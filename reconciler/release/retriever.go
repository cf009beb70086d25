// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// maxSeen limits the recorded signatures.
const maxSeen = 1000

// retriever verifies, fetches and loads releases for one ClusterRelease. It
// implements worker.PayloadRetriever.
type retriever struct {
	name     string
	registry verify.Registry
	fetcher  *image.Fetcher
	policy   func() *trust.Document
	now      func() time.Time
	// rejected is called with the reason of each rejection, verified with the
	// duration and result of each verification.
	rejected func(reason string)
	verified func(took time.Duration, err error)

	mu     sync.Mutex
	origin control.Origin
	// managed returns what is managed of the release.
	managed func() managed
	// previouslyAccepted reports whether a release is installed, was before the
	// installed one, or is permitted by spec.rollback.
	previouslyAccepted func(worker.Desired) bool
	// highWaterMark returns the highest completed version of a product.
	highWaterMark func(ctx context.Context, product string) (string, error)
	// seen is when signatures were first seen; the validity of a key is checked at
	// that time.
	seen map[trust.Digest]time.Time
}

// managed is what is managed of a release. A load keeps its enabled capabilities.
type managed struct {
	// accepted is the payload that is being applied, nil before the first one of
	// this process.
	accepted *payload.Payload
	// enabled are the persisted capabilities, created the objects that a prune would
	// delete. With both, a restart disables no capability.
	enabled []string
	created []payload.ObjectID
}

// options returns the options of a load.
func (m managed) options(selection payload.Selection) payload.LoadOptions {
	return payload.LoadOptions{Selection: selection, Previous: m.accepted, Enabled: m.enabled, Managed: m.created}
}

// setOrigin sets the source that declares the release, and reports whether it
// changed.
func (r *retriever) setOrigin(o control.Origin) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.origin
	r.origin = o
	return was.Cluster != o.Cluster || was.URL != o.URL || was.Serial != o.Serial
}

func (r *retriever) snapshot() (control.Origin, map[trust.Digest]time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origin, maps.Clone(r.seen)
}

// RetrievePayload implements worker.PayloadRetriever. It counts rejections.
func (r *retriever) RetrievePayload(ctx context.Context, desired worker.Desired) (worker.PayloadInfo, error) {
	info, err := r.retrieve(ctx, desired)
	if err != nil && ctx.Err() == nil {
		r.rejected(control.ReasonOf(err, "RetrievalFailed"))
	}
	return info, err
}

func (r *retriever) retrieve(ctx context.Context, desired worker.Desired) (worker.PayloadInfo, error) {
	from, seen := r.snapshot()
	worker.ReportStep(ctx, worker.StepVerifyPayload)
	verifier, err := verify.New(verify.Config{Registry: r.registry, Policy: r.policy, Cluster: from.Cluster, Now: r.now})
	if err != nil {
		return worker.PayloadInfo{}, err
	}
	request := verify.Request{
		Name: r.name, Source: from.URL, Image: desired.Image, Version: desired.Version,
		Seen: seen, PreviouslyAccepted: r.previouslyAccepted(desired),
	}
	for _, s := range desired.Signatures {
		d, err := trust.ParseDigest(s)
		if err != nil {
			return worker.PayloadInfo{}, control.NewError("InvalidSpec", false, fmt.Errorf("spec.desired.signatures: %w", err))
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
	// Later errors leave the signatures verified.
	info := worker.Retrieved(signed, nil)
	if err := r.checkHighWaterMark(ctx, desired, signed); err != nil {
		return info, err
	}
	worker.ReportStep(ctx, worker.StepRetrievePayload)
	tree, ok := signed.Tree()
	if !ok {
		if tree, err = r.fetcher.Tree(ctx, signed); err != nil {
			return info, err
		}
	}
	worker.ReportStep(ctx, worker.StepLoadPayload)
	opts := r.managed().options(desired.Selection)
	opts.SelfUpdate = slices.Contains(r.policy().SelfUpdate, signed.Product())
	p, err := payload.Load(signed, tree, opts)
	if err != nil {
		return info, err
	}
	r.recordSeen(signed.Evidence())
	return worker.Retrieved(signed, p), nil
}

// checkHighWaterMark rejects a version below the product's high-water mark. The
// mark is stored independently of the ClusterRelease: recreating the object permits
// no rollback. Previously accepted releases may be below it.
func (r *retriever) checkHighWaterMark(ctx context.Context, desired worker.Desired, signed verify.Signed) error {
	if r.previouslyAccepted(desired) {
		return nil
	}
	version, err := r.highWaterMark(ctx, signed.Product())
	if err != nil {
		return err
	}
	return r.policy().CheckVersion(signed.Product(), signed.Version(), trust.Mark{Version: version})
}

// verifyPath verifies a payload in the declaring repository.
func (r *retriever) verifyPath(ctx context.Context, v *verify.Verifier, from control.Origin, desired worker.Desired, request verify.Request) (verify.Signed, error) {
	if from.Tree == nil {
		return verify.Signed{}, control.NewError("InvalidSpec", false, errors.New("spec.desired.path requires that a GitSource declares the release"))
	}
	tree, commit, err := from.Tree(ctx, desired.Revision)
	if err != nil {
		return verify.Signed{}, err
	}
	return v.ReleasePath(ctx, verify.PathRequest{Request: request, FS: tree, Dir: desired.Path, Commit: commit})
}

// recordSeen records when the signatures of a release were first seen.
func (r *retriever) recordSeen(ev trust.Evidence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil || len(r.seen) > maxSeen {
		r.seen = map[trust.Digest]time.Time{}
	}
	maps.Copy(r.seen, ev.Seen())
}
