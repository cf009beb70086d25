// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// configMaps returns a client for a namespace of the test's own.
func configMaps(t *testing.T) typedcorev1.ConfigMapInterface {
	t.Helper()
	client, err := kubernetes.NewForConfig(controlplane.Shared(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "state-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().ConfigMaps(ns.Name)
}

func TestTheAcceptedStateSurvivesARestart(t *testing.T) {
	client := configMaps(t)
	first := New(client)
	if err := first.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := Source{Revision: "main@sha1:0123", Time: time.Unix(1, 0).UTC(), Objects: map[string]string{"NodeOS/workers": "sha256:aa"}}
	if err := first.SetSource(t.Context(), "fleet", want); err != nil {
		t.Fatal(err)
	}
	second := New(client)
	if err := second.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, ok := second.Source("fleet")
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("Source after a restart (-want +got):\n%s", diff)
	}
	if source, hash, ok := second.Owner("NodeOS", "workers"); !ok || source != "fleet" || hash != "sha256:aa" {
		t.Errorf("Owner = %q, %q, %v", source, hash, ok)
	}
}

func TestAWriteByAnotherProcessIsAConflict(t *testing.T) {
	client := configMaps(t)
	s := New(client)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := New(client)
	if err := other.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:2"}); !errors.Is(err, ErrConflict) {
		t.Errorf("SetSource by a stale writer = %v, want ErrConflict", err)
	}
}

func TestCompletedReleasesAreRecordedOnceAndBounded(t *testing.T) {
	s := New(configMaps(t))
	for i := range 2 * MaxCompleted {
		done := Completed{Identity: payload.Identity{Version: fmt.Sprintf("1.%d.0", i)}, VersionHash: "sha256:aa", Time: time.Unix(int64(i), 0).UTC()}
		for range 2 {
			if err := s.Complete(t.Context(), "platform", "platform", done); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := s.Release("platform").Completed
	if len(got) != MaxCompleted || got[0].Version != "1.19.0" || got[1].Version != "1.18.0" {
		t.Errorf("Completed = %v", got)
	}
}

func TestChangedIsClosedAtAChange(t *testing.T) {
	s := New(configMaps(t))
	changed := s.Changed()
	if err := s.SetSource(t.Context(), "fleet", Source{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("Changed wasn't closed by a change")
	}
}

func TestAnObjectTakenOverLeavesTheOtherSource(t *testing.T) {
	s := New(configMaps(t))
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, objects := range map[string]map[string]string{"old": {"NodeOS/a": "1", "NodeOS/b": "2"}} {
		if err := s.SetSource(t.Context(), name, Source{Revision: "main@sha1:0123", Objects: objects}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetSource(t.Context(), "new", Source{Revision: "main@sha1:0123", Objects: map[string]string{"NodeOS/a": "3"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "new", "b": "old"} {
		if source, _, _ := s.Owner("NodeOS", name); source != want {
			t.Errorf("owner of NodeOS/%s = %s, want %s", name, source, want)
		}
	}
}

func TestDeletionPolicyAndPoolsSurviveARestart(t *testing.T) {
	client := configMaps(t)
	first := New(client)
	if err := first.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.SetDeletion(t.Context(), "platform", "Prune", "applier", Object{Kind: "ConfigMap", Namespace: "web", Name: "edited"}); err != nil {
		t.Fatal(err)
	}
	if err := first.SetPool(t.Context(), "platform", "workers", "sha256:aa"); err != nil {
		t.Fatal(err)
	}
	second := New(client)
	if err := second.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := Release{Deletion: "Prune", ServiceAccount: "applier", Unmanaged: []Object{{Kind: "ConfigMap", Namespace: "web", Name: "edited"}}, Pools: map[string]string{"workers": "sha256:aa"}}
	if diff := cmp.Diff(want, second.Release("platform")); diff != "" {
		t.Errorf("release after a restart (-want +got):\n%s", diff)
	}
	if release, hash, ok := second.PoolOwner("workers"); !ok || release != "platform" || hash != "sha256:aa" {
		t.Errorf("PoolOwner = %q, %q, %v", release, hash, ok)
	}
	if err := second.SetPool(t.Context(), "another", "workers", "sha256:bb"); err != nil {
		t.Fatal(err)
	}
	if release, hash, _ := second.PoolOwner("workers"); release != "another" || hash != "sha256:bb" {
		t.Errorf("PoolOwner after another release took it over = %q, %q", release, hash)
	}
	if err := second.DropPool(t.Context(), "workers"); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := second.PoolOwner("workers"); ok {
		t.Error("a deleted NodeOS still has an owner")
	}
}

// A release may have no capabilities yet, and a later version may write more
// fields: both are read, and the set of enabled capabilities never shrinks.
func TestCapabilitiesOnlyGrow(t *testing.T) {
	client := configMaps(t)
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: MarkerName},
		Data:       map[string]string{key: `{"format":2,"sources":{},"releases":{"platform":{"accepted":{"version":"1.0.0"},"later":true}}}`},
	}
	if _, err := client.Create(t.Context(), stored, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	enabled := func() []string {
		s := New(client)
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.Release("platform").Capabilities
	}
	if got := enabled(); got != nil {
		t.Errorf("capabilities before the first ones were enabled: %v", got)
	}
	for _, step := range []struct {
		version    string
		with, want []string
	}{
		{"1.0.0", []string{"b", "a"}, []string{"a", "b"}},
		{"1.0.0", []string{"b"}, []string{"a", "b"}},
		{"1.1.0", []string{"c"}, []string{"a", "b", "c"}},
		{"1.2.0", nil, []string{"a", "b", "c"}},
	} {
		s := New(client)
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.SetAccepted(t.Context(), "platform", Accepted{Identity: payload.Identity{Version: step.version}}, step.with); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, enabled()); diff != "" {
			t.Errorf("capabilities after %s with %v (-want +got):\n%s", step.version, step.with, diff)
		}
	}
}
