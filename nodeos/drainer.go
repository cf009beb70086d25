// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"errors"
	"sync"
)

// DrainEvent says that a drain began.
type DrainEvent struct{}

// errDraining says that a drain was asked for twice.
var errDraining = errors.New("already draining")

// Drainer lets controllers finish their work before the host goes down: each
// one subscribes, hears that a drain began, finishes and cancels its
// subscription. A drainer drains once. Its methods may be called from several
// goroutines.
type Drainer struct {
	mu            sync.Mutex
	draining      bool
	subscriptions map[*DrainSubscription]struct{}
	empty         chan struct{} // closed when draining and nobody is left
}

// NewDrainer returns a drainer with no subscriptions.
func NewDrainer() *Drainer {
	return &Drainer{subscriptions: map[*DrainSubscription]struct{}{}, empty: make(chan struct{})}
}

// Drain tells all subscribers and waits until all, late ones too, have
// cancelled, or until ctx ends. A second call is an error.
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
		s.events <- DrainEvent{} // one event a subscription, room for one
	}
	d.settle()
	return nil
}

// settle ends the drain when nobody is left; the lock is held.
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

// Subscribe returns a subscription. A drain that began already is told at
// once, and waits for this one too unless it's over.
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

// DrainSubscription is one controller's part in a drain.
type DrainSubscription struct {
	drainer *Drainer
	events  chan DrainEvent
}

// EventCh receives one event when the drain begins.
func (s *DrainSubscription) EventCh() <-chan DrainEvent { return s.events }

// Cancel says that the controller is done; twice is the same as once.
func (s *DrainSubscription) Cancel() {
	s.drainer.mu.Lock()
	defer s.drainer.mu.Unlock()
	delete(s.drainer.subscriptions, s)
	s.drainer.settle()
}
