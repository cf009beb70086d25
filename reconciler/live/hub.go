// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"sync"

	"github.com/lockstep-dev/lockstep/payload"
)

// hub tells subscribers which objects changed. Nobody is told what changed:
// they look into the cache, which then holds the newest state, so that any
// number of events for one object may be told as one.
type hub struct {
	mu      sync.RWMutex
	subs    map[*Subscription]struct{}
	waiters map[payload.ObjectID]map[chan struct{}]struct{}
}

func newHub() *hub {
	return &hub{subs: map[*Subscription]struct{}{}, waiters: map[payload.ObjectID]map[chan struct{}]struct{}{}}
}

func (h *hub) notify(id payload.ObjectID) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for ch := range h.waiters[id] {
		select {
		case ch <- struct{}{}:
		default: // It has a wake-up pending already.
		}
	}
	for s := range h.subs {
		if s.want(id) {
			s.Push(id)
		}
	}
}

// Subscription is a queue of the objects that changed. It holds each object
// once, so it is bounded by the number of objects that its owner wants.
type Subscription struct {
	want func(payload.ObjectID) bool
	hub  *hub

	mu      sync.Mutex
	pending map[payload.ObjectID]struct{}
	order   []payload.ObjectID
	ready   chan struct{}
}

// Subscribe returns a queue of the changes of the objects for which want is
// true. want is called often and must not block. Close it when done.
func (c *Cache) Subscribe(want func(payload.ObjectID) bool) *Subscription {
	s := &Subscription{want: want, hub: c.hub, pending: map[payload.ObjectID]struct{}{}, ready: make(chan struct{}, 1)}
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.hub.subs[s] = struct{}{}
	return s
}

// Push adds an object to the queue unless it waits there already.
func (s *Subscription) Push(id payload.ObjectID) {
	s.mu.Lock()
	if _, waits := s.pending[id]; !waits {
		s.pending[id] = struct{}{}
		s.order = append(s.order, id)
	}
	s.mu.Unlock()
	s.Wake()
}

// Wake signals Ready though nothing changed.
func (s *Subscription) Wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Ready is signalled when Pop may return something.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Pop takes the object that waits longest; false if none does.
func (s *Subscription) Pop() (payload.ObjectID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		s.order = nil // Let go of what a burst needed.
		return payload.ObjectID{}, false
	}
	id := s.order[0]
	s.order = s.order[1:]
	delete(s.pending, id)
	return id, true
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs, s)
}

// Changes returns a channel that is signalled when the object changed, and a
// function that ends this. Read it, then Get.
func (c *Cache) Changes(id payload.ObjectID) (changes <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if c.hub.waiters[id] == nil {
		c.hub.waiters[id] = map[chan struct{}]struct{}{}
	}
	c.hub.waiters[id][ch] = struct{}{}
	return ch, func() {
		c.hub.mu.Lock()
		defer c.hub.mu.Unlock()
		delete(c.hub.waiters[id], ch)
		if len(c.hub.waiters[id]) == 0 {
			delete(c.hub.waiters, id)
		}
	}
}

// Await calls done at once and after each change of the object until it
// returns true or ctx ends, whose error it returns then.
func (c *Cache) Await(ctx context.Context, id payload.ObjectID, done func(View) bool) error {
	changes, stop := c.Changes(id)
	defer stop()
	for {
		if done(c.Get(id)) {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
