// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

// brokenAfter is the number of consecutive failures after which a synced kind
// becomes Unwatchable and its data isn't used anymore.
const brokenAfter = 3

// key identifies an object within its kind.
type key struct{ namespace, name string }

func keyOf(o metav1.Object) key { return key{o.GetNamespace(), o.GetName()} }

// interest counts the trackers of an object. body is true if one of them needs
// the body, in the given API version.
type interest struct {
	refs    int
	body    bool
	version string
}

// jobEnd is how the Job with this UID ended.
type jobEnd struct {
	uid types.UID
	how ending
}

// watchSpec selects what a reflector watches.
type watchSpec struct {
	version string
	bodies  bool
}

// store holds the objects of one kind as its watch delivers them. It is pure:
// it has no lock, clock, goroutine or client.
type store struct {
	gk schema.GroupKind
	// spec is the watch that the tracked objects need; watching is the API
	// version of the running one, "" before the first.
	spec     watchSpec
	watching string
	tracked  map[key]interest
	objects  map[key]*Object
	ended    map[key]jobEnd
	asOf     string
	epoch    int
	sync     syncState
}

func newStore(gk schema.GroupKind, version string) *store {
	return &store{
		gk: gk, spec: watchSpec{version: version},
		tracked: map[key]interest{}, objects: map[key]*Object{}, ended: map[key]jobEnd{},
	}
}

// track adds an interest. restart is true if the running watch must be
// restarted to deliver bodies, fetch if the object is present without the body
// that it needs.
func (s *store) track(at key, version string, body bool) (restart, fetch bool) {
	in := s.tracked[at]
	in.refs++
	in.body = in.body || body
	if body {
		in.version = version
	}
	s.tracked[at] = in
	if body && !s.spec.bodies {
		s.spec = watchSpec{version: version, bodies: true}
		s.sync.synced = false
		return true, false
	}
	o := s.objects[at]
	return false, body && o != nil && o.Body == nil
}

// untrack removes an interest and reports whether it was the last one of the
// kind.
func (s *store) untrack(at key) bool {
	in, ok := s.tracked[at]
	if !ok {
		return false
	}
	if in.refs--; in.refs > 0 {
		s.tracked[at] = in
		return false
	}
	delete(s.tracked, at)
	delete(s.ended, at)
	s.dropBody(at)
	return len(s.tracked) == 0
}

// switchVersion selects the newest API version that tracked objects need, if it
// is served and not watched yet, and reports whether the watch must be restarted
// for it. It drops the body of the object at this key, which is of another
// version than needed.
func (s *store) switchVersion(at key, served func(version string) bool) bool {
	if s.tracked[at].version == s.watching {
		return false
	}
	newest := ""
	for _, in := range s.tracked {
		if in.body && (newest == "" || kubeversion.CompareKubeAwareVersionStrings(in.version, newest) > 0) {
			newest = in.version
		}
	}
	if newest == "" || s.watching == "" || newest == s.watching || !served(newest) {
		return false
	}
	s.spec.version, s.watching = newest, newest
	if s.tracked[at].version == newest {
		s.dropBody(at)
	}
	return true
}

func (s *store) dropBody(at key) {
	if o := s.objects[at]; o != nil && o.Body != nil {
		bare := *o
		bare.Body = nil
		s.objects[at] = &bare
	}
}

// addBody adds a fetched body to its object. It reports false if the object
// changed since or doesn't need a body anymore.
func (s *store) addBody(body *unstructured.Unstructured) bool {
	at := keyOf(body)
	o := s.objects[at]
	if in := s.tracked[at]; o == nil || o.Body != nil || !in.body || o.UID != body.GetUID() || o.ResourceVersion != body.GetResourceVersion() {
		return false
	}
	full := *o
	full.Body = body
	s.objects[at] = &full
	return true
}

func (s *store) get(at key) View {
	if !s.sync.synced {
		return View{State: Unknown}
	}
	if o := s.objects[at]; o != nil {
		return View{State: Present, Object: o, AsOf: s.asOf, Epoch: s.epoch}
	}
	end := s.ended[at]
	return View{State: Absent, AsOf: s.asOf, Epoch: s.epoch, Ended: end.uid, Finished: end.how == completed, Failed: end.how == failed}
}

// put stores an added or updated object.
func (s *store) put(at key, o *Object, body *unstructured.Unstructured) {
	s.set(at, o, body)
	s.advance(o.ResourceVersion)
}

// remove deletes an object. resourceVersion is that of the deletion; end is how
// the object ended if it was a Job.
func (s *store) remove(at key, resourceVersion string, end jobEnd) {
	if _, ok := s.tracked[at]; ok && end.how != running {
		s.ended[at] = end
	}
	delete(s.objects, at)
	s.advance(resourceVersion)
}

// replace stores a list and returns the changed objects. Those whose resource
// version differs are marked Merged, because they may combine several writes.
func (s *store) replace(next map[key]*Object, bodies map[key]*unstructured.Unstructured, resourceVersion string) []key {
	before := s.objects
	s.objects = make(map[key]*Object, len(next))
	var changed []key
	for at, o := range next {
		old := before[at]
		same := old != nil && old.UID == o.UID && old.ResourceVersion == o.ResourceVersion
		o.Merged = !same || old.Merged
		s.set(at, o, bodies[at])
		if !same || !s.sync.synced || old.Body == nil && o.Body != nil {
			changed = append(changed, at)
		}
	}
	for at := range before {
		if next[at] == nil {
			changed = append(changed, at)
		}
	}
	for at := range s.tracked {
		if next[at] == nil && before[at] == nil {
			changed = append(changed, at)
		}
	}
	// A list is current even if its resource version is lower: etcd was restored.
	if c, err := resourceversion.CompareResourceVersion(resourceVersion, s.asOf); err == nil && c < 0 {
		s.epoch++
	}
	s.asOf = resourceVersion
	return changed
}

// set stores o, with its body only if a tracker needs it.
func (s *store) set(at key, o *Object, body *unstructured.Unstructured) {
	if in, ok := s.tracked[at]; ok && in.body {
		o.Body = body
	}
	delete(s.ended, at)
	s.objects[at] = o
}

// advance raises the resource version up to which the store is complete.
func (s *store) advance(resourceVersion string) {
	if c, err := resourceversion.CompareResourceVersion(resourceVersion, s.asOf); err != nil || c > 0 {
		s.asOf = resourceVersion
	}
}

// syncState is whether the watch of a kind works. A synced kind stays synced
// through a few failures: its data is stale, not wrong.
type syncState struct {
	synced   bool
	failures int // consecutive
	err      error
}

func (s *syncState) broken() bool { return s.failures >= brokenAfter }

// settle records a successful list or a failure. It reports whether the kind
// became Unwatchable or watchable.
func (s *syncState) settle(err error) bool {
	was := s.broken()
	if err == nil {
		*s = syncState{synced: true}
	} else {
		s.failures++
		s.err = err
		s.synced = s.synced && !s.broken()
	}
	return was != s.broken()
}

// expire marks a kind without a first list as Unwatchable, so that later callers
// don't wait for it: with a failing conversion webhook, a server never returns
// one. A later list is still accepted. It reports whether the state changed.
func (s *syncState) expire(err error) bool {
	if s.synced || s.broken() {
		return false
	}
	s.failures = brokenAfter
	if s.err == nil || IsNoMatch(s.err) {
		s.err = err
	}
	return true
}
