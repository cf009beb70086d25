// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// TestOutagesStopNothingThatRuns takes away the reconciler's dependencies one
// after the other.
func TestOutagesStopNothingThatRuns(t *testing.T) { //nolint:tparallel // the cases share one environment and run in order
	t.Parallel()
	s := newStable(t, 0)
	t.Run("WithoutGitTheAcceptedStateIsKept", func(t *testing.T) { testGitOutage(t, s) })
	t.Run("WithoutTheRegistryAnUpdateWaitsAndRepairContinues", func(t *testing.T) { testRegistryOutage(t, s) })
	t.Run("WithAnEmptyDiskAndABadReleaseTheAcceptedOneIsRestored", func(t *testing.T) { testEmptyDisk(t, s) })
	t.Run("AfterAnAPIServerRestartReconciliationContinues", func(t *testing.T) { testAPIServerRestart(t, s) })
}

// statusCommits returns the number of status commits.
func (s *stable) statusCommits(t *testing.T) int {
	t.Helper()
	log, err := s.w.Git.StatusLog(t.Context(), env.Cluster, "--format=%h")
	must(t, err)
	return len(strings.Fields(log))
}

// restart kills the reconciler with SIGKILL and starts another one.
func (s *stable) restart(t *testing.T, args ...string) {
	t.Helper()
	must(t, s.w.Reconciler.Kill())
	must(t, s.w.StartReconciler(args...))
}

// withoutAdmission removes the admission policy that blocks edits of objects
// from Git: no trust boundary may rely on it alone.
func withoutAdmission(t *testing.T, w *env.Env) {
	t.Helper()
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "lockstep-source"}}
	must(t, client.IgnoreNotFound(w.Client.Delete(t.Context(), binding)))
}

// edit patches the spec of an object from Git as a user with kubectl does
// without the admission policy, which ends some time after its binding.
func edit(t *testing.T, w *env.Env, obj client.Object, patch string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		return w.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
	}))
}

// editedSpecIsRestored changes the spec of the platform in the cluster and
// waits until it is restored.
func (s *stable) editedSpecIsPutBack(t *testing.T, version, other string) {
	t.Helper()
	edit(t, s.w, releaseObject(platform), other)
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		obj, err := getRelease(ctx, s.w, platform)
		if err != nil {
			return err
		}
		if obj.Spec.Desired.Version != version || obj.Spec.Suspend {
			return fmt.Errorf("spec is %+v, want it put back to %s", obj.Spec, version)
		}
		return nil
	}))
}

func testGitOutage(t *testing.T, s *stable) {
	withoutAdmission(t, s.w)
	s.page(t, first)
	before := s.statusCommits(t)
	s.w.Git.Proxy.Down()
	defer s.w.Git.Proxy.Up()
	contains(t, waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "False", "FetchFailed"), "still at")
	s.keepsRunning(t)
	s.editedSpecIsPutBack(t, first, `{"spec":{"suspend":true}}`)

	// A new process has the accepted state without Git.
	s.restart(t)
	s.keepsRunning(t)
	s.editedSpecIsPutBack(t, first, `{"spec":{"suspend":true}}`)
	waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionReady, "True", "")

	s.w.Git.Proxy.Up()
	waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "True", "")
	var page string
	must(t, env.Wait(t.Context(), 90*time.Second, func(ctx context.Context) error {
		var err error
		if page, err = s.w.Git.StatusFile(ctx, env.Cluster, "README.md"); err != nil {
			return err
		}
		if strings.Contains(page, "FetchFailed") {
			return errors.New("README.md still says FetchFailed")
		}
		log, err := s.w.Git.StatusLog(ctx, env.Cluster, "-1", "--format=%ct")
		if err != nil {
			return err
		}
		_, err = strconv.ParseInt(strings.TrimSpace(log), 10, 64)
		return err
	}))
	contains(t, page, first)
	// The outage itself leaves no history: at most one commit has the present
	// state afterwards.
	if made := s.statusCommits(t) - before; made > 2 {
		t.Errorf("%d status commits after the outage, want one for the present state", made)
	}
}

