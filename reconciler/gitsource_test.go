// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

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
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

const someImage = "registry.example.com/platform/release@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// repository is a real Git repository on disk.
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

// commit makes the repository hold these documents in one file.
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

// rig is the controller of one GitSource.
type sourceRig struct {
	*bench
	r    *sourceReconciler
	name string
}

func newSourceRig(b *bench, repo *repository, name string) *sourceRig {
	b.t.Helper()
	decoder, err := desired.NewDecoder()
	must(b.t, err)
	s := &sourceRig{bench: b, name: name}
	s.r = &sourceReconciler{base: b.base, sources: b.runtimes(Options{}), decoder: decoder}
	s.r.opts = s.r.sources.opts
	s.declare(name, repo)
	return s
}

// restart begins a new process with the mirrors of the old one.
func (s *sourceRig) restart() {
	s.t.Helper()
	dir := s.r.sources.opts.StateDir
	must(s.t, s.r.sources.drop(s.name))
	s.reload()
	s.r = &sourceReconciler{base: s.base, sources: s.runtimes(Options{}), decoder: s.r.decoder}
	s.r.sources.opts.StateDir = dir
	s.r.opts = s.r.sources.opts
}

func (s *sourceRig) declare(name string, repo *repository) {
	s.t.Helper()
	s.create(&v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: repo.url(), Ref: v1alpha1.GitRef{Branch: "main"},
			Interval: metav1.Duration{Duration: time.Minute}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	})
}

// look reconciles a source once and returns it.
func (s *sourceRig) look(name string) *v1alpha1.GitSource {
	s.t.Helper()
	if _, err := s.r.Reconcile(s.t.Context(), named(name)); err != nil {
		s.t.Fatal(err)
	}
	var obj v1alpha1.GitSource
	must(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &obj))
	return &obj
}

func (s *sourceRig) release(name string) *v1alpha1.ClusterRelease {
	s.t.Helper()
	var obj v1alpha1.ClusterRelease
	must(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &obj))
	return &obj
}

// dropAtEnd deletes a declared release after the test.
func (s *sourceRig) dropAtEnd(names ...string) {
	for _, name := range names {
		s.t.Cleanup(func() {
			obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
			must(s.t, client.IgnoreNotFound(s.client.Delete(context.WithoutCancel(s.t.Context()), obj)))
		})
	}
}

func readyOf(obj conditioned) string {
	c := meta.FindStatusCondition(obj.GetConditions(), v1alpha1.ConditionReady)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func TestACommitIsAppliedOnce(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "once")
	repo.commit(releaseDoc("once-a", "1.0.0"))
	obj := s.look("once")
	if readyOf(obj) != "True Applied" || obj.Status.AcceptedRevision == nil {
		t.Fatalf("Ready = %s, accepted %v", readyOf(obj), obj.Status.AcceptedRevision)
	}
	live := s.release("once-a")
	if live.Annotations[v1alpha1.AnnotationSource] != "once" || live.Spec.Desired.Version != "1.0.0" {
		t.Errorf("declared object: %v %+v", live.Annotations, live.Spec.Desired)
	}
	if record, _ := s.store.Source("once"); record.UIDs["ClusterRelease/once-a"] != string(live.UID) {
		t.Errorf("UIDs = %v, want that of the object", record.UIDs)
	}
	if held := s.r.sources.notFromSource(live, v1alpha1.KindClusterRelease, live.Spec); held.Reason != "" {
		t.Errorf("what was accepted is held: %+v", held)
	}
	if !s.r.sources.asDeclared(live) {
		t.Error("the source's own apply would make it look at Git again")
	}
	s.wrote()
	s.look("once")
	if n := s.wrote(); n != 0 {
		t.Errorf("a look at an unchanged source made %d writes", n)
	}
	s.restart()
	s.look("once")
	if n := s.wrote(); n != 0 {
		t.Errorf("a new process made %d writes over an unchanged source", n)
	}
}

