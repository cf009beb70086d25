// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// unrestored is a worker after a restart that can't load the accepted release.
func unrestored(desired string, image string, failure *worker.UpdateError) *worker.SyncWorkerStatus {
	accepted, d := release("1.1.0", imageA).Desired, worker.Desired{Identity: payload.Identity{Version: desired, Image: image}}
	w := &worker.SyncWorkerStatus{
		Desired: d, RunLevel: -1, Applied: worker.Release{Desired: accepted}, Load: worker.LoadStatus{Desired: d, Step: worker.StepVerifyPayload},
		Restore: worker.LoadStatus{Desired: accepted, Step: worker.StepVerifyPayload, Failure: failure, Attempt: 2, RetryAt: start.Add(time.Minute), LastTransition: start},
		Step:    worker.StepVerifyPayload,
	}
	if accepted.Equal(d) {
		w.Load = w.Restore
	}
	return w
}

func fetchFailed() *worker.UpdateError {
	return &worker.UpdateError{Code: "FetchFailed", Message: "read manifest: connection refused", Retry: true}
}

// TestARestartWithoutTheRegistryKeepsWhatIsKnown has the accepted release desired: its
// verdict, its history and the progress stay.
func TestARestartWithoutTheRegistryKeepsWhatIsKnown(t *testing.T) {
	facts := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Generation: 3, Now: start}
	facts.Yielded = []string{"Deployment web/api spec.replicas to hpa"}
	before := Release(v1alpha1.ClusterReleaseStatus{}, facts)
	facts.Worker, facts.Yielded = unrestored("1.1.0", imageA, fetchFailed()), nil
	after := Release(before, facts)
	want := "Ready=False Reconciling=True Stalled=False Available=True Progressing=False Failing=True ReleaseAccepted=True ReleaseVerified=True"
	if got := conditions(after); got != want {
		t.Errorf("conditions\n got %s\nwant %s", got, want)
	}
	for _, name := range []string{"ReleaseAccepted", "ReleaseVerified", "Available", "Progressing", "Upgradeable", "FieldYielded"} {
		if diff := cmp.Diff(meta.FindStatusCondition(before.Conditions, name), meta.FindStatusCondition(after.Conditions, name)); diff != "" {
			t.Errorf("%s (-before +after the restart):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(before.History, after.History); diff != "" {
		t.Errorf("history (-before +after the restart):\n%s", diff)
	}
	if diff := cmp.Diff(before.Accepted, after.Accepted); diff != "" {
		t.Errorf("accepted (-before +after the restart):\n%s", diff)
	}
	for _, name := range []string{"Failing", "Ready"} {
		c := meta.FindStatusCondition(after.Conditions, name)
		if c.Reason != "FetchFailed" || !strings.HasPrefix(c.Message, "1.1.0 not loaded after the restart") || !strings.Contains(c.Message, "connection refused; retried automatically") {
			t.Errorf("%s: %s %q", name, c.Reason, c.Message)
		}
	}
	p := after.Progress
	if p.Done != 5 || p.State != "Error" || len(p.Blocking) != 1 || p.Blocking[0].Object != "release 1.1.0" || !p.Blocking[0].RetryAt.Equal(stamp(start.Add(time.Minute))) {
		t.Errorf("progress %+v, want that of before with the next attempt", p)
	}
	facts.Worker = complete("1.1.0", imageA)
	if got := conditions(Release(after, facts)); !strings.HasPrefix(got, "Ready=True") || !strings.Contains(got, "Failing=False") {
		t.Errorf("conditions once it is loaded: %s", got)
	}
}

func TestAfterARestartABadTargetAndTheFailedRestoreAreBothReported(t *testing.T) {
	before := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Generation: 3, Now: start})
	w := unrestored("1.2.0", imageB, fetchFailed())
	w.Load.Failure = &worker.UpdateError{Code: "Unsigned", Message: "no signature found"}
	after := Release(before, ReleaseFacts{Spec: spec("1.2.0", imageB), Worker: w, Generation: 4, Now: start})
	want := "Ready=False Reconciling=False Stalled=True Available=True Progressing=False Failing=True ReleaseAccepted=False ReleaseVerified=False"
	if got := conditions(after); got != want {
		t.Errorf("conditions\n got %s\nwant %s", got, want)
	}
	ready := meta.FindStatusCondition(after.Conditions, "Ready").Message
	for _, part := range []string{"rejected 1.2.0; 1.1.0 not loaded after the restart (FetchFailed)", "no signature found"} {
		if !strings.Contains(ready, part) {
			t.Errorf("Ready message %q lacks %q", ready, part)
		}
	}
	if after.Accepted.Version != "1.1.0" || after.Desired.Version != "1.2.0" {
		t.Errorf("accepted %v, desired %v", after.Accepted, after.Desired)
	}
}

