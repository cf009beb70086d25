// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// set holds the objects of one set: those in the inventory, and those of delete
// manifests. It tracks them in the live cache and claims them in Shared.
type set struct {
	owner, manager string
	now            func() time.Time
	live           *live.Cache
	shared         *Shared
	store          *inventory.Store
	sub            *live.Subscription

	mu    sync.RWMutex
	items map[payload.ObjectID]*item
	adopt []string
	due   map[payload.ObjectID]time.Time
	// incomplete is set until the first begin if the stored inventory had no objects,
	// as before a first install, or unreadable ones.
	incomplete bool
	// defined has the times at which the set wrote the CRD of a kind.
	defined map[schema.GroupKind]time.Time
}

// item is one object of the set.
type item struct {
	id payload.ObjectID
	// busy is held while the object is applied or deleted.
	busy sync.Mutex
	// again requests another check after that.
	again atomic.Bool

	// All below are guarded by set.mu.
	entry *inventory.Slot
	pace  pace
	body  bool
	// inSync is the object as the watch showed it when it was last in sync, nil
	// after an apply.
	inSync *live.Object
	// retaken are the pointers of the fields whose yields ended and that weren't
	// applied since.
	retaken []string
	// leaving objects are being pruned: their deletion is no drift. deleting ones
	// were deleted by a request: they can't be handed over any more.
	leaving, deleting bool
	// deletion is that of a pruned object, or of one of a delete manifest, whose
	// end wasn't confirmed in time.
	deletion *deletion
}

func newSet(cfg *Config) *set {
	s := &set{
		owner: cfg.Owner, manager: live.ManagerPrefix + cfg.Owner, now: cfg.Now, live: cfg.Live, shared: cfg.Shared,
		items: map[payload.ObjectID]*item{}, due: map[payload.ObjectID]time.Time{}, defined: map[schema.GroupKind]time.Time{},
	}
	s.store = inventory.NewStore(cfg.Inventory, cfg.Owner, cfg.Namespace, &s.mu)
	s.sub = cfg.Live.Subscribe(s.has)
	s.shared.register(s)
	return s
}

func (it *item) interest() live.Interest {
	return live.Interest{ID: it.id, GVK: it.entry.GVK(), Body: it.body}
}

func (s *set) has(id payload.ObjectID) bool { return s.item(id) != nil }

func (s *set) item(id payload.ObjectID) *item {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.items[id]
}

// load adds the objects of the inventory.
func (s *set) load(ctx context.Context) (problems []string, err error) {
	slots, problems, err := s.store.Load(ctx)
	if err != nil {
		return nil, inventoryError(err)
	}
	others := map[payload.ObjectID]string{}
	s.mu.Lock()
	s.incomplete = len(slots) == 0 || len(problems) > 0
	var interests []live.Interest
	for _, slot := range slots {
		in, other := s.loadLocked(slot)
		interests = append(interests, in...)
		if other != "" {
			others[slot.ID()] = other
		}
	}
	s.live.Track(interests...)
	s.mu.Unlock()
	for id, other := range others { // Without a lock: the other set has one, too.
		if !(handovers{s}).endHandover(id, other) {
			problems = append(problems, fmt.Sprintf("%s is also in the inventory of %q", id, other))
		}
	}
	return problems, nil
}

// loadLocked adds a loaded object that the set lacks. The caller tracks the
// returned interests.
func (s *set) loadLocked(slot *inventory.Slot) (interests []live.Interest, otherOwner string) {
	id := slot.ID()
	if it := s.items[id]; it != nil {
		s.store.Drop(slot, it.entry)
		return nil, ""
	}
	other, ok := s.shared.claim(id, s.owner)
	if ok {
		other = ""
	}
	it := &item{id: id, entry: slot}
	s.items[id] = it
	s.store.Keep(slot)
	return []live.Interest{it.interest()}, other
}

