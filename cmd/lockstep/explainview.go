// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/reasons"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// explainView renders evidence as text. It is pure.
type explainView struct {
	statusView
	now time.Time

	b strings.Builder
	// explained are the reasons that were explained already.
	explained map[string]bool
}

// answer is the first line: the state of the object and what happens next.
type answer struct{ text, next string }

func (v *explainView) render(e *evidence) string {
	v.b.Reset()
	v.explained = map[string]bool{}
	if obj, ok := e.declared(); ok {
		v.lockstepObject(e, obj)
	} else {
		v.object(e)
	}
	for _, p := range e.problems {
		v.line("unread", "%s", p)
	}
	return v.b.String()
}

// line writes one link of the chain.
func (v *explainView) line(word, format string, args ...any) {
	fmt.Fprintf(&v.b, "  %-9s %s\n", word, sanitize.Clip(fmt.Sprintf(format, args...), 1500))
}

func (v *explainView) head(subject, text string) {
	fmt.Fprintf(&v.b, "%s   %s\n", v.bold(sanitize.Line(subject)), sanitize.Clip(text, 1500))
}

// explain prints the meaning of a reason once.
func (v *explainView) explain(reason string) {
	if v.explained[reason] {
		return
	}
	v.explained[reason] = true
	r, ok := reasons.Find(reason)
	if !ok || r.Recovery == reasons.None {
		return
	}
	v.line("means", "%s: %s; retried automatically: %s", r.Name, r.Meaning, r.Recovery)
	if r.Action != "" {
		v.line("to do", "%s", strings.ReplaceAll(r.Action, "`", ""))
	}
}

// object explains an object of a release, or one that Lockstep doesn't manage.
func (v *explainView) object(e *evidence) {
	release, named := releaseOf(e)
	a := v.answerFor(e, release)
	v.head(e.id.String(), a.text)
	switch {
	case release != nil:
		v.chain(e, release)
	case named != "":
		v.line("set", "%s, which isn't declared anymore", named)
	}
	v.manifest(e)
	v.live(e)
	if a.next != "" {
		v.line("next", "%s", a.next)
	}
	if release != nil {
		if b := blockingOf(release, e.id); b != nil {
			v.explain(b.Reason)
		}
	}
}

// releaseOf returns the release that manages, mentions or overrides the object,
// and the name of its apply set.
func releaseOf(e *evidence) (release *v1alpha1.ClusterRelease, set string) {
	set = e.holder
	if len(e.held) > 0 {
		set = e.held[0].Owner
	}
	for i := range e.objects.releases {
		r := &e.objects.releases[i]
		if "clusterrelease/"+r.Name == set || set == "" && (overrideOf(r, e.id) != nil || blockingOf(r, e.id) != nil) {
			return r, set
		}
	}
	return nil, set
}

// overrideOf returns the override that makes the object unmanaged.
func overrideOf(r *v1alpha1.ClusterRelease, id payload.ObjectID) *v1alpha1.Override {
	i := slices.IndexFunc(r.Spec.Overrides, func(o v1alpha1.Override) bool {
		return o.Unmanaged && o.Group == id.Group && o.Kind == id.Kind && o.Namespace == id.Namespace && o.Name == id.Name
	})
	if i < 0 {
		return nil
	}
	return &r.Spec.Overrides[i]
}

// blockingOf returns the entry of the release's status if the object blocks it.
func blockingOf(r *v1alpha1.ClusterRelease, id payload.ObjectID) *v1alpha1.Blocking {
	if r.Status.Progress == nil {
		return nil
	}
	list := r.Status.Progress.Blocking
	if i := slices.IndexFunc(list, func(b v1alpha1.Blocking) bool { return b.Object == id.String() }); i >= 0 {
		return &list[i]
	}
	return nil
}

