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

func level(version, image string) *worker.SyncWorkerStatus {
	r := release(version, image)
	return &worker.SyncWorkerStatus{
		Desired: r.Desired, Actual: r, Applied: r, Verified: true, Reconciling: true, Done: 5, Total: 5, Completed: 1, RunLevel: -1,
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
	refused := level("1.1.0", imageA)
	refused.Load = worker.LoadStatus{
		Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Step: worker.StepVerifyPayload,
		Failure: &worker.UpdateError{Code: "Unsigned", Message: "sha256:bbbb has no signature", Retry: true},
	}
	failing := level("1.1.0", imageA)
	failing.Reconciling = false
	failing.Failure = &worker.UpdateError{Code: "ManifestNotApplied", Effect: worker.EffectFail, Nested: errors.New("boom"), Retry: true}
	updating := level("1.1.0", imageA)
	updating.Reconciling, updating.Done, updating.RunLevel = false, 2, 30
	updating.Blocking = []worker.Blocking{{Object: payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Message: "2 of 3 updated"}}
	otherwise := level("1.1.0", imageA)
	otherwise.Desired = otherwise.Actual.Desired
	otherwise.Desired.Selection.Profile = "edge"
	for name, tc := range map[string]struct {
		facts ReleaseFacts
		want  string
	}{
		"the same release that is wanted with another profile isn't ready yet": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: otherwise},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=Unknown ReleaseVerified=Unknown",
		},
		"a level release is ready": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: level("1.1.0", imageA)},
			"Ready=True Reconciling=False Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
		"a refused target doesn't make the running release fail": {
			ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: refused},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=False Failing=False ReleaseAccepted=False ReleaseVerified=False",
		},
		"an update in progress isn't ready": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: updating},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=True Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
		"an error of the accepted release fails": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: failing},
			"Ready=False Reconciling=True Stalled=False Available=True Progressing=True Failing=True ReleaseAccepted=True ReleaseVerified=True",
		},
		"a brake shows as stalled": {
			ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: level("1.1.0", imageA), Held: HeldBy{Reason: ReasonPaused, Message: "by hand"}},
			"Ready=False Reconciling=False Stalled=True Available=True Progressing=False Failing=False ReleaseAccepted=True ReleaseVerified=True",
		},
	} {
		tc.facts.Now = start
		if got := conditions(Release(v1alpha1.ClusterReleaseStatus{}, tc.facts)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}

func TestARefusalNamesWhatGoesOn(t *testing.T) {
	w := level("1.1.0", imageA)
	w.Load = worker.LoadStatus{Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "no signature", Retry: true}}
	s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Now: start})
	c := meta.FindStatusCondition(s.Conditions, "Ready")
	for _, want := range []string{"1.2.0 refused", "1.1.0 goes on", "Unsigned"} {
		if !strings.Contains(c.Message, want) {
			t.Errorf("Ready message %q lacks %q", c.Message, want)
		}
	}
	if s.Applied.Version != "1.1.0" || s.Desired.Version != "1.2.0" || s.Accepted.Version != "1.1.0" {
		t.Errorf("desired %v, accepted %v, applied %v", s.Desired, s.Accepted, s.Applied)
	}
}

func TestARefusalSaysItsReasonOnce(t *testing.T) {
	w := level("1.1.0", imageA)
	w.Load = worker.LoadStatus{Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "Unsigned: found no signature", Retry: true}}
	s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Now: start})
	if c := meta.FindStatusCondition(s.Conditions, "Ready"); strings.Count(c.Message, "Unsigned") != 1 {
		t.Errorf("Ready message %q, want its reason once", c.Message)
	}
}

func TestSameFactsChangeNothing(t *testing.T) {
	f := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: level("1.1.0", imageA), Now: start}
	first := Release(v1alpha1.ClusterReleaseStatus{}, f)
	f.Now = start.Add(time.Hour)
	if diff := cmp.Diff(first, Release(first, f)); diff != "" {
		t.Errorf("the same facts an hour later (-first +second):\n%s", diff)
	}
}

func TestWhatWasMetAtTheLoadIsCounted(t *testing.T) {
	w := level("1.1.0", imageA)
	w.Warnings, w.Excluded = []string{"a", "b"}, 3
	got := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
	if diff := cmp.Diff(&v1alpha1.PayloadStatus{Warnings: 2, Excluded: 3}, got.Payload); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	if clean := Release(got, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: level("1.1.0", imageA), Now: start}); clean.Payload != nil {
		t.Errorf("a clean payload has %v", clean.Payload)
	}
}

