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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// statusView renders objects as text. It is pure: the time is a field, and it
// reads nothing.
type statusView struct {
	now    time.Time
	wide   bool
	colour bool
}

// world renders all objects: sources, releases, pools.
func (v *statusView) all(w *objects) string {
	var b strings.Builder
	if len(w.sources)+len(w.releases)+len(w.pools) == 0 {
		return "no objects declared: create a GitSource in namespace " + v1alpha1.Namespace + "; see examples/\n"
	}
	for i := range w.sources {
		v.source(&b, &w.sources[i])
	}
	for i := range w.trust {
		v.trustPolicy(&b, &w.trust[i])
	}
	if b.Len() > 0 && len(w.releases)+len(w.pools) > 0 {
		b.WriteByte('\n')
	}
	for i := range w.releases {
		v.release(&b, &w.releases[i])
	}
	for i := range w.pools {
		v.pool(&b, &w.pools[i])
	}
	for i := range w.hosts {
		if _, held := w.hosts[i].Annotations[v1alpha1.AnnotationHold]; held {
			fmt.Fprintf(&b, "%s\n", v.bold("Host/"+w.hosts[i].Name))
			v.pauses(&b, &w.hosts[i])
		}
	}
	for i := range w.sources {
		if c := w.sources[i].Status.StatusCommit; c != nil {
			fmt.Fprintf(&b, "status branch  %s, %s ago\n", shortRevision(c.Revision), age(v.now, c.Time.Time))
		}
	}
	return b.String()
}

// object renders one object in detail.
func (v *statusView) object(obj client.Object) string {
	var b strings.Builder
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		v.source(&b, o)
		v.conditions(&b, o.Status.Conditions)
	case *v1alpha1.ClusterRelease:
		v.release(&b, o)
		v.conditions(&b, o.Status.Conditions)
		v.history(&b, o.Status.History)
	case *v1alpha1.NodeOS:
		v.pool(&b, o)
		v.conditions(&b, o.Status.Conditions)
	case *v1alpha1.Host:
		v.host(&b, o)
		v.conditions(&b, o.Status.Conditions)
	case *v1alpha1.TrustPolicy:
		v.trustPolicy(&b, o)
		v.conditions(&b, o.Status.Conditions)
	}
	return b.String()
}

// lines renders one line per object without ages, so that a line changes only
// with the object.
func (v *statusView) lines(w *objects) string {
	var b strings.Builder
	for _, obj := range w.list() {
		ready := meta.FindStatusCondition(conditionsOf(obj), v1alpha1.ConditionReady)
		state, message := "Unknown", ""
		if ready != nil {
			state, message = string(ready.Status)+" "+ready.Reason, sanitize.Line(ready.Message)
		}
		extra := ""
		switch o := obj.(type) {
		case *v1alpha1.ClusterRelease:
			if p := o.Status.Progress; p != nil {
				extra = fmt.Sprintf("%s %s ", p.State, p.Summary)
			}
		case *v1alpha1.NodeOS:
			extra = fmt.Sprintf("%d of %d hosts ", o.Status.Counts.Updated, o.Status.Counts.Total)
		case *v1alpha1.Host:
			if r := o.Status.Rollout; r != nil {
				extra = r.State + " "
			}
		}
		fmt.Fprintf(&b, "%s  Ready=%s  %s%s\n", objectArg(obj), state, extra, message)
	}
	return b.String()
}

func (v *statusView) source(b *strings.Builder, s *v1alpha1.GitSource) {
	fmt.Fprintf(b, "%s   ", v.bold(s.Spec.Cluster))
	r := s.Status.AcceptedRevision
	if r == nil {
		b.WriteString("no revision accepted yet")
	} else {
		fmt.Fprintf(b, "%s", shortRevision(r.Revision))
		if r.Subject != "" {
			fmt.Fprintf(b, "  %q", sanitize.Line(r.Subject))
		}
		fmt.Fprintf(b, " (accepted %s ago", age(v.now, r.Time.Time))
		if r.Signer != "" {
			fmt.Fprintf(b, ", signed by %s", sanitize.Line(r.Signer))
		}
		b.WriteByte(')')
	}
	b.WriteByte('\n')
	if at := s.Status.AttemptedRevision; at != nil && (r == nil || at.Revision != r.Revision) {
		fmt.Fprintf(b, "  newest    %s is not accepted\n", shortRevision(at.Revision))
	}
	v.pauses(b, s)
	v.problem(b, s, s.Status.Conditions)
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionInsecure); c != nil && c.Status == metav1.ConditionTrue {
		fmt.Fprintf(b, "  insecure  %s\n", sanitize.Line(c.Message))
	}
	for _, name := range s.Status.Orphaned {
		fmt.Fprintf(b, "  orphaned  %s was removed from Git and kept; to delete it: %s\n", sanitize.Line(name), deleteCommand(name))
	}
}

