// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package live holds what the cluster really looks like: one reflector for
// each kind of which something is tracked, begun with the kind's first object
// and ended with its last.
//
// Most kinds are watched as metadata only, and of that only digests are kept
// (see Object): what rule R1 of package apply needs to tell whether an object
// is level without asking the server. Kinds with a status contract are watched
// whole. A kind that can't be listed or watched is Unwatchable: its callers
// fall back to asking at intervals, and nobody else waits for it.
//
// The package decides nothing and writes nothing.
package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// State says what is known of an object.
type State int

// The states of knowledge.
const (
	// Unknown means that the kind isn't watched, not yet in sync, or
	// Unwatchable.
	Unknown State = iota
	// Absent means that the watch doesn't know the object.
	Absent
	// Present means that the object is there.
	Present
)

// View is what the cache knows of one object.
type View struct {
	State State
	// Object is nil unless State is Present.
	Object *Object
	// AsOf is the newest resource version that the kind's watch has seen. An
	// object that is absent as of a version older than its own apply is
	// merely not there yet.
	AsOf string
	// Epoch counts how often the versions of the kind went back, as they do
	// when etcd is restored: versions of two epochs don't compare.
	Epoch int
	// Ended is the UID of the absent Job that Finished and Failed tell of:
	// another one may have been made of its name that wasn't seen yet.
	Ended types.UID
	// Finished tells of an absent Job that it had completed when it was last
	// seen: what its TTL removed isn't missing.
	Finished bool
	// Failed tells of an absent Job with a TTL that it had failed when it was
	// last seen: its TTL removed it, and running it again would undo that it
	// failed.
	Failed bool
}

// Interest names an object to be watched.
type Interest struct {
	ID  payload.ObjectID
	GVK schema.GroupVersionKind
	// Body asks for the whole object.
	Body bool
}

// Config says how to watch.
type Config struct {
	// REST is the identity that lists and watches. Its rate limits are
	// replaced by none: the server has priority and fairness.
	REST *rest.Config
	// SyncTimeout bounds the wait for a kind's first list; the default is 15
	// seconds.
	SyncTimeout time.Duration
	// Now is the clock.
	Now func() time.Time
	// Log gets a line when a kind can't be watched.
	Log logr.Logger
}

// Cache holds the live objects of all tracked kinds. All methods may be
// called concurrently.
type Cache struct {
	cfg     Config
	meta    metadata.Interface
	dynamic dynamic.Interface
	mapper  *mapper
	hub     *hub

	mu      sync.Mutex
	run     context.Context //nolint:containedctx // The life of reflectors that later calls start; set by Run.
	kinds   map[schema.GroupKind]*kind
	running sync.WaitGroup
	// late are the bodies that are still to be fetched, fetching how many
	// goroutines do so.
	late     []lateBody
	fetching int
}

// lateBody is a body that came to be wanted after its object was there.
type lateBody struct {
	kind *kind
	in   Interest
}

// maxFetching bounds the bodies that are fetched side by side.
const maxFetching = 4

// New makes a cache that watches nothing yet. Reflectors run while Run does.
func New(cfg Config) (*Cache, error) {
	if cfg.REST == nil || cfg.Now == nil {
		return nil, errors.New("live cache: REST and Now are required")
	}
	if cfg.SyncTimeout == 0 {
		cfg.SyncTimeout = 15 * time.Second
	}
	rc := rest.CopyConfig(cfg.REST)
	rc.QPS, rc.Burst, rc.RateLimiter = -1, 0, nil
	httpClient, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("live cache: %w", err)
	}
	return newCache(cfg, rc, httpClient)
}

