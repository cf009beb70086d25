// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

const someImage = "registry.example.com/platform/release@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// repository is a Git repository on disk.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, dir: t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *repository) url() string { return "file://" + r.dir }

func (r *repository) git(args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.com",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// commit commits these documents as the only file.
func (r *repository) commit(documents ...string) {
	r.t.Helper()
	must(r.t, os.WriteFile(filepath.Join(r.dir, "all.yaml"), []byte(strings.Join(documents, "---\n")), 0o600))
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "a change")
}

// releaseDoc declares a ClusterRelease; more are lines of its metadata.
func releaseDoc(name, version string, more ...string) string {
	return "apiVersion: lockstep.dev/v1alpha1\nkind: ClusterRelease\nmetadata:\n  name: " + name + "\n" + strings.Join(more, "") +
		"spec:\n  desired:\n    version: " + version + "\n    image: " + someImage + "\n"
}

const pruneLine = "  annotations: {lockstep.dev/prune: enabled}\n"

// env is the environment of a test with one GitSource.
type env struct {
	*controlenv.Env
	t    *testing.T
	r    *Controller
	name string
}

// newController returns a controller that reads local repositories.
func newController(t *testing.T, e *controlenv.Env, dir string) *Controller {
	t.Helper()
	r, err := New(Config{
		Base: e.Base, StateDir: dir, AllowInsecure: true, Secrets: e.Kube.CoreV1().Secrets(v1alpha1.Namespace),
		Releases: control.NewTrigger(16), Pools: control.NewTrigger(16),
	})
	must(t, err)
	return r
}

func newEnv(t *testing.T, repo *repository, name string) *env {
	t.Helper()
	s := &env{Env: controlenv.New(t), t: t, name: name}
	s.r = newController(t, s.Env, t.TempDir())
	s.declare(name, repo)
	return s
}

// restart starts a new process with the mirrors of the old one.
func (s *env) restart() {
	s.t.Helper()
	must(s.t, s.r.runtimes.drop(s.name))
	s.Reload()
	s.r = newController(s.t, s.Env, s.r.cfg.StateDir)
}

func (s *env) declare(name string, repo *repository) {
	s.t.Helper()
	s.Create(&v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: repo.url(), Ref: v1alpha1.GitRef{Branch: "main"},
			Interval: metav1.Duration{Duration: time.Minute}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	})
}

// reconcile reconciles a source once and returns it.
func (s *env) reconcile(name string) *v1alpha1.GitSource {
	s.t.Helper()
	if _, err := s.r.Reconcile(s.t.Context(), control.Request(name)); err != nil {
		s.t.Fatal(err)
	}
	var obj v1alpha1.GitSource
	must(s.t, s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &obj))
	return &obj
}

func (s *env) release(name string) *v1alpha1.ClusterRelease {
	s.t.Helper()
	var obj v1alpha1.ClusterRelease
	must(s.t, s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &obj))
	return &obj
}

// deleteAtEnd deletes declared releases after the test.
func (s *env) deleteAtEnd(names ...string) {
	for _, name := range names {
		s.t.Cleanup(func() {
			obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
			must(s.t, client.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(s.t.Context()), obj)))
		})
	}
}

func readyOf(obj control.Object) string {
	c := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ConditionReady)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func TestACommitIsAppliedOnce(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "once")
	repo.commit(releaseDoc("once-a", "1.0.0"))
	obj := s.reconcile("once")
	if readyOf(obj) != "True Applied" || obj.Status.AcceptedRevision == nil {
		t.Fatalf("Ready = %s, accepted %v", readyOf(obj), obj.Status.AcceptedRevision)
	}
	live := s.release("once-a")
	if live.Annotations[v1alpha1.AnnotationSource] != "once" || live.Spec.Desired.Version != "1.0.0" {
		t.Errorf("declared object: %v %+v", live.Annotations, live.Spec.Desired)
	}
	if record, _ := s.Store.Source("once"); record.UIDs["ClusterRelease/once-a"] != string(live.UID) {
		t.Errorf("UIDs = %v, want that of the object", record.UIDs)
	}
	if held := s.r.NotFromSource(live, v1alpha1.KindClusterRelease, live.Spec); held.Reason != "" {
		t.Errorf("an accepted object is held: %+v", held)
	}
	if !s.r.runtimes.asDeclared(live) {
		t.Error("the source's own apply would trigger a fetch")
	}
	s.Writes()
	s.reconcile("once")
	if n := s.Writes(); n != 0 {
		t.Errorf("reconciling an unchanged source made %d writes", n)
	}
	s.restart()
	s.reconcile("once")
	if n := s.Writes(); n != 0 {
		t.Errorf("a restart with an unchanged source made %d writes", n)
	}
}

