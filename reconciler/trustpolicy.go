// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

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
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// trustReconciler takes the trust document into force that the TrustPolicy
// object carries, if it is a valid successor. What it accepted is kept in the
// store: editing or deleting the object changes nothing.
type trustReconciler struct {
	base
	// pin is the digest of the first document, given at the process's start.
	pin trust.Digest
}

// Reconcile implements the controller of TrustPolicy.
func (r *trustReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name != v1alpha1.TrustPolicyName {
		return ctrl.Result{}, nil
	}
	var obj v1alpha1.TrustPolicy
	if err := r.client.Get(ctx, req.NamespacedName, &obj); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := obj.DeepCopy()
	now := r.now()
	defer r.took(v1alpha1.KindTrustPolicy, obj.Name, now)
	refusal := r.accept(ctx, &obj, now)
	if refusal != nil && reasonOf(refusal, "") == "" {
		// Not a decision: the store couldn't be written.
		return ctrl.Result{}, refusal
	}
	current, ok := r.store.Trust(now)
	if ok {
		trustStatus(&obj.Status, current, now)
	}
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.Conditions = status.Fold(obj.Status.Conditions, obj.Generation, metav1.NewTime(now), trustConditions(current, ok, refusal))
	if err := r.patchStatus(ctx, before, &obj); err != nil {
		return ctrl.Result{}, err
	}
	if current.Pending != nil {
		return ctrl.Result{RequeueAfter: max(current.Pending.Effective.Sub(now), time.Second)}, nil
	}
	return ctrl.Result{}, nil
}

// accept decides whether the object's envelope takes effect and stores it.
func (r *trustReconciler) accept(ctx context.Context, obj *v1alpha1.TrustPolicy, now time.Time) error {
	raw := []byte(obj.Spec.Envelope)
	current, ok := r.store.Trust(now)
	var (
		next trust.Accepted
		err  error
	)
	switch {
	case ok:
		next, err = trust.Accept(&current, raw, now)
	case r.pin == "":
		return r.unpinned(raw)
	default:
		next, err = trust.Pin(raw, r.pin, now)
	}
	if err != nil {
		return err
	}
	if ok && bytes.Equal(next.Envelope, current.Envelope) && pendingDigest(next) == pendingDigest(current) {
		return nil
	}
	if err := r.store.SetTrust(ctx, next); err != nil {
		return err
	}
	r.event(obj, corev1.EventTypeNormal, "TrustAccepted", fmt.Sprintf("trust document version %d (%s) is in force", next.Document.Version, next.Document.Digest().Short()))
	return nil
}

// pendingDigest names the revision that waits, "" if none does.
func pendingDigest(a trust.Accepted) trust.Digest {
	if a.Pending == nil {
		return ""
	}
	return a.Pending.Document.Digest()
}

// unpinned refuses the first document when no digest was given: whoever may
// create the object would else decide whom the cluster trusts.
func (r *trustReconciler) unpinned(raw []byte) error {
	found := "a document that can't be read"
	if doc, err := trust.OpenUnverified(raw); err == nil {
		found = "the document " + trust.DigestOf(doc).String()
	}
	return &reasonError{string(trust.PolicyMissing), false, fmt.Errorf(
		"no trust document was ever accepted and none is pinned; found %s; if it is yours, start the reconciler with --trust-root-digest set to that digest", found)}
}

// trustStatus shows what is in force.
func trustStatus(s *v1alpha1.TrustPolicyStatus, current trust.Accepted, now time.Time) {
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

// trustConditions says whether the object's own document is in force; where
// it isn't, an older one may still be.
func trustConditions(current trust.Accepted, ok bool, refusal error) []status.Condition {
	ready := status.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Accepted"}
	if ok {
		ready.Message = fmt.Sprintf("version %d is in force", current.Document.Version)
		if p := current.Pending; p != nil {
			ready.Message += fmt.Sprintf("; version %d, signed by the recovery role (%s), takes effect at %s",
				p.Document.Version, strings.Join(p.SignedBy, ", "), p.Effective.UTC().Format(time.RFC3339))
		}
		for _, x := range current.Replacements {
			ready.Message += fmt.Sprintf("; the root was replaced by hand at %s", x.Time.UTC().Format(time.RFC3339))
		}
	}
	stalled := status.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "Accepted", Message: ready.Message}
	if refusal != nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonOf(refusal, string(trust.PolicyChangeRefused)), refusal.Error()
		if ok {
			ready.Message += fmt.Sprintf("; version %d goes on", current.Document.Version)
		}
		stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, ready.Reason, ready.Message
	}
	reconciling := status.Condition{Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionFalse, Reason: ready.Reason, Message: ready.Message}
	return []status.Condition{ready, stalled, reconciling}
}
