// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// Reasons that this package gives by itself; all others come from the errors.
const (
	ReasonAsExpected    = "AsExpected"
	ReasonApplied       = "Applied"
	ReasonUpdating      = "Updating"
	ReasonPending       = "Pending"
	ReasonPaused        = "Paused"
	ReasonSuspended     = "Suspended"
	ReasonNotFromSource = "NotFromSource"
	ReasonNoRelease     = "NoRelease"
	ReasonOverrides     = "ClusterReleaseOverrides"
	ReasonMultiple      = "MultipleReasons"
	ReasonAccepted      = "PayloadLoaded"
	ReasonVerified      = "Verified"
	ReasonYielded       = "FieldYielded"
	ReasonDependency    = "DependencyNotReady"
)

// ReleaseFacts is everything that a ClusterRelease's status is made from.
type ReleaseFacts struct {
	// Spec is what the object says now, Generation its generation.
	Spec       v1alpha1.ClusterReleaseSpec
	Generation int64
	// Worker is the worker's own status; nil before there is a worker.
	Worker *worker.SyncWorkerStatus
	// Held is why nothing may act on the object now: a brake, or that the spec
	// isn't what the source said. Empty: nothing holds it.
	Held HeldBy
	// Waiting says for which other release this one waits, "" for none.
	Waiting string
	// Objections are what in the cluster speaks against an upgrade, besides
	// the overrides.
	Objections []Objection
	// Insecure are the development doors that are open.
	Insecure []string
	// Yielded are fields that were left to other controllers, one line each.
	Yielded []string
	// Now is the time of the observation.
	Now time.Time
}

// Objection is a part of the cluster that speaks against an upgrade.
type Objection struct {
	// Name is the object; Reason and Message are its own.
	Name, Reason, Message string
}

// HeldBy says what holds an object, and in which words.
type HeldBy struct {
	Reason  string
	Message string
	// Transient says that it ends without anybody's doing.
	Transient bool
}

// refusals are the reasons of failures that speak of trust; they show in
// ReleaseVerified as well.
var refusals = []string{
	"Unsigned", "WrongAuthority", "WrongDigest", "NameMismatch", "ThresholdNotMet", "Revoked", "Expired",
	"BelowFloor", "Rollback", "Stale", "PolicyMissing", "UnpinnedImage",
}

// Release returns the new status of a ClusterRelease.
func Release(prev v1alpha1.ClusterReleaseStatus, f ReleaseFacts) v1alpha1.ClusterReleaseStatus {
	next := *prev.DeepCopy()
	next.ObservedGeneration = f.Generation
	next.Desired = &v1alpha1.ReleaseRef{Version: f.Spec.Desired.Version, Image: f.Spec.Desired.Image, Path: f.Spec.Desired.Path}
	if f.Worker != nil {
		w := f.Worker
		// After a restart the worker knows nothing yet: what was observed
		// before stands until it does.
		if w.Actual.Version != "" {
			next.Accepted = releaseRef(w.Actual)
			next.VersionHash = w.VersionHash
			next.Capabilities = capabilities(w)
			next.Payload = payloadFacts(w)
		}
		if w.Applied.Version != "" && !(w.Applied.VersionHash == "" && sameRelease(next.Applied, w.Applied)) {
			next.Applied = releaseRef(w.Applied)
		}
		if w.Actual.Version != "" && (w.Actual.Checked || !sameRelease(prev.Accepted, w.Actual)) {
			next.Warnings = clipAll(w.Actual.Warnings, maxWarnings, maxWarning)
		}
		next.Progress = progress(prev.Progress, w)
		next.History = history(prev.History, w.History, f.Spec.Rollback)
	}
	next.Conditions = Fold(prev.Conditions, f.Generation, metav1.NewTime(f.Now), releaseConditions(&next, f))
	return next
}

// payloadFacts are nil where there is nothing to say of the payload.
func payloadFacts(w *worker.SyncWorkerStatus) *v1alpha1.PayloadStatus {
	if len(w.Warnings) == 0 && w.Excluded == 0 {
		return nil
	}
	return &v1alpha1.PayloadStatus{
		Warnings: int32(min(len(w.Warnings), 1<<30)),
		Excluded: int32(min(w.Excluded, 1<<30)), //nolint:gosec // bounded beside it
	}
}

// capabilities are nil where the release has none.
func capabilities(w *worker.SyncWorkerStatus) *v1alpha1.CapabilitiesStatus {
	if len(w.EnabledCapabilities) == 0 {
		return nil
	}
	return &v1alpha1.CapabilitiesStatus{
		Enabled:  clipAll(w.EnabledCapabilities, maxCapabilities, maxCapability),
		Implicit: clipAll(w.ImplicitCapabilities, maxCapabilities, maxCapability),
	}
}