// A signature that was revoked is a verdict about the running release, not an outage.
func TestAfterARestartARevokedReleaseIsReported(t *testing.T) {
	before := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: complete("1.1.0", imageA), Now: start})
	after := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: unrestored("1.1.0", imageA, &worker.UpdateError{Code: "Revoked", Message: "revoked"}), Now: start})
	want := "Ready=False Reconciling=False Stalled=True Available=True Progressing=False Failing=True ReleaseAccepted=False ReleaseVerified=False"
	if got := conditions(after); got != want {
		t.Errorf("conditions\n got %s\nwant %s", got, want)
	}
}

// A recreated object has no status to keep.
func TestAfterARestartWithoutStatusNothingIsClaimed(t *testing.T) {
	got := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: unrestored("1.1.0", imageA, fetchFailed()), Now: start})
	want := "Ready=False Reconciling=True Stalled=False Available=True Progressing=True Failing=True ReleaseAccepted=Unknown ReleaseVerified=Unknown"
	if conditions(got) != want {
		t.Errorf("conditions\n got %s\nwant %s", conditions(got), want)
	}
}

func TestProgressingSummarizesErrorsAndRejections(t *testing.T) {
	failure := &worker.UpdateError{Code: "ManifestNotApplied", Effect: worker.EffectFail, Message: "Deployment web/api: boom", Retry: true}
	reconciling, updating := complete("1.1.0", imageA), complete("1.1.0", imageA)
	reconciling.Failure, updating.Failure, updating.Reconciling = failure, failure, false
	refused := complete("1.1.0", imageA)
	both := complete("1.1.0", imageA)
	both.Failure = failure
	for _, w := range []*worker.SyncWorkerStatus{refused, both} {
		w.Load = worker.LoadStatus{
			Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}},
			Failure: &worker.UpdateError{Code: "Unsigned", Message: "no signature"},
		}
	}
	for name, tc := range map[string]struct {
		worker *worker.SyncWorkerStatus
		spec   v1alpha1.ClusterReleaseSpec
		want   string
	}{
		"reconciling": {reconciling, spec("1.1.0", imageA), "False ManifestNotApplied error while reconciling 1.1.0: ManifestNotApplied: Deployment web/api: boom"},
		"updating":    {updating, spec("1.1.0", imageA), "True ManifestNotApplied unable to apply 1.1.0: ManifestNotApplied: Deployment web/api: boom"},
		"refused":     {refused, spec("1.2.0", imageB), "False Applied 1.1.0 is complete; rejected 1.2.0: Unsigned"},
		"both":        {both, spec("1.2.0", imageB), "False ManifestNotApplied error while reconciling 1.1.0: ManifestNotApplied: Deployment web/api: boom; rejected 1.2.0: Unsigned"},
	} {
		s := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: tc.spec, Worker: tc.worker, Now: start})
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing)
		if got := string(c.Status) + " " + c.Reason + " " + c.Message; got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}