// flush writes the changes of the inventory. If another process wrote it, its
// entries are loaded and the error is retriable.
func (s *set) flush(ctx context.Context) error {
	err := s.store.Flush(ctx)
	if err == nil || !errors.Is(err, inventory.ErrOtherWriter) {
		return inventoryError(err)
	}
	slots, reloadErr := s.store.Reload(ctx)
	if reloadErr != nil {
		return errors.Join(inventoryError(err), reloadErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range slots {
		in, _ := s.loadLocked(slot)
		s.live.Track(in...)
	}
	return inventoryError(err)
}

// close ends all watches of the set.
func (s *set) close() {
	s.sub.Close()
	s.shared.unregister(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, it := range s.items {
		s.live.Untrack(it.interest())
		s.shared.release(id, s.owner)
	}
	clear(s.items)
}

// destroy removes all objects from the set, and deletes the inventory.
func (s *set) destroy(ctx context.Context) error {
	s.mu.Lock()
	for _, it := range s.items {
		s.forgetLocked(it)
	}
	s.mu.Unlock()
	return s.store.Destroy(ctx)
}

// begin adds the objects of the manifests, and writes the inventory.
func (s *set) begin(ctx context.Context, manifests []payload.Manifest) error {
	(handovers{s}).accept(manifests)
	if err := (handovers{s}).takeAll(ctx, manifests); err != nil {
		return err
	}
	s.mu.Lock()
	named := make(map[payload.ObjectID]bool, len(manifests))
	for i := range manifests {
		known := s.items[manifests[i].ID] != nil
		it := s.addLocked(&manifests[i], i)
		it.entry.Lost = it.entry.Lost || s.incomplete && !known && it.entry.Stored()
		named[manifests[i].ID] = true
	}
	s.incomplete = false
	for id, it := range s.items {
		if !it.entry.Stored() && !named[id] {
			s.forgetLocked(it) // Its delete manifest left the payload.
		}
	}
	s.mu.Unlock()
	return s.flush(ctx)
}

// addLocked adds a manifest's object. order is its position in the payload, or
// negative.
func (s *set) addLocked(m *payload.Manifest, order int) *item {
	it := s.items[m.ID]
	if it == nil {
		it = &item{id: m.ID, body: live.NeedsBody(m), entry: &inventory.Slot{Entry: inventory.NewEntry(m)}}
		s.items[m.ID] = it
		s.live.Track(it.interest())
		if !m.Delete {
			s.store.Add(it.entry)
		}
	}
	it.leaving, it.deletion = false, nil
	if body := live.NeedsBody(m); body && !it.body {
		before := it.interest()
		it.body = true
		s.live.Track(it.interest())
		s.live.Untrack(before)
	}
	if !m.Delete && it.entry.Describe(m, order) {
		s.store.Touch(it.entry)
	}
	return it
}

// ensure returns the manifest's item. An object that begin didn't add is written
// to the inventory first.
func (s *set) ensure(ctx context.Context, m *payload.Manifest) (*item, error) {
	if other, ok := s.shared.claim(m.ID, s.owner); !ok {
		if !s.shared.gives(other, m.ID, (handovers{s}).names(other, m)) {
			return nil, (handovers{s}).refusal(m.ID, other)
		}
		one := []payload.Manifest{*m}
		if err := (handovers{s}).takeAll(ctx, one); err != nil {
			return nil, err
		}
		if other, ok := s.shared.claim(m.ID, s.owner); !ok {
			return nil, transient(m.ID, ReasonTerminating, "the object is being deleted for %q; it is applied once it is gone", other)
		}
	}
	s.mu.Lock()
	it, known := s.items[m.ID], true
	if it != nil && it.leaving {
		s.mu.Unlock()
		return nil, transient(m.ID, ReasonTerminating, "the object is being pruned; it is applied again once a release contains it")
	}
	if it == nil || (!it.entry.Stored() && !m.Delete) {
		it, known = s.addLocked(m, -1), false
		if !it.entry.Stored() && !m.Delete {
			s.store.Add(it.entry)
		}
	}
	s.mu.Unlock()
	if known || m.Delete {
		return it, nil
	}
	return it, s.flush(ctx)
}

// forget removes an object from the set and its inventory.
func (s *set) forget(it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(it)
}

func (s *set) forgetLocked(it *item) {
	if s.items[it.id] != it {
		return
	}
	s.store.Remove(it.entry)
	delete(s.items, it.id)
	delete(s.due, it.id)
	s.live.Untrack(it.interest())
	s.shared.release(it.id, s.owner)
}

// settle ends the work on an object. Events that arrived meanwhile, often before
// the response, are processed now.
func (s *set) settle(it *item) {
	it.busy.Unlock()
	if it.again.Swap(false) {
		s.sub.Push(it.id)
	}
}

// inventory returns the entries that aren't in keep, in prune order, and the
// size of the inventory.
func (s *set) inventory(keep map[payload.ObjectID]bool) (entries []inventory.Entry, total int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, it := range s.items {
		if !it.entry.Stored() {
			continue
		}
		total++
		if !keep[id] {
			entries = append(entries, it.entry.Entry)
		}
	}
	slices.SortFunc(entries, func(a, b inventory.Entry) int { return pruneOrder(&a, &b) })
	return entries, total
}

// entry returns a copy of the object's entry.
func (s *set) entry(it *item) inventory.Entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return it.entry.Entry
}

// containsUID reports whether another entry has the same UID: two API groups may
// serve one object.
func (s *set) containsUID(en *inventory.Entry) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, it := range s.items {
		if it.entry.UID == en.UID && id != en.ID() {
			return true
		}
	}
	return false
}

// definesGroup reports whether the set contains a CRD of the API group.
func (s *set) definesGroup(group string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range s.items {
		if id.Kind == kinds.CustomResourceDefinition.Kind && strings.HasSuffix(id.Name, "."+group) {
			return true
		}
	}
	return false
}

// definedSince reports whether the set wrote the CRD of the kind since the time.
func (s *set) definedSince(gk schema.GroupKind, since time.Time) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.defined[gk]
	return ok && at.After(since)
}

