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
	return worker.Release{Desired: worker.Desired{Version: version, Image: image}, Verified: true, Evidence: []string{"release-2026"}}
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
		Desired: worker.Desired{Version: "1.2.0", Image: imageB}, Step: worker.StepVerifyPayload,
		Failure: &worker.UpdateError{Code: "Unsigned", Message: "sha256:bbbb has no signature", Retry: true},
	}
	failing := level("1.1.0", imageA)
	failing.Reconciling = false
	failing.Failure = &worker.UpdateError{Code: "ManifestNotApplied", Effect: worker.EffectFail, Nested: errors.New("boom"), Retry: true}
	updating := level("1.1.0", imageA)
	updating.Reconciling, updating.Done, updating.RunLevel = false, 2, 30
	updating.Blocking = []worker.Blocking{{Object: payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Message: "2 of 3 updated"}}
	for name, tc := range map[string]struct {
		facts ReleaseFacts
		want  string
	}{
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
	w.Load = worker.LoadStatus{Desired: worker.Desired{Version: "1.2.0", Image: imageB}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "no signature", Retry: true}}
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
	w.Load = worker.LoadStatus{Desired: worker.Desired{Version: "1.2.0", Image: imageB}, Failure: &worker.UpdateError{Code: "Unsigned", Message: "Unsigned: found no signature", Retry: true}}
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
	w.Warnings, w.LeftOut = []string{"a", "b"}, 3
	got := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start})
	if diff := cmp.Diff(&v1alpha1.PayloadStatus{Warnings: 2, LeftOut: 3}, got.Payload); diff != "" {
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

func TestHistoryContinuesAfterARestart(t *testing.T) {
	fact := func(version string, at time.Duration, done bool) worker.HistoryFact {
		h := worker.HistoryFact{Release: release(version, imageA), State: worker.HistoryPartial, Started: start.Add(at)}
		if done {
			h.State, h.Ended = worker.HistoryCompleted, h.Started.Add(time.Minute)
		}
		return h
	}
	list := history(nil, []worker.HistoryFact{fact("1.0.0", 0, true)})
	// A new process goes on with 1.0.0, then is told 1.1.0, then 1.0.0 again.
	restarted := []worker.HistoryFact{fact("1.0.0", time.Hour, true)}
	list = history(list, restarted)
	if len(list) != 1 {
		t.Fatalf("a restart made another entry: %v", list)
	}
	restarted = append([]worker.HistoryFact{fact("1.1.0", 2*time.Hour, false)}, restarted...)
	list = history(list, restarted)
	restarted = append([]worker.HistoryFact{fact("1.0.0", 3*time.Hour, true)}, restarted...)
	list = history(history(list, restarted), restarted)
	var got []string
	for _, h := range list {
		got = append(got, h.Version+" "+h.State)
	}
	if diff := cmp.Diff([]string{"1.0.0 Completed", "1.1.0 Partial", "1.0.0 Completed"}, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if list[1].CompletionTime == nil {
		t.Error("a superseded entry has no end")
	}
}

func TestHistoryIsBoundedAndKeepsTheTelling(t *testing.T) {
	var list []v1alpha1.ReleaseHistory
	for i := range 2 * maxHistory {
		state := "Partial"
		if i%2 == 0 {
			state = "Completed"
		}
		list = addHistory(list, v1alpha1.ReleaseHistory{State: state, Version: string(rune('a'+i%26)) + strings.Repeat("x", i/26), StartedTime: metav1.NewTime(start.Add(time.Duration(i) * time.Hour))})
		if len(list) > maxHistory {
			list = prune(list)
		}
	}
	if len(list) != maxHistory {
		t.Fatalf("%d entries, want %d", len(list), maxHistory)
	}
	if first := list[len(list)-1]; !first.StartedTime.Equal(&metav1.Time{Time: start}) {
		t.Error("the first release of the cluster was forgotten")
	}
}