// sameRelease reports whether ref is the release. A worker that only remembers
// what was applied before its process began doesn't know who signed it.
func sameRelease(ref *v1alpha1.ReleaseRef, r worker.Release) bool {
	return ref != nil && r.Identity.Equal(payload.Identity{Version: ref.Version, Image: ref.Image, Path: ref.Path})
}

func releaseRef(r worker.Release) *v1alpha1.ReleaseRef {
	return &v1alpha1.ReleaseRef{
		Version:  r.Version,
		Image:    r.Image,
		Path:     r.Path,
		Verified: r.Verified,
		Evidence: clipAll(r.Evidence, maxEvidence, maxLine),
	}
}

// progress shows the worker's position; fractions of a second are cut, since
// they would only make writes.
func progress(prev *v1alpha1.ReleaseProgress, w *worker.SyncWorkerStatus) *v1alpha1.ReleaseProgress {
	p := &v1alpha1.ReleaseProgress{
		State:    workerState(w),
		Step:     string(w.Step),
		Done:     int32(w.Done),                //nolint:gosec // a payload has at most 20,000 manifests
		Total:    int32(w.Total),               //nolint:gosec // see above
		Skipped:  int32(w.Skipped),             //nolint:gosec // see above
		Attempt:  int32(min(w.Attempt, 1<<30)), //nolint:gosec // bounded beside it
		RunLevel: int32(max(w.RunLevel, 0)),    //nolint:gosec // a run level has at most four digits
		Summary:  fmt.Sprintf("%d/%d", w.Done, w.Total),
	}
	if !w.LastProgress.IsZero() {
		p.LastProgress = stamp(w.LastProgress)
	}
	if w.Actual.Version == "" && prev != nil {
		// Nothing is accepted yet in this process: the last picture is better
		// than 0 of 0.
		kept := *prev.DeepCopy()
		kept.Step = string(w.Load.Step)
		return &kept
	}
	for i, b := range w.Blocking {
		if i == maxBlocking {
			break
		}
		p.Blocking = append(p.Blocking, v1alpha1.Blocking{
			Object:    sanitize.Clip(b.Object.String(), 512),
			Since:     stamp(b.Since),
			Reason:    sanitize.Clip(b.Reason, 64),
			Message:   sanitize.Clip(b.Message, maxMessage),
			Retriable: b.Retriable,
			RetryAt:   stamp(b.RetryAt),
			Deadline:  stamp(b.Deadline),
		})
	}
	return p
}

// workerState names the state as the release-side document does.
func workerState(w *worker.SyncWorkerStatus) string {
	switch {
	case w.Actual.Version == "":
		return "Initial"
	case w.Failure != nil && w.Failure.Effect != worker.EffectReport:
		return "Error"
	case w.Reconciling:
		return "Reconciling"
	default:
		return "Updating"
	}
}

// stamp cuts a time to seconds, as the API stores it; the zero time is nil.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	out := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &out
}

// releaseConditions decides the conditions from the new status.
func releaseConditions(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts) []Condition {
	if f.Waiting != "" && f.Held.Reason == "" {
		f.Held = HeldBy{Reason: ReasonDependency, Message: f.Waiting, Transient: true}
	}
	if f.Worker == nil {
		reason, message := ReasonPending, "waiting for the first look at the release"
		if f.Held.Reason != "" {
			reason, message = f.Held.Reason, f.Held.Message
		}
		return []Condition{
			{v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message},
			{v1alpha1.ConditionReconciling, Bool(f.Held.Reason == "" || f.Held.Transient), reason, message},
			{v1alpha1.ConditionStalled, Bool(f.Held.Reason != "" && !f.Held.Transient), reason, message},
		}
	}
	accepted, verified := acceptance(next, f)
	available := availability(next)
	failing := failure(f.Worker)
	progressing := progressing(next, f)
	out := []Condition{accepted, verified, available, failing, progressing, upgradeable(f), yielded(f), insecure(f.Insecure)}
	return append(out, summary(next, f, accepted, failing, progressing)...)
}

