// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lockstep-dev/lockstep/payload"
)

const (
	// minWatchTimeout is how long a watch lives at least; renewals are the
	// only requests of an idle kind.
	minWatchTimeout = 30 * time.Minute
	// brokenAfter is the number of failures in a row after which the data of
	// a kind that was in sync isn't trusted any more.
	brokenAfter = 3
	minBackoff  = 250 * time.Millisecond
	maxBackoff  = 30 * time.Second
	// missingBackoff is the longest pause before the server is asked again for a
	// kind that it doesn't know, which costs a whole discovery. Its definition
	// ends the pause, and so does who applies an object of it.
	missingBackoff = 15 * time.Minute
)

// key names an object within its kind.
type key struct{ namespace, name string }

// interest counts who tracks an object, and who of them needs its body, in which
// version.
type interest struct {
	refs    int
	body    bool
	version string
}

// kind is the store behind one reflector.
type kind struct {
	gk     schema.GroupKind
	hub    *hub
	cancel context.CancelFunc // guarded by Cache.mu

	mu       sync.RWMutex
	version  string // that is asked for
	shown    string // that the reflector reads, "" before its first look
	turn     int
	tracked  map[key]interest
	bodies   bool
	objects  map[key]*Object
	ended    map[key]end
	asOf     string
	epoch    int
	synced   bool
	failures int
	failure  error
	changed  chan struct{} // closed when synced or failure changes
}

func newKind(gk schema.GroupKind, version string, h *hub) *kind {
	return &kind{
		gk: gk, version: version, hub: h,
		tracked: map[key]interest{}, objects: map[key]*Object{}, ended: map[key]end{},
		changed: make(chan struct{}),
	}
}

// track adds an interest. It reports whether the kind's running reflector
// must start anew to deliver bodies, and whether the object is there without
// the body that is wanted.
func (k *kind) track(id payload.ObjectID, version string, body bool) (upgrade, bare bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := key{id.Namespace, id.Name}
	in := k.tracked[at]
	in.refs++
	in.body = in.body || body
	if body {
		in.version = version
	}
	k.tracked[at] = in
	if body && !k.bodies {
		k.bodies, k.synced, k.version = true, false, version
		return true, false
	}
	o := k.objects[at]
	return false, body && o != nil && o.Body == nil
}

// move asks for bodies in the newest version that the tracked objects are wanted
// in, if that isn't the one that is shown and is served. It reports whether the
// reflector must start anew for that. The body of the object for whose sake it
// does is dropped: it's of another version than it has to be judged in.
func (k *kind) move(id payload.ObjectID, served func(version string) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tracked[key{id.Namespace, id.Name}].version == k.shown {
		return false // As nearly always: nobody has to be asked.
	}
	newest := ""
	for _, in := range k.tracked {
		if in.body && (newest == "" || kubeversion.CompareKubeAwareVersionStrings(in.version, newest) > 0) {
			newest = in.version
		}
	}
	if newest == "" || k.shown == "" || newest == k.shown || !served(newest) {
		return false
	}
	k.version, k.shown = newest, newest
	at := key{id.Namespace, id.Name}
	if o := k.objects[at]; o != nil && o.Body != nil && k.tracked[at].version == newest {
		bare := *o
		bare.Body = nil
		k.objects[at] = &bare
	}
	return true
}

func (k *kind) wanted() string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.version
}

// fill adds the body to an object that is still the same.
func (k *kind) fill(body *unstructured.Unstructured) {
	body.SetManagedFields(nil)
	at := key{body.GetNamespace(), body.GetName()}
	k.mu.Lock()
	o := k.objects[at]
	if in := k.tracked[at]; o == nil || o.Body != nil || !in.body || o.UID != body.GetUID() || o.ResourceVersion != body.GetResourceVersion() {
		k.mu.Unlock()
		return // A newer event has brought it, or will.
	}
	full := *o
	full.Body = body
	k.objects[at] = &full
	k.mu.Unlock()
	k.hub.notify(k.id(at))
}

