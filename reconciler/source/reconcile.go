// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// Reconcile implements reconcile.Reconciler: fetch, decode, dry-run all objects,
// apply all objects. After an error at any step nothing of the new revision is
// applied, and the accepted revision is maintained.
func (r *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.WaitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.GitSource
	err := r.Client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		r.DeleteMetrics(v1alpha1.KindGitSource, req.Name)
		return ctrl.Result{}, r.runtimes.drop(req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	started := r.Now()
	defer r.RecordDuration(v1alpha1.KindGitSource, obj.Name, started)
	if held := r.heldBy(&obj); held.Reason != "" {
		// Payload paths of the accepted revision are readable nevertheless.
		if held.Reason != status.ReasonNotFromSource {
			_, err := r.runtimes.get(&obj)
			control.LogError(log.FromContext(ctx), err, "open source")
		}
		return ctrl.Result{}, r.report(ctx, &obj, outcome{held: held})
	}
	out := r.sync(ctx, &obj)
	if errors.Is(out.err, state.ErrConflict) || errors.Is(out.err, context.Canceled) {
		return ctrl.Result{}, out.err
	}
	control.LogError(log.FromContext(ctx), out.err, "accept revision")
	if err := r.report(ctx, &obj, out); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.requeueAfter(&obj, out, r.Now().Sub(started))}, nil
}

// heldBy returns why a source isn't reconciled: a user holds it, or its spec
// differs from the one that another source declares (trust boundary T3).
func (r *Controller) heldBy(obj *v1alpha1.GitSource) status.HeldBy {
	if held := control.HeldBy(obj, obj.Spec.Suspend); held.Reason != "" {
		return held
	}
	return r.NotFromParent(obj)
}

// report writes the outcome to the status. The write-back writes this status too;
// its fields are kept.
func (r *Controller) report(ctx context.Context, obj *v1alpha1.GitSource, out outcome) error {
	generation := obj.Generation
	return r.PatchLatestStatus(ctx, obj, func(o *v1alpha1.GitSource) bool {
		if o.Generation != generation {
			return false // another reconciliation follows
		}
		r.setStatus(o, out)
		if out.held.Reason == "" {
			o.Status.LastHandledRequest = sanitize.Line(obj.Annotations[v1alpha1.AnnotationRequestedAt])
		}
		return true
	})
}

// outcome is the result of one reconciliation of a source.
type outcome struct {
	held status.HeldBy
	// attempted is the newest revision.
	attempted sources.Revision
	snapshot  *sources.Snapshot
	// orphaned are objects that were removed from Git and kept; valid if known.
	orphaned []string
	known    bool
	err      error
}

// requeueAfter returns the time until the next fetch: the interval with up to a
// tenth of jitter, or an exponential backoff after a transient error.
func (r *Controller) requeueAfter(obj *v1alpha1.GitSource, out outcome, took time.Duration) time.Duration {
	interval := obj.Spec.Interval.Duration
	failures := r.runtimes.countFailure(obj.Name, out.err != nil)
	if out.err != nil && control.Retriable(out.err) {
		interval = min(interval, max(5*time.Second<<min(failures-1, 8), 2*took))
	}
	return interval + time.Duration(rand.Int64N(int64(interval)/10+1)) //nolint:gosec // jitter is no secret
}

// sync fetches, decodes and applies.
func (r *Controller) sync(ctx context.Context, obj *v1alpha1.GitSource) outcome {
	rt, err := r.runtimes.get(obj)
	if err != nil {
		return outcome{err: err}
	}
	record, _ := r.Store.Source(obj.Name)
	request, err := requestOf(obj, record)
	if err != nil {
		return outcome{err: err}
	}
	snap, err := rt.reader.Fetch(ctx, request)
	if err != nil {
		out := outcome{err: err}
		var a interface{ Attempted() sources.Revision }
		if errors.As(err, &a) {
			out.attempted = a.Attempted()
		}
		r.maintain(ctx, obj, rt, &out)
		return out
	}
	out := outcome{attempted: snap.Revision, snapshot: snap}
	wanted, err := r.decode(ctx, obj, snap)
	if err == nil {
		err = r.check(ctx, obj, wanted)
	}
	if err == nil {
		err = r.accept(ctx, obj, rt, &out, wanted, request)
	}
	if err != nil {
		out.err = err
		r.maintain(ctx, obj, rt, &out)
	}
	return out
}

