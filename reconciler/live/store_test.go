// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

var configMaps = schema.GroupKind{Kind: "ConfigMap"}

// storeOf returns a store with tracked objects.
func storeOf(gk schema.GroupKind, tracked ...string) *store {
	s := newStore(gk, "v1")
	for _, name := range tracked {
		s.track(key{"", name}, "v1", kinds.Of(gk).Body)
	}
	return s
}

// add stores obj as an event does.
func add(t *testing.T, s *store, obj any) {
	t.Helper()
	md, body, err := splitObject(obj)
	ok(t, err)
	s.put(keyOf(md), Summarize(md), body)
}

// remove deletes obj as an event does.
func remove(t *testing.T, s *store, obj any) {
	t.Helper()
	md, body, err := splitObject(obj)
	ok(t, err)
	s.remove(keyOf(md), md.GetResourceVersion(), jobEnd{md.GetUID(), endingOf(s.gk, body)})
}

// list stores a list as a reflector does.
func list(t *testing.T, s *store, resourceVersion string, objects ...any) {
	t.Helper()
	next, bodies := map[key]*Object{}, map[key]*unstructured.Unstructured{}
	for _, obj := range objects {
		md, body, err := splitObject(obj)
		ok(t, err)
		next[keyOf(md)] = Summarize(md)
		if body != nil {
			bodies[keyOf(md)] = body
		}
	}
	s.replace(next, bodies, resourceVersion)
	s.sync.settle(nil)
}

func object(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: version}}
}

func job(name, version string, complete bool) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": name, "uid": "u", "resourceVersion": version}}}
	if complete {
		o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}
	}
	return o
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestObjectsAreUnknownBeforeTheFirstList(t *testing.T) {
	s := storeOf(configMaps, "a")
	add(t, s, object("a", "5"))
	if v := s.get(key{"", "a"}); v.State != Unknown {
		t.Errorf("state %d, want Unknown", v.State)
	}
	list(t, s, "9", object("a", "5"))
	if v := s.get(key{"", "a"}); v.State != Present || v.AsOf != "9" {
		t.Errorf("%+v, want Present as of 9", v)
	}
	if v := s.get(key{"", "b"}); v.State != Absent {
		t.Errorf("state %d, want Absent", v.State)
	}
}

func TestOnlyListedObjectsAreMerged(t *testing.T) {
	s := storeOf(configMaps, "a")
	merged := func() bool { return s.get(key{"", "a"}).Object.Merged }
	list(t, s, "5", object("a", "5"))
	if !merged() {
		t.Error("not merged after the first list")
	}
	add(t, s, object("a", "6"))
	if merged() {
		t.Error("merged after an event")
	}
	list(t, s, "9", object("a", "6"))
	if merged() {
		t.Error("merged after a list of the same version")
	}
	list(t, s, "9", object("a", "8"))
	if !merged() {
		t.Error("not merged after a list of another version")
	}
}

func TestAListOfALowerResourceVersionStartsAnEpoch(t *testing.T) {
	s := storeOf(configMaps, "a")
	list(t, s, "100")
	s.advance("200")
	list(t, s, "150")
	if v := s.get(key{"", "a"}); v.Epoch != 1 || v.AsOf != "150" {
		t.Errorf("%+v, want epoch 1 as of 150", v)
	}
	list(t, s, "160")
	if v := s.get(key{"", "a"}); v.Epoch != 1 {
		t.Errorf("epoch %d, want 1", v.Epoch)
	}
}

func TestADeletedFinishedJobIsRememberedUntilRecreated(t *testing.T) {
	s := storeOf(kinds.Job, "done", "killed")
	list(t, s, "2", job("done", "1", true), job("killed", "2", false))
	remove(t, s, job("done", "3", true))
	remove(t, s, job("killed", "4", false))
	if v := s.get(key{"", "done"}); v.State != Absent || !v.Finished || v.Ended != "u" {
		t.Errorf("%+v, want Absent and finished", v)
	}
	if v := s.get(key{"", "killed"}); v.State != Absent || v.Finished {
		t.Errorf("%+v, want Absent and not finished", v)
	}
	add(t, s, job("done", "5", false))
	remove(t, s, job("done", "6", false))
	if v := s.get(key{"", "done"}); v.Finished {
		t.Error("the completion of the previous Job is still remembered")
	}
}

