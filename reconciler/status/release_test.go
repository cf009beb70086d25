// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

const (
	imageA = "r.example/p@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	imageB = "r.example/p@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var start = time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)

func spec(version, image string) v1alpha1.ClusterReleaseSpec {
	return v1alpha1.ClusterReleaseSpec{Desired: v1alpha1.DesiredRelease{Version: version, Image: image}}
}

func release(version, image string) worker.Release {
	return worker.Release{Desired: worker.Desired{Identity: payload.Identity{Version: version, Image: image}}, Verified: true, Evidence: []string{"release-2026"}}
}

func complete(version, image string) *worker.SyncWorkerStatus {
	r := release(version, image)
	return &worker.SyncWorkerStatus{
		Desired: r.Desired, Actual: r, Applied: r, Reconciling: true, Done: 5, Total: 5, Completed: 1, RunLevel: -1,
		Load:    worker.LoadStatus{Desired: r.Desired, Step: worker.StepPayloadLoaded},
		History: []worker.HistoryFact{{Release: r, State: worker.HistoryCompleted, Started: start, Ended: start.Add(time.Minute)}},
	}
}

func conditions(s v1alpha1.ClusterReleaseStatus) string {
	var parts []string
	for _, name := range []string{"Ready", "Reconciling", "Stalled", "Available", "Progressing", "Failing", "ReleaseAccepted", "ReleaseVerified"} {
		if c := meta.FindStatusCondition(s.Conditions, name); c != nil {
			parts = append(parts, name+"="+string(c.Status))
		}
	}
	return strings.Join(parts, " ")
}

func TestReleaseConditions(t *testing.T) {
	rejected := complete("1.1.0", imageA)
	rejected.Load = worker.LoadStatus{
		Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Step: worker.StepVerifyPayload,
		Failure: &worker.UpdateError{Code: "Unsigned", Message: "sha256:bbbb has no signature", Retry: true},
	}
	failing := complete("1.1.0", imageA)
	failing.Reconciling = false
	failing.Failure = &worker.UpdateError{Code: "ManifestNotApplied", Effect: worker.EffectFail, Nested: errors.New("boom"), Retry: true}
	updating := complete("1.1.0", imageA)
	updating.Reconciling, updating.Done, updating.RunLevel = false, 2, 30
	updating.Blocking = []worker.Blocking{{Object: payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Message: "2 of 3 replicas updated"}}
	reselected := complete("1.1.0", imageA)
	reselected.Desired = reselected.Actual.Desired
	reselected.Desired.Selection.Profile = "edge"
	for name, tc := range map[string]struct {
		facts ReleaseFacts
		want  string
	}{
		"the accepted release with another desired profile isn't ready": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: reselected},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=Unknown ReleaseVerified=Unknown",
		},
		"a complete release is ready": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA)},
			"Ready=True Reconciling=False Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
		"a rejected release doesn't make the running one fail": {
			ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: rejected},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=False ReleaseVerified=False",
		},
		"a release being updated isn't ready": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: updating},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=True Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
		"an error of the accepted release sets Failing": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: failing},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=True Failing=True ReleaseAccepted=True ReleaseVerified=True",
		},
		"a paused release is stalled": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Held: HeldBy{Reason: ReasonPaused, Message: "by hand"}},
			"Ready=False Reconciling=False Stalled=True Available=True Progressing=False Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
	} {
		tc.facts.Now = start
		if got := conditions(Release(v1alpha1.ClusterReleaseStatus{}, tc.facts)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

func TestADeletionThatDoesNotEndIsAConditionOfItsOwn(t *testing.T) {
	w := complete("1.1.0", imageA)
	facts := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start}
	get := func(s v1alpha1.ClusterReleaseStatus) *metav1.Condition {
		return meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPruneComplete)
	}
	if c := get(Release(v1alpha1.ClusterReleaseStatus{}, facts)); c != nil {
		t.Errorf("before the first prune: %+v", c)
	}
	id := func(name string) payload.ObjectID {
		return payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: name}
	}
	w.Pruning = &worker.Pruning{Total: 5, Waiting: 2, Leaving: []worker.Leaving{
		{Object: id("a"), Since: start, Finalizers: []string{"example.com/hold", "example.com/other"}},
		{Object: payload.ObjectID{Kind: "Namespace", Name: "old"}, Since: start, Content: "example.com/hold in 1 resource instances"},
		{Object: id("b"), Since: start},
		{Object: id("c"), Since: start},
		{Object: id("d"), Since: start},
	}}
	status := Release(v1alpha1.ClusterReleaseStatus{}, facts)
	const want = "ConfigMap web/a is being deleted since 2026-11-29T22:00:00Z, blocked by example.com/hold, example.com/other; " +
		"Namespace old is being deleted since 2026-11-29T22:00:00Z, blocked by its content: example.com/hold in 1 resource instances; " +
		"ConfigMap web/b is being deleted since 2026-11-29T22:00:00Z; and 2 more; 2 objects are deleted afterwards; " +
		"start what removes the finalizers, or remove them with kubectl edit"
	if c := get(status); c == nil || c.Status != metav1.ConditionFalse || c.Reason != ReasonPruning || c.Message != want {
		t.Errorf("condition %+v, want %q", c, want)
	}
	if got := conditions(status); !strings.Contains(got, "Ready=True Reconciling=False Stalled=False") || !strings.Contains(got, "Failing=False") {
		t.Errorf("conditions %s, want a ready release", got)
	}
	w.Pruning = nil // After a restart.
	if c := get(Release(status, facts)); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("after a restart: %+v, want the previous condition", c)
	}
	w.Pruning = &worker.Pruning{Held: "2 objects aren't pruned, since other releases claim them"}
	if c := get(Release(status, facts)); c == nil || c.Reason != ReasonPruneHeld || !strings.Contains(c.Message, "2 objects aren't pruned") {
		t.Errorf("while another release claims objects: %+v", c)
	}
	w.Pruning = &worker.Pruning{}
	if c := get(Release(status, facts)); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("after the deletion: %+v", c)
	}
}