// untrack removes an interest and reports whether it was the kind's last.
func (k *kind) untrack(id payload.ObjectID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := key{id.Namespace, id.Name}
	in, ok := k.tracked[at]
	if !ok {
		return false
	}
	if in.refs--; in.refs > 0 {
		k.tracked[at] = in
		return false
	}
	delete(k.tracked, at)
	delete(k.ended, at)
	if o := k.objects[at]; o != nil && o.Body != nil {
		bare := *o
		bare.Body = nil
		k.objects[at] = &bare
	}
	return len(k.tracked) == 0
}

func (k *kind) get(at key) View {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if !k.synced {
		return View{State: Unknown}
	}
	if o := k.objects[at]; o != nil {
		return View{State: Present, Object: o, AsOf: k.asOf, Epoch: k.epoch}
	}
	ended := k.ended[at]
	return View{State: Absent, AsOf: k.asOf, Epoch: k.epoch, Ended: ended.uid, Finished: ended.how == completed, Failed: ended.how == failed}
}

func (k *kind) state() (synced bool, changed <-chan struct{}, failure error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.synced, k.changed, k.failure
}

func (k *kind) size() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.objects)
}

func (k *kind) nextTurn() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turn++
	return k.turn
}

// settle records that the kind is in sync, or a failure. A kind that was in
// sync stays so through a few failures: its data is old, not wrong. It reports
// whether the kind can't be watched any more, or can again.
func (k *kind) settle(turn int, failure error) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if turn != k.turn {
		return false
	}
	was := k.failures >= brokenAfter
	defer func() { news = was != (k.failures >= brokenAfter) }()
	if failure == nil {
		k.synced, k.failures, k.failure = true, 0, nil
	} else {
		k.failures++
		k.failure = failure
		k.synced = k.synced && k.failures < brokenAfter
	}
	close(k.changed)
	k.changed = make(chan struct{})
	return news
}

// overdue gives up waiting for the first list, so that the next who needs the
// kind doesn't wait as long again: a server whose conversion webhook is down
// answers no list at all. The list is taken when it comes. It reports whether
// that is news.
func (k *kind) overdue(late error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.synced || k.failures >= brokenAfter {
		return false
	}
	k.failures = brokenAfter
	if k.failure == nil || isNoMatch(k.failure) {
		k.failure = late
	}
	close(k.changed)
	k.changed = make(chan struct{})
	return true
}

// reflect keeps the kind's store like the cluster until ctx ends.
func (c *Cache) reflect(ctx context.Context, k *kind, turn int) {
	backoff := minBackoff
	version := k.wanted()
	for ctx.Err() == nil {
		began := c.cfg.Now()
		changed := c.mapper.changed() // Before the look: no change is missed.
		err := c.reflectOnce(ctx, k, turn, version)
		if ctx.Err() != nil {
			return
		}
		// A watch that ends by an error event is no error of the reflector's; how
		// long it lived tells whether it did well.
		if c.cfg.Now().Sub(began) > maxBackoff {
			backoff = minBackoff
		}
		if err != nil && !apierrors.IsResourceExpired(err) {
			if k.settle(turn, err) {
				c.tellUnwatchable(k.gk, err)
			}
			c.cfg.Log.V(1).Info("watch failed", "kind", k.gk.String(), "error", err.Error(), "retryIn", backoff.String())
			if apierrors.IsNotFound(err) || isNoMatch(err) {
				// The version may not be served any more: take what is, and that
				// one again if nothing is.
				if version == "" {
					version = k.wanted()
				} else {
					version = ""
				}
			}
			if apierrors.IsNotFound(err) {
				c.mapper.reset()
			}
		}
		longest := maxBackoff
		if isNoMatch(err) {
			longest = missingBackoff
		}
		backoff = min(backoff, longest)
		if c.pause(ctx, backoff, changed) {
			backoff = minBackoff
		} else {
			backoff *= 2
		}
	}
}

