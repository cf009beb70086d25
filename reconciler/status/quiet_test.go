// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
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

func TestLinesOfAnErrorAreSeparatedInAMessage(t *testing.T) {
	got := Fold(nil, 1, metav1.NewTime(start), []Condition{False(v1alpha1.ConditionReady, "Invalid", "a.yaml:1: unknown field x\n\n  b.yaml:2: no name\n")})
	if want := "a.yaml:1: unknown field x; b.yaml:2: no name"; got[0].Message != want {
		t.Errorf("message = %q, want %q", got[0].Message, want)
	}
}

// The time of the next attempt in a message would cause a status patch and a
// status commit for each attempt.
func TestARepeatedRejectionChangesNothing(t *testing.T) {
	facts := func(attempt int, at time.Time) ReleaseFacts {
		w := complete("1.1.0", imageA)
		w.Load = worker.LoadStatus{
			Desired: worker.Desired{Identity: payload.Identity{Version: "1.2.0", Image: imageB}}, Attempt: attempt, RetryAt: at.Add(time.Minute),
			Failure: &worker.UpdateError{Code: "Unsigned", Message: "no signature", Retry: true},
		}
		return ReleaseFacts{Spec: spec("1.2.0", imageB), Generation: 2, Worker: w, Now: at}
	}
	first := Release(v1alpha1.ClusterReleaseStatus{}, facts(1, start))
	second := Release(first, facts(2, start.Add(10*time.Minute)))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("status after the second attempt (-first +second):\n%s", diff)
	}
}

// A new worker has the applied release of the persisted state, without its
// signers.
func TestARestartKeepsTheSignersOfTheAppliedRelease(t *testing.T) {
	before := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: spec("1.1.0", imageA), Generation: 1, Worker: complete("1.1.0", imageA), Now: start})
	fresh := &worker.SyncWorkerStatus{Applied: worker.Release{Desired: worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: imageA}}}}
	after := Release(before, ReleaseFacts{Spec: spec("1.1.0", imageA), Generation: 1, Worker: fresh, Now: start.Add(time.Hour)})
	if diff := cmp.Diff(before.Applied, after.Applied); diff != "" {
		t.Errorf("applied after a restart (-before +after):\n%s", diff)
	}
}

func TestAnExpiredOverrideDoesNotBlockUpgrades(t *testing.T) {
	s := spec("1.1.0", imageA)
	expires := metav1.NewTime(start)
	s.Overrides = []v1alpha1.Override{{Kind: "Deployment", Name: "api", Unmanaged: true, Expires: &expires}}
	for now, want := range map[time.Time]metav1.ConditionStatus{start.Add(-time.Second): metav1.ConditionFalse, start: metav1.ConditionTrue} {
		got := Release(v1alpha1.ClusterReleaseStatus{}, ReleaseFacts{Spec: s, Worker: complete("1.1.0", imageA), Now: now})
		if c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionUpgradeable); c.Status != want {
			t.Errorf("Upgradeable at %s = %s, want %s", now, c.Status, want)
		}
	}
}

func TestAnEditThatIsBeingRevertedIsNotStalled(t *testing.T) {
	for _, w := range []*worker.SyncWorkerStatus{nil, complete("1.1.0", imageA)} {
		facts := ReleaseFacts{Spec: spec("1.1.0", imageA), Worker: w, Now: start, Held: HeldBy{Reason: ReasonNotFromSource, Message: "edited", Transient: true}}
		got := conditions(Release(v1alpha1.ClusterReleaseStatus{}, facts))
		if want := "Ready=False Reconciling=True Stalled=False"; !strings.HasPrefix(got, want) {
			t.Errorf("conditions = %s, want %s", got, want)
		}
	}
}

func TestUpgradeableNamesAllObjections(t *testing.T) {
	unmanaged := spec("1.1.0", imageA)
	unmanaged.Overrides = []v1alpha1.Override{{Kind: "Deployment", Name: "api", Unmanaged: true}}
	etcd := Objection{"ClusterOperator/etcd", "EtcdDegraded", "a member is down"}
	for name, tc := range map[string]struct {
		facts           ReleaseFacts
		status          metav1.ConditionStatus
		reason, message string
	}{
		"nothing": {ReleaseFacts{Spec: spec("1.1.0", imageA)}, metav1.ConditionTrue, ReasonAsExpected, "updates are allowed"},
		"one":     {ReleaseFacts{Spec: spec("1.1.0", imageA), Objections: []Objection{etcd}}, metav1.ConditionFalse, "EtcdDegraded", "ClusterOperator/etcd: a member is down"},
		"two": {
			ReleaseFacts{Spec: unmanaged, Objections: []Objection{etcd}},
			metav1.ConditionFalse, ReasonMultiple,
			"objects unmanaged by overrides: 1; a new minor version may be incompatible with them; ClusterOperator/etcd: a member is down",
		},
	} {
		tc.facts.Worker, tc.facts.Now = complete("1.1.0", imageA), start
		got := Release(v1alpha1.ClusterReleaseStatus{}, tc.facts)
		c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionUpgradeable)
		if c.Status != tc.status || c.Reason != tc.reason || c.Message != tc.message {
			t.Errorf("%s: Upgradeable=%s %s: %s", name, c.Status, c.Reason, c.Message)
		}
	}
}
