// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package apply makes the cluster's objects level with the manifests of a
// set, and keeps them so.
//
// A new or changed manifest costs one forced server-side apply: no read, no
// dry run. Whether an unchanged one is still level is decided by rule R1
// (Judge) from the watch cache of package live and the record of the last
// apply's answer: no request. The records live in the set's inventory, so
// that this holds across restarts too.
//
// The inventory also says what may ever be deleted: an object that it lists
// under the same UID, that this set created, that still carries this set's
// field manager and that no controller owns. No label and no annotation
// deletes anything.
//
// The package doesn't order manifests and doesn't wait for health: that's for
// its callers.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// DefaultConcurrency is the number of requests in flight over all sets, but for
// slow ones: throughput is flat from 8 to 128 by measurement.
const DefaultConcurrency = 8

// Mode says what the worker is doing.
type Mode int

// The modes.
const (
	// Updating brings a new target: the fields of manifests that changed are
	// taken from whoever has them.
	Updating Mode = iota
	// Reconciling keeps a target that was level: fields that another
	// controller fights for are yielded. Updating does the same for manifests
	// that didn't change.
	Reconciling
)

// Action says what an apply did.
type Action string

// The actions.
const (
	// Unchanged cost no request: the object is level.
	Unchanged Action = "Unchanged"
	// Created made the object.
	Created Action = "Created"
	// Updated brought a changed manifest, or the first apply of an object
	// that existed.
	Updated Action = "Updated"
	// Repaired undid what others changed.
	Repaired Action = "Repaired"
	// Verified asked the server, which changed nothing.
	Verified Action = "Verified"
	// Replaced deleted the object and made it anew.
	Replaced Action = "Replaced"
	// Deleted carried out a delete manifest.
	Deleted Action = "Deleted"
	// Deferred put a repair or a verification off to Change.RetryAt, since
	// the object cost too many lately.
	Deferred Action = "Deferred"
)

// Change is what an apply did.
type Change struct {
	ID     payload.ObjectID
	Action Action
	// UID and ResourceVersion are those of the live object that the manifest
	// is level with; health is judged from no older version.
	UID             string
	ResourceVersion string
	// Finished tells of a Job that completed and was removed by its TTL.
	Finished bool
	// Failed says that a Job failed and was removed by its TTL; nil otherwise.
	// It isn't run again before its manifest changes.
	Failed error
	// Adopted tells that the object existed before the set's first apply; it
	// is never pruned.
	Adopted bool
	// Yielded are the fields that are left to others.
	Yielded []Yield
	// RetryAt is when a Deferred object is looked at again.
	RetryAt time.Time
}

// Yield is a field that another controller holds against the manifest.
type Yield struct {
	// Pointer is the field's JSON pointer in the manifest.
	Pointer string `json:"p"`
	// Manager holds it.
	Manager string `json:"m"`
	// Value is the digest of the manifest's value when it was yielded: a
	// release that changes it takes the field back.
	Value live.Digest `json:"v"`
}

// Shared is what all sets of a process have in common.
type Shared struct {
	budget *budget

	mu     sync.Mutex
	owners map[payload.ObjectID]string
}

// NewShared makes a budget of so many requests in flight.
func NewShared(concurrency int) *Shared {
	return &Shared{budget: newBudget(concurrency), owners: map[payload.ObjectID]string{}}
}

// claim takes the object for owner, or returns who has it.
func (s *Shared) claim(id payload.ObjectID, owner string) (other string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.owners[id]; have != "" && have != owner {
		return have, false
	}
	s.owners[id] = owner
	return "", true
}

// transfer gives the object to owner, whose manifest names who had it.
func (s *Shared) transfer(id payload.ObjectID, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[id] = owner
}

func (s *Shared) release(id payload.ObjectID, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[id] == owner {
		delete(s.owners, id)
	}
}

// Config is what an engine needs.
type Config struct {
	// Owner names the set: "clusterrelease/<name>". The field manager is
	// "lockstep:" and it.
	Owner string
	// REST is the identity that writes the set's objects; impersonation is
	// set up in it. Its rate limits are replaced by Shared's budget.
	REST *rest.Config
	// Live is the watch cache; it must be running.
	Live *live.Cache
	// Inventory keeps the set's inventory; it must be of our own namespace
	// and identity.
	Inventory corev1client.ConfigMapInterface
	// Namespace is our own namespace, which is never pruned.
	Namespace string
	// Shared is common to all engines of the process.
	Shared *Shared
	// Metrics may be nil.
	Metrics *Metrics
	// Now is the clock.
	Now func() time.Time
	// VerifyEvery is the period in which each object is verified once by a
	// request, to bound what the watches can't show; the default is 24 hours.
	VerifyEvery time.Duration
	// DeletionWait bounds how long an apply waits for an object that is being
	// deleted; the default is 10 seconds.
	DeletionWait time.Duration
	// Notice, if set, hears of what happened to objects. It must neither block
	// nor call the engine.
	Notice func(Notice)
	// Log gets what is worth knowing but is no error.
	Log logr.Logger
}