// pause waits, or less if the kinds that the server knows changed. It reports
// whether they did.
func (c *Cache) pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (c *Cache) reflectOnce(ctx context.Context, k *kind, turn int, version string) error {
	mapping, err := c.mapper.resolve(k.gk, version)
	if err != nil {
		return err
	}
	k.mu.Lock()
	bodies := k.bodies
	if turn == k.turn {
		k.shown = mapping.Resource.Version
	}
	k.mu.Unlock()
	store := &turnStore{kind: k, turn: turn, cache: c}
	ctx = klog.NewContext(ctx, c.cfg.Log.V(2)) // The reflector tells what we decide about anyway.
	r := cache.NewReflectorWithOptions(c.listWatch(mapping.Resource, bodies), nil, store, cache.ReflectorOptions{
		Name:            k.gk.String(),
		TypeDescription: k.gk.String(),
		MinWatchTimeout: minWatchTimeout,
		Backoff:         &wait.Backoff{Duration: minBackoff, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 4 * time.Second},
	})
	if err := r.ListAndWatchWithContext(ctx); err != nil {
		return fmt.Errorf("watching %s: %w", mapping.Resource, err)
	}
	return nil
}

// listWatch asks for metadata as protobuf, or for whole objects as JSON.
func (c *Cache) listWatch(gvr schema.GroupVersionResource, bodies bool) cache.ListerWatcher {
	if bodies {
		r := c.dynamic.Resource(gvr)
		return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if err := c.stillThere(ctx, gvr, o); err != nil {
					return nil, err
				}
				return r.Watch(ctx, o)
			},
		}, c.dynamic)
	}
	r := c.meta.Resource(gvr)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := c.stillThere(ctx, gvr, o); err != nil {
				return nil, err
			}
			return r.Watch(ctx, o)
		},
	}, c.meta)
}

// stillThere refuses to go on with a watch from a version that the server
// doesn't have: after a restore of etcd such a watch would be silent until
// the versions have caught up, and miss all that happened till then. It costs
// a list of one object each time that a watch is renewed.
func (c *Cache) stillThere(ctx context.Context, gvr schema.GroupVersionResource, o metav1.ListOptions) error {
	if o.ResourceVersion == "" || o.ResourceVersion == "0" || o.SendInitialEvents != nil && *o.SendInitialEvents {
		return nil
	}
	newest, err := c.meta.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if order, err := resourceversion.CompareResourceVersion(newest.ResourceVersion, o.ResourceVersion); err == nil && order < 0 {
		return apierrors.NewResourceExpired(fmt.Sprintf("the server is at version %s, before %s: it was restored", newest.ResourceVersion, o.ResourceVersion))
	}
	return nil
}

// turnStore is the reflector's side of a kind. A reflector that was replaced
// has lost its turn and changes nothing any more.
type turnStore struct {
	kind  *kind
	turn  int
	cache *Cache
}

func (s *turnStore) Add(obj any) error    { return s.put(obj) }
func (s *turnStore) Update(obj any) error { return s.put(obj) }
func (s *turnStore) Resync() error        { return nil }

// Bookmark moves the version up to which the store is known to be complete.
func (s *turnStore) Bookmark(resourceVersion string) error {
	s.kind.mu.Lock()
	defer s.kind.mu.Unlock()
	if s.turn == s.kind.turn {
		s.kind.seen(resourceVersion)
	}
	return nil
}

func (s *turnStore) put(obj any) error {
	meta, body, err := accept(obj)
	if err != nil {
		return err
	}
	k := s.kind
	at := key{meta.GetNamespace(), meta.GetName()}
	o := Summarize(meta)
	k.mu.Lock()
	if s.turn != k.turn {
		k.mu.Unlock()
		return nil
	}
	k.store(at, o, body)
	k.seen(o.ResourceVersion)
	k.mu.Unlock()
	s.cache.observed(k.gk, at.name, body)
	k.hub.notify(k.id(at))
	return nil
}

