// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

// load returns a store as a new process has it.
func load(t *testing.T, client typedcorev1.ConfigMapInterface) *Store {
	t.Helper()
	s := New(client)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEachSourceAndReleaseHasItsObject(t *testing.T) {
	client := configMaps(t)
	s := load(t, client)
	must(t, s.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:1"}))
	must(t, s.SpendRollback(t.Context(), "platform", "1.0.0\nx"))
	must(t, s.SpendRollback(t.Context(), "web", "1.0.0\nx"))
	objects := func() []string {
		list, err := client.List(t.Context(), metav1.ListOptions{})
		must(t, err)
		var out []string
		for i := range list.Items {
			if name := list.Items[i].Name; strings.HasPrefix(name, "lockstep-") {
				out = append(out, strings.TrimPrefix(name, "lockstep-state"))
			}
		}
		return out
	}
	if diff := cmp.Diff([]string{"", "-release-platform", "-release-web", "-source-fleet"}, objects()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	must(t, s.DropRelease(t.Context(), "web"))
	must(t, s.DropRelease(t.Context(), "web"))
	if diff := cmp.Diff([]string{"", "-release-platform", "-source-fleet"}, objects()); diff != "" {
		t.Errorf("objects after a release was deleted (-want +got):\n%s", diff)
	}
	if _, ok := load(t, client).Releases()["web"]; ok {
		t.Error("a restart restores a deleted release")
	}
}

func TestAnUnreadableObjectIsAnError(t *testing.T) {
	for _, name := range []string{MarkerName, SourceObject("fleet"), TrustName} {
		for _, broken := range []string{"{", `{"format":99}`} {
			t.Run(name+" "+broken, func(t *testing.T) {
				client := configMaps(t)
				_, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: broken}}, metav1.CreateOptions{})
				must(t, err)
				if err := New(client).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "configmap "+name) || !strings.Contains(err.Error(), "delete configmap "+name) {
					t.Errorf("Load: %v", err)
				}
			})
		}
	}
}

func TestAnObjectUnderAnotherNameIsAnError(t *testing.T) {
	client := configMaps(t)
	must(t, load(t, client).SetSource(t.Context(), "fleet", Source{}))
	cm, err := client.Get(t.Context(), SourceObject("fleet"), metav1.GetOptions{})
	must(t, err)
	copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: SourceObject("other")}, Data: cm.Data}
	_, err = client.Create(t.Context(), copied, metav1.CreateOptions{})
	must(t, err)
	if err := New(client).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "it has the accepted state of GitSource/fleet") {
		t.Errorf("Load beside a copy: %v", err)
	}
}