// deleteCommand deletes the object with a name such as ClusterRelease/site.
func deleteCommand(object string) string {
	kind, name, _ := strings.Cut(sanitize.Line(object), "/")
	return fmt.Sprintf("kubectl delete %s %s -n %s", strings.ToLower(kind), name, v1alpha1.Namespace)
}

func (v *statusView) trustPolicy(b *strings.Builder, t *v1alpha1.TrustPolicy) {
	if t.Status.AcceptedVersion == 0 {
		fmt.Fprintf(b, "trust  no document accepted\n")
	} else {
		fmt.Fprintf(b, "trust  version %d", t.Status.AcceptedVersion)
		if e := t.Status.Expires; e != nil {
			fmt.Fprintf(b, ", expires %s", e.UTC().Format(time.DateOnly))
		}
		b.WriteByte('\n')
	}
	v.problem(b, t, t.Status.Conditions)
}

func (v *statusView) release(b *strings.Builder, r *v1alpha1.ClusterRelease) {
	from, to := "", r.Spec.Desired.Version
	if a := r.Status.Applied; a != nil {
		from = a.Version
	}
	fmt.Fprintf(b, "%s   %s", v.bold("ClusterRelease/"+r.Name), arrow(from, to))
	if p := r.Status.Progress; p != nil {
		fmt.Fprintf(b, "   %s %s %d/%d", p.State, bar(int(p.Done), int(p.Total)), p.Done, p.Total)
		if p.State == "Updating" && p.RunLevel > 0 {
			fmt.Fprintf(b, "   run level %d", p.RunLevel)
		}
		if p.LastProgress != nil {
			fmt.Fprintf(b, "   %s", age(v.now, p.LastProgress.Time))
		}
	}
	b.WriteByte('\n')
	accepted := r.Status.Accepted
	if accepted != nil && accepted.Version == to && len(accepted.Evidence) > 0 {
		fmt.Fprintf(b, "  signed by %s\n", sanitize.Line(strings.Join(accepted.Evidence, ", ")))
	}
	v.pauses(b, r)
	if refused := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleaseAccepted); refused != nil && refused.Status == metav1.ConditionFalse {
		fmt.Fprintf(b, "  %s  %s; %s\n  %s: %s\n", v.red("rejected"), to, running(accepted), refused.Reason, sanitize.Clip(refused.Message, 1024))
	} else {
		v.problem(b, r, r.Status.Conditions)
	}
	if p := r.Status.Progress; p != nil {
		for _, x := range p.Blocking {
			fmt.Fprintf(b, "  blocking  %-32s %s", sanitize.Line(x.Object), sanitize.Line(x.Message))
			if x.Since != nil {
				fmt.Fprintf(b, " for %s", age(v.now, x.Since.Time))
			}
			if x.Deadline != nil {
				fmt.Fprintf(b, "; times out in %s", span(x.Deadline.Sub(v.now)))
			}
			b.WriteByte('\n')
		}
	}
	if text := stayingCapabilities(r); text != "" {
		fmt.Fprintf(b, "  implicit  %s\n", text)
	}
	for _, w := range r.Status.Warnings {
		fmt.Fprintf(b, "  warning   %s\n", sanitize.Line(w))
	}
	for _, o := range r.Spec.Overrides {
		if !o.Unmanaged {
			continue
		}
		state := "is unmanaged"
		switch {
		case o.Expires != nil && !v.now.Before(o.Expires.Time):
			state = "was unmanaged until " + o.Expires.UTC().Format(time.DateOnly) + "; remove the override"
		case o.Expires != nil:
			state = "is unmanaged until " + o.Expires.UTC().Format(time.DateOnly)
		}
		id := payload.ObjectID{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
		fmt.Fprintf(b, "  override  %s %s: %s\n", sanitize.Line(id.String()), state, sanitize.Line(o.Reason))
	}
}

