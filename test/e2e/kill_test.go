// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/test/env"
)

// stream is the API server's watch of the ConfigMaps of a namespace, in order:
// every change is in it.
type stream struct {
	mu sync.Mutex
	// versions are the versions in each object's data.
	versions map[string]string
	// ever are all versions that any object's data had.
	ever map[string]bool
	// deleted counts deletions by name.
	deleted map[string]int
	// uids are the last UIDs of the objects; changes counts all events.
	uids    map[string]types.UID
	changes int
	events  chan string
	ended   error
	// from and to are the versions between which objects may move, empty for
	// any; wrong are the violations.
	from, to string
	wrong    []error
}

// follow watches the ConfigMaps of a namespace until the test ends.
func follow(t *testing.T, w *env.Env, namespace string) *stream {
	t.Helper()
	clients, err := kubernetes.NewForConfig(w.Control.Config)
	must(t, err)
	list, err := clients.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	s := &stream{versions: map[string]string{}, ever: map[string]bool{}, deleted: map[string]int{}, uids: map[string]types.UID{}, events: make(chan string, 10000)}
	for i := range list.Items {
		s.versions[list.Items[i].Name] = list.Items[i].Data["version"]
		s.uids[list.Items[i].Name] = list.Items[i].UID
	}
	seconds := int64(3600)
	watcher, err := clients.CoreV1().ConfigMaps(namespace).Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: list.ResourceVersion, TimeoutSeconds: &seconds,
	})
	must(t, err)
	t.Cleanup(watcher.Stop)
	go func() {
		for e := range watcher.ResultChan() {
			s.see(e)
		}
	}()
	return s
}

func (s *stream) see(e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cm, ok := e.Object.(*corev1.ConfigMap)
	if !ok {
		s.ended = fmt.Errorf("the watch said %s: %+v", e.Type, e.Object)
		return
	}
	s.changes++
	s.judge(watchEvent{
		name: cm.Name, version: cm.Data["version"], before: s.versions[cm.Name], uid: cm.UID, deleted: e.Type == watch.Deleted || cm.DeletionTimestamp != nil,
	})
	if e.Type == watch.Deleted {
		s.deleted[cm.Name]++
		delete(s.versions, cm.Name)
		delete(s.uids, cm.Name)
	} else {
		s.uids[cm.Name] = cm.UID
		s.versions[cm.Name] = cm.Data["version"]
		s.ever[cm.Data["version"]] = true
	}
	s.events <- cm.Name
}

// at returns how many objects have a version.
func (s *stream) at(version string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, v := range s.versions {
		if v == version {
			n++
		}
	}
	return n
}

// saw reports whether any object ever had a version.
func (s *stream) saw(version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ever[version]
}

// deletions returns a copy of the deletions, and whether the watch broke.
func (s *stream) deletions() (map[string]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.deleted), s.ended
}

// reach waits until that many objects have a version, by the events of the
// watch.
func (s *stream) reach(t *testing.T, version string, n int) {
	t.Helper()
	s.until(t, fmt.Sprintf("%d objects at %s", n, version), func() bool { return s.at(version) >= n })
}

func (s *stream) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for !done() {
		select {
		case <-s.events:
		case <-timer.C:
			t.Fatalf("not reached after a minute: %s", what)
		}
	}
}

// levelled is a release of the probes over several run levels, without those
// in dropped.
func levelled(version string, dropped ...string) env.Release {
	r := env.Release{Product: platform, Version: version, Components: []env.Component{
		{Name: "base", RunLevel: 10, Files: map[string]string{"namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: platform}\n"}},
	}}
	for level := range 4 {
		c := env.Component{Name: fmt.Sprintf("level-%d", level), RunLevel: 20 + level, Files: map[string]string{}}
		for i := level; i < probes; i += 4 {
			if name := probe(i); !slices.Contains(dropped, name) {
				c.Files[name+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: platform}\ndata: {version: \"" + version + "\"}\n"
			}
		}
		r.Components = append(r.Components, c)
	}
	return r
}

// TestAKillAtAnyStepReachesTheSameState kills the reconciler at several points
// of an update and of its rollback. A watch decides when, and records
// deletions.
func TestAKillAtAnyStepReachesTheSameState(t *testing.T) {
	t.Parallel()
	w := newEnv(t, 0)
	s := &stable{w: w}
	s.good = release(t, w, levelled(first, "probe-38", "probe-39"))
	next := release(t, w, levelled("1.1.0", "probe-00", "probe-01"))
	s.declares(t, first, s.good)
	must(t, w.Client.Create(t.Context(), w.GitSource()))
	must(t, w.StartReconciler("--lease-duration", "3s"))
	waitApplied(t, w, platform, first)

	// An unmanaged object has every mark of Lockstep's objects but isn't in
	// the inventory.
	var managed corev1.ConfigMap
	must(t, w.Client.Get(t.Context(), client.ObjectKey{Namespace: platform, Name: probe(5)}, &managed))
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: platform, Name: "foreign", Labels: managed.Labels, Annotations: managed.Annotations,
	}}
	must(t, w.Client.Create(t.Context(), other))
	uids := managedUIDs(t, w)
	st := follow(t, w, platform)

	s.declares(t, "1.1.0", next)
	for _, n := range []int{1, 15, 37} {
		st.reach(t, "1.1.0", n)
		t.Logf("killed with %d objects at 1.1.0", st.at("1.1.0"))
		s.restart(t, "--lease-duration", "3s")
	}
	st.until(t, "the first deletion", func() bool {
		gone, _ := st.deletions()
		return len(gone) > 0
	})
	s.restart(t, "--lease-duration", "3s")
	waitApplied(t, w, platform, "1.1.0")
	sameDeletions(t, st, map[string]int{"probe-00": 1, "probe-01": 1})
	if n := st.at("1.1.0"); n != 38 {
		t.Errorf("%d objects at 1.1.0, want 38", n)
	}

	_, err := w.Git.Run(t.Context(), "-c", "user.signingkey="+w.Key("admin"), "revert", "-S", "--no-edit", "HEAD")
	must(t, err)
	must(t, w.Git.Push(t.Context(), "main"))
	for _, n := range []int{1, 20} {
		st.reach(t, first, n)
		t.Logf("killed with %d objects back at %s", st.at(first), first)
		s.restart(t, "--lease-duration", "3s")
	}
	waitApplied(t, w, platform, first)
	sameDeletions(t, st, map[string]int{"probe-00": 1, "probe-01": 1, "probe-38": 1, "probe-39": 1})
	if n := st.at(first); n != 38 {
		t.Errorf("%d objects at %s, want 38", n, first)
	}
	for name, uid := range managedUIDs(t, w) {
		if was, ok := uids[name]; ok && was != uid && name != probe(0) && name != probe(1) {
			t.Errorf("%s was recreated", name)
		}
	}
	s.keepsRunning(t)
}

// sameDeletions fails unless exactly these objects were deleted, as often as
// given.
func sameDeletions(t *testing.T, st *stream, want map[string]int) {
	t.Helper()
	got, err := st.deletions()
	must(t, err)
	if !maps.Equal(got, want) {
		t.Errorf("deleted %v, want %v", got, want)
	}
}

// managedUIDs returns the UIDs of the platform's ConfigMaps by name.
func managedUIDs(t *testing.T, w *env.Env) map[string]types.UID {
	t.Helper()
	var list corev1.ConfigMapList
	must(t, w.Client.List(context.WithoutCancel(t.Context()), &list, client.InNamespace(platform)))
	out := map[string]types.UID{}
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i].UID
	}
	return out
}