// Engine applies one set. Its methods may be called concurrently; applies of
// one object wait for one another.
type Engine struct {
	cfg     Config
	manager string
	wire    *wire
	store   *store
	sub     *live.Subscription
	started time.Time

	mu    sync.RWMutex
	items map[payload.ObjectID]*item
	adopt []string
	due   map[payload.ObjectID]time.Time
	// defined says when the set last wrote the definition of a kind.
	defined map[schema.GroupKind]time.Time
}

// item is one object of the set.
type item struct {
	id payload.ObjectID
	// busy is held while the object is applied or deleted.
	busy sync.Mutex
	// again asks for another look after that.
	again atomic.Bool

	// All below are guarded by Engine.mu.
	entry entry
	pace  pace
	shard int
	body  bool
	// leaving objects are being pruned: that they go is no drift.
	leaving bool
}

// New makes an engine. Call Load before anything else, and Close in the end.
func New(cfg Config) (*Engine, error) {
	switch {
	case cfg.Owner == "":
		return nil, errors.New("apply engine: an owner is required")
	case cfg.REST == nil || cfg.Live == nil || cfg.Inventory == nil || cfg.Shared == nil || cfg.Now == nil:
		return nil, errors.New("apply engine: REST, Live, Inventory, Shared and Now are required")
	}
	if cfg.VerifyEvery == 0 {
		cfg.VerifyEvery = 24 * time.Hour
	}
	if cfg.DeletionWait == 0 {
		cfg.DeletionWait = 10 * time.Second
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "lockstep-system"
	}
	w, err := newWire(cfg.REST, cfg.Shared.budget)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, manager: live.ManagerPrefix + cfg.Owner, wire: w,
		store: newStore(cfg.Inventory, cfg.Owner, cfg.Namespace), started: cfg.Now(),
		items: map[payload.ObjectID]*item{}, due: map[payload.ObjectID]time.Time{}, defined: map[schema.GroupKind]time.Time{},
	}
	e.sub = cfg.Live.Subscribe(e.has)
	return e, nil
}

// Manager is the set's field manager.
func (e *Engine) Manager() string { return e.manager }

func (e *Engine) has(id payload.ObjectID) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.items[id] != nil
}

// Load reads the inventory and begins to watch what it lists. It returns
// what it couldn't read: those objects cost one apply each, and are adopted
// then.
func (e *Engine) Load(ctx context.Context) (problems []string, err error) {
	entries, problems, err := e.store.load(ctx)
	if err != nil {
		return nil, err
	}
	problems = append(problems, e.takeIn(entries)...)
	e.recallAll(ctx)
	return problems, nil
}

// takeIn adds what was read of the inventory.
func (e *Engine) takeIn(entries []loaded) (problems []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var interests []live.Interest
	for _, l := range entries {
		in, other := e.takeInLocked(l)
		interests = append(interests, in...)
		if other != "" {
			problems = append(problems, fmt.Sprintf("%s is in the inventory of %q too", l.entry.id(), other))
		}
	}
	e.cfg.Live.Track(interests...)
	return problems
}

// Close ends all watches of the set. The inventory stays.
func (e *Engine) Close() {
	e.sub.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, it := range e.items {
		e.cfg.Live.Untrack(it.interest())
		e.cfg.Shared.release(id, e.cfg.Owner)
	}
	clear(e.items)
}

func (it *item) interest() live.Interest {
	return live.Interest{ID: it.id, GVK: it.entry.gvk(), Body: it.body}
}

// Adopt lists the tools whose objects may be taken over: helm, flux, argo. It
// holds for dry runs and applies from now on.
func (e *Engine) Adopt(tools []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopt = slices.Clone(tools)
}

