// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// Reasons of this package; all others come from errors.
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
	ReasonInventoryLost = "InventoryLost"
	ReasonDependency    = "DependencyNotReady"
	ReasonPruning       = "Pruning"
	ReasonPruneHeld     = "PruneHeld"
	ReasonInvalidSpec   = "InvalidSpec"
	// ReasonRemovedFromGit is that of an object whose declaration left Git.
	ReasonRemovedFromGit = "RemovedFromGit"
)

// ReleaseFacts is the input of Release.
type ReleaseFacts struct {
	// Spec is the live spec, Generation its generation.
	Spec       v1alpha1.ClusterReleaseSpec
	Generation int64
	// Worker is the status of the worker, nil without a worker.
	Worker *worker.SyncWorkerStatus
	// Held is why the release isn't reconciled: a pause, or a spec that differs
	// from the declared one. Zero if it is reconciled.
	Held HeldBy
	// Invalid is why the spec is invalid, "" for a valid one. Only the accepted release
	// is reconciled then.
	Invalid string
	// Waiting is the message on an incomplete dependency, "" for none.
	Waiting string
	// Objections are objects that block an upgrade, besides overrides.
	Objections []Objection
	// Insecure are the active insecure options.
	Insecure []string
	// Yielded are the fields yielded to other managers, one line each.
	Yielded []string
	// Lost are the first objects that can't be pruned because the inventory that
	// listed them was lost, LostTotal counts all.
	Lost      []string
	LostTotal int
	// Now is the time of the observation.
	Now time.Time
}

// Objection is an object of the cluster that blocks an upgrade.
type Objection struct {
	// Name is the object; Reason and Message are its own.
	Name, Reason, Message string
}

// HeldBy is why an object isn't reconciled.
type HeldBy struct {
	Reason  string
	Message string
	// Transient holds end automatically; all others need an operator.
	Transient bool
}

// trustReasons are the reasons of load failures that ReleaseVerified reports too.
var trustReasons = []string{
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
		// A new worker has no accepted release yet: the previous status stays.
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
	next.Conditions = Fold(prev.Conditions, f.Generation, metav1.NewTime(f.Now), releaseConditions(&next, f), gone(f)...)
	return next
}

// gone returns the conditions that exist only while they are true, and aren't.
func gone(f ReleaseFacts) []string {
	if f.LostTotal > 0 || f.Worker == nil {
		return nil
	}
	return []string{v1alpha1.ConditionInventoryIncomplete}
}

// payloadFacts returns nil for a payload without warnings and exclusions.
func payloadFacts(w *worker.SyncWorkerStatus) *v1alpha1.PayloadStatus {
	if len(w.Warnings) == 0 && w.Excluded == 0 {
		return nil
	}
	return &v1alpha1.PayloadStatus{
		Warnings: int32(min(len(w.Warnings), 1<<30)),
		Excluded: int32(min(w.Excluded, 1<<30)), //nolint:gosec // bounded beside it
	}
}

// capabilities returns nil for a release without capabilities.
func capabilities(w *worker.SyncWorkerStatus) *v1alpha1.CapabilitiesStatus {
	if len(w.EnabledCapabilities) == 0 {
		return nil
	}
	return &v1alpha1.CapabilitiesStatus{
		Enabled:  clipAll(w.EnabledCapabilities, maxCapabilities, maxCapability),
		Implicit: clipAll(w.ImplicitCapabilities, maxCapabilities, maxCapability),
	}
}

// sameRelease reports whether ref is the release.
func sameRelease(ref *v1alpha1.ReleaseRef, r worker.Release) bool {
	return ref != nil && r.Identity.Equal(payload.IdentityOf(ref))
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

// progress returns the worker's progress; times are cut to seconds.
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
		// After a restart the previous progress stays until a release is accepted.
		out := *prev.DeepCopy()
		out.Step = string(w.Step)
		if r := w.Restore; r.Failure != nil {
			out.State, out.Blocking = "Error", []v1alpha1.Blocking{{
				Object: sanitize.Clip("release "+r.Desired.Version, 512), Since: stamp(r.LastTransition),
				Reason: sanitize.Clip(r.Failure.Reason(), 64), Message: sanitize.Clip(oneLine(r.Failure.Error()), maxMessage),
				Retriable: r.Failure.Retriable(), RetryAt: stamp(r.RetryAt),
			}}
		}
		return &out
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

// workerState returns Initial, Error, Reconciling or Updating.
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

// stamp cuts a time to seconds, like the API; the zero time is nil.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	out := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &out
}

