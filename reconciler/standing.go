// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

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
	"github.com/lockstep-dev/lockstep/reconciler/writeback"
	"github.com/lockstep-dev/lockstep/sources"
)

// standing is how the declared objects stand, read at once.
type standingOf struct {
	sources  []v1alpha1.GitSource
	releases []v1alpha1.ClusterRelease
	pools    []v1alpha1.NodeOS
	trust    []v1alpha1.TrustPolicy
}

func readStanding(ctx context.Context, c client.Reader) (standingOf, error) {
	var (
		out      standingOf
		sources  v1alpha1.GitSourceList
		releases v1alpha1.ClusterReleaseList
		pools    v1alpha1.NodeOSList
		trust    v1alpha1.TrustPolicyList
	)
	for _, list := range []client.ObjectList{&sources, &releases, &pools, &trust} {
		if err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil {
			return out, fmt.Errorf("list %T: %w", list, err)
		}
	}
	out.sources, out.releases, out.pools, out.trust = sources.Items, releases.Items, pools.Items, trust.Items
	return out, nil
}

// report says it in the words of the status branch.
func (w *standingOf) report(source *v1alpha1.GitSource, doors []string) writeback.Report {
	r := writeback.Report{Cluster: source.Spec.Cluster, Source: reportSource(source), Insecure: doors}
	for i := range w.releases {
		r.Releases = append(r.Releases, reportRelease(&w.releases[i]))
		r.Conditions = append(r.Conditions, reportConditions("ClusterRelease/"+w.releases[i].Name, w.releases[i].Status.Conditions)...)
	}
	for i := range w.pools {
		r.Pools = append(r.Pools, reportPool(&w.pools[i]))
		r.Conditions = append(r.Conditions, reportConditions("NodeOS/"+w.pools[i].Name, w.pools[i].Status.Conditions)...)
	}
	for i := range w.trust {
		r.Conditions = append(r.Conditions, reportConditions("TrustPolicy/"+w.trust[i].Name, w.trust[i].Status.Conditions)...)
	}
	for i := range w.sources {
		r.Conditions = append(r.Conditions, reportConditions("GitSource/"+w.sources[i].Name, w.sources[i].Status.Conditions)...)
	}
	return r
}

func reportSource(s *v1alpha1.GitSource) writeback.Source {
	out := writeback.Source{Name: s.Name}
	if a := s.Status.AcceptedRevision; a != nil {
		out.Accepted = a.Time.Time
		if rev, err := sources.ParseRevision(a.Revision); err == nil {
			rev.Tree = a.Tree
			out.Revision = rev
			out.CommitLink = writeback.CommitLink(s.Spec.URL, rev.Hash)
		}
		out.Signer = parseSigner(a.Signer)
	}
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	if a := s.Status.AttemptedRevision; a != nil && ready != nil && ready.Status == metav1.ConditionFalse {
		if rev, err := sources.ParseRevision(a.Revision); err == nil && !rev.Same(out.Revision) {
			out.Attempted, out.Reason, out.Message = rev, ready.Reason, ready.Message
		}
	}
	return out
}

// parseSigner reads what signerText wrote: "name (format fingerprint)".
func parseSigner(text string) *sources.Signer {
	name, rest, ok := strings.Cut(strings.TrimSuffix(text, ")"), " (")
	if !ok {
		return nil
	}
	format, fingerprint, ok := strings.Cut(rest, " ")
	if !ok {
		return nil
	}
	return &sources.Signer{Name: name, Format: format, Fingerprint: fingerprint}
}

func reportRelease(r *v1alpha1.ClusterRelease) writeback.Release {
	out := writeback.Release{Name: r.Name, Wanted: r.Spec.Desired.Version, Digest: digestOf(r.Spec.Desired.Image), State: "Initial"}
	if a := r.Status.Applied; a != nil {
		out.Now = a.Version
	}
	if a := r.Status.Accepted; a != nil && a.Version == out.Wanted {
		out.Signers = a.Evidence
	}
	if p := r.Status.Progress; p != nil {
		out.State, out.Done, out.Total = p.State, int(p.Done), int(p.Total)
		for _, b := range p.Blocking {
			out.Blocking = append(out.Blocking, writeback.Blocking{Object: b.Object, Message: b.Message, Since: timeOf(b.Since)})
		}
	}
	out.State = stateWord(r.Status.Conditions, out.State)
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleaseAccepted); c != nil && c.Status == metav1.ConditionFalse {
		out.State = "Refused"
	}
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		out.Since = c.LastTransitionTime.Time
	}
	for _, h := range r.Status.History {
		out.History = append(out.History, writeback.History{
			State: h.State, Version: h.Version, Digest: digestOf(h.Image), Revision: h.Revision, Verified: h.Verified,
			Evidence: h.Evidence, Started: h.StartedTime.Time, Completed: timeOf(h.CompletionTime),
		})
	}
	return out
}

func reportPool(n *v1alpha1.NodeOS) writeback.Pool {
	c := n.Status.Counts
	out := writeback.Pool{
		Name: n.Name, Wanted: n.Spec.OS.Version, Digest: digestOf(n.Spec.OS.Image), State: "Updating",
		Updated: int(c.Updated), Total: int(c.Total), Staged: int(c.Staged), InFlight: int(c.InFlight), Failed: int(c.Failed), Held: int(c.Held),
	}
	if n.Status.Committed != nil {
		out.Now = n.Status.Committed.Version
	}
	if ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		out.Since = ready.LastTransitionTime.Time
		if ready.Status == metav1.ConditionTrue {
			out.State = "Level"
		}
	}
	out.State = stateWord(n.Status.Conditions, out.State)
	if meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionHalted) {
		out.State = "Halted"
	}
	if meta.IsStatusConditionFalse(n.Status.Conditions, v1alpha1.ConditionOSVerified) {
		out.State = "Refused"
	}
	for _, f := range n.Status.InFlight {
		message := f.State
		if f.Blocking != "" {
			message += ": " + f.Blocking
		}
		out.Blocking = append(out.Blocking, writeback.Blocking{Object: f.Host, Message: message, Since: timeOf(f.Since)})
	}
	return out
}

// stateWord replaces a state by what holds the object, if something does.
func stateWord(conditions []metav1.Condition, state string) string {
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

// reportConditions picks what people should know of: what isn't as it should be.
func reportConditions(object string, conditions []metav1.Condition) []writeback.Condition {
	var out []writeback.Condition
	for _, c := range conditions {
		bad := false
		switch c.Type {
		case v1alpha1.ConditionReady, v1alpha1.ConditionReleaseAccepted, v1alpha1.ConditionReleaseVerified,
			v1alpha1.ConditionSourceVerified, v1alpha1.ConditionOSVerified, v1alpha1.ConditionUpgradeable:
			bad = c.Status == metav1.ConditionFalse
		case v1alpha1.ConditionFailing, v1alpha1.ConditionStalled, v1alpha1.ConditionHalted, v1alpha1.ConditionPaused,
			v1alpha1.ConditionFieldYielded, v1alpha1.ConditionInsecure, v1alpha1.ConditionInvalid:
			bad = c.Status == metav1.ConditionTrue
		}
		if bad {
			out = append(out, writeback.Condition{
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
