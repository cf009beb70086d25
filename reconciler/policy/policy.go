// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package policy is the controller of TrustPolicy: it accepts signed trust
// documents and shows the active one.
package policy

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// Config configures a Controller.
type Config struct {
	// Base is required.
	Base control.Base
	// RootDigest pins the first trust document; "" accepts no first document.
	RootDigest trust.Digest
}

// Controller activates the trust document of the TrustPolicy object if it is a
// valid successor of the active one. The accepted document is persisted: editing or
// deleting the object changes nothing.
type Controller struct {
	control.Base
	rootDigest trust.Digest
}

// New returns a Controller.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Base.Validate(); err != nil {
		return nil, fmt.Errorf("TrustPolicy controller: %w", err)
	}
	return &Controller{Base: cfg.Base, rootDigest: cfg.RootDigest}, nil
}

// SetupWithManager registers the controller.
func (r *Controller) SetupWithManager(mgr ctrl.Manager) error {
	return control.Builder(mgr, "trustpolicy", &v1alpha1.TrustPolicy{}).Complete(r.Guard(r))
}

// Reconcile implements reconcile.Reconciler.
func (r *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name != v1alpha1.TrustPolicyName {
		return ctrl.Result{}, nil
	}
	if err := r.WaitReady(ctx); err != nil {
		return ctrl.Result{}, err
	}
	var obj v1alpha1.TrustPolicy
	if err := r.Client.Get(ctx, req.NamespacedName, &obj); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := obj.DeepCopy()
	now := r.Now()
	defer r.RecordDuration(v1alpha1.KindTrustPolicy, obj.Name, now)
	rejection := r.accept(ctx, &obj, now)
	if rejection != nil && control.ReasonOf(rejection, "") == "" {
		// The store couldn't be written; the document wasn't rejected.
		return ctrl.Result{}, rejection
	}
	current, ok := r.Store.Trust(now)
	if ok {
		setStatus(&obj.Status, current, now)
	}
	obj.Status.ObservedGeneration = obj.Generation
	r.SetConditions(&obj, conditions(current, ok, rejection))
	if err := r.PatchStatus(ctx, before, &obj); err != nil {
		return ctrl.Result{}, err
	}
	if current.Pending != nil {
		return ctrl.Result{RequeueAfter: max(current.Pending.Effective.Sub(now), time.Second)}, nil
	}
	return ctrl.Result{}, nil
}

// accept verifies the object's envelope and persists it.
func (r *Controller) accept(ctx context.Context, obj *v1alpha1.TrustPolicy, now time.Time) error {
	raw := []byte(obj.Spec.Envelope)
	current, ok := r.Store.Trust(now)
	var (
		next trust.Accepted
		err  error
	)
	switch {
	case ok:
		next, err = trust.Accept(&current, raw, now)
	case r.rootDigest == "":
		return unpinned(raw)
	default:
		next, err = trust.Pin(raw, r.rootDigest, now)
	}
	if err != nil {
		return err
	}
	if ok && bytes.Equal(next.Envelope, current.Envelope) && pendingDigest(next) == pendingDigest(current) {
		return nil
	}
	if err := r.Store.SetTrust(ctx, next); err != nil {
		return err
	}
	r.Event(obj, corev1.EventTypeNormal, "TrustAccepted", fmt.Sprintf("trust policy version %d (%s) accepted", next.Document.Version, next.Document.Digest().Short()))
	return nil
}

// pendingDigest returns the digest of the pending revision, "" without one.
func pendingDigest(a trust.Accepted) trust.Digest {
	if a.Pending == nil {
		return ""
	}
	return a.Pending.Document.Digest()
}

// unpinned rejects a first document without a pinned digest: otherwise whoever can
// create the object would choose whom the cluster trusts.
func unpinned(raw []byte) error {
	found := "an unreadable policy"
	if doc, err := trust.OpenUnverified(raw); err == nil {
		found = "policy " + trust.DigestOf(doc).String()
	}
	return control.NewError(string(trust.PolicyMissing), false, fmt.Errorf(
		"first trust policy isn't pinned: found %s; if it is yours, set --trust-root-digest of the reconciler to that digest", found))
}

// setStatus shows the active document.
func setStatus(s *v1alpha1.TrustPolicyStatus, current trust.Accepted, now time.Time) {
	doc := current.Document
	s.AcceptedVersion = doc.Version
	s.AcceptedDigest = doc.Digest().String()
	expires := metav1.NewTime(doc.Expires.UTC().Truncate(time.Second))
	s.Expires = &expires
	s.Authorities = nil
	for _, key := range doc.Keys {
		a := v1alpha1.Authority{Name: key.Name}
		for name, role := range doc.Roles {
			if slices.Contains(role.Keys, key.Name) {
				a.Roles = append(a.Roles, name)
				usable := slices.ContainsFunc(doc.RoleKeys(name), func(k trust.Key) bool { return k.Name == key.Name })
				a.Usable = a.Usable || usable && key.Covers(now)
			}
		}
		slices.Sort(a.Roles)
		if !key.NotAfter.IsZero() {
			end := metav1.NewTime(key.NotAfter.UTC().Truncate(time.Second))
			a.Expires = &end
		}
		s.Authorities = append(s.Authorities, a)
		if len(s.Authorities) == 64 {
			break
		}
	}
}

// conditions reports whether the object's own document is active; if it was
// rejected, an older one may be.
func conditions(current trust.Accepted, ok bool, rejection error) []status.Condition {
	if rejection != nil {
		message := rejection.Error()
		if ok {
			message += fmt.Sprintf("; version %d remains active", current.Document.Version)
		}
		return control.Failed(status.HeldBy{Reason: control.ReasonOf(rejection, string(trust.PolicyChangeRefused)), Message: message})
	}
	var message string
	if ok {
		message = fmt.Sprintf("version %d is active", current.Document.Version)
		if p := current.Pending; p != nil {
			message += fmt.Sprintf("; version %d, signed by the recovery role (%s), becomes active at %s",
				p.Document.Version, strings.Join(p.SignedBy, ", "), p.Effective.UTC().Format(time.RFC3339))
		}
		for _, x := range current.Replacements {
			message += fmt.Sprintf("; the root was replaced manually at %s", x.Time.UTC().Format(time.RFC3339))
		}
	}
	return control.Succeeded("Accepted", message)
}
