// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// sourceReconciler makes the declared objects in the cluster what a Git
// repository says.
type sourceReconciler struct {
	base
	opts    Options
	sources *sourceRuntimes
	decoder *desired.Decoder
}

// Reconcile implements the controller of GitSource: fetch, decode, dry-run
// everything, apply everything. A refusal at any step applies nothing, and what
// was accepted before goes on.
func (r *sourceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.waitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.GitSource
	err := r.client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		r.forget(v1alpha1.KindGitSource, req.Name)
		return ctrl.Result{}, r.sources.drop(req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	started := r.now()
	defer r.took(v1alpha1.KindGitSource, obj.Name, started)
	if held := r.holds(&obj); held.Reason != "" {
		// Payload paths of what was accepted can be read all the same.
		if held.Reason != status.ReasonNotFromSource {
			_, err := r.sources.get(&obj)
			logOnce(log.FromContext(ctx), err, "the source can't be read")
		}
		return ctrl.Result{}, r.tell(ctx, &obj, look{held: held})
	}
	result := r.look(ctx, &obj)
	if errors.Is(result.err, state.ErrConflict) || errors.Is(result.err, context.Canceled) {
		return ctrl.Result{}, result.err
	}
	logOnce(log.FromContext(ctx), result.err, "the source can't be accepted")
	if err := r.tell(ctx, &obj, result); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.pause(&obj, result, r.now().Sub(started))}, nil
}

// holds says what keeps a source from being looked at: a brake, or that
// another source declares it with another spec (wall 3).
func (r *sourceReconciler) holds(obj *v1alpha1.GitSource) status.HeldBy {
	if held := r.held(obj, obj.Spec.Suspend); held.Reason != "" {
		return held
	}
	return r.sources.edited(obj)
}

// tell writes what a look came to. The write-back writes this status too: what
// it wrote meanwhile is kept, and the look isn't repeated for it.
func (r *sourceReconciler) tell(ctx context.Context, obj *v1alpha1.GitSource, result look) error {
	generation := obj.Generation
	return r.patchFresh(ctx, obj, func(o *v1alpha1.GitSource) bool {
		if o.Generation != generation {
			return false // another look follows
		}
		r.conclude(o, result)
		if result.held.Reason == "" {
			o.Status.LastHandledRequest = sanitize.Line(obj.Annotations[v1alpha1.AnnotationRequestedAt])
		}
		return true
	})
}

// look is what one look at a source came to.
type look struct {
	held status.HeldBy
	// attempted is the newest revision seen.
	attempted sources.Revision
	snapshot  *sources.Snapshot
	// orphaned are objects that left Git and were kept; known says that they
	// were found out.
	orphaned []string
	known    bool
	err      error
}

// pause is the time to the next look: the interval with a tenth of jitter, or
// sooner after something that may pass, at first; a server that is away isn't
// asked ever so often.
func (r *sourceReconciler) pause(obj *v1alpha1.GitSource, l look, took time.Duration) time.Duration {
	interval := obj.Spec.Interval.Duration
	failures := r.sources.failed(obj.Name, l.err != nil)
	if l.err != nil && retriable(l.err) {
		interval = min(interval, max(5*time.Second<<min(failures-1, 8), 2*took))
	}
	return interval + time.Duration(rand.Int64N(int64(interval)/10+1)) //nolint:gosec // jitter is no secret
}

// look fetches, decodes and applies.
func (r *sourceReconciler) look(ctx context.Context, obj *v1alpha1.GitSource) look {
	rt, err := r.sources.get(obj)
	if err != nil {
		return look{err: err}
	}
	record, _ := r.store.Source(obj.Name)
	request, err := requestOf(obj, record)
	if err != nil {
		return look{err: err}
	}
	snap, err := rt.reader.Fetch(ctx, request)
	if err != nil {
		out := look{err: err}
		var a interface{ Attempted() sources.Revision }
		if errors.As(err, &a) {
			out.attempted = a.Attempted()
		}
		r.keep(ctx, obj, rt, &out)
		return out
	}
	out := look{attempted: snap.Revision, snapshot: snap}
	state, err := r.decode(ctx, obj, snap)
	if err == nil {
		err = r.judge(ctx, obj, state)
	}
	if err == nil {
		err = r.accept(ctx, obj, rt, &out, state, request)
	}
	if err != nil {
		out.err = err
		r.keep(ctx, obj, rt, &out)
	}
	return out
}

// requestOf says what is known of a source before it's fetched.
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

// accept applies a state that passed all checks, and remembers it.
func (r *sourceReconciler) accept(ctx context.Context, obj *v1alpha1.GitSource, rt *sourceRuntime, out *look, state *desired.State, request sources.Request) error {
	r.sources.update(func() { rt.pending = state })
	defer r.sources.update(func() { rt.pending = nil })
	record, _ := r.store.Source(obj.Name)
	next, orphaned, err := r.applyState(ctx, obj, rt, state, record)
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
		next.Time = r.now().UTC().Truncate(time.Second)
		if request.AcceptRewind != "" && request.AcceptRewind == snap.Revision.Hash {
			next.SpentRewind = request.AcceptRewind
		}
	}
	if !sameSource(record, next) {
		if err := r.store.SetSource(ctx, obj.Name, next); err != nil {
			return err
		}
	}
	r.sources.update(func() { rt.state = state })
	return nil
}