// Delete forgets the object. The deleted object carries the version of its
// deletion.
func (s *turnStore) Delete(obj any) error {
	meta, body, err := accept(obj)
	if err != nil {
		return err
	}
	k := s.kind
	at := key{meta.GetNamespace(), meta.GetName()}
	k.mu.Lock()
	if s.turn != k.turn {
		k.mu.Unlock()
		return nil
	}
	if _, tracked := k.tracked[at]; tracked {
		if how := endingOf(k.gk, body); how != running {
			k.ended[at] = end{meta.GetUID(), how}
		}
	}
	delete(k.objects, at)
	k.seen(meta.GetResourceVersion())
	k.mu.Unlock()
	s.cache.observed(k.gk, at.name, nil)
	k.hub.notify(k.id(at))
	return nil
}

// Replace takes a list. What it holds in another version than before may be
// the sum of several writes, and is marked so.
func (s *turnStore) Replace(list []any, resourceVersion string) error {
	k := s.kind
	next := make(map[key]*Object, len(list))
	bodies := make(map[key]*unstructured.Unstructured, 0)
	for _, item := range list {
		meta, body, err := accept(item)
		if err != nil {
			return err
		}
		at := key{meta.GetNamespace(), meta.GetName()}
		next[at] = Summarize(meta)
		if body != nil {
			bodies[at] = body
		}
	}
	changed, ok := s.swap(next, bodies, resourceVersion)
	if !ok {
		return nil
	}
	if k.settle(s.turn, nil) {
		s.cache.cfg.Log.Info("a kind can be watched again", "kind", k.gk.String())
	}
	for at, body := range bodies {
		s.cache.observed(k.gk, at.name, body)
	}
	for _, at := range changed {
		k.hub.notify(k.id(at))
	}
	return nil
}

func (s *turnStore) swap(next map[key]*Object, bodies map[key]*unstructured.Unstructured, resourceVersion string) ([]key, bool) {
	k := s.kind
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.turn != k.turn {
		return nil, false
	}
	before := k.objects
	k.objects = make(map[key]*Object, len(next))
	var changed []key
	for at, o := range next {
		old := before[at]
		same := old != nil && old.UID == o.UID && old.ResourceVersion == o.ResourceVersion
		o.Merged = !same || old.Merged
		k.store(at, o, bodies[at])
		if !same || !k.synced || old.Body == nil && o.Body != nil {
			changed = append(changed, at)
		}
	}
	for at := range before {
		if next[at] == nil {
			changed = append(changed, at)
		}
	}
	for at := range k.tracked {
		if next[at] == nil && before[at] == nil {
			changed = append(changed, at)
		}
	}
	// A list is the truth even if its version went back: a restored etcd.
	if c, err := resourceversion.CompareResourceVersion(resourceVersion, k.asOf); err == nil && c < 0 {
		k.epoch++
	}
	k.asOf = resourceVersion
	return changed, true
}

// store keeps o, with its body only if somebody needs it; k.mu is held.
func (k *kind) store(at key, o *Object, body *unstructured.Unstructured) {
	if in, ok := k.tracked[at]; ok && in.body {
		o.Body = body
	}
	delete(k.ended, at)
	k.objects[at] = o
}

// seen raises asOf; k.mu is held.
func (k *kind) seen(resourceVersion string) {
	if c, err := resourceversion.CompareResourceVersion(resourceVersion, k.asOf); err != nil || c > 0 {
		k.asOf = resourceVersion
	}
}

func (k *kind) id(at key) payload.ObjectID {
	return payload.ObjectID{Group: k.gk.Group, Kind: k.gk.Kind, Namespace: at.namespace, Name: at.name}
}

// accept returns the metadata of what a reflector delivers, and the body if
// it's whole, without its managedFields.
func accept(obj any) (metav1.Object, *unstructured.Unstructured, error) {
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		return o, nil, nil
	case *unstructured.Unstructured:
		meta := &metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(),
			DeletionTimestamp: o.GetDeletionTimestamp(), Finalizers: o.GetFinalizers(),
			Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
			OwnerReferences: o.GetOwnerReferences(), ManagedFields: o.GetManagedFields(),
		}
		o.SetManagedFields(nil)
		return meta, o, nil
	case cache.DeletedFinalStateUnknown:
		return accept(o.Obj)
	default:
		return nil, nil, fmt.Errorf("the watch delivered a %T, want object metadata", obj)
	}
}

func compareKinds(a, b schema.GroupKind) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind))
}