func TestARejectionNamesTheRunningRelease(t *testing.T) {
	w := complete("1.1.0", imageA)
	w.Load = worker.LoadStatus{Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "no signature", Retry: true}}
	s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Now: start})
	c := meta.FindStatusCondition(s.Conditions, "Ready")
	for _, want := range []string{"rejected 1.2.0", "still running 1.1.0", "Unsigned"} {
		if !strings.Contains(c.Message, want) {
			t.Errorf("Ready message %q lacks %q", c.Message, want)
		}
	}
	if s.Applied.Version != "1.1.0" || s.Desired.Version != "1.2.0" || s.Accepted.Version != "1.1.0" {
		t.Errorf("desired %v, accepted %v, applied %v", s.Desired, s.Accepted, s.Applied)
	}
}

func TestARejectionNamesItsReasonOnce(t *testing.T) {
	w := complete("1.1.0", imageA)
	w.Load = worker.LoadStatus{Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "Unsigned: no signature found", Retry: true}}
	s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Now: start})
	if c := meta.FindStatusCondition(s.Conditions, "Ready"); strings.Count(c.Message, "Unsigned") != 1 {
		t.Errorf("Ready message %q, want its reason once", c.Message)
	}
}

func TestTheSameFactsChangeNothing(t *testing.T) {
	f := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Now: start}
	first := Release(v1alpha1.ClusterReleaseStatus{}, f)
	f.Now = start.Add(time.Hour)
	if diff := cmp.Diff(first, Release(first, f)); diff != "" {
		t.Errorf("the same facts an hour later (-first +second):\n%s", diff)
	}
}

func TestWarningsAndExclusionsOfThePayloadAreCounted(t *testing.T) {
	w := complete("1.1.0", imageA)
	w.Warnings, w.Excluded = []string{"a", "b"}, 3
	got := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
	if diff := cmp.Diff(&v1alpha1.PayloadStatus{Warnings: 2, Excluded: 3}, got.Payload); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	if clean := Release(got, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Now: start}); clean.Payload != nil {
		t.Errorf("a payload without warnings has %v", clean.Payload)
	}
}

func TestCapabilitiesAreReportedAndSurviveARestart(t *testing.T) {
	w := complete("1.1.0", imageA)
	w.EnabledCapabilities, w.ImplicitCapabilities = []string{"Console", "Extra"}, []string{"Extra"}
	before := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
	want := &v1alpha1.CapabilitiesStatus{Enabled: []string{"Console", "Extra"}, Implicit: []string{"Extra"}}
	if diff := cmp.Diff(want, before.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	after := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: &worker.SyncWorkerStatus{}, Now: start})
	if diff := cmp.Diff(want, after.Capabilities); diff != "" {
		t.Errorf("capabilities after a restart (-want +got):\n%s", diff)
	}
	if none := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Now: start}); none.Capabilities != nil {
		t.Errorf("a payload without capabilities has %v", none.Capabilities)
	}
}