// A user who labels, annotates or deletes an object of the store doesn't end the
// process, and loses no accepted state.
func TestATouchedObjectIsWrittenAgain(t *testing.T) {
	client := configMaps(t)
	s := load(t, client)
	must(t, s.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:1"}))
	must(t, s.SpendRollback(t.Context(), "platform", "1.0.0\na"))
	label := func(name string) {
		t.Helper()
		patch := []byte(`{"metadata":{"labels":{"team":"platform"},"annotations":{"note":"x"}}}`)
		_, err := client.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	for _, name := range []string{MarkerName, SourceObject("fleet"), ReleaseObject("platform")} {
		label(name)
	}
	must(t, s.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:2"}))
	must(t, s.SpendRollback(t.Context(), "platform", "1.0.0\nb"))
	again := load(t, client)
	if src, _ := again.Source("fleet"); src.Revision != "main@sha1:2" || again.Release("platform").SpentRollback != "1.0.0\nb" {
		t.Errorf("after a label: source %+v, release %+v", src, again.Release("platform"))
	}
	cm, err := client.Get(t.Context(), SourceObject("fleet"), metav1.GetOptions{})
	must(t, err)
	if cm.Labels["team"] != "platform" || cm.Annotations["note"] != "x" || cm.Labels["app.kubernetes.io/part-of"] != "lockstep" {
		t.Errorf("labels %v, annotations %v: a write removed those of others", cm.Labels, cm.Annotations)
	}
	must(t, client.Delete(t.Context(), SourceObject("fleet"), metav1.DeleteOptions{}))
	must(t, s.SetSource(t.Context(), "fleet", Source{Revision: "main@sha1:3"}))
	if src, _ := load(t, client).Source("fleet"); src.Revision != "main@sha1:3" {
		t.Errorf("after a deletion: %+v", src)
	}
	label(ReleaseObject("platform"))
	must(t, s.DropRelease(t.Context(), "platform"))
	if _, ok := load(t, client).Releases()["platform"]; ok {
		t.Error("a labelled object isn't deleted with its release")
	}
}

// Each object is compared: what another process wrote is never overwritten or
// deleted.
func TestAnotherWriterOfAnObjectIsAConflict(t *testing.T) {
	client := configMaps(t)
	s := load(t, client)
	must(t, s.SpendRollback(t.Context(), "platform", "1.0.0\na"))
	successor := load(t, client)
	must(t, successor.SpendRollback(t.Context(), "platform", "1.0.0\nb"))
	must(t, successor.SpendRollback(t.Context(), "web", "1.0.0\nb"))
	for name, write := range map[string]func() error{
		"update": func() error { return s.SpendRollback(t.Context(), "platform", "1.0.0\nc") },
		"create": func() error { return s.SpendRollback(t.Context(), "web", "1.0.0\nc") },
		"delete": func() error { return s.DropRelease(t.Context(), "platform") },
	} {
		if err := write(); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", name, err)
		}
	}
	if got := load(t, client).Release("platform").SpentRollback; got != "1.0.0\nb" {
		t.Errorf("the successor's state is %q", got)
	}
}

// lossy executes writes without returning their response while lost is set.
type lossy struct {
	typedcorev1.ConfigMapInterface
	lost bool
	// stop is the number of writes after which all fail; -1 for never.
	stop int
}

var errLost = errors.New("connection reset")

func (l *lossy) end(cm *corev1.ConfigMap, err error) (*corev1.ConfigMap, error) {
	if l.lost {
		return nil, errLost
	}
	return cm, err
}

func (l *lossy) stopped() bool {
	if l.stop == 0 {
		return true
	}
	l.stop--
	return false
}

func (l *lossy) Create(ctx context.Context, cm *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error) {
	if l.stopped() {
		return nil, errLost
	}
	return l.end(l.ConfigMapInterface.Create(ctx, cm, opts))
}

func (l *lossy) Update(ctx context.Context, cm *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	if l.stopped() {
		return nil, errLost
	}
	return l.end(l.ConfigMapInterface.Update(ctx, cm, opts))
}

func (l *lossy) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if l.stopped() {
		return errLost
	}
	_, err := l.end(nil, l.ConfigMapInterface.Delete(ctx, name, opts))
	return err
}

func TestALostResponseIsNoConflict(t *testing.T) {
	client := &lossy{ConfigMapInterface: configMaps(t), stop: -1}
	s := load(t, client)
	must(t, s.SpendRollback(t.Context(), "other", "x"))
	write := func(value string, lost bool) {
		t.Helper()
		client.lost = lost
		if err := s.SpendRollback(t.Context(), "platform", value); lost != errors.Is(err, errLost) || !lost && err != nil {
			t.Fatalf("write of %s: %v", value, err)
		}
	}
	write("a", true) // created
	write("b", false)
	write("c", true) // updated
	write("d", false)
	write("e", true)
	write("e", false) // the same again
	if got := load(t, client).Release("platform").SpentRollback; got != "e" {
		t.Errorf("stored %q, want e", got)
	}
	client.lost = true
	if err := s.SpendRollback(t.Context(), "new", "x"); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	if err := s.DropRelease(t.Context(), "platform"); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	client.lost = false
	must(t, s.DropRelease(t.Context(), "platform"))
	if _, ok := load(t, client).Releases()["platform"]; ok {
		t.Error("the release is still stored")
	}
}

// format2 stores the single document of the previous version.
func format2(t *testing.T, client typedcorev1.ConfigMapInterface) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "format2.json"))
	must(t, err)
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: MarkerName}, Data: map[string]string{key: string(raw)}}
	_, err = client.Create(t.Context(), old, metav1.CreateOptions{})
	must(t, err)
}

