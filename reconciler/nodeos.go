// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout/executor"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// slotFinalizer keeps a NodeOS while one of its hosts is in flight, and only
// then: a host that is being rebooted must not be forgotten.
const slotFinalizer = "lockstep.dev/slot"

// poolReconciler drives the hosts of a NodeOS to its operating system.
type poolReconciler struct {
	base
	sources  *sourceRuntimes
	releases *releases
	hosts    *hostRuntime
	decoder  *desired.Decoder
	images   *imageAccess
	// fatal ends the process: another leader has taken over.
	fatal func(error)

	mu       sync.Mutex
	verified map[string]osVerdict
	specs    map[string]string
	// passed is when each pool was last passed over.
	passed map[string]time.Time
}

// minPass is the least time between two passes over a pool: facts of hosts
// change many times during a step, and each pass reads them anew.
const minPass = 200 * time.Millisecond

// early returns how long a pass over the pool should wait still.
func (r *poolReconciler) early(name string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if wait := minPass - now.Sub(r.passed[name]); wait > 0 && wait <= minPass {
		return wait
	}
	r.passed[name] = now
	return 0
}

// osVerdict is what the verification of an OS image came to, for one policy.
type osVerdict struct {
	key     string
	image   string
	product string
	err     error
	at      time.Time
}

// retryUnverified is how often a refused image is looked at again.
const retryUnverified = 30 * time.Second

// verifyTime bounds one look at an image's signatures: hosts in flight wait for
// it.
const verifyTime = 15 * time.Second

// Reconcile implements the controller of NodeOS: one pass of the executor.
func (r *poolReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.waitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.NodeOS
	err := r.client.Get(ctx, req.NamespacedName, &obj)
	if apierrors.IsNotFound(err) {
		r.forgetPool(req.Name)
		return ctrl.Result{}, r.store.DropPool(ctx, req.Name)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait := r.early(req.Name); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	defer r.took(v1alpha1.KindNodeOS, obj.Name, r.now())
	before := obj.DeepCopy()
	// A pool that is being deleted begins nothing: its hosts in flight are
	// brought to an end whatever its spec says now, or it would never go.
	if held := r.notMeant(ctx, &obj); held.Reason != "" && obj.DeletionTimestamp.IsZero() {
		if held.Reason == status.ReasonPending {
			// A new process: what the status says stands until more is known.
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
		return ctrl.Result{RequeueAfter: 5 * time.Second}, r.hold(ctx, before, &obj, held)
	}
	if err := r.hosts.ready(ctx); err != nil {
		return r.refuse(ctx, before, &obj, err)
	}
	return r.pass(ctx, before, &obj)
}

// pass has the executor look at the pool once and do what is due, and tells
// where it stands.
func (r *poolReconciler) pass(ctx context.Context, before, obj *v1alpha1.NodeOS) (ctrl.Result, error) {
	planned, err := r.braked(ctx, obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	pool := executor.Pool{NodeOS: planned}
	verdict := r.verify(ctx, obj)
	pool.Product = verdict.product
	if verdict.err != nil {
		pool.Unverified, pool.UnverifiedReason = verdict.err.Error(), reasonOf(verdict.err, "FetchFailed")
	}
	result, err := r.hosts.executor.Sync(ctx, pool)
	if errors.Is(err, ledger.ErrSuperseded) {
		r.fatal(err)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return r.refuse(ctx, before, obj, err)
	}
	for _, p := range result.Problems {
		logOnce(log.FromContext(ctx).WithValues("host", p.Host, "step", p.Step), p.Err, "a step has to be repeated")
	}
	for _, s := range result.Done {
		log.FromContext(ctx).Info("step", "host", s.Node, "step", s.Kind, "attempt", s.Attempt)
	}
	r.hosts.setRollouts(obj.Name, result.Decision.Status.States)
	result.Decision.Status.Apply(obj, r.now())
	r.gauges.pool(obj)
	if err := r.raiseMark(ctx, before, obj, verdict.product); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.keepFinalizer(ctx, obj, result.Decision.Status.Counts.InFlight > 0); err != nil {
		return ctrl.Result{}, err
	}
	before.ResourceVersion = obj.ResourceVersion
	if err := r.patchStatus(ctx, before, obj); err != nil {
		return ctrl.Result{}, err
	}
	again := result.RequeueAfter
	if verdict.err != nil {
		again = min(again, retryUnverified)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// raiseMark lifts the high-water mark of the OS when all hosts of the pool have
// come to it, never earlier.
func (r *poolReconciler) raiseMark(ctx context.Context, before, obj *v1alpha1.NodeOS, product string) error {
	ready := meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady)
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	news := was == nil || was.Status != metav1.ConditionTrue || was.ObservedGeneration != obj.Generation
	if !ready || !news || product == "" || obj.Status.Counts.Total == 0 {
		return nil
	}
	image := ledger.Image{Version: obj.Spec.OS.Version, Digest: digestOf(obj.Spec.OS.Image)}
	if err := r.releases.ledger.RaiseMark(ctx, product, image, r.now()); err != nil {
		return fmt.Errorf("high-water mark of %s: %w", product, err)
	}
	return nil
}

// refuse shows why a pool can't be planned at all.
func (r *poolReconciler) refuse(ctx context.Context, before, obj *v1alpha1.NodeOS, err error) (ctrl.Result, error) {
	reason := reasonOf(err, "")
	if reason == "" {
		return ctrl.Result{}, err
	}
	if err := r.hold(ctx, before, obj, status.HeldBy{Reason: reason, Message: err.Error()}); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: retryUnverified}, nil
}

// hold shows what keeps a pool from being acted upon.
func (r *poolReconciler) hold(ctx context.Context, before, obj *v1alpha1.NodeOS, held status.HeldBy) error {
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.Conditions = status.Fold(obj.Status.Conditions, obj.Generation, metav1.NewTime(r.now()), heldConditions(held))
	return r.patchStatus(ctx, before, obj)
}

// forgetPool drops what is kept of a pool that is gone.
func (r *poolReconciler) forgetPool(name string) {
	r.forget(v1alpha1.KindNodeOS, name)
	r.hosts.forgetPool(name)
	r.gauges.forgetPool(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.verified, name)
	delete(r.passed, name)
}

// braked returns the pool as it is planned: a release that is paused or
// suspended begins nothing new on the hosts of the NodeOS objects that its
// payload carries either.
func (r *poolReconciler) braked(ctx context.Context, obj *v1alpha1.NodeOS) (*v1alpha1.NodeOS, error) {
	name, _, _ := r.carrier(obj)
	if _, _, declared := r.store.Owner(v1alpha1.KindNodeOS, obj.Name); declared || name == "" {
		return obj, nil
	}
	var release v1alpha1.ClusterRelease
	err := r.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &release)
	if apierrors.IsNotFound(err) {
		return obj, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ClusterRelease/%s, which carries NodeOS/%s: %w", name, obj.Name, err)
	}
	return brakedBy(obj, &release), nil
}

// brakedBy puts the brakes of a release on a pool that it carries.
func brakedBy(obj *v1alpha1.NodeOS, release *v1alpha1.ClusterRelease) *v1alpha1.NodeOS {
	why, paused := release.Annotations[v1alpha1.AnnotationPaused]
	if !paused && !release.Spec.Suspend {
		return obj
	}
	planned := obj.DeepCopy()
	planned.Spec.Suspend = planned.Spec.Suspend || release.Spec.Suspend
	if _, own := planned.Annotations[v1alpha1.AnnotationPaused]; paused && !own {
		if planned.Annotations == nil {
			planned.Annotations = map[string]string{}
		}
		planned.Annotations[v1alpha1.AnnotationPaused] = fmt.Sprintf("ClusterRelease/%s, which carries it, is paused: %s", release.Name, sanitize.Line(why))
	}
	return planned
}

func heldConditions(held status.HeldBy) []status.Condition {
	return []status.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: held.Reason, Message: held.Message},
		{Type: v1alpha1.ConditionReconciling, Status: status.Bool(held.Transient), Reason: held.Reason, Message: held.Message},
		{Type: v1alpha1.ConditionStalled, Status: status.Bool(!held.Transient), Reason: held.Reason, Message: held.Message},
	}
}

