// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package live caches the objects in the cluster. One reflector watches each kind
// with a tracked object: it starts with the first such object and stops with the
// last.
//
// Most kinds are watched as metadata, of which the cache keeps only digests (see
// Object): they are what package apply needs to decide without a request whether
// an object is in sync. Kinds with a status contract are watched as whole
// objects. A kind that can't be listed or watched is Unwatchable: callers check
// its objects by requests at intervals.
//
// The package makes no decisions and writes nothing to the cluster.
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

// State is whether an object exists, according to the cache.
type State int

// The states of an object in the cache.
const (
	// Unknown means that the kind isn't tracked, not listed yet, or Unwatchable.
	Unknown State = iota
	// Absent means that the object doesn't exist as of View.AsOf.
	Absent
	// Present means that the object exists.
	Present
)

// View is the cached state of one object.
type View struct {
	State State
	// Object is nil unless State is Present.
	Object *Object
	// AsOf is the resource version up to which the kind's watch is complete. An
	// object that is absent as of a version older than its own apply hasn't
	// reached the cache yet.
	AsOf string
	// Epoch counts how often the kind's resource versions went backwards, as
	// after a restore of etcd. Versions of different epochs aren't comparable.
	Epoch int
	// Ended is the UID of the absent Job that Finished and Failed describe.
	// Another Job of this name may exist that hasn't reached the cache yet.
	Ended types.UID
	// Finished is true for an absent Job that completed before it was deleted,
	// for example by its TTL. It isn't missing.
	Finished bool
	// Failed is true for an absent Job with a TTL that failed before it was
	// deleted. Running it again would hide the failure.
	Failed bool
}

// Interest is an object to track.
type Interest struct {
	ID  payload.ObjectID
	GVK schema.GroupVersionKind
	// Body requests the whole object instead of its metadata.
	Body bool
}

// Config configures a Cache.
type Config struct {
	// REST is the client configuration to list and watch with. Client-side rate
	// limits are disabled; the server applies priority and fairness.
	REST *rest.Config
	// SyncTimeout bounds the wait for a kind's first list; the default is 15
	// seconds.
	SyncTimeout time.Duration
	// Now is the clock.
	Now func() time.Time
	// Log receives a line when a kind can't be watched, or can be again.
	Log logr.Logger
}

// Cache holds the live objects of all tracked kinds. It is safe for concurrent
// use.
type Cache struct {
	cfg      Config
	meta     metadata.Interface
	dynamic  dynamic.Interface
	mapper   *mapper
	notifier *notifier

	mu      sync.Mutex
	run     context.Context //nolint:containedctx // The context of all reflectors; set by Start.
	kinds   map[schema.GroupKind]*kind
	running sync.WaitGroup
	// pending are the bodies to fetch, fetching is the number of goroutines that
	// fetch them.
	pending  []pendingBody
	fetching int
}

// pendingBody is a body that is needed of an object that is cached already.
type pendingBody struct {
	kind *kind
	in   Interest
}

// maxFetching bounds the number of concurrent fetches of bodies.
const maxFetching = 4

// New returns a Cache without reflectors; Start runs them.
func New(cfg Config) (*Cache, error) {
	if cfg.REST == nil || cfg.Now == nil {
		return nil, errors.New("create live cache: REST and Now are required")
	}
	if cfg.SyncTimeout == 0 {
		cfg.SyncTimeout = 15 * time.Second
	}
	rc := rest.CopyConfig(cfg.REST)
	rc.QPS, rc.Burst, rc.RateLimiter = -1, 0, nil
	httpClient, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("create live cache: %w", err)
	}
	return newCache(cfg, rc, httpClient)
}