// releaseConditions returns the conditions for the new status.
func releaseConditions(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts) []Condition {
	if f.Waiting != "" && f.Held.Reason == "" {
		f.Held = HeldBy{Reason: ReasonDependency, Message: f.Waiting, Transient: true}
	}
	if f.Worker == nil {
		if f.Held.Reason == "" {
			f.Held = HeldBy{Reason: ReasonPending, Message: "waiting for the first reconciliation", Transient: true}
		}
		return held(f.Held, f.Held.Message)
	}
	accepted, verified := acceptance(next, f)
	failing := failure(f.Worker)
	progressing := progressing(next, f, accepted)
	out := []Condition{accepted, verified, availability(next), failing, invalid(f), insecure(f.Insecure)}
	if !unloaded(f.Worker) || meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionProgressing) == nil {
		// Until the accepted release is loaded again, nothing new is known of these.
		out = append(out, progressing, upgradeable(f), yielded(f))
	}
	if f.Worker.Pruning != nil {
		out = append(out, pruned(f.Worker.Pruning))
	}
	if f.LostTotal > 0 {
		out = append(out, inventoryLost(f))
	}
	return append(out, summary(next, f, accepted, failing, progressing)...)
}

// unloaded reports whether the accepted release of an earlier process isn't loaded
// yet.
func unloaded(w *worker.SyncWorkerStatus) bool {
	return w.Actual.Version == "" && !w.Restore.Desired.Empty()
}

// previous returns a condition of the previous status, if it is of the generation.
func previous(conditions []metav1.Condition, name string, generation int64) (Condition, bool) {
	c := meta.FindStatusCondition(conditions, name)
	if c == nil || c.ObservedGeneration != generation {
		return Condition{}, false
	}
	return Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message}, true
}

// acceptance returns ReleaseAccepted and ReleaseVerified for the desired release.
func acceptance(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts) (accepted, verified Condition) {
	w := f.Worker
	if c := invalid(f); c.Status == metav1.ConditionTrue && !w.Actual.Identity.Equal(payload.IdentityOf(f.Spec.Desired)) {
		return False(v1alpha1.ConditionReleaseAccepted, c.Reason, c.Message), Unknown(v1alpha1.ConditionReleaseVerified, c.Reason, c.Message)
	}
	if notRestored(f) {
		// The registry or the source is away: the verdict stays.
		var okAccepted, okVerified bool
		accepted, okAccepted = previous(next.Conditions, v1alpha1.ConditionReleaseAccepted, f.Generation)
		verified, okVerified = previous(next.Conditions, v1alpha1.ConditionReleaseVerified, f.Generation)
		if okAccepted && okVerified {
			return accepted, verified
		}
	}
	switch {
	case w.Load.Failure != nil && w.Load.Desired.Version == f.Spec.Desired.Version && !notRestored(f):
		accepted = False(v1alpha1.ConditionReleaseAccepted, w.Load.Failure.Reason(),
			withRetry(w.Load.Failure, "requires a change of the release, the trust policy or the cluster"))
		return accepted, rejectedVerified(accepted, w.Load, f.Spec.Desired.Version)
	case w.Actual.Identity.Equal(payload.IdentityOf(f.Spec.Desired)) && selected(w):
		message := w.Actual.Version + " is verified and loaded"
		// Risks and warnings come from the status: after a restart the worker
		// doesn't have them.
		if h := next.History; len(h) > 0 && sameEntry(&h[0], w.Actual) && h[0].AcceptedRisks != "" {
			message += "; accepted risks: " + h[0].AcceptedRisks
		}
		if len(next.Warnings) > 0 {
			message += "; warnings: " + strings.Join(next.Warnings, "; ")
		}
		verified = True(v1alpha1.ConditionReleaseVerified, ReasonVerified, "signed by "+strings.Join(w.Actual.Evidence, ", "))
		if !w.Actual.Verified {
			verified = False(v1alpha1.ConditionReleaseVerified, "Unsigned", "insecure options allow unsigned releases")
		}
		return True(v1alpha1.ConditionReleaseAccepted, ReasonAccepted, message), verified
	}
	reason := string(w.Load.Step)
	if reason == "" {
		reason = ReasonPending
	}
	message := loading(f.Spec.Desired.Version)
	return Unknown(v1alpha1.ConditionReleaseAccepted, reason, message), Unknown(v1alpha1.ConditionReleaseVerified, ReasonPending, message)
}