// Begin names what is about to be applied: the inventory is written as the
// union of the old and the new before the first object is, so that whatever
// happens then, nothing that was made is forgotten. adopt is as in Adopt.
func (e *Engine) Begin(ctx context.Context, manifests []payload.Manifest, adopt []string) error {
	e.Adopt(adopt)
	e.mu.Lock()
	named := make(map[payload.ObjectID]bool, len(manifests))
	for i := range manifests {
		e.addLocked(&manifests[i], i)
		named[manifests[i].ID] = true
	}
	for id, it := range e.items {
		if it.shard == noShard && !named[id] {
			e.forgetLocked(it) // A delete manifest that isn't in the payload any more.
		}
	}
	e.mu.Unlock()
	return e.Flush(ctx)
}

// addLocked takes a manifest's object into the set; e.mu is held. order is
// its place in the payload, or -1.
func (e *Engine) addLocked(m *payload.Manifest, order int) *item {
	it := e.items[m.ID]
	if it == nil {
		it = &item{id: m.ID, shard: noShard, body: live.NeedsBody(m)}
		it.entry = newEntry(m)
		e.items[m.ID] = it
		e.cfg.Live.Track(it.interest())
		if !m.Delete {
			e.store.place(it)
		}
	}
	it.leaving = false
	if body := live.NeedsBody(m); body && !it.body {
		before := it.interest()
		it.body = true
		e.cfg.Live.Track(it.interest())
		e.cfg.Live.Untrack(before)
	}
	if !m.Delete && it.entry.describe(m, order) {
		e.store.touch(it)
	}
	return it
}

// Flush writes what changed of the inventory. It is cheap when nothing did.
// When somebody else wrote it, what they added is taken in, and the error is
// retriable.
func (e *Engine) Flush(ctx context.Context) error {
	err := e.store.flush(ctx, &e.mu, e.items)
	if err == nil || !errors.Is(err, errOtherWriter) {
		return err
	}
	entries, reloadErr := e.store.reload(ctx)
	if reloadErr != nil {
		return errors.Join(err, reloadErr)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range entries {
		in, _ := e.takeInLocked(l)
		e.cfg.Live.Track(in...)
	}
	return err
}

// takeInLocked adds an object of the inventory that isn't known; e.mu is held.
// The caller tracks what it returns.
func (e *Engine) takeInLocked(l loaded) (interests []live.Interest, otherOwner string) {
	id := l.entry.id()
	if it := e.items[id]; it != nil {
		if it.shard != noShard && it.shard != l.shard {
			e.store.rewrite(l.shard)
		}
		return nil, ""
	}
	other, ok := e.cfg.Shared.claim(id, e.cfg.Owner)
	if ok {
		other = ""
	}
	it := &item{id: id, entry: l.entry, shard: l.shard}
	e.items[id] = it
	return []live.Interest{it.interest()}, other
}

// ensure returns the object's item. An object that wasn't named by Begin is
// written to the inventory first.
func (e *Engine) ensure(ctx context.Context, m *payload.Manifest) (*item, error) {
	if other, ok := e.cfg.Shared.claim(m.ID, e.cfg.Owner); !ok {
		if adoptFrom(m) != live.ManagerPrefix+other {
			return nil, ownedByOther(m.ID, other)
		}
		e.cfg.Shared.transfer(m.ID, e.cfg.Owner)
	}
	e.mu.Lock()
	it, known := e.items[m.ID], true
	if it != nil && it.leaving {
		e.mu.Unlock()
		return nil, transient(m.ID, ReasonTerminating, "the object left the set and is being pruned; it's applied again when a release names it")
	}
	if it == nil || (it.shard == noShard && !m.Delete) {
		it, known = e.addLocked(m, -1), false
		if it.shard == noShard && !m.Delete {
			e.store.place(it)
		}
	}
	e.mu.Unlock()
	if known || m.Delete {
		return it, nil
	}
	return it, e.Flush(ctx)
}

// Yielded returns the fields that are left to others now, by object.
func (e *Engine) Yielded() map[payload.ObjectID][]Yield {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := map[payload.ObjectID][]Yield{}
	for id, it := range e.items {
		if len(it.entry.Yields) > 0 {
			out[id] = slices.Clone(it.entry.Yields)
		}
	}
	return out
}

// Size returns the number of objects in the inventory.
func (e *Engine) Size() int {
	e.mu.RLock()
	defer e.mu.RUnlock()
	n := 0
	for _, it := range e.items {
		if it.shard != noShard {
			n++
		}
	}
	return n
}

// read gets an object's metadata from the server.
func (e *Engine) read(ctx context.Context, t target) (*metav1.PartialObjectMetadata, error) {
	o, err := e.wire.get(ctx, t)
	e.cfg.Metrics.request("get", outcome(err))
	return o, err
}