// keep goes on with what was accepted while the newest can't be: drift of the
// declared objects is repaired, and what a refused commit had changed already
// is put back, from memory or, after a restart, from the mirror.
func (r *sourceReconciler) keep(ctx context.Context, obj *v1alpha1.GitSource, rt *sourceRuntime, out *look) {
	record, ok := r.store.Source(obj.Name)
	if !ok || record.Revision == "" || errors.Is(out.err, state.ErrConflict) || ctx.Err() != nil {
		return
	}
	orphaned, err := r.keepState(ctx, obj, rt, record)
	if err != nil {
		logOnce(log.FromContext(ctx), err, "what was accepted before can't be kept up")
		return
	}
	out.orphaned, out.known = orphaned, true
}

func (r *sourceReconciler) keepState(ctx context.Context, obj *v1alpha1.GitSource, rt *sourceRuntime, record state.Source) ([]string, error) {
	state := rt.state
	if state == nil {
		rev, err := sources.ParseRevision(record.Revision)
		if err != nil {
			return nil, fmt.Errorf("accepted revision: %w", err)
		}
		rev.Tree = record.Tree
		snap, err := rt.reader.At(ctx, rev)
		if err != nil {
			return nil, err
		}
		if state, err = r.decode(ctx, obj, snap); err != nil {
			return nil, err
		}
		r.sources.update(func() { rt.state = state })
	}
	_, orphaned, err := r.applyState(ctx, obj, rt, state, record)
	return orphaned, err
}

// decode reads what a snapshot declares.
func (r *sourceReconciler) decode(ctx context.Context, obj *v1alpha1.GitSource, snap *sources.Snapshot) (*desired.State, error) {
	reader := &desired.Reader{Name: obj.Name, Spec: obj.Spec}
	if current, ok := r.store.Trust(r.now()); ok {
		reader.Prefixes = current.Document.Sources
	}
	return r.decoder.Decode(ctx, desired.Request{Revision: snap.Revision, FS: snap.FS, Path: obj.Spec.Path, Reader: reader})
}

// judge refuses a whole state for an object that another source declares, and
// for a trust document that doesn't follow the one in force: one commit is one
// change.
func (r *sourceReconciler) judge(ctx context.Context, obj *v1alpha1.GitSource, state *desired.State) error {
	for _, o := range state.Objects {
		if err := r.foreignOwner(ctx, obj, o); err != nil {
			return err
		}
	}
	now := r.now()
	current, ok := r.store.Trust(now)
	for _, policy := range state.TrustPolicies {
		raw := []byte(policy.Spec.Envelope)
		var err error
		switch {
		case ok:
			_, err = trust.Accept(&current, raw, now)
		case r.opts.TrustRootDigest != "":
			_, err = trust.Pin(raw, r.opts.TrustRootDigest, now)
		}
		if err != nil {
			return fmt.Errorf("TrustPolicy/%s: %w", policy.Name, err)
		}
	}
	return nil
}

// sameSource reports whether storing next would change nothing.
func sameSource(a, b state.Source) bool {
	if a.Revision != b.Revision || a.Tree != b.Tree || a.URL != b.URL || a.Cluster != b.Cluster || a.SpentRewind != b.SpentRewind || a.Signer != b.Signer || a.SignedBy != b.SignedBy {
		return false
	}
	return sameMap(a.Objects, b.Objects) && sameMap(a.UIDs, b.UIDs) && sameMap(a.Manifests, b.Manifests)
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func signerText(s *sources.Signer) string {
	if s == nil {
		return ""
	}
	return sanitize.Line(fmt.Sprintf("%s (%s %s)", s.Name, s.Format, s.Fingerprint))
}

// conclude sets the status from what the look came to.
func (r *sourceReconciler) conclude(obj *v1alpha1.GitSource, l look) {
	now := metav1.NewTime(r.now().UTC().Truncate(time.Second))
	s := &obj.Status
	s.ObservedGeneration = obj.Generation
	if record, ok := r.store.Source(obj.Name); ok && record.Revision != "" {
		s.AcceptedRevision = &v1alpha1.Revision{
			Revision: record.Revision, Tree: record.Tree, Subject: record.Subject, Signer: record.Signer, Time: metav1.NewTime(record.Time),
		}
	}
	if !l.attempted.IsZero() && (s.AttemptedRevision == nil || s.AttemptedRevision.Revision != l.attempted.String()) {
		s.AttemptedRevision = &v1alpha1.Revision{Revision: l.attempted.String(), Tree: l.attempted.Tree, Time: now}
		if l.snapshot != nil {
			s.AttemptedRevision.Subject, s.AttemptedRevision.Signer = sanitize.Line(l.snapshot.Subject), signerText(l.snapshot.Signer)
		}
	}
	if l.known {
		s.Orphaned = l.orphaned
	}
	var gone []string
	if obj.Spec.WriteBack == nil {
		gone, s.StatusCommit = []string{v1alpha1.ConditionWriteBackReady}, nil
	}
	s.Conditions = status.Fold(s.Conditions, obj.Generation, now, status.Source(status.SourceFacts{
		Spec: obj.Spec, Accepted: s.AcceptedRevision, Attempted: l.attempted.String(), Held: l.held,
		Err: l.err, Reason: reasonOf(l.err, "ApplyFailed"), Retriable: retriable(l.err),
		Insecure: r.insecure(obj),
	}), gone...)
}

// insecure lists the development doors that are open.
func (r *sourceReconciler) insecure(obj *v1alpha1.GitSource) []string {
	out := r.opts.doors()
	if obj.Spec.Verify == nil {
		out = append(out, "commits aren't verified (spec.verify)")
	}
	return out
}
