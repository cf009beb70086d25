// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/sources"
)

func acceptedSource(objects map[string]string) state.Source {
	return state.Source{URL: "ssh://git@git.example.com/old.git", Cluster: "prod", Revision: "main@sha1:0123", Objects: objects}
}

func TestTheOriginOutlivesItsSource(t *testing.T) {
	b := newBench(t)
	s := b.runtimes(Options{})
	if _, _, ok := s.origin(v1alpha1.KindClusterRelease, "platform"); ok {
		t.Error("an object that nobody declares has an origin")
	}
	must(t, b.store.SetSource(t.Context(), "fleet", acceptedSource(map[string]string{"ClusterRelease/platform": "sha256:aa"})))
	from, revision, ok := s.origin(v1alpha1.KindClusterRelease, "platform")
	if !ok || from.url != "ssh://git@git.example.com/old.git" || from.cluster != "prod" || revision != "main@sha1:0123" {
		t.Errorf("origin = %+v, %s, %v", from, revision, ok)
	}
	// Its source may not have been looked at yet: that passes.
	_, _, err := from.tree(t.Context(), revision)
	if reasonOf(err, "") != "SourceNotRead" || !retriable(err) {
		t.Errorf("a payload path of a source that isn't read: %v, retriable %v", err, retriable(err))
	}
}

func TestPayloadPathsOfUnverifiedSourcesAreRefused(t *testing.T) {
	b := newBench(t)
	s := b.runtimes(Options{})
	obj := &v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"},
		Spec:       v1alpha1.GitSourceSpec{URL: "file:///srv/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"}},
	}
	rt, err := s.get(obj)
	must(t, err)
	_, _, err = s.originOf(rt).tree(t.Context(), "main@sha1:0123")
	if reasonOf(err, "") != "SourceUnverified" || retriable(err) {
		t.Errorf("err = %v, retriable %v", err, retriable(err))
	}
}

func TestOnlyOneReaderUsesAMirror(t *testing.T) {
	b := newBench(t)
	s := b.runtimes(Options{})
	repo := newRepository(t)
	repo.commit(releaseDoc("mirror-a", "1.0.0"))
	obj := &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: v1alpha1.GitSourceSpec{URL: repo.url(), Ref: v1alpha1.GitRef{Branch: "main"}}}
	first, err := s.get(obj)
	must(t, err)
	obj.Spec.Interval.Duration = 1
	if same, err := s.get(obj); err != nil || same != first {
		t.Errorf("another interval made another reader: %v", err)
	}
	obj.Spec.Path = "clusters"
	second, err := s.get(obj)
	must(t, err)
	if second == first || second.serial == first.serial {
		t.Error("another path made no other reader")
	}
	if _, err := first.reader.Fetch(t.Context(), sources.Request{}); err == nil {
		t.Error("the old reader still uses the mirror")
	}
	if _, err := second.reader.Fetch(t.Context(), sources.Request{}); err != nil {
		t.Errorf("the new reader: %v", err)
	}
	must(t, s.drop("fleet"))
	if _, err := second.reader.Fetch(t.Context(), sources.Request{}); err == nil {
		t.Error("a dropped source is still read")
	}
}

func TestARetrieverNoticesAnotherOrigin(t *testing.T) {
	var r retriever
	if !r.setOrigin(origin{url: "a"}) || r.setOrigin(origin{url: "a"}) || !r.setOrigin(origin{url: "a", serial: 2}) {
		t.Error("a change of origin isn't noticed, or noticed twice")
	}
}

func TestASecretServesOnlyWhatItSays(t *testing.T) {
	b := newBench(t)
	secrets := b.kube.CoreV1().Secrets(v1alpha1.Namespace)
	for name, annotations := range map[string]map[string]string{
		"wall4-good":    {v1alpha1.AnnotationUse: v1alpha1.UseGitRead, v1alpha1.AnnotationHosts: "git.example.com, other.example.com"},
		"wall4-purpose": {v1alpha1.AnnotationUse: v1alpha1.UseGitStatus, v1alpha1.AnnotationHosts: "git.example.com"},
		"wall4-host":    {v1alpha1.AnnotationUse: v1alpha1.UseGitRead, v1alpha1.AnnotationHosts: "evil.git.example.com"},
		"wall4-bare":    nil,
	} {
		b.create(secretOf(name, annotations))
	}
	for name, want := range map[string]string{
		"wall4-good": "", "wall4-purpose": reasonSecretNotBound, "wall4-host": reasonSecretNotBound, "wall4-bare": reasonSecretNotBound,
		"wall4-missing": reasonSecretNotFound,
	} {
		data, err := boundSecret(t.Context(), secrets, name, v1alpha1.UseGitRead, "git.example.com")
		if got := reasonOf(err, ""); got != want || (err == nil) != (len(data) > 0) {
			t.Errorf("%s: reason %q, want %q; data given: %v", name, got, want, len(data) > 0)
		}
		if err != nil && containsSecret(err) {
			t.Errorf("%s: the error tells the secret: %v", name, err)
		}
		if err != nil && !retriable(err) {
			t.Errorf("%s: a person can annotate it, and then it passes", name)
		}
	}
	_, err := boundSecret(t.Context(), secrets, "wall4-bare", v1alpha1.UseGitRead, "git.example.com")
	want := "kubectl -n lockstep-system annotate --overwrite secret wall4-bare lockstep.dev/use=git-read lockstep.dev/hosts=git.example.com"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want the command %q", err, want)
	}
}