// lost returns the objects that the set can't prune, because the inventory that
// may have listed them was lost.
func (s *set) lost() (ids []payload.ObjectID) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, it := range s.items {
		if it.entry.Lost && it.entry.Applied() && !it.entry.Created {
			ids = append(ids, id)
		}
	}
	return ids
}

// yielded returns the yielded fields by object.
func (s *set) yielded() map[payload.ObjectID][]inventory.Yield {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[payload.ObjectID][]inventory.Yield{}
	for id, it := range s.items {
		if len(it.entry.Yields) > 0 {
			out[id] = slices.Clone(it.entry.Yields)
		}
	}
	return out
}

// going returns the objects that left the set, and those of delete manifests.
func (s *set) going() (ids []payload.ObjectID) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, it := range s.items {
		if it.leaving || !it.entry.Stored() {
			ids = append(ids, id)
		}
	}
	return ids
}

// setAdopt replaces the tools whose objects may be adopted.
func (s *set) setAdopt(tools []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt = slices.Clone(tools)
}

// mayAdopt returns the other sets that give the object. It refuses objects of sets
// that don't, and of tools that aren't adopted.
func (s *set) mayAdopt(m *payload.Manifest, o *metav1.PartialObjectMetadata) (givers []string, err error) {
	if givers, err = (handovers{s}).givers(m, o.ManagedFields); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if tool := managedfields.NotAdopted(o, s.adopt); tool != "" {
		return nil, permanent(m.ID, ReasonOwnedByOther,
			"the object is managed by %s; add %q to spec.adopt to take it over, or remove it from %s", tool, tool, tool)
	}
	return givers, nil
}

// view returns the cached object, after the kind's first list. The view of a kind
// that can't be watched is Unknown.
func (s *set) view(ctx context.Context, id payload.ObjectID) (live.View, error) {
	view := s.live.Get(id)
	if view.State != live.Unknown {
		return view, nil
	}
	err := s.live.WaitSynced(ctx, id.GroupKind())
	var unwatchable *live.UnwatchableError
	switch {
	case errors.As(err, &unwatchable):
		return view, nil
	case err != nil:
		return view, err
	}
	return s.live.Get(id), nil
}

// decide returns what the object requires.
func (s *set) decide(it *item, m *payload.Manifest, view live.View) decision {
	s.mu.Lock() // The pace may change.
	defer s.mu.Unlock()
	if it.entry.Applied() {
		it.compare(s.manager, view) // Status writes advance the record.
	}
	return decide(&it.entry.Entry, &it.pace, m, s.manager, view, s.now())
}

// inSync reports whether applying the manifest would send no request.
func (s *set) inSync(ctx context.Context, m *payload.Manifest) (bool, error) {
	it := s.item(m.ID)
	if it == nil {
		return false, nil
	}
	view, err := s.view(ctx, m.ID)
	return err == nil && s.decide(it, m, view).step == stepNone, err
}

// deferLocked schedules the next check of an object.
func (s *set) deferLocked(id payload.ObjectID, until time.Time) {
	s.due[id] = until
	s.sub.Wake() // The watcher resets its timer.
}
