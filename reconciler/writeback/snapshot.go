// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
)

// snapshot is the declared objects at one time.
type snapshot struct {
	sources  []v1alpha1.GitSource
	releases []v1alpha1.ClusterRelease
	pools    []v1alpha1.NodeOS
	trust    []v1alpha1.TrustPolicy
}

func takeSnapshot(ctx context.Context, c client.Reader) (snapshot, error) {
	var (
		sources  v1alpha1.GitSourceList
		releases v1alpha1.ClusterReleaseList
		pools    v1alpha1.NodeOSList
		trust    v1alpha1.TrustPolicyList
	)
	for _, list := range []client.ObjectList{&sources, &releases, &pools, &trust} {
		if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil {
			return snapshot{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return snapshot{sources.Items, releases.Items, pools.Items, trust.Items}, nil
}

// report returns the report for a source.
func (s *snapshot) report(source *v1alpha1.GitSource, accepted Accepted, insecure []string) Report {
	r := Report{Cluster: source.Spec.Cluster, Source: reportSource(source, accepted), Insecure: insecure}
	for i := range s.releases {
		r.Releases = append(r.Releases, reportRelease(&s.releases[i]))
		r.Conditions = append(r.Conditions, unhealthy("ClusterRelease/"+s.releases[i].Name, s.releases[i].Status.Conditions)...)
	}
	for i := range s.pools {
		r.Pools = append(r.Pools, reportPool(&s.pools[i]))
		r.Conditions = append(r.Conditions, unhealthy("NodeOS/"+s.pools[i].Name, s.pools[i].Status.Conditions)...)
	}
	for i := range s.trust {
		r.Conditions = append(r.Conditions, unhealthy("TrustPolicy/"+s.trust[i].Name, s.trust[i].Status.Conditions)...)
	}
	for i := range s.sources {
		r.Conditions = append(r.Conditions, unhealthy("GitSource/"+s.sources[i].Name, s.sources[i].Status.Conditions)...)
	}
	return r
}

// reportSource takes the accepted revision and its signer from the persisted
// state. Where that state has none, it takes the revision from the status of the
// source, unverified: a signer is only reported from the persisted state.
func reportSource(s *v1alpha1.GitSource, accepted Accepted) Source {
	out := Source{Name: s.Name, Revision: accepted.Revision, Accepted: accepted.Time, Signer: accepted.Signer}
	if a := s.Status.AcceptedRevision; a != nil && accepted.Revision.IsZero() {
		out.Accepted = a.Time.Time
		if rev, err := sources.ParseRevision(a.Revision); err == nil {
			rev.Tree = a.Tree
			out.Revision = rev
		}
	}
	if !out.Revision.IsZero() {
		out.CommitLink = CommitLink(s.Spec.URL, out.Revision.Hash)
	}
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	// The status may be older than the persisted state: its attempt counts only
	// for the same accepted revision.
	current := s.Status.AcceptedRevision == nil || out.Revision.IsZero() || s.Status.AcceptedRevision.Revision == out.Revision.String()
	if a := s.Status.AttemptedRevision; a != nil && current && ready != nil && ready.Status == metav1.ConditionFalse {
		if rev, err := sources.ParseRevision(a.Revision); err == nil && !rev.Same(out.Revision) {
			out.Attempted, out.Reason, out.Message = rev, ready.Reason, ready.Message
		}
	}
	return out
}

func reportRelease(r *v1alpha1.ClusterRelease) Release {
	out := Release{Name: r.Name, Desired: r.Spec.Desired.Version, Digest: digestOf(r.Spec.Desired.Image), State: "Initial"}
	if a := r.Status.Applied; a != nil {
		out.Current = a.Version
	}
	if a := r.Status.Accepted; a != nil && a.Version == out.Desired {
		out.Signers = a.Evidence
	}
	if p := r.Status.Progress; p != nil {
		out.State, out.Done, out.Total = p.State, int(p.Done), int(p.Total)
		for _, b := range p.Blocking {
			out.Blocking = append(out.Blocking, Blocking{Object: b.Object, Message: b.Message, Since: timeOf(b.Since)})
		}
	}
	out.State = heldState(r.Status.Conditions, out.State)
	if meta.IsStatusConditionFalse(r.Status.Conditions, v1alpha1.ConditionReleaseAccepted) {
		out.State = "Rejected"
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		out.Since = c.LastTransitionTime.Time
	}
	for _, h := range r.Status.History {
		out.History = append(out.History, History{
			State: h.State, Version: h.Version, Digest: digestOf(h.Image), Revision: h.Revision, Verified: h.Verified,
			Evidence: h.Evidence, Started: h.StartedTime.Time, Completed: timeOf(h.CompletionTime),
		})
	}
	return out
}

func reportPool(n *v1alpha1.NodeOS) Pool {
	c := n.Status.Counts
	out := Pool{
		Name: n.Name, Desired: n.Spec.OS.Version, Digest: digestOf(n.Spec.OS.Image), State: "Updating",
		Updated: int(c.Updated), Total: int(c.Total), Staged: int(c.Staged), InFlight: int(c.InFlight), Failed: int(c.Failed), Held: int(c.Held),
	}
	if n.Status.Committed != nil {
		out.Current = n.Status.Committed.Version
	}
	if ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		out.Since = ready.LastTransitionTime.Time
		if ready.Status == metav1.ConditionTrue {
			out.State = "Complete"
		}
	}
	out.State = heldState(n.Status.Conditions, out.State)
	if meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionHalted) {
		out.State = "Halted"
	}
	if meta.IsStatusConditionFalse(n.Status.Conditions, v1alpha1.ConditionOSVerified) {
		out.State = "Rejected"
	}
	for _, f := range n.Status.InFlight {
		message := f.State
		if f.Blocking != "" {
			message += ": " + f.Blocking
		}
		out.Blocking = append(out.Blocking, Blocking{Object: f.Host, Message: message, Since: timeOf(f.Since)})
	}
	return out
}

// heldState returns Paused or Waiting for an object that is held, else state.
func heldState(conditions []metav1.Condition, state string) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return state
	}
	switch ready.Reason {
	case status.ReasonPaused, status.ReasonSuspended:
		return "Paused"
	case status.ReasonDependency, status.ReasonNotFromSource:
		return "Waiting"
	default:
		return state
	}
}

// unhealthy returns the conditions of an object that report a problem.
func unhealthy(object string, conditions []metav1.Condition) []Condition {
	var out []Condition
	for _, c := range conditions {
		bad := false
		switch c.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionReleaseAccepted, v1alpha1.ConditionReleaseVerified,
			v1alpha1.ConditionSourceVerified, v1alpha1.ConditionOSVerified, v1alpha1.ConditionUpgradeable,
			v1alpha1.ConditionPruneComplete:
			bad = c.Status == metav1.ConditionFalse
		case v1alpha1.ConditionFailing, v1alpha1.ConditionStalled, v1alpha1.ConditionHalted, v1alpha1.ConditionPaused,
			v1alpha1.ConditionFieldYielded, v1alpha1.ConditionInventoryIncomplete, v1alpha1.ConditionInsecure, v1alpha1.ConditionInvalid:
			bad = c.Status == metav1.ConditionTrue
		}
		if bad {
			out = append(out, Condition{
				Object: object, Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time,
			})
		}
	}
	return out
}

func digestOf(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