func TestAManualEditIsRepairedAndNotActedUpon(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "edit")
	s.deleteAtEnd("edit-a")
	repo.commit(releaseDoc("edit-a", "1.0.0", "  labels: {team: a}\n"))
	s.reconcile("edit")
	live := s.release("edit-a")
	live.Spec.Desired.Version, live.Spec.ServiceAccountName, live.Labels = "6.6.6", "admin", map[string]string{"team": "b"}
	must(t, s.Client.Update(t.Context(), live))
	if s.r.runtimes.asDeclared(live) {
		t.Error("the edit triggers no reconciliation")
	}
	held := s.r.NotFromSource(live, v1alpha1.KindClusterRelease, live.Spec)
	if held.Reason != status.ReasonNotFromSource || !held.Transient {
		t.Errorf("an edited object is held by %+v", held)
	}
	s.reconcile("edit")
	got := s.release("edit-a")
	if got.Spec.Desired.Version != "1.0.0" || got.Spec.ServiceAccountName == "admin" || got.Labels["team"] != "a" {
		t.Errorf("after the repair: %+v %v", got.Spec, got.Labels)
	}
	// A change of labels alone is repaired too.
	got.Labels = nil
	must(t, s.Client.Update(t.Context(), got))
	s.reconcile("edit")
	if got := s.release("edit-a"); got.Labels["team"] != "a" {
		t.Errorf("labels after the repair: %v", got.Labels)
	}
}

func TestAnUndeclaredObjectIsNotActedUpon(t *testing.T) {
	b := controlenv.New(t)
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "byhand"}}
	held := newController(t, b, t.TempDir()).NotFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec)
	if held.Reason != status.ReasonNotFromSource || held.Transient {
		t.Errorf("a manually created object is held by %+v", held)
	}
}

func TestDriftIsRepairedWhileACommitIsRejected(t *testing.T) {
	repo, other := newRepository(t), newRepository(t)
	s := newEnv(t, repo, "rejected")
	s.deleteAtEnd("rejected-a", "rejected-b")
	s.declare("rejected-other", other)
	repo.commit(releaseDoc("rejected-a", "1.0.0"))
	other.commit(releaseDoc("rejected-b", "1.0.0"))
	s.reconcile("rejected")
	s.reconcile("rejected-other")
	repo.commit(releaseDoc("rejected-a", "2.0.0"), releaseDoc("rejected-b", "2.0.0"))
	live := s.release("rejected-a")
	live.Spec.Desired.Version = "6.6.6"
	must(t, s.Client.Update(t.Context(), live))
	obj := s.reconcile("rejected")
	if readyOf(obj) != "False OwnedByOther" || obj.Status.AttemptedRevision.Revision == obj.Status.AcceptedRevision.Revision {
		t.Errorf("Ready = %s, attempted %v", readyOf(obj), obj.Status.AttemptedRevision)
	}
	if got := s.release("rejected-a").Spec.Desired.Version; got != "1.0.0" {
		t.Errorf("the accepted object is at %s, want 1.0.0: a rejected commit applies nothing, and drift is repaired", got)
	}
	if source, _, _ := s.Store.Owner(v1alpha1.KindClusterRelease, "rejected-b"); source != "rejected-other" {
		t.Errorf("rejected-b is declared by %s", source)
	}
}

func TestAnObjectRemovedFromGitIsDeletedOnlyWithTheAnnotation(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "leave")
	s.deleteAtEnd("leave-kept")
	repo.commit(releaseDoc("leave-kept", "1.0.0"), releaseDoc("leave-gone", "1.0.0", pruneLine), releaseDoc("leave-last", "1.0.0", pruneLine))
	s.reconcile("leave")
	repo.commit(releaseDoc("leave-last", "1.0.0", pruneLine))
	obj := s.reconcile("leave")
	if diff := cmp.Diff([]string{"ClusterRelease/leave-kept"}, obj.Status.Orphaned); diff != "" {
		t.Errorf("orphaned (-want +got):\n%s", diff)
	}
	err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "leave-gone"}, &v1alpha1.ClusterRelease{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("leave-gone: %v, want it deleted", err)
	}
	kept := s.release("leave-kept")
	if held := s.r.NotFromSource(kept, v1alpha1.KindClusterRelease, kept.Spec); held.Reason != "" {
		t.Errorf("an orphaned object is held by %+v", held)
	}
	const command = "kubectl delete clusterrelease leave-kept -n lockstep-system"
	removed := s.r.RemovedFromGit(v1alpha1.KindClusterRelease, "leave-kept")
	if removed.Reason != status.ReasonRemovedFromGit || removed.Transient || !strings.HasSuffix(removed.Message, command) || len(removed.Message) > 200 {
		t.Errorf("removed: %+v, want the command %q", removed, command)
	}
	if held := s.r.RemovedFromGit(v1alpha1.KindClusterRelease, "leave-last"); held.Reason != "" {
		t.Errorf("a declared object is held by %+v", held)
	}
	edited := kept.DeepCopy()
	edited.Spec.Desired.Version = "6.6.6"
	if held := s.r.NotFromSource(edited, v1alpha1.KindClusterRelease, edited.Spec); held.Reason != status.ReasonNotFromSource || held.Transient {
		t.Errorf("an edited object that left Git is held by %+v, want it for good: nothing restores it", held)
	}
	s.restart()
	s.reconcile("leave")
	if !s.Store.Removed(v1alpha1.KindClusterRelease, "leave-kept") {
		t.Error("a new process acts on an object that left Git")
	}
	repo.commit(releaseDoc("leave-last", "1.0.0", pruneLine), releaseDoc("leave-kept", "1.1.0"))
	s.reconcile("leave")
	if held := s.r.RemovedFromGit(v1alpha1.KindClusterRelease, "leave-kept"); held.Reason != "" || s.release("leave-kept").Spec.Desired.Version != "1.1.0" {
		t.Errorf("an object that is declared again is held by %+v", held)
	}
	s.deleteAtEnd("leave-last")
}