// stayingCapabilities returns the capabilities that are enabled although the
// spec doesn't request them; "" for none.
func stayingCapabilities(r *v1alpha1.ClusterRelease) string {
	c := r.Status.Capabilities
	if c == nil || len(c.Implicit) == 0 {
		return ""
	}
	const most = 8
	names := sanitize.Line(strings.Join(c.Implicit[:min(len(c.Implicit), most)], ", "))
	if more := len(c.Implicit) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if len(c.Implicit) == 1 {
		return "capability " + names + " stays enabled: it can't be taken from a running cluster"
	}
	return "capabilities " + names + " stay enabled: they can't be taken from a running cluster"
}

func (v *statusView) pool(b *strings.Builder, n *v1alpha1.NodeOS) {
	from := ""
	if c := n.Status.Committed; c != nil {
		from = c.Version
	}
	c := n.Status.Counts
	fmt.Fprintf(b, "%s   %s   %d of %d hosts", v.bold("NodeOS/"+n.Name), arrow(from, n.Spec.OS.Version), c.Updated, c.Total)
	for _, part := range []struct {
		n    int32
		word string
	}{{c.Staged, "staged"}, {c.InFlight, "in flight"}, {c.Failed, "failed"}, {c.Quarantined, "quarantined"}, {c.Held, "held"}} {
		if part.n > 0 {
			fmt.Fprintf(b, "   %s %d", part.word, part.n)
		}
	}
	if e := n.Status.EstimatedEnd; e != nil {
		fmt.Fprintf(b, "   ends ≈ %s", e.UTC().Format("15:04 MST"))
	}
	b.WriteByte('\n')
	v.pauses(b, n)
	for _, f := range n.Status.InFlight {
		since := ""
		if f.Since != nil {
			since = age(v.now, f.Since.Time)
		}
		line := fmt.Sprintf("  %-16s %-11s %-6s %s", sanitize.Line(f.Host), f.State, since, sanitize.Clip(f.Blocking, 512))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for _, d := range n.Status.Denied {
		fmt.Fprintf(b, "  denied    %s on %s (%s): %s\n", shortDigest(d.Digest), sanitize.Line(strings.Join(d.Hosts, ", ")), d.Scope, sanitize.Line(d.Reason))
	}
	if halted := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionHalted); halted != nil && halted.Status == metav1.ConditionTrue {
		fmt.Fprintf(b, "  %s    %s\n", v.red("halted"), sanitize.Clip(halted.Message, 1024))
	} else {
		v.problem(b, n, n.Status.Conditions)
	}
}

func (v *statusView) host(b *strings.Builder, h *v1alpha1.Host) {
	fmt.Fprintf(b, "%s", v.bold("Host/"+h.Name))
	if o := h.Status.OS; o != nil && o.Booted != nil {
		fmt.Fprintf(b, "   OS %s (slot %s, %s)", sanitize.Line(o.Booted.Version), sanitize.Line(o.Booted.Slot), shortDigest(o.Booted.Digest))
	}
	if a := h.Status.Agent; a != nil {
		word := "not connected"
		if a.Connected {
			word = "connected"
		}
		fmt.Fprintf(b, "   agent %s %s", sanitize.Line(a.Version), word)
	}
	b.WriteByte('\n')
	v.pauses(b, h)
	if r := h.Status.Rollout; r != nil {
		fmt.Fprintf(b, "  rollout   %s", r.State)
		if r.Deadline != nil {
			fmt.Fprintf(b, "; deadline in %s", span(r.Deadline.Sub(v.now)))
		}
		b.WriteByte('\n')
	}
	if o := h.Status.Operation; o != nil {
		fmt.Fprintf(b, "  operation %s %s: %s %s\n", sanitize.Line(o.Sequence), sanitize.Line(o.ID), sanitize.Line(o.Phase), sanitize.Line(o.Task))
	}
	if o := h.Status.LastResult; o != nil {
		fmt.Fprintf(b, "  last      %s %s: %s\n", sanitize.Line(o.Sequence), sanitize.Line(o.State), sanitize.Clip(o.Message, 512))
	}
	if o := h.Status.OS; o != nil && o.Staged != nil {
		fmt.Fprintf(b, "  staged    %s (%s)\n", sanitize.Line(o.Staged.Version), shortDigest(o.Staged.Digest))
	}
	if o := h.Status.OS; o != nil && o.Previous != nil {
		fmt.Fprintf(b, "  previous  %s (%s)\n", sanitize.Line(o.Previous.Version), shortDigest(o.Previous.Digest))
	}
}