func TestAnEditIsRepairedAndNotActedUpon(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "edit")
	s.dropAtEnd("edit-a")
	repo.commit(releaseDoc("edit-a", "1.0.0", "  labels: {team: a}\n"))
	s.look("edit")
	live := s.release("edit-a")
	live.Spec.Desired.Version, live.Spec.ServiceAccountName, live.Labels = "6.6.6", "admin", map[string]string{"team": "b"}
	must(t, s.client.Update(t.Context(), live))
	if s.r.sources.asDeclared(live) {
		t.Error("the edit leads to no look")
	}
	held := s.r.sources.notFromSource(live, v1alpha1.KindClusterRelease, live.Spec)
	if held.Reason != status.ReasonNotFromSource || !held.Transient {
		t.Errorf("an edited object is held by %+v", held)
	}
	s.look("edit")
	got := s.release("edit-a")
	if got.Spec.Desired.Version != "1.0.0" || got.Spec.ServiceAccountName == "admin" || got.Labels["team"] != "a" {
		t.Errorf("after the repair: %+v %v", got.Spec, got.Labels)
	}
	// Labels alone drift too.
	got.Labels = nil
	must(t, s.client.Update(t.Context(), got))
	s.look("edit")
	if got := s.release("edit-a"); got.Labels["team"] != "a" {
		t.Errorf("labels after the repair: %v", got.Labels)
	}
}

func TestWhatNobodyDeclaresIsNotActedUpon(t *testing.T) {
	b := newBench(t)
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "byhand"}}
	held := b.runtimes(Options{}).notFromSource(obj, v1alpha1.KindClusterRelease, obj.Spec)
	if held.Reason != status.ReasonNotFromSource || held.Transient {
		t.Errorf("an object made by hand is held by %+v", held)
	}
	// The controller makes no runtime for it: nil releases would panic.
	rr := &releaseReconciler{base: b.base, sources: b.runtimes(Options{}), releases: &releases{byName: map[string]*releaseRuntime{}}}
	var facts status.ReleaseFacts
	rt, err := rr.act(t.Context(), obj, &facts)
	if rt != nil || err != nil || facts.Held.Reason != status.ReasonNotFromSource {
		t.Errorf("act = %v, %v, held by %+v", rt, err, facts.Held)
	}
}

func TestARefusedCommitKeepsRepairingTheAcceptedOne(t *testing.T) {
	repo, other := newRepository(t), newRepository(t)
	s := newSourceRig(newBench(t), repo, "refused")
	s.dropAtEnd("refused-a", "refused-b")
	s.declare("refused-other", other)
	repo.commit(releaseDoc("refused-a", "1.0.0"))
	other.commit(releaseDoc("refused-b", "1.0.0"))
	s.look("refused")
	s.look("refused-other")
	repo.commit(releaseDoc("refused-a", "2.0.0"), releaseDoc("refused-b", "2.0.0"))
	live := s.release("refused-a")
	live.Spec.Desired.Version = "6.6.6"
	must(t, s.client.Update(t.Context(), live))
	obj := s.look("refused")
	if readyOf(obj) != "False OwnedByOther" || obj.Status.AttemptedRevision.Revision == obj.Status.AcceptedRevision.Revision {
		t.Errorf("Ready = %s, attempted %v", readyOf(obj), obj.Status.AttemptedRevision)
	}
	if got := s.release("refused-a").Spec.Desired.Version; got != "1.0.0" {
		t.Errorf("the accepted object is at %s: nothing of a refused commit is applied, and drift is repaired", got)
	}
	if source, _, _ := s.store.Owner(v1alpha1.KindClusterRelease, "refused-b"); source != "refused-other" {
		t.Errorf("refused-b belongs to %s now", source)
	}
}

func TestWhatLeavesGitIsKeptUnlessItSaysOtherwise(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "leave")
	s.dropAtEnd("leave-kept")
	repo.commit(releaseDoc("leave-kept", "1.0.0"), releaseDoc("leave-gone", "1.0.0", pruneLine), releaseDoc("leave-last", "1.0.0", pruneLine))
	s.look("leave")
	repo.commit(releaseDoc("leave-last", "1.0.0", pruneLine))
	obj := s.look("leave")
	if diff := cmp.Diff([]string{"ClusterRelease/leave-kept"}, obj.Status.Orphaned); diff != "" {
		t.Errorf("orphaned (-want +got):\n%s", diff)
	}
	err := s.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "leave-gone"}, &v1alpha1.ClusterRelease{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("leave-gone: %v, want it deleted", err)
	}
	kept := s.release("leave-kept")
	if held := s.r.sources.notFromSource(kept, v1alpha1.KindClusterRelease, kept.Spec); held.Reason != "" {
		t.Errorf("an orphan goes on as it was declared last, got %+v", held)
	}
	s.dropAtEnd("leave-last")
}