// answerFor decides the first line; the most specific cause comes first.
func (v *explainView) answerFor(e *evidence, r *v1alpha1.ClusterRelease) answer {
	switch {
	case len(e.held) > 1:
		return answer{fmt.Sprintf("in two apply sets: %s and %s", e.held[0].Owner, e.held[1].Owner), "remove it from one of them"}
	case r == nil && len(e.held) > 0:
		return answer{"orphaned: its release was deleted and the object kept", "declare it again, or delete the object"}
	case r == nil && len(e.excluded) > 0 && e.holder == "":
		return excludedAnswer(e)
	case r == nil && e.live == nil:
		return answer{"not found; no release declares it", ""}
	case r == nil && e.holder != "":
		return answer{"orphaned: applied by " + e.holder + ", which isn't declared anymore", "declare it again, or delete the object"}
	case r == nil:
		return answer{"not managed: no release declares it", "Lockstep neither changes nor deletes it"}
	}
	if o := overrideOf(r, e.id); o != nil {
		if o.Expires == nil || v.now.Before(o.Expires.Time) {
			return answer{"unmanaged by an override of ClusterRelease/" + r.Name + ": " + sanitize.Line(o.Reason), overrideEnd(o)}
		}
	}
	if e.live != nil && e.live.GetDeletionTimestamp() != nil {
		return answer{"being deleted since " + e.live.GetDeletionTimestamp().UTC().Format(time.RFC3339), "recreated after deletion; blocked by: " + orNothing(e.live.GetFinalizers())}
	}
	if b := blockingOf(r, e.id); b != nil {
		return answer{"not ready for " + releaseName(r) + ": " + b.Reason + ": " + b.Message, v.retry(b)}
	}
	if len(e.held) == 0 || !e.held[0].Applied() {
		return v.unapplied(e, r)
	}
	return v.applied(e, r)
}

// excludedAnswer is the answer for an object that the selection of a release
// excludes. The payload may have several variants of it.
func excludedAnswer(e *evidence) answer {
	const most = 3
	var whys []string
	for _, f := range e.excluded[:min(len(e.excluded), most)] {
		whys = append(whys, fmt.Sprintf("excluded by ClusterRelease/%s %s: %s: %s (%s)", f.Release, f.Version, f.Reason, f.Detail, f.Place))
	}
	if more := len(e.excluded) - most; more > 0 {
		whys = append(whys, fmt.Sprintf("and %d more", more))
	}
	state := "not found: "
	if e.live != nil {
		state = "not managed: "
	}
	return answer{
		sanitize.Line(state + strings.Join(whys, "; ")),
		"to include it, change spec.profile, featureSet, featureGates or capabilities of the ClusterRelease",
	}
}

// unapplied is the answer for an object that isn't applied yet.
func (v *explainView) unapplied(e *evidence, r *v1alpha1.ClusterRelease) answer {
	if len(e.held) == 0 {
		return answer{
			"has the field manager of ClusterRelease/" + r.Name + ", but isn't in its inventory",
			"the inventory is written within seconds; if this remains, the release doesn't declare the object anymore and kept it",
		}
	}
	text := fmt.Sprintf("not applied yet: in run level %d of ClusterRelease/%s", e.held[0].RunLevel, r.Name)
	if p := r.Status.Progress; p != nil {
		text += fmt.Sprintf(", which is at run level %d (%s)", p.RunLevel, p.Summary)
	}
	return answer{text, "run lockstep explain clusterrelease/" + r.Name + " for what blocks the release"}
}

// judged is the answer for an applied object, from its live state and the
// inventory.
func (v *explainView) applied(e *evidence, r *v1alpha1.ClusterRelease) answer {
	held := &e.held[0]
	repaired := "repaired automatically; with backoff if another manager keeps changing it"
	if hold := heldBy(r); hold != "" {
		repaired = "repaired once ClusterRelease/" + r.Name + " is resumed: " + hold
	}
	var m metav1.Object
	if e.metadata != nil {
		m = e.metadata
	}
	switch apply.CompareHeld(held, m) {
	case apply.InSync:
		return answer{"in sync with " + releaseName(r) + unhealthyCondition(e.live), ""}
	case apply.Done:
		return answer{"a finished Job, deleted by its TTL", ""}
	case apply.Missing:
		if e.live == nil {
			return answer{"deleted, though " + releaseName(r) + " declares it", repaired}
		}
		return answer{"replaced: its UID isn't that of the applied object", repaired}
	case apply.Drifted:
		return answer{"drifted: another manager changed or took fields that " + releaseName(r) + " sets" + lastWriter(e, held.Manager()), repaired}
	default:
		return answer{"probably in sync with " + releaseName(r) + ": its own fields are unchanged, but another manager wrote the object" + lastWriter(e, held.Manager()), ""}
	}
}

