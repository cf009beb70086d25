// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package events is a host's event stream: a ring of the latest events in a total
// order, with any number of watchers.
//
// Publish never waits for a watcher. A watcher that falls behind by more than the
// ring's capacity receives the number of lost events and continues.
package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// DefaultCapacity is the default capacity of a ring, in events.
const DefaultCapacity = 1000

// Config configures a Ring.
type Config struct {
	// Capacity is the number of stored events; 0 means DefaultCapacity.
	Capacity int
	// BootID is the host's boot id, the first part of each event id.
	BootID string
	// First is the number of the first event. An agent that restarts in the same
	// boot must set a higher number than any before.
	First uint64
	// Now is the clock.
	Now func() time.Time
}

// Ring is an event stream; it implements nodeos.EventStream. Its methods are safe
// for concurrent use.
type Ring struct {
	cfg Config

	mu      sync.Mutex
	events  []nodeos.Event // a ring: event n is at n modulo the capacity
	next    uint64         // number of published events
	changed chan struct{}  // closed and replaced by each event
}

var _ nodeos.EventStream = (*Ring)(nil)

// New returns an empty ring.
func New(cfg Config) (*Ring, error) {
	switch {
	case cfg.Capacity < 0:
		return nil, errors.New("event ring: the capacity is negative")
	case cfg.BootID == "", cfg.Now == nil:
		return nil, errors.New("event ring: BootID and Now are required")
	case cfg.Capacity == 0:
		cfg.Capacity = DefaultCapacity
	}
	return &Ring{cfg: cfg, events: make([]nodeos.Event, 0, cfg.Capacity), changed: make(chan struct{})}, nil
}

// FirstOf returns Config.First for the given start of the agent in its boot, from
// 1: each start has room for 2^40 events.
func FirstOf(start uint64) uint64 { return start << 40 }

// Publish implements nodeos.Publisher. The ring's lock orders the numbers.
func (r *Ring) Publish(operationID string, p nodeos.Payload) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := nodeos.Event{
		TypeURL: nodeos.TypeURLOf(p), ID: nodeos.EventID{BootID: r.cfg.BootID, Seq: r.cfg.First + r.next},
		Time: r.cfg.Now(), OperationID: operationID, Payload: p,
	}
	if len(r.events) < r.cfg.Capacity {
		r.events = append(r.events, e)
	} else {
		r.events[r.next%uint64(r.cfg.Capacity)] = e //nolint:gosec // a capacity is positive.
	}
	r.next++
	close(r.changed)
	r.changed = make(chan struct{})
}

// oldest returns the number of the oldest stored event; the lock is held.
func (r *Ring) oldest() uint64 { return r.next - uint64(len(r.events)) }

// at returns a stored event by number; the lock is held.
func (r *Ring) at(n uint64) nodeos.Event { return r.events[n%uint64(r.cfg.Capacity)] } //nolint:gosec // a capacity is positive.

// Watch implements nodeos.Watcher.
func (r *Ring) Watch(ctx context.Context, f nodeos.WatchFunc, opts ...nodeos.WatchOptionFunc) error {
	var o nodeos.WatchOptions
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := r.cursor(o)
	ch := make(chan nodeos.EventInfo)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ch)
		r.pump(ctx, c, ch)
	})
	f(ch)
	cancel()
	wg.Wait()
	return nil
}

// cursor is the position of a watcher.
type cursor struct {
	next        uint64 // the number of the next event
	lost        uint64
	lostUnknown bool
}

// cursor returns the start of a watch.
func (r *Ring) cursor(o nodeos.WatchOptions) cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case o.TailEvents < 0:
		return cursor{next: r.oldest()}
	case o.TailEvents > 0:
		return cursor{next: r.next - min(uint64(o.TailEvents), uint64(len(r.events)))}
	case o.TailID != nodeos.EventID{}:
		return r.after(o.TailID)
	case o.TailDuration > 0:
		since := r.cfg.Now().Add(-o.TailDuration)
		n := r.oldest()
		for n < r.next && r.at(n).Time.Before(since) {
			n++
		}
		return cursor{next: n}
	default:
		return cursor{next: r.next}
	}
}

// after returns the position after an event. Events that are no longer stored are
// lost: a known number in this process, an unknown one when the event is from an
// earlier boot or process.
func (r *Ring) after(id nodeos.EventID) cursor {
	if id.BootID != r.cfg.BootID || id.Seq < r.cfg.First {
		return cursor{next: r.oldest(), lost: r.oldest(), lostUnknown: true}
	}
	seen := id.Seq - r.cfg.First
	switch {
	case seen >= r.next: // an id that was never assigned
		return cursor{next: r.next}
	case seen+1 < r.oldest():
		return cursor{next: r.oldest(), lost: r.oldest() - seen - 1}
	default:
		return cursor{next: seen + 1}
	}
}

// pump sends events until ctx ends.
func (r *Ring) pump(ctx context.Context, c cursor, ch chan<- nodeos.EventInfo) {
	for {
		info, changed := r.take(&c)
		if changed != nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case ch <- info:
		case <-ctx.Done():
			return
		}
	}
}

// take returns the next event and moves the cursor, or, without one, a channel to
// wait on.
func (r *Ring) take(c *cursor) (nodeos.EventInfo, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if oldest := r.oldest(); c.next < oldest {
		c.lost += oldest - c.next
		c.next = oldest
	}
	if c.lost > 0 || c.lostUnknown {
		info := nodeos.EventInfo{Lost: c.lost, LostUnknown: c.lostUnknown, Backlog: r.behind(c.next)}
		c.lost, c.lostUnknown = 0, false
		return info, nil
	}
	if c.next == r.next {
		return nodeos.EventInfo{}, r.changed
	}
	info := nodeos.EventInfo{Event: r.at(c.next), Backlog: r.behind(c.next + 1)}
	c.next++
	return info, nil
}

// behind returns the number of events after a cursor.
func (r *Ring) behind(next uint64) int { return int(r.next - next) } //nolint:gosec // at most the capacity.
