// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// own explains an object of one of Lockstep's kinds.
func (v *explainView) lockstepObject(e *evidence, obj client.Object) {
	conditions := conditionsOf(obj)
	v.head(kindOf(obj)+"/"+obj.GetName(), readyOf(conditions))
	v.pauses(&v.b, obj)
	if text := differs(e, obj); text != "" {
		v.line("differs", "%s", text)
	}
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		v.gitSource(o)
	case *v1alpha1.ClusterRelease:
		v.chain(e, o)
		v.clusterRelease(o)
	case *v1alpha1.NodeOS:
		v.nodeOS(e, o)
	case *v1alpha1.Host:
		v.hostOf(e, o)
	case *v1alpha1.TrustPolicy:
		v.line("document", "version %d, %s", o.Status.AcceptedVersion, shortDigest(o.Status.AcceptedDigest))
	}
	v.problems(conditions)
}

func (v *explainView) gitSource(s *v1alpha1.GitSource) {
	v.line("source", "%s %s%s%s%s%s, path %q", s.Spec.URL, s.Spec.Ref.Branch, s.Spec.Ref.Tag, s.Spec.Ref.Semver, s.Spec.Ref.Commit, s.Spec.Ref.Name, s.Spec.Path)
	if r := s.Status.AcceptedRevision; r != nil {
		signer := "unverified"
		if r.Signer != "" {
			signer = "signed by " + r.Signer
		}
		v.line("accepted", "%s %q, %s, %s ago", shortRevision(r.Revision), sanitize.Line(r.Subject), signer, age(v.now, r.Time.Time))
	}
	if r := s.Status.AttemptedRevision; r != nil {
		v.line("newest", "%s", shortRevision(r.Revision))
	}
	if c := s.Status.StatusCommit; c != nil {
		v.line("status", "%s, %s ago", shortRevision(c.Revision), age(v.now, c.Time.Time))
	}
	for _, name := range s.Status.Orphaned {
		v.line("orphaned", "%s was removed from Git and kept: annotation %s: %s is missing; to delete it: %s", name, v1alpha1.AnnotationPrune, v1alpha1.PruneEnabled, deleteCommand(name))
	}
}

func (v *explainView) clusterRelease(r *v1alpha1.ClusterRelease) {
	if p := r.Status.Progress; p != nil {
		for i := range p.Blocking {
			b := &p.Blocking[i]
			v.line("blocking", "%s: %s: %s; %s", b.Object, b.Reason, b.Message, v.retry(b))
		}
		for i := range p.Blocking {
			v.explain(p.Blocking[i].Reason)
		}
	}
	if p := r.Status.Payload; p != nil {
		v.line("payload", "%d documents excluded, %d warnings; lockstep release inspect lists them", p.Excluded, p.Warnings)
	}
	if text := stayingCapabilities(r); text != "" {
		v.line("implicit", "%s", text)
	}
	for _, w := range r.Status.Warnings {
		v.line("warning", "%s", sanitize.Line(w))
	}
	for _, o := range r.Spec.Overrides {
		if o.Unmanaged {
			v.line("override", "%s %s/%s is unmanaged %s: %s", o.Kind, o.Namespace, o.Name, overrideEnd(&o), o.Reason)
		}
	}
}

func (v *explainView) nodeOS(e *evidence, n *v1alpha1.NodeOS) {
	switch {
	case len(e.held) > 0:
		if r, _ := releaseOf(e); r != nil {
			v.chain(e, r)
		}
		v.manifest(e)
	default:
		v.commit(e, n)
	}
	c := n.Status.Counts
	v.line("desired", "%s %s", n.Spec.OS.Version, n.Spec.OS.Image)
	v.line("hosts", "%d of %d run it, %d staged, %d in flight, %d failed, %d quarantined, %d held", c.Updated, c.Total, c.Staged, c.InFlight, c.Failed, c.Quarantined, c.Held)
	for _, f := range n.Status.InFlight {
		v.line("in flight", "%s %s %s", f.Host, f.State, f.Blocking)
	}
	for _, d := range n.Status.Denied {
		v.line("denied", "%s on %s (%s): %s", shortDigest(d.Digest), strings.Join(d.Hosts, ", "), d.Scope, d.Reason)
	}
}