// notRestored reports that the desired release is the accepted one of an earlier
// process, and that a transient error prevents its load.
func notRestored(f ReleaseFacts) bool {
	r := f.Worker.Restore
	return r.Failure != nil && r.Failure.Retriable() && r.Desired.Identity.Equal(payload.IdentityOf(f.Spec.Desired))
}

func loading(version string) string { return "verifying and loading " + version }

// selected reports whether the accepted release has the desired selection of
// manifests, which can change without the release.
func selected(w *worker.SyncWorkerStatus) bool {
	return w.Desired.Empty() || w.Actual.Selection.Equal(w.Desired.Selection)
}

// rejectedVerified returns ReleaseVerified of a rejected release. Preconditions
// and the trust policy share some reasons; signatures are verified before
// preconditions are checked.
func rejectedVerified(accepted Condition, load worker.LoadStatus, version string) Condition {
	late := load.Step == worker.StepPreconditionChecks || load.Step == worker.StepDryRun
	switch {
	case slices.Contains(trustReasons, accepted.Reason) && !late:
		return False(v1alpha1.ConditionReleaseVerified, accepted.Reason, accepted.Message)
	case load.Verified:
		return True(v1alpha1.ConditionReleaseVerified, ReasonVerified, "signed by "+strings.Join(load.Evidence, ", "))
	}
	return Unknown(v1alpha1.ConditionReleaseVerified, ReasonPending, loading(version))
}

// invalid returns Invalid: whether the spec prevents actions on it.
func invalid(f ReleaseFacts) Condition {
	const fix = "; correct it in Git"
	message := f.Invalid
	if l := f.Worker.Load; message == "" && l.Failure != nil && l.Failure.Reason() == ReasonInvalidSpec && l.Desired.Identity.Equal(payload.IdentityOf(f.Spec.Desired)) {
		message = l.Failure.Error()
	}
	if message == "" {
		return False(v1alpha1.ConditionInvalid, ReasonAsExpected, "the spec is valid")
	}
	return True(v1alpha1.ConditionInvalid, ReasonInvalidSpec, sanitize.Clip(oneLine(message), maxMessage-len(fix))+fix)
}

// withRetry returns the message of an error and whether it is retried;
// permanent is the note on an error that isn't transient. The time of the next
// attempt isn't part of it, so that attempts don't change the status.
func withRetry(err *worker.UpdateError, permanent string) string {
	note := "; retried automatically"
	if !err.Retriable() {
		note = "; " + permanent
	}
	return sanitize.Clip(oneLine(err.Error()), maxMessage-len(note)) + note
}

// availability returns Available: whether any release has completed.
func availability(next *v1alpha1.ClusterReleaseStatus) Condition {
	if next.Applied == nil {
		return False(v1alpha1.ConditionAvailable, ReasonPending, "no release has completed yet")
	}
	return True(v1alpha1.ConditionAvailable, ReasonApplied, next.Applied.Version+" has completed")
}

// failure returns Failing, which is about the accepted release, not about a
// rejected one.
func failure(w *worker.SyncWorkerStatus) Condition {
	if r := w.Restore; r.Failure != nil {
		return True(v1alpha1.ConditionFailing, r.Failure.Reason(), fmt.Sprintf("%s not loaded after the restart, its drift isn't repaired: %s",
			r.Desired.Version, withRetry(r.Failure, "requires a change of the release, the trust policy or the cluster")))
	}
	if w.Failure != nil && w.Failure.Effect != worker.EffectNone && w.Failure.Effect != worker.EffectReport {
		return True(v1alpha1.ConditionFailing, w.Failure.Reason(), withRetry(w.Failure, "requires a change of the release or the cluster"))
	}
	return False(v1alpha1.ConditionFailing, ReasonAsExpected, "no failures")
}