func TestAnotherSourceTakesOverFromADeletedOne(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "oldname")
	s.deleteAtEnd("named-a")
	repo.commit(releaseDoc("named-a", "1.0.0"))
	s.reconcile("oldname")
	s.declare("newname", repo)
	if got := readyOf(s.reconcile("newname")); got != "False OwnedByOther" {
		t.Errorf("while the old source exists: Ready = %s", got)
	}
	must(t, s.Client.Delete(t.Context(), &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "oldname"}}))
	if _, err := s.r.Reconcile(t.Context(), control.Request("oldname")); err != nil {
		t.Fatal(err)
	}
	if got := readyOf(s.reconcile("newname")); got != "True Applied" {
		t.Errorf("after the old source was deleted: Ready = %s", got)
	}
	if source, _, _ := s.Store.Owner(v1alpha1.KindClusterRelease, "named-a"); source != "newname" {
		t.Errorf("owner = %s", source)
	}
}

func TestAnEditedDeclaredSourceIsNotRead(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "inner")
	repo.commit(releaseDoc("inner-a", "1.0.0"))
	must(t, s.Store.SetSource(t.Context(), "outer", controlenv.AcceptedSource(map[string]string{"GitSource/inner": "sha256:of-another-spec"})))
	obj := s.reconcile("inner")
	if got := readyOf(obj); got != "False NotFromSource" {
		t.Errorf("Ready = %s", got)
	}
	if obj.Status.AcceptedRevision != nil {
		t.Error("it was read")
	}
}

func TestTheTwoWritersOfAStatusKeepEachOthersConditions(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "writers")
	s.deleteAtEnd("writers-a")
	repo.commit(releaseDoc("writers-a", "1.0.0"))
	stale := s.reconcile("writers")
	fresh := stale.DeepCopy()
	set := func(typ string) func(*v1alpha1.GitSource) bool {
		return func(o *v1alpha1.GitSource) bool {
			o.Status.Conditions = status.Fold(o.Status.Conditions, 1, metav1.NewTime(epoch), []status.Condition{{Type: typ, Status: "True", Reason: "Test"}})
			return true
		}
	}
	must(t, s.PatchLatestStatus(t.Context(), fresh, set("Other")))
	must(t, s.PatchLatestStatus(t.Context(), stale, set("Test")))
	s.Writes()
	must(t, s.PatchLatestStatus(t.Context(), s.reconcile("writers"), set("Test")))
	if n := s.Writes(); n != 0 {
		t.Errorf("an unchanged status was written %d times", n)
	}
	obj := s.reconcile("writers")
	for _, typ := range []string{"Other", "Test", v1alpha1.ConditionReady} {
		if meta.FindStatusCondition(obj.Status.Conditions, typ) == nil {
			t.Errorf("condition %s was lost", typ)
		}
	}
}

func TestARestartMaintainsTheAcceptedRevisionWithoutGit(t *testing.T) {
	repo := newRepository(t)
	s := newEnv(t, repo, "away")
	s.deleteAtEnd("away-a")
	repo.commit(releaseDoc("away-a", "1.0.0"))
	s.reconcile("away")
	s.restart()
	must(t, os.Rename(repo.dir, repo.dir+".away"))
	live := s.release("away-a")
	live.Spec.Desired.Version = "6.6.6"
	must(t, s.Client.Update(t.Context(), live))
	var result reconcile.Result
	result, err := s.r.Reconcile(t.Context(), control.Request("away"))
	must(t, err)
	if result.RequeueAfter <= 0 {
		t.Error("it isn't reconciled again")
	}
	if got := s.release("away-a").Spec.Desired.Version; got != "1.0.0" {
		t.Errorf("away-a is at %s, want 1.0.0 from the mirror", got)
	}
}

func TestTheSignerIsShownWithItsKey(t *testing.T) {
	signer := &sources.Signer{Name: "admin-1", Format: "ssh", Fingerprint: "SHA256:abc"}
	if got, want := signerText(signer), "admin-1 (ssh SHA256:abc)"; got != want {
		t.Errorf("signer %q, want %q", got, want)
	}
	want := state.Signer{Name: "admin-1", Format: "ssh", Fingerprint: "SHA256:abc"}
	if got := persistedSigner(signer); got != want || persistedSigner(nil) != (state.Signer{}) {
		t.Errorf("persisted signer %+v, want %+v", got, want)
	}
}