// acceptance says whether the desired release was verified and loaded.
func acceptance(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts) (accepted, verified Condition) {
	w := f.Worker
	accepted = Condition{v1alpha1.ConditionReleaseAccepted, metav1.ConditionUnknown, string(w.Load.Step), "looking at " + f.Spec.Desired.Version}
	verified = Condition{v1alpha1.ConditionReleaseVerified, metav1.ConditionUnknown, ReasonPending, accepted.Message}
	if accepted.Reason == "" {
		accepted.Reason = ReasonPending
	}
	switch {
	case w.Load.Failure != nil && w.Load.Desired.Version == f.Spec.Desired.Version:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, w.Load.Failure.Reason()
		accepted.Message = withRetry(w.Load.Failure, "it won't pass until the release, the trust policy or the cluster changes")
		verified = refusedYetVerified(verified, accepted, w.Load)
	case w.Actual.Identity.Equal(payload.Identity{Version: f.Spec.Desired.Version, Image: f.Spec.Desired.Image, Path: f.Spec.Desired.Path}) && selected(w):
		accepted.Status, accepted.Reason = metav1.ConditionTrue, ReasonAccepted
		accepted.Message = fmt.Sprintf("%s was verified and loaded", w.Actual.Version)
		// As the status has them: a process that goes on with a release doesn't
		// know them.
		if h := next.History; len(h) > 0 && sameEntry(&h[0], w.Actual) && h[0].AcceptedRisks != "" {
			accepted.Message += "; accepted risks: " + h[0].AcceptedRisks
		}
		if len(next.Warnings) > 0 {
			accepted.Message += "; warnings: " + strings.Join(next.Warnings, "; ")
		}
		verified.Status = Bool(w.Actual.Verified)
		verified.Reason, verified.Message = ReasonVerified, "signed by "+strings.Join(w.Actual.Evidence, ", ")
		if !w.Actual.Verified {
			verified.Reason, verified.Message = "Unsigned", "the process allows unsigned releases"
		}
	}
	return accepted, verified
}

// selected reports whether what is accepted has the manifests that are asked for
// now: the same release may be asked for with another profile or capability.
func selected(w *worker.SyncWorkerStatus) bool {
	return w.Desired.Empty() || w.Actual.Selection.Equal(w.Desired.Selection)
}

// refusedYetVerified says of a refused release whether its signatures were
// good. Preconditions and the trust policy share some names of reasons; by the
// time of the former the signatures have passed.
func refusedYetVerified(verified, accepted Condition, load worker.LoadStatus) Condition {
	late := load.Step == worker.StepPreconditionChecks || load.Step == worker.StepDryRun
	trust := slices.Contains(refusals, accepted.Reason) && !late
	switch {
	case trust:
		verified.Status, verified.Reason, verified.Message = metav1.ConditionFalse, accepted.Reason, accepted.Message
	case load.Verified:
		verified.Status, verified.Reason = metav1.ConditionTrue, ReasonVerified
		verified.Message = "signed by " + strings.Join(load.Evidence, ", ")
	}
	return verified
}

// withRetry ends an error's text with whether it may pass without anybody's
// doing; never says what it takes if it may not. There is no time in it: that
// of the next try would be a change of status at each try.
func withRetry(err *worker.UpdateError, never string) string {
	note := "; it is tried again by itself"
	if !err.Retriable() {
		note = "; " + never
	}
	return sanitize.Clip(oneLine(err.Error()), maxMessage-len(note)) + note
}

// availability says whether a release was ever level here.
func availability(next *v1alpha1.ClusterReleaseStatus) Condition {
	if next.Applied == nil {
		return Condition{v1alpha1.ConditionAvailable, metav1.ConditionFalse, ReasonPending, "no release was level yet"}
	}
	return Condition{v1alpha1.ConditionAvailable, metav1.ConditionTrue, ReasonApplied, next.Applied.Version + " was applied"}
}

// failure is about the accepted release, not about a refused target.
func failure(w *worker.SyncWorkerStatus) Condition {
	if w.Failure != nil && w.Failure.Effect != worker.EffectNone && w.Failure.Effect != worker.EffectReport {
		return Condition{
			v1alpha1.ConditionFailing, metav1.ConditionTrue, w.Failure.Reason(),
			withRetry(w.Failure, "it won't pass until the release or the cluster changes"),
		}
	}
	return Condition{v1alpha1.ConditionFailing, metav1.ConditionFalse, ReasonAsExpected, "nothing fails"}
}

// progressing says how far the way to the accepted release is.
func progressing(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts) Condition {
	w := f.Worker
	c := Condition{Type: v1alpha1.ConditionProgressing}
	switch {
	case f.Held.Reason != "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, f.Held.Reason, f.Held.Message
	case w.Actual.Version == "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonPending, "no release is accepted yet"
	case w.Reconciling:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonApplied, "the cluster is at "+w.Actual.Version
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonUpdating
		// No counts here: they would change the condition with each object;
		// they stand in progress.
		c.Message = fmt.Sprintf("working towards %s: run level %d", w.Actual.Version, max(w.RunLevel, 0))
		if b := next.Progress.Blocking; len(b) > 0 {
			c.Message += ", " + led(b[0].Object, b[0].Message)
		}
	}
	return c
}