// progressing returns Progressing: which release is being applied, with a summary of
// what Failing and ReleaseAccepted report in full.
func progressing(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts, accepted Condition) Condition {
	w := f.Worker
	out := True(v1alpha1.ConditionProgressing, ReasonUpdating, "")
	failing := w.Failure != nil && w.Failure.Effect != worker.EffectNone && w.Failure.Effect != worker.EffectReport
	switch {
	case f.Held.Reason != "":
		return False(v1alpha1.ConditionProgressing, f.Held.Reason, f.Held.Message)
	case w.Actual.Version == "" && !w.Restore.Desired.Empty():
		out.Reason, out.Message = ReasonPending, "loading "+w.Restore.Desired.Version+" again after the restart"
	case w.Actual.Version == "":
		out.Reason, out.Message = ReasonPending, "no release accepted yet"
	case w.Reconciling && failing:
		out = False(v1alpha1.ConditionProgressing, w.Failure.Reason(), fmt.Sprintf("error while reconciling %s: %s", w.Actual.Version, errorSummary(w.Failure)))
	case w.Reconciling:
		out = False(v1alpha1.ConditionProgressing, ReasonApplied, w.Actual.Version+" is complete")
	case failing:
		out.Reason, out.Message = w.Failure.Reason(), fmt.Sprintf("unable to apply %s: %s", w.Actual.Version, errorSummary(w.Failure))
	default:
		// No counts here: each object would change the condition. status.progress
		// has them.
		out.Message = fmt.Sprintf("updating to %s, run level %d", w.Actual.Version, max(w.RunLevel, 0))
		if b := next.Progress.Blocking; len(b) > 0 {
			out.Message += ": " + led(b[0].Object, b[0].Message)
		}
	}
	if accepted.Status == metav1.ConditionFalse {
		out.Message += fmt.Sprintf("; rejected %s: %s", f.Spec.Desired.Version, accepted.Reason)
	}
	return out
}

// maxErrorSummary limits the error in a condition that isn't about it.
const maxErrorSummary = 120

// errorSummary returns the reason of an error and the start of its message.
func errorSummary(err *worker.UpdateError) string {
	return led(err.Reason(), sanitize.Clip(oneLine(err.Error()), maxErrorSummary))
}

// led returns "word: message", or message if it has that prefix already.
func led(word, message string) string {
	if strings.HasPrefix(message, word+": ") {
		return message
	}
	return word + ": " + message
}

// upgradeable returns Upgradeable: whether an update to any new minor version
// is allowed.
func upgradeable(f ReleaseFacts) Condition {
	n := 0
	for _, o := range f.Spec.Overrides {
		if o.Unmanaged && (o.Expires == nil || f.Now.Before(o.Expires.Time)) {
			n++
		}
	}
	objections := f.Objections
	if n > 0 {
		objections = slices.Insert(slices.Clone(objections), 0, Objection{
			Reason: ReasonOverrides, Message: fmt.Sprintf("objects unmanaged by overrides: %d; a new minor version may be incompatible with them", n),
		})
	}
	if len(objections) == 0 {
		return True(v1alpha1.ConditionUpgradeable, ReasonAsExpected, "updates are allowed")
	}
	reason, texts := objections[0].Reason, make([]string, 0, len(objections))
	for _, o := range objections {
		if o.Reason != reason {
			reason = ReasonMultiple
		}
		text := o.Message
		if o.Name != "" {
			text = led(o.Name, o.Message)
		}
		texts = append(texts, text)
	}
	return False(v1alpha1.ConditionUpgradeable, reason, strings.Join(texts, "; "))
}

func yielded(f ReleaseFacts) Condition {
	if len(f.Yielded) == 0 {
		return False(v1alpha1.ConditionFieldYielded, ReasonAsExpected, "no fields yielded")
	}
	return True(v1alpha1.ConditionFieldYielded, ReasonYielded, strings.Join(f.Yielded, "; "))
}

// maxLeaving limits the objects that PruneComplete names.
const maxLeaving = 3

// pruned returns PruneComplete. After a restart, the previous one stays until the
// first prune.
func pruned(p *worker.Pruning) Condition {
	switch {
	case p.Total == 0 && p.Held == "":
		return True(v1alpha1.ConditionPruneComplete, ReasonAsExpected, "no deletions in progress")
	case p.Total == 0:
		return False(v1alpha1.ConditionPruneComplete, ReasonPruneHeld, p.Held+"; retried automatically")
	}
	var texts []string
	stuck := false
	for i, l := range p.Leaving {
		stuck = stuck || len(l.Finalizers) > 0 || l.Content != ""
		if i < maxLeaving {
			texts = append(texts, LeavingText(l))
		}
	}
	message := strings.Join(texts, "; ")
	if more := p.Total - len(texts); more > 0 {
		message += fmt.Sprintf("; and %d more", more)
	}
	if p.Waiting > 0 {
		message += fmt.Sprintf("; %d objects are deleted afterwards", p.Waiting)
	}
	if stuck {
		message += "; start what removes the finalizers, or remove them with kubectl edit"
	}
	return False(v1alpha1.ConditionPruneComplete, ReasonPruning, message)
}