// keepFinalizer sets or removes the finalizer, by a patch of its own.
func (r *poolReconciler) keepFinalizer(ctx context.Context, obj *v1alpha1.NodeOS, inFlight bool) error {
	has := controllerutil.ContainsFinalizer(obj, slotFinalizer)
	if has == inFlight || inFlight && !obj.DeletionTimestamp.IsZero() {
		return nil
	}
	stored := obj.Status.DeepCopy()
	before := obj.DeepCopy()
	if inFlight {
		controllerutil.AddFinalizer(obj, slotFinalizer)
	} else {
		controllerutil.RemoveFinalizer(obj, slotFinalizer)
	}
	err := r.client.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	obj.Status = *stored // the answer has the status as it is stored
	return client.IgnoreNotFound(err)
}

// notMeant is wall 3 for a NodeOS, whether a source or a release declares it.
func (r *poolReconciler) notMeant(ctx context.Context, obj *v1alpha1.NodeOS) status.HeldBy {
	held := r.sources.notFromSource(obj, v1alpha1.KindNodeOS, obj.Spec)
	if held.Reason == "" {
		return held
	}
	if _, _, ok := r.store.Owner(v1alpha1.KindNodeOS, obj.Name); ok {
		return held
	}
	live, err := desired.SpecHash(obj.Spec)
	if err != nil {
		return status.HeldBy{Reason: "InvalidSpec", Message: err.Error()}
	}
	release, manifest, met := r.carrier(obj)
	if manifest != nil {
		want, err := r.manifestHash(ctx, manifest)
		if err != nil {
			return status.HeldBy{Reason: "InvalidManifest", Message: err.Error()}
		}
		if live == want {
			logOnce(log.FromContext(ctx), r.store.SetPool(ctx, release, obj.Name, live), "the pool that was met can't be remembered")
			return status.HeldBy{}
		}
	}
	// The payload isn't loaded yet, or its successor is on its way and hasn't
	// come to this object: what was met last is meant still.
	if live == met {
		return status.HeldBy{}
	}
	switch {
	case manifest != nil || met != "":
		return status.HeldBy{Reason: status.ReasonNotFromSource, Transient: true, Message: fmt.Sprintf(
			"its spec isn't what ClusterRelease/%s said; it is being put back; to change it, release it anew", release)}
	case r.releases.loading():
		return status.HeldBy{Reason: status.ReasonPending, Message: "a release that may declare it is being loaded"}
	default:
		return held
	}
}