func TestOnlyTrackedObjectsHaveBodies(t *testing.T) {
	s := storeOf(kinds.Job, "ours")
	list(t, s, "2", job("ours", "1", true), job("theirs", "2", true))
	if s.get(key{"", "ours"}).Object.Body == nil || s.get(key{"", "theirs"}).Object.Body != nil {
		t.Error("want the body of ours only")
	}
	s.untrack(key{"", "ours"})
	if s.get(key{"", "ours"}).Object.Body != nil {
		t.Error("the body remains after the last interest")
	}
}

func TestAKindIsUnknownAfterConsecutiveFailures(t *testing.T) {
	s := storeOf(configMaps, "a")
	list(t, s, "1")
	failure := errors.New("conversion webhook is down")
	for range brokenAfter - 1 {
		s.sync.settle(failure)
	}
	if !s.sync.synced {
		t.Error("unknown after two failures")
	}
	s.sync.settle(failure)
	if v := s.get(key{"", "a"}); v.State != Unknown {
		t.Error("not unknown after three failures")
	}
	list(t, s, "2")
	if v := s.get(key{"", "a"}); v.State != Absent {
		t.Error("still unknown after a list")
	}
}

func TestAnOverdueFirstListIsReportedOnce(t *testing.T) {
	s := storeOf(configMaps, "a")
	late := errors.New("no list")
	if !s.sync.expire(late) {
		t.Error("the first timeout isn't reported")
	}
	if s.sync.expire(late) {
		t.Error("the second timeout is reported")
	}
	if s.sync.synced || !errors.Is(s.sync.err, late) {
		t.Errorf("%+v, want the timeout", s.sync)
	}
	if !s.sync.settle(nil) {
		t.Error("the list isn't reported")
	}
	if s.sync.expire(late) {
		t.Error("a synced kind times out")
	}
	if s.sync.err != nil {
		t.Errorf("a synced kind has the error %v", s.sync.err)
	}
}

func TestTheWatchSwitchesToTheNewestServedVersion(t *testing.T) {
	served := func(versions ...string) func(string) bool {
		return func(v string) bool { return slices.Contains(versions, v) }
	}
	s := newStore(kinds.Job, "v1beta1")
	s.track(key{"", "a"}, "v1beta1", true)
	if s.track(key{"", "a"}, "v1", true); s.switchVersion(key{"", "a"}, served("v1")) {
		t.Error("switched before the first watch")
	}
	s.watching = "v1beta1"
	list(t, s, "1", job("a", "1", false))
	if s.switchVersion(key{"", "a"}, served("v1beta1")) {
		t.Error("switched to a version that isn't served")
	}
	if !s.switchVersion(key{"", "a"}, served("v1beta1", "v1")) || s.spec.version != "v1" {
		t.Errorf("watch %+v, want v1", s.spec)
	}
	if s.get(key{"", "a"}).Object.Body != nil {
		t.Error("the body of the old version remains")
	}
	s.track(key{"", "b"}, "v1beta1", true)
	if s.switchVersion(key{"", "b"}, served("v1beta1", "v1")) {
		t.Error("switched although another object needs the newer version")
	}
}

// modelObject is the expected state of one object.
type modelObject struct {
	version      int
	body, merged bool
}

// storeModel is a naive second implementation of the store for Jobs.
type storeModel struct {
	objects       map[string]modelObject
	tracked       map[string]int
	finished      map[string]bool
	version, asOf int
	epoch         int
	failures      int
	bodies        bool
	synced        bool
}

func (m *storeModel) set(name string, version int, merged bool) {
	m.objects[name] = modelObject{version, m.tracked[name] > 0, merged}
	delete(m.finished, name)
}

// next returns the next resource version.
func (m *storeModel) next() int {
	m.version++
	return m.version
}