// A process may end after each write of the conversion.
func TestTheSingleDocumentIsConvertedWhereverAProcessEnds(t *testing.T) {
	for stop := 0; ; stop++ {
		client := configMaps(t)
		format2(t, client)
		// The last version but one may have left objects behind.
		stale := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ReleaseObject("gone")}, Data: map[string]string{key: `{"format":4,"kind":"ClusterRelease","name":"gone","release":{}}`}}
		_, err := client.Create(t.Context(), stale, metav1.CreateOptions{})
		must(t, err)
		first := load(t, &lossy{ConfigMapInterface: client, stop: stop})
		ended := first.SpendRollback(t.Context(), "platform", "new") != nil
		second := load(t, client)
		want := full().clone()
		if !ended {
			r := want.Releases["platform"]
			r.SpentRollback = "new"
			want.Releases["platform"] = r
		}
		if diff := cmp.Diff(want.Releases, second.Releases()); diff != "" {
			t.Errorf("releases after %d writes (-want +got):\n%s", stop, diff)
		}
		if src, _ := second.Source("fleet"); !cmp.Equal(want.Sources["fleet"], src, cmpopts.EquateEmpty()) {
			t.Errorf("source after %d writes: %s", stop, cmp.Diff(want.Sources["fleet"], src))
		}
		must(t, second.SpendRollback(t.Context(), "platform", "new"))
		must(t, second.SpendRollback(t.Context(), "platform", "newer"))
		cm, err := client.Get(t.Context(), MarkerName, metav1.GetOptions{})
		must(t, err)
		// The previous version rejects this format; an absent or empty document
		// would make it accept everything again.
		if cm.Data[key] != `{"format":4}` {
			t.Errorf("the marker is %s", cm.Data[key])
		}
		if _, err := client.Get(t.Context(), ReleaseObject("gone"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a release that the document doesn't have: %v", err)
		}
		if !ended {
			if stop < 4 {
				t.Errorf("the conversion took %d writes", stop)
			}
			return
		}
	}
}

func TestTheStoreOfFormat1IsRejectedByName(t *testing.T) {
	client := configMaps(t)
	old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: format1Name}, Data: map[string]string{key: `{"format":1,"sources":{}}`}}
	_, err := client.Create(t.Context(), old, metav1.CreateOptions{})
	must(t, err)
	if err := New(client).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "configmap lockstep-accepted: format 1") || !strings.Contains(err.Error(), "delete configmap lockstep-accepted") {
		t.Errorf("Load beside a store of format 1: %v", err)
	}
	must(t, client.Delete(t.Context(), format1Name, metav1.DeleteOptions{}))
	if err := New(client).Load(t.Context()); err != nil {
		t.Errorf("Load after the deletion: %v", err)
	}
}

// One release at its limit doesn't stop the writes of others, and a full list of
// pools loses none.
func TestALimitOfOneReleaseStopsNoOther(t *testing.T) {
	client := configMaps(t)
	s := load(t, client)
	var many []string
	for i := range MaxBytes / 64 {
		many = append(many, fmt.Sprintf("%064d", i))
	}
	accepted := Accepted{Identity: payload.Identity{Version: "1.0.0"}}
	var limit *limitError
	if err := s.SetAccepted(t.Context(), "large", accepted, many); !errors.As(err, &limit) {
		t.Errorf("a record over the limit: %v", err)
	}
	must(t, s.SetAccepted(t.Context(), "large", accepted, many[:1]))
	must(t, s.SetAccepted(t.Context(), "small", accepted, nil))
	for i := range MaxPools {
		must(t, s.SetPool(t.Context(), "small", fmt.Sprintf("pool-%d", i), "sha256:aa"))
	}
	if err := s.SetPool(t.Context(), "small", "one-more", "sha256:aa"); !errors.As(err, &limit) {
		t.Errorf("a pool over the limit: %v", err)
	}
	must(t, s.SetPool(t.Context(), "small", "pool-0", "sha256:bb"))
	if got := len(load(t, client).Release("small").Pools); got != MaxPools {
		t.Errorf("%d pools after a restart, want %d", got, MaxPools)
	}
}