func newCache(cfg Config, rc *rest.Config, httpClient *http.Client) (*Cache, error) {
	c := &Cache{cfg: cfg, kinds: map[schema.GroupKind]*kind{}, notifier: newNotifier()}
	var err error
	if c.meta, err = metadata.NewForConfigAndClient(rc, httpClient); err != nil {
		return nil, fmt.Errorf("create live cache: metadata client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(rc, httpClient); err != nil {
		return nil, fmt.Errorf("create live cache: dynamic client: %w", err)
	}
	if c.mapper, err = newMapper(rc, httpClient, cfg.Now); err != nil {
		return nil, fmt.Errorf("create live cache: discovery: %w", err)
	}
	return c, nil
}

// Start runs the reflectors of all tracked kinds until ctx ends, and then waits
// for them. It implements controller-runtime's Runnable and must be called once.
func (c *Cache) Start(ctx context.Context) error {
	c.mu.Lock()
	c.run = ctx
	for _, k := range c.kinds {
		c.startLocked(k)
	}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock() // After this, no call starts a goroutine anymore.
	c.run = ctx
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// Track adds interests and watches their kinds. Each interest needs one Untrack.
// Objects that are tracked in one call are in the first list of their kind;
// requesting the body of an object later costs one request.
func (c *Cache) Track(ins ...Interest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var restart []*kind
	for _, in := range ins {
		if k := c.trackLocked(in); k != nil && !slices.Contains(restart, k) {
			restart = append(restart, k)
		}
	}
	if c.run == nil {
		return
	}
	for _, k := range restart {
		if k.cancel != nil {
			k.cancel()
		}
		c.startLocked(k)
	}
}

// trackLocked adds one interest and returns its kind if the reflector must be
// started or restarted; c.mu is held.
func (c *Cache) trackLocked(in Interest) *kind {
	gk := in.GVK.GroupKind()
	k := c.kinds[gk]
	if k == nil {
		k = newKind(gk, in.GVK.Version, c.notifier)
		c.kinds[gk] = k
	}
	body := in.Body || kinds.Of(gk).Body
	restart, fetch := k.track(in.ID, in.GVK.Version, body)
	if restart || k.cancel == nil {
		return k
	}
	if body && k.switchVersion(in.ID, func(version string) bool { return c.mapper.lookup(gk, version) != nil }) {
		return k
	}
	if fetch && c.run.Err() == nil {
		c.pending = append(c.pending, pendingBody{k, in})
		if c.fetching < maxFetching {
			c.fetching++
			ctx := c.run
			c.running.Go(func() { c.fetchBodies(ctx) })
		}
	}
	return nil
}

// fetchBodies fetches pending bodies until none is left.
func (c *Cache) fetchBodies(ctx context.Context) {
	for {
		c.mu.Lock()
		if len(c.pending) == 0 || ctx.Err() != nil {
			c.pending = nil
			c.fetching--
			c.mu.Unlock()
			return
		}
		next := c.pending[0]
		c.pending = c.pending[1:]
		c.mu.Unlock()
		c.fetchBody(ctx, next.kind, next.in)
	}
}

// fetchBody fetches the body of a cached object.
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
			k.addBody(body)
			return
		}
	}
	c.cfg.Log.V(1).Info("object can't be fetched; waiting for its next watch event", "object", in.ID.String(), "error", err.Error())
}

// Untrack removes an interest. The kind's watch stops with the last one.
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

// Get returns the cached state of an object.
func (c *Cache) Get(id payload.ObjectID) View {
	k := c.kindOf(schema.GroupKind{Group: id.Group, Kind: id.Kind})
	if k == nil {
		return View{}
	}
	return k.get(key{id.Namespace, id.Name})
}

// WaitSynced waits until the kind is listed. It returns an *UnwatchableError if
// the kind isn't tracked, can't be listed, or takes longer than
// Config.SyncTimeout, and ctx.Err() if ctx ends.
func (c *Cache) WaitSynced(ctx context.Context, gk schema.GroupKind) error {
	k := c.kindOf(gk)
	if k == nil {
		return &UnwatchableError{Kind: gk, Err: errors.New("no object is tracked")}
	}
	timer := time.NewTimer(c.cfg.SyncTimeout)
	defer timer.Stop()
	for {
		sync, changed := k.syncState()
		switch {
		case sync.synced:
			return nil
		case sync.err != nil && !(IsNoMatch(sync.err) && c.mapper.lookup(gk, k.version()) != nil):
			return &UnwatchableError{Kind: gk, Err: sync.err}
		}
		select {
		case <-changed:
		case <-timer.C:
			err := fmt.Errorf("not listed within %s", c.cfg.SyncTimeout)
			if k.expire(err) {
				c.logUnwatchable(gk, err)
			}
			return &UnwatchableError{Kind: gk, Err: err}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Cache) logUnwatchable(gk schema.GroupKind, err error) {
	c.cfg.Log.Info("kind can't be watched; checking its objects at intervals", "kind", gk.String(), "error", err.Error())
}

// AwaitMapping is like Mapping, but waits for a kind that isn't served yet, at
// most until ctx ends.
func (c *Cache) AwaitMapping(ctx context.Context, gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	for {
		changed := c.mapper.changed()
		mapping, err := c.Mapping(gvk)
		if err == nil || !IsNoMatch(err) {
			return mapping, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Unwatchable returns the kinds that currently can't be watched, in order, with
// the causes.
func (c *Cache) Unwatchable() []*UnwatchableError {
	c.mu.Lock()
	kinds := slices.Collect(maps.Values(c.kinds))
	c.mu.Unlock()
	var out []*UnwatchableError
	for _, k := range kinds {
		if sync, _ := k.syncState(); !sync.synced && sync.err != nil {
			out = append(out, &UnwatchableError{Kind: k.gk, Err: sync.err})
		}
	}
	slices.SortFunc(out, func(a, b *UnwatchableError) int {
		return compareKinds(a.Kind, b.Kind)
	})
	return out
}

// Objects returns the number of cached objects of the kind.
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
	r := &reflector{cache: c, kind: k, session: k.nextSession()}
	c.running.Go(func() {
		defer cancel()
		r.run(ctx)
	})
}

// UnwatchableError reports why a kind can't be watched. The cache retries the
// watch with backoff.
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

// Reason returns the reason for a condition.
func (e *UnwatchableError) Reason() string { return "Unwatchable" }
