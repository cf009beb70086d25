// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"sync"

	"github.com/lockstep-dev/lockstep/payload"
)

// notifier notifies subscribers of changed objects. A notification doesn't
// contain the change: subscribers read the cache, which is up to date then, so
// that notifications for one object can be merged.
type notifier struct {
	mu      sync.RWMutex
	subs    map[*Subscription]struct{}
	waiters map[payload.ObjectID]map[chan struct{}]struct{}
}

func newNotifier() *notifier {
	return &notifier{subs: map[*Subscription]struct{}{}, waiters: map[payload.ObjectID]map[chan struct{}]struct{}{}}
}

func (n *notifier) notify(id payload.ObjectID) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for ch := range n.waiters[id] {
		select {
		case ch <- struct{}{}:
		default: // A notification is pending.
		}
	}
	for s := range n.subs {
		if s.filter(id) {
			s.Push(id)
		}
	}
}

// Subscription is a queue of changed objects. It contains each object at most
// once, so its size is bounded by the number of objects that pass its filter. It
// is safe for concurrent use.
type Subscription struct {
	filter   func(payload.ObjectID) bool
	notifier *notifier

	mu      sync.Mutex
	pending map[payload.ObjectID]struct{}
	order   []payload.ObjectID
	ready   chan struct{}
}

// Subscribe returns a queue of the changed objects for which filter returns true.
// filter is called for every change and must not block. Close the subscription
// when it isn't used anymore.
func (c *Cache) Subscribe(filter func(payload.ObjectID) bool) *Subscription {
	s := &Subscription{filter: filter, notifier: c.notifier, pending: map[payload.ObjectID]struct{}{}, ready: make(chan struct{}, 1)}
	c.notifier.mu.Lock()
	defer c.notifier.mu.Unlock()
	c.notifier.subs[s] = struct{}{}
	return s
}

// Push adds an object to the queue unless it is queued already.
func (s *Subscription) Push(id payload.ObjectID) {
	s.mu.Lock()
	if _, queued := s.pending[id]; !queued {
		s.pending[id] = struct{}{}
		s.order = append(s.order, id)
	}
	s.mu.Unlock()
	s.Wake()
}

// Wake signals Ready without a change.
func (s *Subscription) Wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Ready is signalled when Pop may return something.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Pop removes the first object from the queue; it returns false if the queue is
// empty.
func (s *Subscription) Pop() (payload.ObjectID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		s.order = nil // Release the memory of a burst.
		return payload.ObjectID{}, false
	}
	id := s.order[0]
	s.order = s.order[1:]
	delete(s.pending, id)
	return id, true
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.notifier.mu.Lock()
	defer s.notifier.mu.Unlock()
	delete(s.notifier.subs, s)
}

// Changes returns a channel that is signalled when the object changed, and a
// function that ends the notifications. Receive from it first, then call Get.
func (c *Cache) Changes(id payload.ObjectID) (changes <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.notifier.mu.Lock()
	defer c.notifier.mu.Unlock()
	if c.notifier.waiters[id] == nil {
		c.notifier.waiters[id] = map[chan struct{}]struct{}{}
	}
	c.notifier.waiters[id][ch] = struct{}{}
	return ch, func() {
		c.notifier.mu.Lock()
		defer c.notifier.mu.Unlock()
		delete(c.notifier.waiters[id], ch)
		if len(c.notifier.waiters[id]) == 0 {
			delete(c.notifier.waiters, id)
		}
	}
}

// Await calls done immediately and after each change of the object, until done
// returns true or ctx ends. It returns the cause of ctx then.
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
