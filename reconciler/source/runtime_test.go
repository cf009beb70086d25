// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

func TestTheOriginOutlivesItsSource(t *testing.T) {
	b := controlenv.New(t)
	s := newController(t, b, t.TempDir()).runtimes
	if _, _, ok := s.origin(v1alpha1.KindClusterRelease, "platform"); ok {
		t.Error("an undeclared object has an origin")
	}
	must(t, b.Store.SetSource(t.Context(), "fleet", controlenv.AcceptedSource(map[string]string{"ClusterRelease/platform": "sha256:aa"})))
	from, revision, ok := s.origin(v1alpha1.KindClusterRelease, "platform")
	if !ok || from.URL != "ssh://git@git.example.com/old.git" || from.Cluster != "prod" || revision != "main@sha1:0123" {
		t.Errorf("origin = %+v, %s, %v", from, revision, ok)
	}
	// Its source may not be reconciled yet, which is transient.
	_, _, err := from.Tree(t.Context(), revision)
	if control.ReasonOf(err, "") != "SourceNotRead" || !control.Retriable(err) {
		t.Errorf("a payload path of a source that isn't open: %v, retriable %v", err, control.Retriable(err))
	}
}

func TestPayloadPathsOfUnverifiedSourcesAreRejected(t *testing.T) {
	b := controlenv.New(t)
	s := newController(t, b, t.TempDir()).runtimes
	obj := &v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"},
		Spec:       v1alpha1.GitSourceSpec{URL: "file:///srv/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"}},
	}
	rt, err := s.get(obj)
	must(t, err)
	_, _, err = s.originOf(rt).Tree(t.Context(), "main@sha1:0123")
	if control.ReasonOf(err, "") != "SourceUnverified" || control.Retriable(err) {
		t.Errorf("err = %v, retriable %v", err, control.Retriable(err))
	}
}

func TestOnlyOneReaderUsesAMirror(t *testing.T) {
	b := controlenv.New(t)
	s := newController(t, b, t.TempDir()).runtimes
	repo := newRepository(t)
	repo.commit(releaseDoc("mirror-a", "1.0.0"))
	obj := &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: v1alpha1.GitSourceSpec{URL: repo.url(), Ref: v1alpha1.GitRef{Branch: "main"}}}
	first, err := s.get(obj)
	must(t, err)
	obj.Spec.Interval.Duration = 1
	if same, err := s.get(obj); err != nil || same != first {
		t.Errorf("another interval opened the source again: %v", err)
	}
	obj.Spec.Path = "clusters"
	second, err := s.get(obj)
	must(t, err)
	if second == first || second.serial == first.serial {
		t.Error("another path didn't open the source again")
	}
	if _, err := first.reader.Fetch(t.Context(), sources.Request{}); err == nil {
		t.Error("the old reader still uses the mirror")
	}
	if _, err := second.reader.Fetch(t.Context(), sources.Request{}); err != nil {
		t.Errorf("the new reader: %v", err)
	}
	must(t, s.drop("fleet"))
	if _, err := second.reader.Fetch(t.Context(), sources.Request{}); err == nil {
		t.Error("a dropped source is still readable")
	}
}
