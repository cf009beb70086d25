// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package events is a host's event stream: a ring of the last events in one
// total order, watched by any number of watchers.
//
// Publishing never waits for a watcher. A watcher that falls behind further
// than the ring reaches is told how many events it lost, and continues; it's
// never just ended.
package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// DefaultCapacity is how many events a ring keeps unless told else.
const DefaultCapacity = 1000

// Config is what a Ring needs.
type Config struct {
	// Capacity is how many events are kept; 0 means DefaultCapacity.
	Capacity int
	// BootID is the host's boot, the first part of each event's id.
	BootID string
	// First is the number of the first event. An agent that starts again in
	// the same boot gives a higher one than any before.
	First uint64
	// Now is the clock.
	Now func() time.Time
}

// Ring is an event stream; it implements nodeos.EventStream. Its methods may
// be called from several goroutines.
type Ring struct {
	cfg Config

	mu      sync.Mutex
	events  []nodeos.Event // a ring: number n is at n modulo the capacity
	next    uint64         // events published so far
	changed chan struct{}  // closed and replaced by each event
}

var _ nodeos.EventStream = (*Ring)(nil)

// New returns an empty ring.
func New(cfg Config) (*Ring, error) {
	switch {
	case cfg.Capacity < 0:
		return nil, errors.New("an event ring can't have a negative capacity")
	case cfg.BootID == "", cfg.Now == nil:
		return nil, errors.New("an event ring needs a boot id and a clock")
	case cfg.Capacity == 0:
		cfg.Capacity = DefaultCapacity
	}
	return &Ring{cfg: cfg, events: make([]nodeos.Event, 0, cfg.Capacity), changed: make(chan struct{})}, nil
}

// FirstOf is the First of a process that is the nth to start in its boot,
// from 1: each has room for 2^40 events.
func FirstOf(start uint64) uint64 { return start << 40 }

// Publish implements nodeos.Publisher. The event's number is given under the
// ring's lock, so that the order of numbers is the order of events.
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

// oldest is the number of the oldest event that is kept; the lock is held.
func (r *Ring) oldest() uint64 { return r.next - uint64(len(r.events)) }

// at returns the event of that number, which is kept; the lock is held.
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

// cursor is where a watcher is.
type cursor struct {
	next        uint64 // the number of the next event
	lost        uint64
	lostUnknown bool
}

// cursor returns where a watch begins.
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

// after begins behind an event that the watcher has seen. What isn't kept any
// more is lost: a known number in this process, an unknown one when the event
// is of an earlier boot or process.
func (r *Ring) after(id nodeos.EventID) cursor {
	if id.BootID != r.cfg.BootID || id.Seq < r.cfg.First {
		return cursor{next: r.oldest(), lost: r.oldest(), lostUnknown: true}
	}
	seen := id.Seq - r.cfg.First
	switch {
	case seen >= r.next: // an id that was never given
		return cursor{next: r.next}
	case seen+1 < r.oldest():
		return cursor{next: r.oldest(), lost: r.oldest() - seen - 1}
	default:
		return cursor{next: seen + 1}
	}
}

// pump hands events over until ctx ends.
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

// take returns what comes next and moves the cursor, or, when there is
// nothing, what to wait for.
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

// behind is how many events a cursor has before it.
func (r *Ring) behind(next uint64) int { return int(r.next - next) } //nolint:gosec // at most the capacity.