// LeavingText returns an object that is being deleted, since when, and what blocks
// its deletion.
func LeavingText(l worker.Leaving) string {
	text := fmt.Sprintf("%s is being deleted since %s", l.Object, l.Since.UTC().Format(time.RFC3339))
	switch {
	case l.Content != "":
		return text + ", blocked by its content: " + l.Content
	case len(l.Finalizers) > 0:
		return text + ", blocked by " + sanitize.Clip(strings.Join(l.Finalizers, ", "), maxLine)
	}
	return text
}

// inventoryLost returns InventoryIncomplete.
func inventoryLost(f ReleaseFacts) Condition {
	const next = "; delete them by hand when they leave the release"
	what := fmt.Sprintf("objects that can't be pruned because their inventory was lost: %d: ", f.LostTotal)
	named := strings.Join(f.Lost, ", ")
	if f.LostTotal > len(f.Lost) {
		named += ", …"
	}
	return True(v1alpha1.ConditionInventoryIncomplete, ReasonInventoryLost, what+named+next)
}

// summary returns Ready, Reconciling and Stalled, as kstatus defines them.
func summary(next *v1alpha1.ClusterReleaseStatus, f ReleaseFacts, accepted, failing, progressing Condition) []Condition {
	w := f.Worker
	running := "no release running yet"
	switch {
	case w.Actual.Version != "":
		running = "still running " + w.Actual.Version
	case w.Restore.Failure != nil:
		running = fmt.Sprintf("%s not loaded after the restart (%s)", w.Restore.Desired.Version, w.Restore.Failure.Reason())
	case !w.Restore.Desired.Empty():
		running = "loading " + w.Restore.Desired.Version + " again after the restart"
	}
	reason, message := progressing.Reason, progressing.Message
	ready, reconciling, stalled := false, true, false
	switch {
	case f.Held.Reason != "":
		return held(f.Held, f.Held.Message)
	case f.Invalid != "":
		reason, message = ReasonInvalidSpec, fmt.Sprintf("spec invalid; %s: %s", running, invalid(f).Message)
		reconciling, stalled = false, true
	case notRestored(f):
		reason, message = failing.Reason, failing.Message
	case accepted.Status == metav1.ConditionFalse:
		reason = accepted.Reason
		message = fmt.Sprintf("rejected %s; %s: %s", f.Spec.Desired.Version, running, led(accepted.Reason, accepted.Message))
		reconciling, stalled = w.Load.Failure.Retriable(), !w.Load.Failure.Retriable()
	case accepted.Status == metav1.ConditionUnknown:
		reason, message = accepted.Reason, fmt.Sprintf("%s; %s", accepted.Message, running)
	case failing.Status == metav1.ConditionTrue:
		reason, message = failing.Reason, failing.Message
		stalled = w.Failure != nil && !w.Failure.Retriable()
	case w.Reconciling && next.Applied != nil && next.Applied.Version == f.Spec.Desired.Version:
		reason, message = ReasonApplied, w.Actual.Version+" is applied"
		ready, reconciling = true, false
	}
	return kstatus(ready, reconciling, stalled, reason, message)
}

// held returns Ready, Reconciling and Stalled of an object that isn't reconciled.
func held(by HeldBy, message string) []Condition {
	return []Condition{
		False(v1alpha1.ConditionReady, by.Reason, message),
		If(by.Transient, v1alpha1.ConditionReconciling, by.Reason, message),
		If(!by.Transient, v1alpha1.ConditionStalled, by.Reason, message),
	}
}

// kstatus returns Ready, Reconciling and Stalled with one reason and message; a
// false Stalled has its own.
func kstatus(ready, reconciling, stalled bool, reason, message string) []Condition {
	out := []Condition{
		If(ready, v1alpha1.ConditionReady, reason, message),
		If(reconciling, v1alpha1.ConditionReconciling, reason, message),
		False(v1alpha1.ConditionStalled, ReasonAsExpected, "no action required"),
	}
	if stalled {
		out[2] = True(v1alpha1.ConditionStalled, reason, message)
	}
	return out
}