func TestCapabilitiesAreShownAndSurviveARestart(t *testing.T) {
	w := level("1.1.0", imageA)
	w.EnabledCapabilities, w.ImplicitCapabilities = []string{"Console", "Extra"}, []string{"Extra"}
	before := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
	want := &v1alpha1.CapabilitiesStatus{Enabled: []string{"Console", "Extra"}, Implicit: []string{"Extra"}}
	if diff := cmp.Diff(want, before.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	after := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: &worker.SyncWorkerStatus{}, Now: start})
	if diff := cmp.Diff(want, after.Capabilities); diff != "" {
		t.Errorf("capabilities of a new process that knows nothing yet (-want +got):\n%s", diff)
	}
	if none := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: level("1.1.0", imageA), Now: start}); none.Capabilities != nil {
		t.Errorf("a payload without capabilities has %v", none.Capabilities)
	}
}

func TestSignaturesOfARefusedReleaseAreJudgedByThemselves(t *testing.T) {
	for name, tc := range map[string]struct {
		code     string
		step     worker.Step
		verified bool
		want     string
	}{
		"no signature":                       {"Unsigned", worker.StepVerifyPayload, false, "False Unsigned"},
		"the mark forbids to go back":        {"Rollback", worker.StepVerifyPayload, false, "False Rollback"},
		"a precondition forbids to go back":  {"Rollback", worker.StepPreconditionChecks, true, "True Verified"},
		"another precondition":               {"GiantHop", worker.StepPreconditionChecks, true, "True Verified"},
		"the server refuses it":              {"ResourceInvalid", worker.StepDryRun, true, "True Verified"},
		"it can't be loaded":                 {"PayloadInvalid", worker.StepLoadPayload, true, "True Verified"},
		"its content isn't what was signed":  {"NameMismatch", worker.StepLoadPayload, true, "False NameMismatch"},
		"nobody knows, the registry is away": {"FetchFailed", worker.StepVerifyPayload, false, "Unknown Pending"},
	} {
		w := level("1.1.0", imageA)
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

// What holds nothing back is told all the same, and a process that goes on with
// the release, and doesn't check it again, changes nothing about it.
func TestWarningsAreToldAlsoAfterARestart(t *testing.T) {
	w := level("1.1.0", imageA)
	w.Actual.Checked, w.Actual.AcceptedRisks = true, []string{"GiantHop: a minor is left out"}
	w.Actual.Warnings = []string{"UnpinnedImage: r/a:latest", "HostSkew: n1"}
	w.History[0].Release = w.Actual
	facts := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start}
	first := Release(v1alpha1.ClusterReleaseStatus{}, facts)
	c := meta.FindStatusCondition(first.Conditions, v1alpha1.ConditionReleaseAccepted)
	want := "1.1.0 was verified and loaded; accepted risks: GiantHop: a minor is left out; warnings: UnpinnedImage: r/a:latest; HostSkew: n1"
	if c.Message != want {
		t.Errorf("ReleaseAccepted says %q, want %q", c.Message, want)
	}
	facts.Worker = level("1.1.0", imageA)
	facts.Worker.History = nil
	if diff := cmp.Diff(first, Release(first, facts)); diff != "" {
		t.Errorf("status after a restart (-before +after):\n%s", diff)
	}
	facts.Spec, facts.Worker = spec("1.1.1", imageB), level("1.1.1", imageB)
	if next := Release(first, facts); len(next.Warnings) > 0 {
		t.Errorf("another release has the warnings %q", next.Warnings)
	}
}

func TestFailuresSayWhetherTheyPassByThemselves(t *testing.T) {
	for _, retry := range []bool{true, false} {
		w := level("1.1.0", imageA)
		w.Reconciling = false
		w.Failure = &worker.UpdateError{Code: "FieldImmutable", Effect: worker.EffectFail, Message: strings.Repeat("long ", 500), Retry: retry}
		w.Blocking = []worker.Blocking{{Object: payload.ObjectID{Kind: "Service", Name: "api"}, Reason: "FieldImmutable", Retriable: retry}}
		s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
		want := map[bool]string{true: "; it is tried again by itself", false: "; it won't pass until the release or the cluster changes"}[retry]
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFailing); !strings.HasSuffix(c.Message, want) || len(c.Message) > maxMessage {
			t.Errorf("retry %t: %d bytes that end in %q, want %q", retry, len(c.Message), c.Message[max(0, len(c.Message)-80):], want)
		}
		if got := s.Progress.Blocking[0].Retriable; got != retry {
			t.Errorf("retriable is %t, want %t", got, retry)
		}
	}
}