// releaseName returns the name of a release with its accepted version.
func releaseName(r *v1alpha1.ClusterRelease) string {
	if a := r.Status.Accepted; a != nil {
		return "ClusterRelease/" + r.Name + " " + a.Version
	}
	return "ClusterRelease/" + r.Name
}

// heldBy returns why the release is paused; "" if it isn't.
func heldBy(r *v1alpha1.ClusterRelease) string {
	if why, ok := r.Annotations[v1alpha1.AnnotationPaused]; ok {
		return "paused: " + sanitize.Line(why)
	}
	if r.Spec.Suspend {
		return "spec.suspend is set"
	}
	return ""
}

// lastWriter returns the manager that wrote the object last besides Lockstep.
func lastWriter(e *evidence, manager string) string {
	var last *metav1.ManagedFieldsEntry
	for i := range e.metadata.ManagedFields {
		m := &e.metadata.ManagedFields[i]
		if m.Manager == manager || m.Subresource == "status" || m.Time == nil {
			continue
		}
		if last == nil || last.Time.Before(m.Time) {
			last = m
		}
	}
	if last == nil {
		return ""
	}
	return fmt.Sprintf("; the last other writer is %s at %s", sanitize.Line(last.Manager), last.Time.UTC().Format(time.RFC3339))
}

func overrideEnd(o *v1alpha1.Override) string {
	if o.Expires == nil {
		return "until the override is removed from Git"
	}
	return "until " + o.Expires.UTC().Format(time.RFC3339)
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// retry returns when a blocking object is retried and when it times out.
func (v *explainView) retry(b *v1alpha1.Blocking) string {
	var parts []string
	if b.Since != nil {
		parts = append(parts, "for "+age(v.now, b.Since.Time))
	}
	if b.RetryAt != nil {
		parts = append(parts, "retries in "+span(b.RetryAt.Sub(v.now)))
	}
	if b.Deadline != nil {
		parts = append(parts, "times out in "+span(b.Deadline.Sub(v.now)))
	}
	if !b.Retriable {
		parts = append(parts, "doesn't resolve automatically")
	}
	return strings.Join(parts, "; ")
}

// chain writes the links from the commit to the release.
func (v *explainView) chain(e *evidence, r *v1alpha1.ClusterRelease) {
	v.commit(e, r)
	v.line("declared", "ClusterRelease/%s desires %s %s%s", r.Name, r.Spec.Desired.Version, r.Spec.Desired.Image, r.Spec.Desired.Path)
	v.line("release", "%s", releaseState(&r.Status))
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleaseAccepted); c != nil && c.Status == metav1.ConditionFalse {
		v.line("rejected", "%s; %s: %s: %s", r.Spec.Desired.Version, running(r.Status.Accepted), c.Reason, c.Message)
	}
	if hold := heldBy(r); hold != "" {
		v.line("held", "%s", hold)
	}
}

// releaseState describes the accepted and the applied release in a line.
func releaseState(s *v1alpha1.ClusterReleaseStatus) string {
	if s.Accepted == nil {
		return "no release accepted yet"
	}
	text := s.Accepted.Version + " accepted"
	complete := s.Applied != nil && s.Applied.Version == s.Accepted.Version
	if complete {
		text += " and complete"
	}
	if len(s.Accepted.Evidence) > 0 {
		text += ", signed by " + strings.Join(s.Accepted.Evidence, ", ")
	}
	if s.Applied != nil && !complete {
		text += "; last complete: " + s.Applied.Version
	}
	if s.Progress != nil {
		text += "; " + s.Progress.State + " " + s.Progress.Summary
	}
	return text
}