func newCache(cfg Config, rc *rest.Config, httpClient *http.Client) (*Cache, error) {
	c := &Cache{cfg: cfg, kinds: map[schema.GroupKind]*kind{}}
	c.hub = newHub()
	var err error
	if c.meta, err = metadata.NewForConfigAndClient(rc, httpClient); err != nil {
		return nil, fmt.Errorf("live cache: metadata client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(rc, httpClient); err != nil {
		return nil, fmt.Errorf("live cache: dynamic client: %w", err)
	}
	if c.mapper, err = newMapper(rc, httpClient, cfg.Now); err != nil {
		return nil, fmt.Errorf("live cache: discovery: %w", err)
	}
	return c, nil
}

// Start runs the reflectors of all tracked kinds until ctx ends, and then
// waits for them. It fits controller-runtime's Runnable. It must be called
// once.
func (c *Cache) Start(ctx context.Context) error {
	c.mu.Lock()
	c.run = ctx
	for _, k := range c.kinds {
		c.startLocked(k)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock() // Who had it may have started a reflector; who gets it next sees that ctx ended.
	c.run = ctx
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// Track watches the objects' kinds from now on. Each object that is tracked
// needs one Untrack. What is tracked in one call is in the first list of its
// kind; an object whose body comes to be wanted later costs one request.
func (c *Cache) Track(ins ...Interest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var fresh []*kind
	for _, in := range ins {
		if k := c.trackLocked(in); k != nil && !slices.Contains(fresh, k) {
			fresh = append(fresh, k)
		}
	}
	if c.run == nil {
		return
	}
	for _, k := range fresh {
		if k.cancel != nil {
			k.cancel()
		}
		c.startLocked(k)
	}
}

// trackLocked adds one interest and returns its kind if that has to be
// started, or started anew; c.mu is held.
func (c *Cache) trackLocked(in Interest) *kind {
	gk := in.GVK.GroupKind()
	k := c.kinds[gk]
	if k == nil {
		k = newKind(gk, in.GVK.Version, c.hub)
		c.kinds[gk] = k
	}
	body := in.Body || kinds.Of(gk).Body
	upgrade, bare := k.track(in.ID, in.GVK.Version, body)
	if upgrade || k.cancel == nil {
		return k
	}
	if body && k.move(in.ID, func(version string) bool { return c.mapper.lookup(gk, version) != nil }) {
		return k
	}
	if bare && c.run.Err() == nil {
		c.late = append(c.late, lateBody{k, in})
		if c.fetching < maxFetching {
			c.fetching++
			ctx := c.run
			c.running.Go(func() { c.fetchLate(ctx) })
		}
	}
	return nil
}

// fetchLate fetches bodies until none is wanted any more.
func (c *Cache) fetchLate(ctx context.Context) {
	for {
		c.mu.Lock()
		if len(c.late) == 0 || ctx.Err() != nil {
			c.late = nil
			c.fetching--
			c.mu.Unlock()
			return
		}
		next := c.late[0]
		c.late = c.late[1:]
		c.mu.Unlock()
		c.fetchBody(ctx, next.kind, next.in)
	}
}

// fetchBody gets the body of an object that came before anybody wanted it.
func (c *Cache) fetchBody(ctx context.Context, k *kind, in Interest) {
	mapping, err := c.mapper.resolve(k.gk, in.GVK.Version)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.SyncTimeout)
		defer cancel()
		var body *unstructured.Unstructured
		resource := c.dynamic.Resource(mapping.Resource)
		if in.ID.Namespace == "" {
			body, err = resource.Get(ctx, in.ID.Name, metav1.GetOptions{})
		} else {
			body, err = resource.Namespace(in.ID.Namespace).Get(ctx, in.ID.Name, metav1.GetOptions{})
		}
		if err == nil {
			k.fill(body)
			return
		}
	}
	c.cfg.Log.V(1).Info("the body of an object couldn't be read; its next event brings it", "object", in.ID.String(), "error", err.Error())
}

// Untrack ends an interest. The kind's watch ends with its last one.
func (c *Cache) Untrack(in Interest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gk := in.GVK.GroupKind()
	k := c.kinds[gk]
	if k == nil || !k.untrack(in.ID) {
		return
	}
	delete(c.kinds, gk)
	if k.cancel != nil {
		k.cancel()
	}
}

// Get returns what is known of an object.
func (c *Cache) Get(id payload.ObjectID) View {
	k := c.kindOf(schema.GroupKind{Group: id.Group, Kind: id.Kind})
	if k == nil {
		return View{}
	}
	return k.get(key{id.Namespace, id.Name})
}

// WaitSynced waits until the kind was listed. It returns an
// *UnwatchableError when the kind isn't tracked, can't be listed, or takes
// longer than Config.SyncTimeout.
func (c *Cache) WaitSynced(ctx context.Context, gk schema.GroupKind) error {
	k := c.kindOf(gk)
	if k == nil {
		return &UnwatchableError{Kind: gk, Err: errors.New("nothing of it is tracked")}
	}
	timer := time.NewTimer(c.cfg.SyncTimeout)
	defer timer.Stop()
	for {
		synced, changed, failure := k.state()
		switch {
		case synced:
			return nil
		case failure != nil && !(isNoMatch(failure) && c.mapper.lookup(gk, k.wanted()) != nil):
			return &UnwatchableError{Kind: gk, Err: failure}
		}
		select {
		case <-changed:
		case <-timer.C:
			late := fmt.Errorf("no list within %s", c.cfg.SyncTimeout)
			if k.overdue(late) {
				c.tellUnwatchable(gk, late)
			}
			return &UnwatchableError{Kind: gk, Err: late}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Cache) tellUnwatchable(gk schema.GroupKind, err error) {
	c.cfg.Log.Info("a kind can't be watched: its objects are looked at in intervals only, until it can", "kind", gk.String(), "error", err.Error())
}

// AwaitMapping is Mapping, but waits for a kind whose definition is on its way,
// at most until ctx ends.
func (c *Cache) AwaitMapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	for {
		changed := c.mapper.changed()
		mapping, err := c.Mapping(gvk)
		if err == nil || !isNoMatch(err) {
			return mapping, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Unwatchable returns the kinds that can't be watched now, and why.
func (c *Cache) Unwatchable() []*UnwatchableError {
	c.mu.Lock()
	kinds := slices.Collect(maps.Values(c.kinds))
	c.mu.Unlock()
	var out []*UnwatchableError
	for _, k := range kinds {
		if synced, _, failure := k.state(); !synced && failure != nil {
			out = append(out, &UnwatchableError{Kind: k.gk, Err: failure})
		}
	}
	slices.SortFunc(out, func(a, b *UnwatchableError) int {
		return compareKinds(a.Kind, b.Kind)
	})
	return out
}

// Objects returns how many objects of the kind are kept.
func (c *Cache) Objects(gk schema.GroupKind) int {
	k := c.kindOf(gk)
	if k == nil {
		return 0
	}
	return k.size()
}

func (c *Cache) kindOf(gk schema.GroupKind) *kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kinds[gk]
}

// startLocked starts the kind's reflector; c.mu is held.
func (c *Cache) startLocked(k *kind) {
	if c.run.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.run)
	k.cancel = cancel
	turn := k.nextTurn()
	c.running.Go(func() {
		defer cancel()
		c.reflect(ctx, k, turn)
	})
}

// UnwatchableError says why a kind can't be watched. Nothing waits for such a
// kind: it is asked for at intervals until the watch works.
type UnwatchableError struct {
	Kind schema.GroupKind
	Err  error
}

// Error names the kind and the cause.
func (e *UnwatchableError) Error() string {
	return fmt.Sprintf("%s can't be watched: %v", e.Kind, e.Err)
}

// Unwrap returns the cause.
func (e *UnwatchableError) Unwrap() error { return e.Err }

// Reason is the condition's reason.
func (e *UnwatchableError) Reason() string { return "Unwatchable" }
