// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"errors"
	"sync"
)

// DrainEvent is sent when a drain begins.
type DrainEvent struct{}

// errDraining is returned by a second call of Drain.
var errDraining = errors.New("already draining")

// Drainer lets controllers finish their work before the host shuts down: each
// controller subscribes, receives an event when a drain begins, finishes its
// work and cancels its subscription. A drainer drains once. Its methods are
// safe for concurrent use.
type Drainer struct {
	mu            sync.Mutex
	draining      bool
	subscriptions map[*DrainSubscription]struct{}
	empty         chan struct{} // closed when draining with no subscriptions
}

// NewDrainer returns a drainer with no subscriptions.
func NewDrainer() *Drainer {
	return &Drainer{subscriptions: map[*DrainSubscription]struct{}{}, empty: make(chan struct{})}
}

// Drain notifies all subscribers and waits until all of them, including late
// ones, cancel their subscription, or until ctx ends. A second call returns an
// error.
func (d *Drainer) Drain(ctx context.Context) error {
	if err := d.begin(); err != nil {
		return err
	}
	select {
	case <-d.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *Drainer) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return errDraining
	}
	d.draining = true
	for s := range d.subscriptions {
		s.events <- DrainEvent{} // one event per subscription, buffered
	}
	d.settle()
	return nil
}

// settle ends the drain when no subscription is left; the caller holds the lock.
func (d *Drainer) settle() {
	if !d.draining || len(d.subscriptions) > 0 {
		return
	}
	select {
	case <-d.empty:
	default:
		close(d.empty)
	}
}

// Subscribe returns a subscription. If a drain already began, the event is
// sent at once, and a drain still in progress waits for this subscription too.
func (d *Drainer) Subscribe() *DrainSubscription {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &DrainSubscription{drainer: d, events: make(chan DrainEvent, 1)}
	d.subscriptions[s] = struct{}{}
	if d.draining {
		s.events <- DrainEvent{}
	}
	return s
}

// DrainSubscription is the subscription of one controller.
type DrainSubscription struct {
	drainer *Drainer
	events  chan DrainEvent
}

// EventCh receives one event when the drain begins.
func (s *DrainSubscription) EventCh() <-chan DrainEvent { return s.events }

// Cancel reports that the controller finished its work; it's idempotent.
func (s *DrainSubscription) Cancel() {
	s.drainer.mu.Lock()
	defer s.drainer.mu.Unlock()
	delete(s.drainer.subscriptions, s)
	s.drainer.settle()
}