// led puts a word before a message that doesn't begin with it: many errors name
// their reason or their object by themselves.
func led(word, message string) string {
	if strings.HasPrefix(message, word+": ") {
		return message
	}
	return word + ": " + message
}

// upgradeable says whether a new minor version would be held back, whichever
// it is.
func upgradeable(f ReleaseFacts) Condition {
	n := 0
	for _, o := range f.Spec.Overrides {
		if o.Unmanaged && (o.Expires == nil || f.Now.Before(o.Expires.Time)) {
			n++
		}
	}
	c := Condition{v1alpha1.ConditionUpgradeable, metav1.ConditionTrue, ReasonAsExpected, "nothing holds updates back"}
	var texts []string
	object := func(reason, text string) {
		if c.Status == metav1.ConditionFalse && c.Reason != reason {
			reason = ReasonMultiple
		}
		c.Status, c.Reason = metav1.ConditionFalse, reason
		texts = append(texts, text)
	}
	if n > 0 {
		object(ReasonOverrides, fmt.Sprintf("%d objects are unmanaged by overrides; a new minor version may not fit them", n))
	}
	for _, o := range f.Objections {
		object(o.Reason, led(o.Name, o.Message))
	}
	if len(texts) > 0 {
		c.Message = strings.Join(texts, "; ")
	}
	return c
}

func yielded(f ReleaseFacts) Condition {
	if len(f.Yielded) == 0 {
		return Condition{v1alpha1.ConditionFieldYielded, metav1.ConditionFalse, ReasonAsExpected, "no field is left to others"}
	}
	return Condition{v1alpha1.ConditionFieldYielded, metav1.ConditionTrue, ReasonYielded, strings.Join(f.Yielded, "; ")}
}

// summary is Ready, Reconciling and Stalled: the answer first, for kubectl
// wait and for the STATUS column.
func summary(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts, accepted, failing, progressing Condition) []Condition {
	w := f.Worker
	ready := Condition{v1alpha1.ConditionReady, metav1.ConditionFalse, progressing.Reason, progressing.Message}
	stalled := Condition{v1alpha1.ConditionStalled, metav1.ConditionFalse, ReasonAsExpected, "nothing stands in the way"}
	reconciling := Condition{v1alpha1.ConditionReconciling, metav1.ConditionTrue, progressing.Reason, progressing.Message}
	running := "nothing runs yet"
	if w.Actual.Version != "" {
		running = w.Actual.Version + " goes on"
	}
	switch {
	case f.Held.Reason != "":
		ready.Reason, ready.Message = f.Held.Reason, f.Held.Message
		// A wait for another release ends by itself; a brake doesn't.
		waits := f.Held.Transient
		stalled.Status, stalled.Reason, stalled.Message = Bool(!waits), f.Held.Reason, f.Held.Message
		reconciling.Status, reconciling.Reason, reconciling.Message = Bool(waits), f.Held.Reason, f.Held.Message
	case accepted.Status == metav1.ConditionFalse:
		text := fmt.Sprintf("%s refused, %s: %s", f.Spec.Desired.Version, running, led(accepted.Reason, accepted.Message))
		ready.Reason, ready.Message = accepted.Reason, text
		reconciling.Reason, reconciling.Message = accepted.Reason, text
		if !w.Load.Failure.Retriable() {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, accepted.Reason, text
			reconciling.Status = metav1.ConditionFalse
		}
	case accepted.Status == metav1.ConditionUnknown:
		ready.Reason = accepted.Reason
		ready.Message = fmt.Sprintf("%s; %s", accepted.Message, running)
		reconciling.Reason, reconciling.Message = ready.Reason, ready.Message
	case failing.Status == metav1.ConditionTrue:
		ready.Reason, ready.Message = failing.Reason, failing.Message
		reconciling.Reason, reconciling.Message = failing.Reason, failing.Message
		if !w.Failure.Retriable() {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, failing.Reason, failing.Message
		}
	case w.Reconciling && next.Applied != nil && next.Applied.Version == f.Spec.Desired.Version:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, ReasonApplied, w.Actual.Version+" is applied"
		reconciling.Status, reconciling.Reason, reconciling.Message = metav1.ConditionFalse, ReasonApplied, ready.Message
	}
	return []Condition{ready, reconciling, stalled}
}