// commit writes the source that declares the object and its accepted revision.
func (v *explainView) commit(e *evidence, obj client.Object) {
	name := obj.GetAnnotations()[v1alpha1.AnnotationSource]
	i := slices.IndexFunc(e.objects.sources, func(s v1alpha1.GitSource) bool { return s.Name == name })
	if i < 0 {
		v.line("commit", "no GitSource declares %s", objectArg(obj))
		return
	}
	s := &e.objects.sources[i]
	rev := s.Status.AcceptedRevision
	if rev == nil {
		v.line("commit", "GitSource/%s has accepted no revision yet", s.Name)
		return
	}
	signer := "unverified"
	if rev.Signer != "" {
		signer = "signed by " + rev.Signer
	}
	v.line("commit", "%s %q, %s", shortRevision(rev.Revision), sanitize.Line(rev.Subject), signer)
	v.line("source", "GitSource/%s, %s %s, accepted %s ago", s.Name, s.Spec.URL, s.Spec.Path, age(v.now, rev.Time.Time))
	if at := s.Status.AttemptedRevision; at != nil && at.Revision != rev.Revision {
		v.line("newest", "%s isn't accepted; run lockstep explain gitsource/%s", shortRevision(at.Revision), s.Name)
	}
}

// manifest writes the inventory entries.
func (v *explainView) manifest(e *evidence) {
	for i := range e.held {
		h := &e.held[i]
		made := "adopted: never pruned"
		switch {
		case !h.Applied():
			made = "not applied yet"
		case h.Protected:
			made = "never pruned: its manifest has the annotation " + payload.AnnotationPrune + ": disabled"
		case h.Created:
			made = "created by the release: pruned when the release drops it"
		}
		v.line("manifest", "in the inventory of %s, run level %d; %s", h.Owner, h.RunLevel, made)
		for _, y := range h.Yields {
			v.line("yielded", "%s to %s", y.Pointer, y.Manager)
		}
	}
}

// live writes the state of the live object.
func (v *explainView) live(e *evidence) {
	if e.live == nil {
		v.line("live", "not found")
		return
	}
	parts := []string{fmt.Sprintf("since %s", e.live.GetCreationTimestamp().UTC().Format(time.RFC3339))}
	if g := e.live.GetGeneration(); g > 0 {
		parts = append(parts, fmt.Sprintf("generation %d", g))
	}
	parts = append(parts, liveConditions(e.live)...)
	v.line("live", "%s", strings.Join(parts, ", "))
	var managers []string
	for i := range e.metadata.ManagedFields {
		name := sanitize.Line(e.metadata.ManagedFields[i].Manager)
		if s := e.metadata.ManagedFields[i].Subresource; s != "" {
			name += " (" + s + ")"
		}
		if !slices.Contains(managers, name) && len(managers) < 12 {
			managers = append(managers, name)
		}
	}
	if len(managers) > 0 {
		v.line("managers", "%s", strings.Join(managers, ", "))
	}
}

// liveConditions returns an object's conditions, at most eight.
func liveConditions(u *unstructured.Unstructured) []string {
	list, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return nil
	}
	var out []string
	for _, one := range list[:min(len(list), 8)] {
		m, _ := one.(map[string]any)
		out = append(out, sanitize.Line(fmt.Sprintf("%v=%v", m["type"], m["status"])))
	}
	return out
}

// ailing returns the condition by which an object in sync is unhealthy.
func unhealthyCondition(u *unstructured.Unstructured) string {
	if u == nil {
		return ""
	}
	for _, c := range liveConditions(u) {
		switch c {
		case "Available=False", "Ready=False", "Established=False", "Failed=True", "Stalled=True":
			return ", but unhealthy: " + c + "; see kubectl describe"
		}
	}
	return ""
}

// differs reports a declared object whose spec differs from Git; "" if it
// doesn't, or if no source declares it.
func differs(e *evidence, obj client.Object) string {
	if e.declaredHash == "" {
		return ""
	}
	var spec any
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		spec = o.Spec
	case *v1alpha1.ClusterRelease:
		spec = o.Spec
	case *v1alpha1.NodeOS:
		spec = o.Spec
	case *v1alpha1.TrustPolicy:
		spec = o.Spec
	}
	if hash, err := desired.SpecHash(spec); err != nil || hash == e.declaredHash {
		return ""
	}
	return "its spec isn't that of GitSource/" + e.source + ": not acted on; restored automatically"
}

// readyOf describes an object's Ready condition.
func readyOf(conditions []metav1.Condition) string {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return "not reconciled yet; check that lockstep-reconciler is running"
	case c.Status == metav1.ConditionTrue:
		return "ready: " + c.Message
	default:
		return "not ready, " + c.Reason + ": " + c.Message
	}
}