func TestASourceOfAnotherNameTakesOverFromOneThatIsGone(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "oldname")
	s.dropAtEnd("named-a")
	repo.commit(releaseDoc("named-a", "1.0.0"))
	s.look("oldname")
	s.declare("newname", repo)
	if got := readyOf(s.look("newname")); got != "False OwnedByOther" {
		t.Errorf("while the old one is there: Ready = %s", got)
	}
	must(t, s.client.Delete(t.Context(), &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "oldname"}}))
	if _, err := s.r.Reconcile(t.Context(), named("oldname")); err != nil {
		t.Fatal(err)
	}
	if got := readyOf(s.look("newname")); got != "True Applied" {
		t.Errorf("after the old one is gone: Ready = %s", got)
	}
	if source, _, _ := s.store.Owner(v1alpha1.KindClusterRelease, "named-a"); source != "newname" {
		t.Errorf("owner = %s", source)
	}
}

func TestADeclaredSourceThatWasEditedIsNotRead(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "inner")
	repo.commit(releaseDoc("inner-a", "1.0.0"))
	must(t, s.store.SetSource(t.Context(), "outer", acceptedSource(map[string]string{"GitSource/inner": "sha256:of-another-spec"})))
	obj := s.look("inner")
	if got := readyOf(obj); got != "False NotFromSource" {
		t.Errorf("Ready = %s", got)
	}
	if obj.Status.AcceptedRevision != nil {
		t.Error("it was read all the same")
	}
}

func TestTheTwoWritersOfAStatusKeepEachOthersWork(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "writers")
	s.dropAtEnd("writers-a")
	repo.commit(releaseDoc("writers-a", "1.0.0"))
	stale := s.look("writers")
	fresh := stale.DeepCopy()
	set := func(typ string) func(*v1alpha1.GitSource) bool {
		return func(o *v1alpha1.GitSource) bool {
			o.Status.Conditions = status.Fold(o.Status.Conditions, 1, *at(epoch), []status.Condition{{Type: typ, Status: "True", Reason: "Test"}})
			return true
		}
	}
	must(t, s.patchFresh(t.Context(), fresh, set("Other")))
	must(t, s.patchFresh(t.Context(), stale, set("Test")))
	s.wrote()
	must(t, s.patchFresh(t.Context(), s.look("writers"), set("Test")))
	if n := s.wrote(); n != 0 {
		t.Errorf("a status without a change was written %d times", n)
	}
	obj := s.look("writers")
	for _, typ := range []string{"Other", "Test", v1alpha1.ConditionReady} {
		if meta.FindStatusCondition(obj.Status.Conditions, typ) == nil {
			t.Errorf("condition %s was lost", typ)
		}
	}
}

func TestARestartKeepsUpWhatWasAcceptedWhileGitIsAway(t *testing.T) {
	repo := newRepository(t)
	s := newSourceRig(newBench(t), repo, "away")
	s.dropAtEnd("away-a")
	repo.commit(releaseDoc("away-a", "1.0.0"))
	s.look("away")
	s.restart()
	must(t, os.Rename(repo.dir, repo.dir+".away"))
	live := s.release("away-a")
	live.Spec.Desired.Version = "6.6.6"
	must(t, s.client.Update(t.Context(), live))
	var result reconcile.Result
	result, err := s.r.Reconcile(t.Context(), named("away"))
	must(t, err)
	if result.RequeueAfter <= 0 {
		t.Error("it is never looked at again")
	}
	if got := s.release("away-a").Spec.Desired.Version; got != "1.0.0" {
		t.Errorf("away-a is at %s: drift is repaired from the mirror", got)
	}
}