func TestReleaseVerifiedOfARejectedReleaseIsAboutItsSignatures(t *testing.T) {
	for name, tc := range map[string]struct {
		code     string
		step     worker.Step
		verified bool
		want     string
	}{
		"no signature":                             {"Unsigned", worker.StepVerifyPayload, false, "False Unsigned"},
		"below the persisted version":              {"Rollback", worker.StepVerifyPayload, false, "False Rollback"},
		"a precondition rejects the rollback":      {"Rollback", worker.StepPreconditionChecks, true, "True Verified"},
		"another precondition":                     {"GiantHop", worker.StepPreconditionChecks, true, "True Verified"},
		"the dry run fails":                        {"ResourceInvalid", worker.StepDryRun, true, "True Verified"},
		"the payload can't be loaded":              {"PayloadInvalid", worker.StepLoadPayload, true, "True Verified"},
		"the content differs from the signed name": {"NameMismatch", worker.StepLoadPayload, true, "False NameMismatch"},
		"the registry is unavailable":              {"FetchFailed", worker.StepVerifyPayload, false, "Unknown Pending"},
	} {
		w := complete("1.1.0", imageA)
		w.Load = worker.LoadStatus{
			Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Step: tc.step, Verified: tc.verified, Evidence: []string{"ci"},
			Failure: &worker.UpdateError{Code: tc.code, Message: "no"},
		}
		s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Now: start})
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReleaseVerified)
		if got := string(c.Status) + " " + c.Reason; got != tc.want {
			t.Errorf("%s: ReleaseVerified=%s (%s), want %s", name, got, c.Message, tc.want)
		}
	}
}

// After a restart the worker doesn't check the accepted release again and has no
// warnings.
func TestWarningsSurviveARestart(t *testing.T) {
	w := complete("1.1.0", imageA)
	w.Actual.Checked, w.Actual.AcceptedRisks = true, []string{"GiantHop: skips a minor version"}
	w.Actual.Warnings = []string{"UnpinnedImage: r/a:latest", "HostSkew: n1"}
	w.History[0].Release = w.Actual
	facts := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start}
	first := Release(v1alpha1.ClusterReleaseStatus{}, facts)
	c := meta.FindStatusCondition(first.Conditions, v1alpha1.ConditionReleaseAccepted)
	want := "1.1.0 is verified and loaded; accepted risks: GiantHop: skips a minor version; warnings: UnpinnedImage: r/a:latest; HostSkew: n1"
	if c.Message != want {
		t.Errorf("ReleaseAccepted message %q, want %q", c.Message, want)
	}
	facts.Worker = complete("1.1.0", imageA)
	facts.Worker.History = nil
	if diff := cmp.Diff(first, Release(first, facts)); diff != "" {
		t.Errorf("status after a restart (-before +after):\n%s", diff)
	}
	facts.Spec, facts.Worker = spec("1.1.1", imageB), complete("1.1.1", imageB)
	if next := Release(first, facts); len(next.Warnings) > 0 {
		t.Errorf("another release has the warnings %q", next.Warnings)
	}
}

func TestFailuresReportWhetherTheyAreRetried(t *testing.T) {
	for _, retry := range []bool{true, false} {
		w := complete("1.1.0", imageA)
		w.Reconciling = false
		w.Failure = &worker.UpdateError{Code: "FieldImmutable", Effect: worker.EffectFail, Message: strings.Repeat("long ", 500), Retry: retry}
		w.Blocking = []worker.Blocking{{Object: payload.ObjectID{Kind: "Service", Name: "api"}, Reason: "FieldImmutable", Retriable: retry}}
		s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
		want := map[bool]string{true: "; retried automatically", false: "; requires a change of the release or the cluster"}[retry]
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFailing); !strings.HasSuffix(c.Message, want) || len(c.Message) > maxMessage {
			t.Errorf("retry %t: message of %d bytes ends in %q, want %q", retry, len(c.Message), c.Message[max(0, len(c.Message)-80):], want)
		}
		if got := s.Progress.Blocking[0].Retriable; got != retry {
			t.Errorf("retriable is %t, want %t", got, retry)
		}
	}
}

func TestObjectsOfALostInventoryAreNamedUntilThereAreNone(t *testing.T) {
	f := ReleaseFacts{
		Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Now: start,
		Lost: []string{"ConfigMap web/a", "ConfigMap web/b", "ConfigMap web/c"}, LostTotal: 12,
	}
	lost := Release(v1alpha1.ClusterReleaseStatus{}, f)
	c := meta.FindStatusCondition(lost.Conditions, v1alpha1.ConditionInventoryIncomplete)
	if c == nil || c.Status != "True" || c.Reason != ReasonInventoryLost || len(c.Message) > 200 ||
		!strings.Contains(c.Message, "12: ConfigMap web/a, ConfigMap web/b, ConfigMap web/c, …; delete them by hand") {
		t.Errorf("condition %+v", c)
	}
	if ready := meta.FindStatusCondition(lost.Conditions, "Ready"); ready.Status != "True" {
		t.Errorf("Ready is %s: nothing is wrong with the objects", ready.Status)
	}
	f.Worker, f.Lost, f.LostTotal = nil, nil, 0 // A new process.
	if meta.FindStatusCondition(Release(lost, f).Conditions, v1alpha1.ConditionInventoryIncomplete) == nil {
		t.Error("the condition is gone before the inventory was read")
	}
	f.Worker = complete("1.1.0", imageA)
	if c := meta.FindStatusCondition(Release(lost, f).Conditions, v1alpha1.ConditionInventoryIncomplete); c != nil {
		t.Errorf("condition %+v, want none", c)
	}
}