// carrier returns the release whose payload carries a NodeOS: its manifest, nil
// if no payload that is loaded has one, and the spec hash as it was met last,
// "" if it never was.
func (r *poolReconciler) carrier(obj *v1alpha1.NodeOS) (release string, manifest *payload.Manifest, met string) {
	release, met, _ = r.store.PoolOwner(obj.Name)
	manifest, loaded, ok := r.releases.manifest(payload.ObjectID{
		Group: v1alpha1.Group, Kind: v1alpha1.KindNodeOS, Namespace: v1alpha1.Namespace, Name: obj.Name,
	}, release)
	if !ok {
		return release, nil, met
	}
	return loaded, manifest, met
}

// manifestHash is the spec hash of a NodeOS in a payload, with its defaults.
func (r *poolReconciler) manifestHash(ctx context.Context, m *payload.Manifest) (string, error) {
	key := fmt.Sprintf("%x", m.Hash)
	r.mu.Lock()
	hash, ok := r.specs[key]
	r.mu.Unlock()
	if ok {
		return hash, nil
	}
	files := sources.NewTreeBuilder(sources.Limits{})
	if err := files.Add("nodeos.yaml", m.JSON, false); err != nil {
		return "", err
	}
	tree, err := files.Build()
	if err != nil {
		return "", err
	}
	state, err := r.decoder.Decode(ctx, desired.Request{FS: tree, Path: "nodeos.yaml"})
	if err != nil {
		return "", err
	}
	hash, ok = state.Hash(v1alpha1.KindNodeOS, m.ID.Name)
	if !ok {
		return "", fmt.Errorf("%s: the manifest declares no NodeOS", m.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.specs) > 100 {
		clear(r.specs)
	}
	r.specs[key] = hash
	return hash, nil
}

// originOf says who declares a NodeOS: a source, or the release that carries
// it, whose source then is the one.
func (r *poolReconciler) originOf(obj *v1alpha1.NodeOS) origin {
	if from, _, ok := r.sources.origin(v1alpha1.KindNodeOS, obj.Name); ok {
		return from
	}
	release, _, _ := r.carrier(obj)
	if release == "" {
		return origin{}
	}
	from, _, _ := r.sources.origin(v1alpha1.KindClusterRelease, release)
	return from
}

// verify checks the OS image's signatures, once for each image and policy; a
// refusal is looked at again after a while, since a signature may appear.
func (r *poolReconciler) verify(ctx context.Context, obj *v1alpha1.NodeOS) osVerdict {
	from := r.originOf(obj)
	current, ok := r.store.Trust(r.now())
	var doc *trust.Document
	policy := ""
	if ok {
		doc, policy = current.Document, current.Document.Digest().String()
	}
	key := strings.Join([]string{obj.Spec.OS.Image, obj.Spec.OS.Version, from.url, from.cluster, policy}, "\n")
	now := r.now()
	r.mu.Lock()
	last, known := r.verified[obj.Name]
	r.mu.Unlock()
	if known && last.key == key && (last.err == nil || now.Sub(last.at) < retryUnverified) {
		return last
	}
	verdict := osVerdict{key: key, image: obj.Spec.OS.Image, at: now}
	if last.image == verdict.image {
		// What an image is doesn't change when it's refused later; orders to
		// hosts in flight name it.
		verdict.product = last.product
	}
	verifier, err := verify.New(verify.Config{
		Registry: r.images.registry, Policy: func() *trust.Document { return doc }, Cluster: from.cluster, Now: r.now,
	})
	if err == nil {
		var signed verify.Signed
		limited, cancel := context.WithTimeout(ctx, verifyTime)
		defer cancel()
		// What ran before may be gone back to, whatever expired since.
		signed, err = verifier.OS(limited, verify.Request{
			Name: obj.Name, Source: from.url, Image: obj.Spec.OS.Image, Version: obj.Spec.OS.Version, PreviouslyAccepted: r.ran(obj),
		})
		if err == nil {
			verdict.product = signed.Product()
		}
	}
	verdict.err = err
	if ctx.Err() != nil {
		return verdict
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verified[obj.Name] = verdict
	return verdict
}

// ran reports whether the pool's hosts have committed the image before.
func (r *poolReconciler) ran(obj *v1alpha1.NodeOS) bool {
	c := obj.Status.Committed
	return c != nil && c.Image == obj.Spec.OS.Image
}
