// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// claims are those of one set of the process. An object has one owner, whose
// inventory lists it; claims state which payloads contain it.
type claims struct {
	set *set
	// accepted are the objects of the payload being applied; false for those of
	// delete manifests. It is nil until the payload is known in this process: the
	// set then gives nothing away.
	accepted map[payload.ObjectID]bool
	// proposed are the objects of a verified payload that isn't accepted yet.
	proposed map[payload.ObjectID]bool
	// retired sets left Git: they give their objects to sets that name them.
	retired bool
}

// register adds a set of the process.
func (s *Shared) register(set *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[set.owner] = &claims{set: set}
	s.notifyLocked()
}

// unregister removes a closed set, and with it its claims.
func (s *Shared) unregister(set *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.sets[set.owner]; c != nil && c.set == set {
		delete(s.sets, set.owner)
		s.notifyLocked()
	}
}

// Changed returns a channel that is closed at the next change of a claim.
func (s *Shared) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Shared) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// SetKnown sets the function that reports whether an owner without a set in this
// process still exists, for example because it is being started. It is set before
// the first engine is created, and must not call an engine.
func (s *Shared) SetKnown(known func(owner string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = known
}

// claimsOf returns the objects of the manifests, false for those of delete manifests.
func claimsOf(manifests []payload.Manifest) map[payload.ObjectID]bool {
	out := make(map[payload.ObjectID]bool, len(manifests))
	for i := range manifests {
		out[manifests[i].ID] = !manifests[i].Delete
	}
	return out
}

// update changes the claims of a set and reports the change.
func (s *Shared) update(owner string, change func(*claims) (changed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.sets[owner]; c != nil && change(c) {
		s.notifyLocked()
	}
}

// claimant returns the set other than owner that claims the object, "" if there is
// none. Retired sets claim nothing.
func (s *Shared) claimant(id payload.ObjectID, owner string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimantLocked(id, owner)
}

func (s *Shared) claimantLocked(id payload.ObjectID, owner string) (by string) {
	for name, c := range s.sets {
		if name != owner && !c.retired && (c.accepted[id] || c.proposed[id]) && (by == "" || name < by) {
			by = name
		}
	}
	return by
}

// gives reports whether giver lets another set have the object. named states that
// the other set names the giver, in spec.adopt or by the object's annotation.
func (s *Shared) gives(giver string, id payload.ObjectID, named bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.givesLocked(giver, id, named)
}

func (s *Shared) givesLocked(giver string, id payload.ObjectID, named bool) bool {
	c := s.sets[giver]
	if c == nil {
		return named && !s.known(giver)
	}
	if c.retired && named {
		return true
	}
	_, contained := c.accepted[id]
	return c.accepted != nil && !contained && !c.retired
}

// exists reports whether giver may still give objects.
func (s *Shared) exists(giver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sets[giver] != nil || s.known(giver)
}

// holder returns the set whose inventory lists the object; nil if it is owner's, or
// nobody's.
func (s *Shared) holder(id payload.ObjectID, owner string) (holder *set, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name = s.owners[id]
	if name == "" || name == owner {
		return nil, ""
	}
	if c := s.sets[name]; c != nil {
		holder = c.set
	}
	return holder, name
}

// Propose claims the objects of a verified payload that may be accepted: no other
// set deletes them meanwhile. It replaces an earlier proposal; no manifests
// withdraw it. Begin ends it too.
func (e *Engine) Propose(manifests []payload.Manifest) {
	var proposed map[payload.ObjectID]bool
	if len(manifests) > 0 {
		proposed = claimsOf(manifests)
	}
	e.set.shared.update(e.set.owner, func(c *claims) bool {
		same := maps.Equal(c.proposed, proposed)
		c.proposed = proposed
		return !same
	})
}

// Retire sets whether the set left Git. A retired set claims nothing for a longer
// time than until another set names it in spec.adopt or lockstep.dev/adopt-from.
func (e *Engine) Retire(retired bool) {
	e.set.shared.update(e.set.owner, func(c *claims) bool {
		was := c.retired
		c.retired = retired
		return was != retired
	})
}

// accept claims the objects of the accepted payload.
func (h handovers) accept(manifests []payload.Manifest) {
	accepted := claimsOf(manifests)
	h.shared.update(h.owner, func(c *claims) bool {
		same := c.accepted != nil && c.proposed == nil && maps.Equal(c.accepted, accepted)
		c.accepted, c.proposed = accepted, nil
		return !same
	})
}

// names reports whether the set names owner in spec.adopt, or the manifest by its
// annotation.
func (h handovers) names(owner string, m *payload.Manifest) bool {
	if adoptFrom(m) == live.ManagerPrefix+owner {
		return true
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	return slices.Contains(h.adopt, owner)
}

// refusal returns the error for an object of another set.
func (h handovers) refusal(id payload.ObjectID, owner string) *Error {
	if h.shared.exists(owner) {
		return ownedByOther(id, owner)
	}
	return permanent(id, ReasonOwnedByOther,
		"the object is managed by %.100q, which doesn't exist any more; add %[2]q to spec.adopt to take its objects over", owner, owner)
}

// handovers moves objects from other sets of the process to a set.
type handovers struct{ *set }

// handover is one object that passes from a set to another.
type handover struct {
	manifest *payload.Manifest
	from     *set
	item     *item
}

// takeAll takes those objects of the manifests that other sets give.
func (h handovers) takeAll(ctx context.Context, manifests []payload.Manifest) error {
	var list []handover
	for i := range manifests {
		m := &manifests[i]
		from, owner := h.shared.holder(m.ID, h.owner)
		if m.Delete || from == nil || !h.shared.gives(owner, m.ID, h.names(owner, m)) {
			continue
		}
		if it := from.item(m.ID); it != nil {
			list = append(list, handover{m, from, it})
		}
	}
	// All sets lock the items in one order.
	slices.SortFunc(list, func(a, b handover) int { return a.manifest.ID.Compare(b.manifest.ID) })
	return h.take(ctx, list)
}

// take moves the objects to the set. Its inventory is written before those of the
// givers, so that after a crash an object is in at least one of them; loadLocked
// resolves two.
func (h handovers) take(ctx context.Context, list []handover) error {
	taken := make([]handover, 0, len(list))
	defer func() {
		for _, one := range taken {
			one.from.settle(one.item)
		}
	}()
	for _, one := range list {
		one.item.busy.Lock()
		en, deleting := one.from.entryOf(one.item)
		if en == nil || deleting {
			one.from.settle(one.item)
			continue // Its deletion was requested before; it is created again.
		}
		taken = append(taken, one)
		h.mu.Lock()
		it := h.addLocked(one.manifest, -1)
		if !it.entry.Stored() {
			h.store.Add(it.entry)
		}
		it.entry.Taken = &inventory.Taken{From: one.from.owner, UID: en.UID, Created: en.Created}
		if !en.Applied() && en.Taken != nil {
			it.entry.Taken = en.Taken // It passes through a set that hasn't applied it.
		}
		h.store.Touch(it.entry)
		h.mu.Unlock()
	}
	if len(taken) == 0 {
		return nil
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	givers := map[*set]bool{}
	for _, one := range taken {
		h.shared.transfer(one.manifest.ID, h.owner)
		one.from.forget(one.item)
		givers[one.from] = true
	}
	for from := range givers {
		if err := from.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// entryOf returns a copy of the entry of an item that the set still has, and
// whether its deletion was requested.
func (s *set) entryOf(it *item) (en *inventory.Entry, deleting bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.items[it.id] != it {
		return nil, false
	}
	out := it.entry.Entry
	return &out, it.deleting
}

// givers returns the other sets that have a field manager on the object, all of
// which give it. It returns an error if one doesn't.
func (h handovers) givers(m *payload.Manifest, entries []metav1.ManagedFieldsEntry) ([]string, error) {
	owners := managedfields.OtherSets(entries, h.manager)
	for _, owner := range owners {
		if h.tookFrom(m.ID) != owner && !h.shared.gives(owner, m.ID, h.names(owner, m)) {
			return nil, h.refusal(m.ID, owner)
		}
	}
	return owners, nil
}

// tookFrom returns the set that handed the object over and whose fields the set
// hasn't taken yet, "" if there is none.
func (s *set) tookFrom(id payload.ObjectID) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if it := s.items[id]; it != nil && it.entry.Taken != nil {
		return it.entry.Taken.From
	}
	return ""
}

// endHandover ends a handover between the set and another one, during which the
// process ended. It returns false if there was none.
func (h handovers) endHandover(id payload.ObjectID, owner string) bool {
	other, name := h.shared.holder(id, h.owner)
	if other == nil || name != owner {
		return false
	}
	switch {
	case h.tookFrom(id) == owner:
		h.shared.transfer(id, h.owner)
		if it := other.item(id); it != nil {
			other.forget(it)
		}
	case other.tookFrom(id) == h.owner:
		if it := h.item(id); it != nil {
			h.forget(it)
		}
	default:
		return false
	}
	return true
}

// managerOn returns the field manager of an object of the set: that of the set
// which handed the object over until the set has applied it.
func (s *set) managerOn(it *item) string {
	if from := s.tookFrom(it.id); from != "" {
		return live.ManagerPrefix + from
	}
	return s.manager
}

// ownedByOthers returns the owners of those objects that another set has and
// doesn't give.
func (h handovers) ownedByOthers(manifests []payload.Manifest) map[payload.ObjectID]string {
	out := map[payload.ObjectID]string{}
	for i := range manifests {
		m := &manifests[i]
		if _, owner := h.shared.holder(m.ID, h.owner); owner != "" && !h.shared.gives(owner, m.ID, h.names(owner, m)) {
			out[m.ID] = owner
		}
	}
	return out
}