func TestTheStoreMatchesANaiveModel(t *testing.T) {
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		s := newStore(kinds.Job, "v1")
		m := &storeModel{objects: map[string]modelObject{}, tracked: map[string]int{}, finished: map[string]bool{}}
		name := func(t *rapid.T) string { return rapid.SampledFrom(names).Draw(t, "name") }
		summary := func(name string, version int) (*Object, *unstructured.Unstructured) {
			body := job(name, strconv.Itoa(version), false)
			return &Object{Name: name, UID: types.UID("u"), ResourceVersion: strconv.Itoa(version)}, body
		}
		t.Repeat(map[string]func(*rapid.T){
			"track": func(t *rapid.T) {
				n := name(t)
				o, present := m.objects[n]
				restart, fetch := s.track(key{"", n}, "v1", true)
				if restart == m.bodies || fetch != (m.bodies && present && !o.body) {
					t.Fatalf("track(%s) = %t, %t", n, restart, fetch)
				}
				m.synced = m.synced && m.bodies
				m.bodies = true
				m.tracked[n]++
			},
			"untrack": func(t *rapid.T) {
				n := name(t)
				had := m.tracked[n] > 0
				if m.tracked[n]--; m.tracked[n] <= 0 {
					delete(m.tracked, n)
					if had {
						delete(m.finished, n)
						if o, present := m.objects[n]; present {
							m.objects[n] = modelObject{o.version, false, o.merged}
						}
					}
				}
				if last := s.untrack(key{"", n}); last != (had && len(m.tracked) == 0) {
					t.Fatalf("untrack(%s) = %t", n, last)
				}
			},
			"put": func(t *rapid.T) {
				n := name(t)
				m.asOf = m.next()
				m.set(n, m.asOf, false)
				o, body := summary(n, m.asOf)
				s.put(key{"", n}, o, body)
			},
			"remove": func(t *rapid.T) {
				n, how := name(t), rapid.SampledFrom([]ending{running, completed}).Draw(t, "ending")
				m.asOf = m.next()
				delete(m.objects, n)
				if m.tracked[n] > 0 && how == completed {
					m.finished[n] = true
				}
				s.remove(key{"", n}, strconv.Itoa(m.asOf), jobEnd{"u", how})
			},
			"bookmark": func(*rapid.T) {
				m.asOf = m.next()
				s.advance(strconv.Itoa(m.asOf))
			},
			"fetched body": func(t *rapid.T) {
				n := name(t)
				stale := rapid.Bool().Draw(t, "stale")
				o, present := m.objects[n]
				version := o.version
				if stale {
					version++
				}
				_, body := summary(n, version)
				added := s.addBody(body)
				if added != (present && !stale && !o.body && m.tracked[n] > 0) {
					t.Fatalf("addBody(%s) = %t", n, added)
				}
				if added {
					m.objects[n] = modelObject{o.version, true, o.merged}
				}
			},
			"list": func(t *rapid.T) {
				restored := rapid.Bool().Draw(t, "restored") && m.version > 10
				if restored {
					m.version -= 10
				}
				before := m.objects
				m.objects = map[string]modelObject{}
				next, bodies := map[key]*Object{}, map[key]*unstructured.Unstructured{}
				var want []string
				for _, n := range names {
					old, had := before[n]
					if !rapid.Bool().Draw(t, "exists") {
						if had || m.tracked[n] > 0 {
							want = append(want, n)
						}
						continue
					}
					version := old.version
					if !had || rapid.Bool().Draw(t, "changed") {
						version = m.next() + 1000 // Of no earlier event.
					}
					same := had && version == old.version
					m.set(n, version, !same || old.merged)
					if !same || !m.synced || !old.body && m.objects[n].body {
						want = append(want, n)
					}
					next[key{"", n}], bodies[key{"", n}] = summary(n, version)
				}
				m.version = m.next()
				if m.version < m.asOf {
					m.epoch++
				}
				m.asOf = m.version
				var got []string
				for _, at := range s.replace(next, bodies, strconv.Itoa(m.asOf)) {
					got = append(got, at.name)
				}
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("changed objects (-want +got):\n%s", diff)
				}
				s.sync.settle(nil)
				m.synced, m.failures = true, 0
			},
			"failure": func(*rapid.T) {
				s.sync.settle(errors.New("no server"))
				m.failures++
				m.synced = m.synced && m.failures < brokenAfter
			},
			"": func(t *rapid.T) {
				for _, n := range names {
					checkView(t, n, s.get(key{"", n}), m)
				}
				if len(s.objects) != len(m.objects) {
					t.Fatalf("%d objects, want %d", len(s.objects), len(m.objects))
				}
			},
		})
	})
}

func checkView(t *rapid.T, name string, got View, m *storeModel) {
	t.Helper()
	if !m.synced {
		if got.State != Unknown {
			t.Fatalf("%s: %+v, want Unknown", name, got)
		}
		return
	}
	o, present := m.objects[name]
	asOf := ""
	if m.asOf > 0 {
		asOf = strconv.Itoa(m.asOf)
	}
	if (got.State == Present) != present || got.AsOf != asOf || got.Epoch != m.epoch || got.Finished != m.finished[name] {
		t.Fatalf("%s: %+v, want present %t as of %q in epoch %d, finished %t", name, got, present, asOf, m.epoch, m.finished[name])
	}
	if !present {
		return
	}
	if got.Object.ResourceVersion != strconv.Itoa(o.version) || (got.Object.Body != nil) != o.body || got.Object.Merged != o.merged {
		t.Fatalf("%s: %+v, want %+v", name, got.Object, o)
	}
}