func testRegistryOutage(t *testing.T, s *stable) {
	ref := release(t, s.w, platformRelease("1.1.0", nil))
	s.w.Reg.Proxy.Down()
	defer s.w.Reg.Proxy.Up()
	push(t, s.w, "platform 1.1.0", map[string]string{platformFile: declare(platform, "1.1.0", ref) + "  interval: 10s\n"})
	contains(t, s.refused(t, platform, "1.1.0", "FetchFailed"), "retried automatically")
	s.keepsRunning(t)

	// A new process continues with the cached release.
	s.restart(t)
	contains(t, s.refused(t, platform, "1.1.0", "FetchFailed"), "retried automatically")
	s.keepsRunning(t)
	obj, err := getRelease(t.Context(), s.w, platform)
	must(t, err)
	if obj.Status.Applied == nil || obj.Status.Applied.Version != first {
		t.Errorf("applied is %+v after a restart, want %s", obj.Status.Applied, first)
	}
	s.w.Reg.Proxy.Up()
	waitApplied(t, s.w, platform, "1.1.0")
	s.repairs(t, "1.1.0")
}

// testEmptyDisk starts a process with an empty disk, as a new pod or the standby has
// it, while the registry and the Git server are away and the desired release is a bad
// one.
func testEmptyDisk(t *testing.T, s *stable) {
	bad := unsigned(t, s.w, platformRelease("1.1.1", nil))
	push(t, s.w, "platform 1.1.1, unsigned", map[string]string{platformFile: declare(platform, "1.1.1", bad) + "  interval: 10s\n"})
	s.refused(t, platform, "1.1.1", "Unsigned")
	before, err := getRelease(t.Context(), s.w, platform)
	must(t, err)
	source := &v1alpha1.GitSource{}
	must(t, s.w.Client.Get(t.Context(), client.ObjectKeyFromObject(sourceObject()), source))
	s.w.Reg.Proxy.Down()
	defer s.w.Reg.Proxy.Up()
	s.w.Git.Proxy.Down()
	defer s.w.Git.Proxy.Up()
	must(t, s.w.Reconciler.Kill())
	must(t, os.RemoveAll(s.w.Path("reconciler-state")))
	must(t, s.w.StartReconciler())
	contains(t, waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionFailing, "True", "FetchFailed"),
		"1.1.0 not loaded after the restart", "retried automatically")
	after, err := getRelease(t.Context(), s.w, platform)
	must(t, err)
	for name, diff := range map[string]string{
		"accepted": cmp.Diff(before.Status.Accepted, after.Status.Accepted), "applied": cmp.Diff(before.Status.Applied, after.Status.Applied),
		"history": cmp.Diff(before.Status.History, after.Status.History),
	} {
		if diff != "" {
			t.Errorf("%s without the registry (-before +after the restart):\n%s", name, diff)
		}
	}
	if b := after.Status.Progress.Blocking; len(b) != 1 || b[0].RetryAt == nil {
		t.Errorf("blocking is %+v, want the next attempt", b)
	}
	waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "False", "FetchFailed")
	now := &v1alpha1.GitSource{}
	must(t, s.w.Client.Get(t.Context(), client.ObjectKeyFromObject(source), now))
	if diff := cmp.Diff(source.Status.AcceptedRevision, now.Status.AcceptedRevision); diff != "" {
		t.Errorf("accepted revision without Git (-before +after the restart):\n%s", diff)
	}
	s.w.Reg.Proxy.Up()
	waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionFailing, "False", "")
	s.repairs(t, "1.1.0")
	s.w.Git.Proxy.Up()
	s.refused(t, platform, "1.1.1", "Unsigned")
}

// testAPIServerRestart restarts the API server during an update. The
// reconciler may exit when it can't renew its lease; a pod would be restarted
// then.
func testAPIServerRestart(t *testing.T, s *stable) {
	ref := release(t, s.w, platformRelease("1.2.0", nil))
	push(t, s.w, "platform 1.2.0", map[string]string{platformFile: declare(platform, "1.2.0", ref) + "  interval: 10s\n"})
	must(t, s.w.Control.RestartAPIServer(t.Context()))
	must(t, env.Wait(t.Context(), 90*time.Second, func(ctx context.Context) error {
		select {
		case <-s.w.Reconciler.Done():
			if err := s.w.StartReconciler(); err != nil {
				return err
			}
		default:
		}
		obj, err := getRelease(ctx, s.w, platform)
		if err != nil {
			return err
		}
		if obj.Status.Applied == nil || obj.Status.Applied.Version != "1.2.0" || !meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("applied is %+v, want 1.2.0", obj.Status.Applied)
		}
		return nil
	}))
	s.repairs(t, "1.2.0")
}
