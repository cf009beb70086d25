// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

func newStore(gk schema.GroupKind, tracked ...string) *turnStore {
	k := newKind(gk, "v1", newHub())
	for _, name := range tracked {
		k.track(payload.ObjectID{Group: gk.Group, Kind: gk.Kind, Name: name}, "v1", kinds.Of(gk).Body)
	}
	return &turnStore{kind: k, turn: k.nextTurn(), cache: &Cache{}}
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

func TestNothingIsKnownBeforeTheFirstList(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	ok(t, s.Add(object("a", "5")))
	if v := s.kind.get(key{"", "a"}); v.State != Unknown {
		t.Errorf("state %d, want Unknown", v.State)
	}
	ok(t, s.Replace([]any{object("a", "5")}, "9"))
	if v := s.kind.get(key{"", "a"}); v.State != Present || v.AsOf != "9" {
		t.Errorf("%+v, want it present as of 9", v)
	}
	if v := s.kind.get(key{"", "b"}); v.State != Absent {
		t.Errorf("state %d, want Absent", v.State)
	}
}

func TestListedObjectsAreMergedEventsAreNot(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	merged := func() bool { return s.kind.get(key{"", "a"}).Object.Merged }
	ok(t, s.Replace([]any{object("a", "5")}, "5"))
	if !merged() {
		t.Error("a first list may be the sum of many writes")
	}
	ok(t, s.Update(object("a", "6")))
	if merged() {
		t.Error("an event is one write")
	}
	ok(t, s.Replace([]any{object("a", "6")}, "9"))
	if merged() {
		t.Error("a relist of the same version adds nothing")
	}
	ok(t, s.Replace([]any{object("a", "8")}, "9"))
	if !merged() {
		t.Error("a relist of another version may be the sum of many writes")
	}
}

func TestVersionsThatGoBackBeginAnEpoch(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	ok(t, s.Replace(nil, "100"))
	ok(t, s.Bookmark("200"))
	ok(t, s.Replace(nil, "150"))
	if v := s.kind.get(key{"", "a"}); v.Epoch != 1 || v.AsOf != "150" {
		t.Errorf("%+v, want epoch 1 as of 150", v)
	}
	ok(t, s.Replace(nil, "160"))
	if v := s.kind.get(key{"", "a"}); v.Epoch != 1 {
		t.Errorf("epoch %d, want 1", v.Epoch)
	}
}

func TestFinishedJobThatGoesIsRememberedUntilItComesBack(t *testing.T) {
	s := newStore(schema.GroupKind{Group: "batch", Kind: "Job"}, "done", "killed")
	ok(t, s.Replace([]any{job("done", "1", true), job("killed", "2", false)}, "2"))
	ok(t, s.Delete(job("done", "3", true)))
	ok(t, s.Delete(job("killed", "4", false)))
	if v := s.kind.get(key{"", "done"}); v.State != Absent || !v.Finished || v.Ended != "u" {
		t.Errorf("%+v, want a finished absence", v)
	}
	if v := s.kind.get(key{"", "killed"}); v.State != Absent || v.Finished {
		t.Errorf("%+v, want an unfinished absence", v)
	}
	ok(t, s.Add(job("done", "5", false)))
	ok(t, s.Delete(job("done", "6", false)))
	if v := s.kind.get(key{"", "done"}); v.Finished {
		t.Error("a new Job of the name inherited the end of the old one")
	}
}

func TestBodiesAreKeptOfTrackedObjectsOnly(t *testing.T) {
	s := newStore(schema.GroupKind{Group: "batch", Kind: "Job"}, "ours")
	ok(t, s.Replace([]any{job("ours", "1", true), job("theirs", "2", true)}, "2"))
	if s.kind.get(key{"", "ours"}).Object.Body == nil || s.kind.get(key{"", "theirs"}).Object.Body != nil {
		t.Error("want the body of ours alone")
	}
	s.kind.untrack(payload.ObjectID{Group: "batch", Kind: "Job", Name: "ours"})
	if s.kind.get(key{"", "ours"}).Object.Body != nil {
		t.Error("the body stays after the last interest")
	}
}

func TestFailuresAreForgivenUntilTheyAreMany(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	ok(t, s.Replace(nil, "1"))
	failure := errors.New("conversion webhook is down")
	for range brokenAfter - 1 {
		s.kind.settle(s.turn, failure)
	}
	if synced, _, _ := s.kind.state(); !synced {
		t.Error("two failures made the kind unknown")
	}
	s.kind.settle(s.turn, failure)
	if v := s.kind.get(key{"", "a"}); v.State != Unknown {
		t.Error("the data of a kind that can't be watched is still trusted")
	}
	ok(t, s.Replace(nil, "2"))
	if v := s.kind.get(key{"", "a"}); v.State != Absent {
		t.Error("a list doesn't heal")
	}
}

func TestReplacedReflectorChangesNothing(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	ok(t, s.Replace(nil, "1"))
	next := &turnStore{kind: s.kind, turn: s.kind.nextTurn(), cache: s.cache}
	ok(t, s.Add(object("a", "2")))
	ok(t, s.Replace([]any{object("a", "2")}, "2"))
	if v := s.kind.get(key{"", "a"}); v.State != Absent {
		t.Error("the old reflector still writes")
	}
	ok(t, next.Add(object("a", "3")))
	if v := s.kind.get(key{"", "a"}); v.State != Present {
		t.Error("the new reflector doesn't")
	}
}

func TestChangesAreToldOncePerObject(t *testing.T) {
	c := &Cache{hub: newHub()}
	s := c.Subscribe(func(id payload.ObjectID) bool { return id.Name != "unwanted" })
	a, b := payload.ObjectID{Name: "a"}, payload.ObjectID{Name: "b"}
	for range 1000 {
		c.hub.notify(a)
		c.hub.notify(b)
		c.hub.notify(payload.ObjectID{Name: "unwanted"})
	}
	var got []payload.ObjectID
	for id, more := s.Pop(); more; id, more = s.Pop() {
		got = append(got, id)
	}
	if len(got) != 2 || got[0] != a || got[1] != b {
		t.Errorf("told %v, want a and b once", got)
	}
	s.Close()
	c.hub.notify(a)
	if _, more := s.Pop(); more {
		t.Error("told after Close")
	}
}

func TestAwaitSeesAChangeThatCameFirst(t *testing.T) {
	c := &Cache{hub: newHub(), kinds: map[schema.GroupKind]*kind{}}
	calls := 0
	err := c.Await(t.Context(), payload.ObjectID{Name: "a"}, func(View) bool {
		if calls++; calls == 1 {
			c.hub.notify(payload.ObjectID{Name: "a"}) // Between the look and the wait.
		}
		return calls == 2
	})
	if err != nil || calls != 2 {
		t.Errorf("err %v after %d calls", err, calls)
	}
}

func TestAKindWhoseListIsOverdueIsWaitedForOnce(t *testing.T) {
	s := newStore(schema.GroupKind{Kind: "ConfigMap"}, "a")
	late := errors.New("no list")
	if !s.kind.overdue(late) {
		t.Error("the first who waited isn't told that it's news")
	}
	if s.kind.overdue(late) {
		t.Error("the second is told again")
	}
	if synced, _, failure := s.kind.state(); synced || !errors.Is(failure, late) {
		t.Errorf("synced %t, failure %v, want the overdue list", synced, failure)
	}
	if !s.kind.settle(s.turn, nil) {
		t.Error("the list's coming is no news")
	}
	if s.kind.overdue(late) {
		t.Error("a kind that is in sync is overdue")
	}
	if _, _, failure := s.kind.state(); failure != nil {
		t.Errorf("a kind in sync fails: %v", failure)
	}
}