// requestOf returns the fetch request of a source with its accepted revision.
func requestOf(obj *v1alpha1.GitSource, record state.Source) (request sources.Request, err error) {
	if rewind := obj.Annotations[v1alpha1.AnnotationAcceptRewind]; rewind != record.SpentRewind {
		request.AcceptRewind = rewind
	}
	if record.Revision == "" {
		return request, nil
	}
	if request.Accepted, err = sources.ParseRevision(record.Revision); err != nil {
		return request, fmt.Errorf("accepted revision of GitSource/%s: %w", obj.Name, err)
	}
	request.Accepted.Tree = record.Tree
	return request, nil
}

// accept applies a checked state and persists it.
func (r *Controller) accept(ctx context.Context, obj *v1alpha1.GitSource, rt *runtime, out *outcome, wanted *desired.State, request sources.Request) error {
	r.runtimes.update(func() { rt.pending = wanted })
	defer r.runtimes.update(func() { rt.pending = nil })
	record, _ := r.Store.Source(obj.Name)
	next, orphaned, err := r.applyState(ctx, obj, rt, wanted, record)
	if err != nil {
		return err
	}
	snap := out.snapshot
	out.orphaned, out.known = orphaned, true
	changed := record.Revision != snap.Revision.String() || record.Tree != snap.Revision.Tree
	next.URL, next.Cluster = obj.Spec.URL, obj.Spec.Cluster
	next.Revision, next.Tree = snap.Revision.String(), snap.Revision.Tree
	next.Subject, next.Signer = sanitize.Line(snap.Subject), signerText(snap.Signer)
	next.SignedBy = persistedSigner(snap.Signer)
	next.Time, next.SpentRewind = record.Time, record.SpentRewind
	if changed {
		next.Time = r.Now().UTC().Truncate(time.Second)
		if request.AcceptRewind != "" && request.AcceptRewind == snap.Revision.Hash {
			next.SpentRewind = request.AcceptRewind
		}
	}
	if !sameSource(record, next) {
		if err := r.Store.SetSource(ctx, obj.Name, next); err != nil {
			return err
		}
	}
	r.runtimes.update(func() { rt.state = wanted })
	return nil
}

// maintain applies the accepted revision while the newest one can't be accepted. It
// repairs drift and reverts partial changes of a rejected commit.
func (r *Controller) maintain(ctx context.Context, obj *v1alpha1.GitSource, rt *runtime, out *outcome) {
	record, ok := r.Store.Source(obj.Name)
	if !ok || record.Revision == "" || errors.Is(out.err, state.ErrConflict) || ctx.Err() != nil {
		return
	}
	orphaned, err := r.applyAccepted(ctx, obj, rt, record)
	if err != nil {
		control.LogError(log.FromContext(ctx), err, "apply accepted revision", "revision", record.Revision)
		return
	}
	out.orphaned, out.known = orphaned, true
}

// applyAccepted applies the accepted revision, read from the mirror after a
// restart.
func (r *Controller) applyAccepted(ctx context.Context, obj *v1alpha1.GitSource, rt *runtime, record state.Source) ([]string, error) {
	accepted := rt.state
	if accepted == nil {
		rev, err := sources.ParseRevision(record.Revision)
		if err != nil {
			return nil, fmt.Errorf("accepted revision: %w", err)
		}
		rev.Tree = record.Tree
		snap, err := rt.reader.At(ctx, rev)
		if err != nil {
			return nil, err
		}
		if accepted, err = r.decode(ctx, obj, snap); err != nil {
			return nil, err
		}
		r.runtimes.update(func() { rt.state = accepted })
	}
	_, orphaned, err := r.applyState(ctx, obj, rt, accepted, record)
	return orphaned, err
}

// decode reads the objects that a snapshot declares.
func (r *Controller) decode(ctx context.Context, obj *v1alpha1.GitSource, snap *sources.Snapshot) (*desired.State, error) {
	reader := &desired.Reader{Name: obj.Name, Spec: obj.Spec}
	if current, ok := r.Store.Trust(r.Now()); ok {
		reader.Prefixes = current.Document.Sources
	}
	return r.decoder.Decode(ctx, desired.Request{Revision: snap.Revision, FS: snap.FS, Path: obj.Spec.Path, Reader: reader})
}

