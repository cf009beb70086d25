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

// explainView renders evidence as text for people. It is pure.
type explainView struct {
	statusView
	now time.Time

	b strings.Builder
	// said are the reasons that were explained already.
	said map[string]bool
}

// answer is the first line: what is so, and what makes it end.
type answer struct{ text, next string }

func (v *explainView) render(e *evidence) string {
	v.b.Reset()
	v.said = map[string]bool{}
	if obj, ok := e.ours(); ok {
		v.own(e, obj)
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

// explain says what a reason means, once.
func (v *explainView) explain(reason string) {
	if v.said[reason] {
		return
	}
	v.said[reason] = true
	r, ok := reasons.Find(reason)
	if !ok || r.Mends == reasons.Fine {
		return
	}
	v.line("means", "%s: %s; mends itself: %s", r.Name, r.Means, r.Mends)
	if r.Do != "" {
		v.line("to do", "%s", strings.ReplaceAll(r.Do, "`", ""))
	}
}

// object explains an object of a release, or one that is nobody's.
func (v *explainView) object(e *evidence) {
	release, named := releaseOf(e)
	a := v.answerFor(e, release)
	v.head(e.id.String(), a.text)
	switch {
	case release != nil:
		v.chain(e, release)
	case named != "":
		v.line("set", "%s, which isn't declared any more", named)
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

// releaseOf finds the release that holds, names or overrides the object, and
// the name of its set.
func releaseOf(e *evidence) (release *v1alpha1.ClusterRelease, set string) {
	set = e.holder
	if len(e.held) > 0 {
		set = e.held[0].Owner
	}
	for i := range e.world.releases {
		r := &e.world.releases[i]
		if "clusterrelease/"+r.Name == set || set == "" && (overrideOf(r, e.id) != nil || blockingOf(r, e.id) != nil) {
			return r, set
		}
	}
	return nil, set
}

// overrideOf returns the override that leaves the object to people.
func overrideOf(r *v1alpha1.ClusterRelease, id payload.ObjectID) *v1alpha1.Override {
	i := slices.IndexFunc(r.Spec.Overrides, func(o v1alpha1.Override) bool {
		return o.Unmanaged && o.Group == id.Group && o.Kind == id.Kind && o.Namespace == id.Namespace && o.Name == id.Name
	})
	if i < 0 {
		return nil
	}
	return &r.Spec.Overrides[i]
}

// blockingOf returns what the release says of the object where it stands in
// the way.
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

// answerFor decides the first line: the causes that explain most come first.
func (v *explainView) answerFor(e *evidence, r *v1alpha1.ClusterRelease) answer {
	switch {
	case len(e.held) > 1:
		return answer{fmt.Sprintf("in two sets: %s and %s", e.held[0].Owner, e.held[1].Owner), "take it out of one of them"}
	case r == nil && len(e.held) > 0:
		return answer{"its release is gone from the cluster; the object was left in place", "declare it again, or delete it by hand"}
	case r == nil && len(e.leftOut) > 0 && e.holder == "":
		return leftOutAnswer(e)
	case r == nil && e.live == nil:
		return answer{"isn't in the cluster, and no release declares it", ""}
	case r == nil && e.holder != "":
		return answer{"was applied by " + e.holder + ", which isn't declared any more", "declare it again, or delete it by hand"}
	case r == nil:
		return answer{"not ours: no release declares it", "Lockstep neither changes nor deletes it"}
	}
	if o := overrideOf(r, e.id); o != nil {
		if o.Expires == nil || v.now.Before(o.Expires.Time) {
			return answer{"left to people by an override of ClusterRelease/" + r.Name + ": " + sanitize.Line(o.Reason), overrideEnd(o)}
		}
	}
	if e.live != nil && e.live.GetDeletionTimestamp() != nil {
		return answer{"being deleted since " + e.live.GetDeletionTimestamp().UTC().Format(time.RFC3339), "made anew when it's gone; what keeps it: " + orNothing(e.live.GetFinalizers())}
	}
	if b := blockingOf(r, e.id); b != nil {
		return answer{"isn't as " + releaseWords(r) + " wants it: " + b.Reason + ": " + b.Message, v.retry(b)}
	}
	if len(e.held) == 0 || !e.held[0].Applied {
		return v.unapplied(e, r)
	}
	return v.judged(e, r)
}

// leftOutAnswer is the answer for an object of a payload that isn't for this
// cluster. It may have several variants, all of which are left out.
func leftOutAnswer(e *evidence) answer {
	const most = 3
	var whys []string
	for _, f := range e.leftOut[:min(len(e.leftOut), most)] {
		whys = append(whys, fmt.Sprintf("ClusterRelease/%s %s leaves it out: %s: %s (%s)", f.Release, f.Version, f.Reason, f.Detail, f.Place))
	}
	if more := len(e.leftOut) - most; more > 0 {
		whys = append(whys, fmt.Sprintf("and %d more", more))
	}
	state := "isn't in the cluster: "
	if e.live != nil {
		state = "not ours: "
	}
	return answer{
		sanitize.Line(state + strings.Join(whys, "; ")),
		"spec.profile, featureSet, featureGates and capabilities of the ClusterRelease decide; until then Lockstep neither makes nor changes it",
	}
}

// unapplied is the answer for an object that the set hasn't applied yet.
func (v *explainView) unapplied(e *evidence, r *v1alpha1.ClusterRelease) answer {
	if len(e.held) == 0 {
		return answer{
			"carries the manager of ClusterRelease/" + r.Name + ", whose inventory lacks it",
			"the inventory is written within seconds; if it stays so, the release doesn't declare the object any more and it was kept",
		}
	}
	text := fmt.Sprintf("waits for its turn in ClusterRelease/%s: run level %d", r.Name, e.held[0].RunLevel)
	if p := r.Status.Progress; p != nil {
		text += fmt.Sprintf(", the release is at %d (%s)", p.RunLevel, p.Summary)
	}
	return answer{text, "what blocks the release stands in lockstep explain clusterrelease/" + r.Name}
}

// judged is the answer for an object that was applied, by comparing it with
// what the apply left.
func (v *explainView) judged(e *evidence, r *v1alpha1.ClusterRelease) answer {
	held := &e.held[0]
	repaired := "it's put back by itself, at once or, where others contend for it, later each time"
	if hold := heldBy(r); hold != "" {
		repaired = "it's put back when ClusterRelease/" + r.Name + " goes on: " + hold
	}
	var m metav1.Object
	if e.meta != nil {
		m = e.meta
	}
	switch held.Compare(m) {
	case apply.InSync:
		return answer{"as " + releaseWords(r) + " wants it" + ailing(e.live), ""}
	case apply.Done:
		return answer{"a Job that finished, and was removed after that", ""}
	case apply.Missing:
		if e.live == nil {
			return answer{"gone: " + releaseWords(r) + " declares it, and somebody deleted it", repaired}
		}
		return answer{"another object of this name than the one that the release applied", repaired}
	case apply.Drifted:
		return answer{"drifted: others changed or took fields that " + releaseWords(r) + " sets" + lastWriter(e, held.Manager()), repaired}
	default:
		return answer{"as " + releaseWords(r) + " left it, as far as its own fields tell; others wrote the object since" + lastWriter(e, held.Manager()), ""}
	}
}

// releaseWords names the release as it runs.
func releaseWords(r *v1alpha1.ClusterRelease) string {
	if a := r.Status.Accepted; a != nil {
		return "ClusterRelease/" + r.Name + " " + a.Version
	}
	return "ClusterRelease/" + r.Name
}

// heldBy says which brake or wait holds the release; "" for none.
func heldBy(r *v1alpha1.ClusterRelease) string {
	if why, ok := r.Annotations[v1alpha1.AnnotationPaused]; ok {
		return "paused: " + sanitize.Line(why)
	}
	if r.Spec.Suspend {
		return "spec.suspend is set"
	}
	return ""
}

// lastWriter names who wrote the object last besides us.
func lastWriter(e *evidence, manager string) string {
	var last *metav1.ManagedFieldsEntry
	for i := range e.meta.ManagedFields {
		m := &e.meta.ManagedFields[i]
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
		return "until the override is taken out of Git"
	}
	return "until " + o.Expires.UTC().Format(time.RFC3339)
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// retry says when a blocking object is tried again, and when it's given up.
func (v *explainView) retry(b *v1alpha1.Blocking) string {
	var parts []string
	if b.Since != nil {
		parts = append(parts, "for "+age(v.now, b.Since.Time)+" now")
	}
	if b.RetryAt != nil {
		parts = append(parts, "tried again in "+span(b.RetryAt.Sub(v.now)))
	}
	if b.Deadline != nil {
		parts = append(parts, "gives up in "+span(b.Deadline.Sub(v.now)))
	}
	if !b.Retriable {
		parts = append(parts, "it won't pass by itself")
	}
	return strings.Join(parts, "; ")
}

// chain writes the links from the commit to the release.
func (v *explainView) chain(e *evidence, r *v1alpha1.ClusterRelease) {
	v.commit(e, r)
	v.line("declared", "ClusterRelease/%s wants %s %s%s", r.Name, r.Spec.Desired.Version, r.Spec.Desired.Image, r.Spec.Desired.Path)
	v.line("release", "%s", releaseStanding(&r.Status))
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleaseAccepted); c != nil && c.Status == metav1.ConditionFalse {
		goesOn := "nothing runs yet"
		if r.Status.Accepted != nil {
			goesOn = r.Status.Accepted.Version + " goes on"
		}
		v.line("refused", "%s isn't accepted, %s: %s: %s", r.Spec.Desired.Version, goesOn, c.Reason, c.Message)
	}
	if hold := heldBy(r); hold != "" {
		v.line("held", "%s", hold)
	}
}

// releaseStanding says in a line what of the release is accepted and level.
func releaseStanding(s *v1alpha1.ClusterReleaseStatus) string {
	if s.Accepted == nil {
		return "nothing accepted yet"
	}
	text := s.Accepted.Version + " accepted"
	level := s.Applied != nil && s.Applied.Version == s.Accepted.Version
	if level {
		text += " and level"
	}
	if len(s.Accepted.Evidence) > 0 {
		text += ", signed by " + strings.Join(s.Accepted.Evidence, ", ")
	}
	if s.Applied != nil && !level {
		text += "; " + s.Applied.Version + " was level"
	}
	if s.Progress != nil {
		text += "; " + s.Progress.State + " " + s.Progress.Summary
	}
	return text
}

// commit writes where the object comes from: the source that declares it, and
// what was accepted of it.
func (v *explainView) commit(e *evidence, obj client.Object) {
	name := obj.GetAnnotations()[v1alpha1.AnnotationSource]
	i := slices.IndexFunc(e.world.sources, func(s v1alpha1.GitSource) bool { return s.Name == name })
	if i < 0 {
		v.line("commit", "no GitSource of this cluster declares %s", objectArg(obj))
		return
	}
	s := &e.world.sources[i]
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
		v.line("newest", "%s isn't accepted; lockstep explain gitsource/%s says why", shortRevision(at.Revision), s.Name)
	}
}

// manifest writes what the inventory knows.
func (v *explainView) manifest(e *evidence) {
	for i := range e.held {
		h := &e.held[i]
		made := "found, not made, by the release: it's never pruned"
		switch {
		case !h.Applied:
			made = "not applied yet"
		case h.Created:
			made = "made by the release: pruned when it leaves"
		}
		v.line("manifest", "in the inventory of %s, run level %d; %s", h.Owner, h.RunLevel, made)
		for _, y := range h.Yields {
			v.line("yielded", "%s is left to %s", y.Pointer, y.Manager)
		}
	}
}

// live writes how the object stands.
func (v *explainView) live(e *evidence) {
	if e.live == nil {
		v.line("live", "not there")
		return
	}
	parts := []string{fmt.Sprintf("since %s", e.live.GetCreationTimestamp().UTC().Format(time.RFC3339))}
	if g := e.live.GetGeneration(); g > 0 {
		parts = append(parts, fmt.Sprintf("generation %d", g))
	}
	parts = append(parts, liveConditions(e.live)...)
	v.line("live", "%s", strings.Join(parts, ", "))
	var managers []string
	for i := range e.meta.ManagedFields {
		name := sanitize.Line(e.meta.ManagedFields[i].Manager)
		if s := e.meta.ManagedFields[i].Subresource; s != "" {
			name += " (" + s + ")"
		}
		if !slices.Contains(managers, name) && len(managers) < 12 {
			managers = append(managers, name)
		}
	}
	if len(managers) > 0 {
		v.line("written", "by %s", strings.Join(managers, ", "))
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

// ailing says what an object complains of itself: level isn't healthy.
func ailing(u *unstructured.Unstructured) string {
	if u == nil {
		return ""
	}
	for _, c := range liveConditions(u) {
		switch c {
		case "Available=False", "Ready=False", "Established=False", "Failed=True", "Stalled=True":
			return ", but it says " + c + " itself: kubectl describe it"
		}
	}
	return ""
}

// differs says that a declared object isn't what Git says; "" if it is, or if
// that can't be told.
func differs(e *evidence, obj client.Object) string {
	if e.declared == "" {
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
	if hash, err := desired.SpecHash(spec); err != nil || hash == e.declared {
		return ""
	}
	return "its spec isn't what GitSource/" + e.source + " declares: it's put back, and not acted on until then"
}

// readyOf returns the answer of an object's Ready condition.
func readyOf(conditions []metav1.Condition) string {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case c == nil:
		return "nobody has looked at it yet: does lockstep-reconciler run?"
	case c.Status == metav1.ConditionTrue:
		return "ready: " + c.Message
	default:
		return "not ready, " + c.Reason + ": " + c.Message
	}
}