// pauses shows pauses and holds.
func (v *statusView) pauses(b *strings.Builder, obj client.Object) {
	if why, ok := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; ok {
		fmt.Fprintf(b, "  %s    %s; lockstep resume %s\n", v.red("paused"), sanitize.Line(why), objectArg(obj))
	}
	if why, ok := obj.GetAnnotations()[v1alpha1.AnnotationHold]; ok {
		fmt.Fprintf(b, "  %s      %s; lockstep resume %s\n", v.red("held"), sanitize.Line(why), objectArg(obj))
	}
}

// problem shows why the object isn't ready. A pause isn't a failure, and the
// object's own pause is shown by pauses.
func (v *statusView) problem(b *strings.Builder, obj client.Object, conditions []metav1.Condition) {
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		switch c.Reason {
		case status.ReasonPaused:
			if _, own := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; !own {
				fmt.Fprintf(b, "  %s    %s\n", v.red("paused"), sanitize.Clip(c.Message, 1024))
			}
			return
		case status.ReasonSuspended:
			fmt.Fprintf(b, "  %s %s\n", v.red("suspended"), sanitize.Clip(c.Message, 1024))
			return
		case status.ReasonUpdating:
			return // the first line has it
		}
	}
	for _, name := range []string{v1alpha1.ConditionStalled, v1alpha1.ConditionFailing} {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			fmt.Fprintf(b, "  %s   %s: %s\n", v.red("failing"), c.Reason, sanitize.Clip(c.Message, 1024))
			return
		}
	}
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		fmt.Fprintf(b, "  not ready %s: %s\n", c.Reason, sanitize.Clip(c.Message, 1024))
	}
}

func (v *statusView) conditions(b *strings.Builder, conditions []metav1.Condition) {
	sorted := slices.Clone(conditions)
	slices.SortFunc(sorted, func(x, y metav1.Condition) int { return strings.Compare(x.Type, y.Type) })
	for _, c := range sorted {
		fmt.Fprintf(b, "  %-16s %-7s %-24s %6s  %s\n", c.Type, c.Status, c.Reason, age(v.now, c.LastTransitionTime.Time), sanitize.Clip(c.Message, 1024))
	}
}

func (v *statusView) history(b *strings.Builder, history []v1alpha1.ReleaseHistory) {
	for i, h := range history {
		if i == 5 && !v.wide {
			fmt.Fprintf(b, "  history   %d older, see -o wide\n", len(history)-i)
			return
		}
		fmt.Fprintf(b, "  history   %s %-9s started %s  %s\n", h.StartedTime.UTC().Format(time.DateTime), h.State, sanitize.Line(h.Version), shortRevision(h.Revision))
		for _, why := range []struct{ name, text string }{{"rollback", h.RollbackReason}, {"accepted risks", h.AcceptedRisks}} {
			if why.text != "" {
				fmt.Fprintf(b, "            %s: %s\n", why.name, sanitize.Line(why.text))
			}
		}
	}
}

func (v *statusView) bold(s string) string { return v.paint("1", s) }
func (v *statusView) red(s string) string  { return v.paint("31", s) }

func (v *statusView) paint(code, s string) string {
	if !v.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// conditionsOf returns the conditions of an object.
func conditionsOf(obj client.Object) []metav1.Condition {
	if o, ok := obj.(interface{ GetConditions() []metav1.Condition }); ok {
		return o.GetConditions()
	}
	return nil
}

// running describes the release that continues to run after a rejected one.
func running(accepted *v1alpha1.ReleaseRef) string {
	if accepted == nil {
		return "no release is running"
	}
	return "still running " + accepted.Version
}

// arrow shows a change of version, or the version alone.
func arrow(from, to string) string {
	if from == "" || from == to {
		return to
	}
	return from + " → " + to
}

// bar draws ten cells of progress.
func bar(done, total int) string {
	const cells = 10
	full := 0
	if total > 0 {
		full = min(done, total) * cells / total
	}
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// age is the time since then in short form; "?" for a zero time.
func age(now, then time.Time) string {
	if then.IsZero() {
		return "?"
	}
	return span(now.Sub(then))
}

// span writes a duration with at most two units; negative ones are 0s.
func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// shortRevision cuts the hash of main@sha1:<hex> to seven digits.
func shortRevision(r string) string {
	head, hash, ok := strings.Cut(r, "@sha1:")
	if !ok || len(hash) < 7 {
		return sanitize.Line(r)
	}
	return sanitize.Line(head) + "@sha1:" + sanitize.Line(hash[:7])
}

// shortDigest cuts sha256:<hex> to twelve digits.
func shortDigest(d string) string {
	hex, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(hex) < 12 {
		return sanitize.Line(d)
	}
	return "sha256:" + sanitize.Line(hex[:12]) + "…"
}