// check rejects a state with an object that another source declares, or with a
// trust document that isn't a valid successor of the active one. It rejects the
// whole state: a commit is applied completely or not at all.
func (r *Controller) check(ctx context.Context, obj *v1alpha1.GitSource, wanted *desired.State) error {
	for _, o := range wanted.Objects {
		if err := r.checkOwner(ctx, obj, o); err != nil {
			return err
		}
	}
	now := r.Now()
	current, ok := r.Store.Trust(now)
	for _, policy := range wanted.TrustPolicies {
		raw := []byte(policy.Spec.Envelope)
		var err error
		switch {
		case ok:
			_, err = trust.Accept(&current, raw, now)
		case r.cfg.RootDigest != "":
			_, err = trust.Pin(raw, r.cfg.RootDigest, now)
		}
		if err != nil {
			return fmt.Errorf("TrustPolicy/%s: %w", policy.Name, err)
		}
	}
	return nil
}

// sameSource reports whether storing b over a would change nothing.
func sameSource(a, b state.Source) bool {
	if a.Revision != b.Revision || a.Tree != b.Tree || a.URL != b.URL || a.Cluster != b.Cluster || a.SpentRewind != b.SpentRewind || a.Signer != b.Signer || a.SignedBy != b.SignedBy {
		return false
	}
	return maps.Equal(a.Objects, b.Objects) && slices.Equal(a.Removed, b.Removed) && maps.Equal(a.UIDs, b.UIDs) && maps.Equal(a.Manifests, b.Manifests)
}

func signerText(s *sources.Signer) string {
	if s == nil {
		return ""
	}
	return sanitize.Line(fmt.Sprintf("%s (%s %s)", s.Name, s.Format, s.Fingerprint))
}

// persistedSigner returns the signer for the persisted state, zero for none.
func persistedSigner(s *sources.Signer) state.Signer {
	if s == nil {
		return state.Signer{}
	}
	return state.Signer{Name: sanitize.Line(s.Name), Format: sanitize.Line(s.Format), Fingerprint: sanitize.Line(s.Fingerprint)}
}

// setStatus sets the status of a source after a reconciliation.
func (r *Controller) setStatus(obj *v1alpha1.GitSource, out outcome) {
	now := metav1.NewTime(r.Now().UTC().Truncate(time.Second))
	s := &obj.Status
	s.ObservedGeneration = obj.Generation
	if record, ok := r.Store.Source(obj.Name); ok && record.Revision != "" {
		s.AcceptedRevision = &v1alpha1.Revision{
			Revision: record.Revision, Tree: record.Tree, Subject: record.Subject, Signer: record.Signer, Time: metav1.NewTime(record.Time),
		}
	}
	if !out.attempted.IsZero() && (s.AttemptedRevision == nil || s.AttemptedRevision.Revision != out.attempted.String()) {
		s.AttemptedRevision = &v1alpha1.Revision{Revision: out.attempted.String(), Tree: out.attempted.Tree, Time: now}
		if out.snapshot != nil {
			s.AttemptedRevision.Subject, s.AttemptedRevision.Signer = sanitize.Line(out.snapshot.Subject), signerText(out.snapshot.Signer)
		}
	}
	if out.known {
		s.Orphaned = out.orphaned
	}
	var gone []string
	if obj.Spec.WriteBack == nil {
		gone, s.StatusCommit = []string{v1alpha1.ConditionWriteBackReady}, nil
	}
	r.SetConditions(obj, status.Source(status.SourceFacts{
		Spec: obj.Spec, Accepted: s.AcceptedRevision, Attempted: out.attempted.String(), Held: out.held,
		Err: out.err, Reason: control.ReasonOf(out.err, "ApplyFailed"), Retriable: control.Retriable(out.err),
		Insecure: r.insecure(obj),
	}), gone...)
}

// insecure lists the insecure options of the process and of the source.
func (r *Controller) insecure(obj *v1alpha1.GitSource) []string {
	out := append([]string(nil), r.cfg.InsecureOptions...)
	if obj.Spec.Verify == nil {
		out = append(out, "commits aren't verified (spec.verify)")
	}
	return out
}