// hostOf explains a host: the pools that select it and their state for it.
func (v *explainView) hostOf(e *evidence, h *v1alpha1.Host) {
	pools := 0
	for i := range e.objects.pools {
		n := &e.objects.pools[i]
		if !selects(n, e) {
			continue
		}
		pools++
		v.line("pool", "NodeOS/%s desires %s; %s", n.Name, n.Spec.OS.Version, readyOf(n.Status.Conditions))
		if at := slices.IndexFunc(n.Status.InFlight, func(f v1alpha1.HostInFlight) bool { return f.Host == h.Name }); at >= 0 {
			v.line("in flight", "%s %s", n.Status.InFlight[at].State, n.Status.InFlight[at].Blocking)
		}
		for _, d := range n.Status.Denied {
			if slices.Contains(d.Hosts, h.Name) {
				v.line("denied", "%s: %s", shortDigest(d.Digest), d.Reason)
			}
		}
	}
	if pools == 0 {
		v.line("pool", "no NodeOS selects the node")
	}
	if o := h.Status.OS; o != nil && o.Booted != nil {
		v.line("running", "%s from slot %s, %s", o.Booted.Version, o.Booted.Slot, shortDigest(o.Booted.Digest))
	}
	if o := h.Status.Operation; o != nil {
		v.line("operation", "%s %s: %s %s", o.Sequence, o.ID, o.Phase, o.Task)
	}
	if o := h.Status.LastResult; o != nil {
		v.line("last", "%s %s: %s", o.Sequence, o.State, o.Message)
	}
}

// selects reports whether a pool selects the node of the host.
func selects(n *v1alpha1.NodeOS, e *evidence) bool {
	if n.Spec.All {
		return true
	}
	if n.Spec.NodeSelector == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(n.Spec.NodeSelector.LabelSelector())
	return err == nil && selector.Matches(e.nodeLabels)
}

// good returns the healthy status of a condition; Unknown for conditions that
// are informational.
func good(kind string) metav1.ConditionStatus {
	switch kind {
	case v1alpha1.ConditionReady, v1alpha1.ConditionReleaseAccepted, v1alpha1.ConditionReleaseVerified, v1alpha1.ConditionSourceVerified,
		v1alpha1.ConditionOSVerified, v1alpha1.ConditionWriteBackReady, v1alpha1.ConditionUpgradeable,
		v1alpha1.ConditionAgentReachable, v1alpha1.ConditionConfirmed, v1alpha1.ConditionPruneComplete:
		return metav1.ConditionTrue
	case v1alpha1.ConditionStalled, v1alpha1.ConditionFailing, v1alpha1.ConditionInvalid, v1alpha1.ConditionHalted, v1alpha1.ConditionPaused,
		v1alpha1.ConditionInsecure, v1alpha1.ConditionIdentityMismatch, v1alpha1.ConditionFieldYielded,
		v1alpha1.ConditionInventoryIncomplete:
		return metav1.ConditionFalse
	}
	return metav1.ConditionUnknown
}

// problems writes the unhealthy conditions, each message once, and explains
// their reasons.
func (v *explainView) problems(conditions []metav1.Condition) {
	seen := map[string]bool{}
	var why []string
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil && ready.Status != metav1.ConditionTrue {
		seen[ready.Message] = true // It is the first line.
		why = append(why, ready.Reason)
	}
	for _, c := range conditions {
		want := good(c.Type)
		if want == metav1.ConditionUnknown || c.Status == want || c.Status == metav1.ConditionUnknown {
			continue
		}
		why = append(why, c.Reason)
		if !seen[c.Message] && c.Type != v1alpha1.ConditionReleaseAccepted { // The chain has it.
			seen[c.Message] = true
			v.line("condition", "%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, reason := range why {
		v.explain(reason)
	}
}
