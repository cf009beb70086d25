// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// DefaultConcurrency is the number of concurrent requests of all sets, except
// slow ones. By measurement, the throughput is the same from 8 to 128.
const DefaultConcurrency = 8

// Shared has the request budget, the object owners and the claims of all sets of
// a process. It may be used concurrently.
type Shared struct {
	budget *budget

	mu     sync.Mutex
	owners map[payload.ObjectID]string
	// sets are the loaded sets by owner.
	sets map[string]*claims
	// known reports whether an owner without a set exists.
	known   func(owner string) bool
	changed chan struct{}
}

// NewShared returns a Shared with a budget of concurrency requests.
func NewShared(concurrency int) *Shared {
	return &Shared{
		budget: newBudget(concurrency), owners: map[payload.ObjectID]string{}, sets: map[string]*claims{},
		known: func(string) bool { return false }, changed: make(chan struct{}),
	}
}

// claim makes owner the owner of the object, or returns the current one.
func (s *Shared) claim(id payload.ObjectID, owner string) (other string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.owners[id]; have != "" && have != owner {
		return have, false
	}
	s.owners[id] = owner
	return "", true
}

// transfer makes owner the owner of an object that the current one gives.
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

const (
	// slowAfter is how long a request occupies a place that others wait for. A
	// longer request mostly waits for a webhook, not for the server.
	slowAfter = 400 * time.Millisecond
	// slowPlaces is the number of slow requests per place.
	slowPlaces = 8
)

// budget bounds the concurrent requests of all sets. A slow request moves to one
// of a bounded number of extra places, so that objects behind a hanging webhook
// don't block the others.
type budget struct {
	quick, slow chan struct{}
}

func newBudget(places int) *budget {
	places = max(places, 1)
	return &budget{quick: make(chan struct{}, places), slow: make(chan struct{}, places*slowPlaces)}
}

// size returns the number of concurrent requests.
func (b *budget) size() int { return cap(b.quick) }

// acquire waits for a place, which its caller releases after the request.
func (b *budget) acquire(ctx context.Context) (*place, error) {
	select {
	case b.quick <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := &place{budget: b, in: b.quick}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(slowAfter, p.moveToSlow)
	return p, nil
}

// place is one request's place in the budget.
type place struct {
	budget *budget
	timer  *time.Timer

	mu sync.Mutex
	in chan struct{} // nil once released
}

// moveToSlow moves the request to a slow place, or tries again later if there is
// none.
func (p *place) moveToSlow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in != p.budget.quick {
		return
	}
	select {
	case p.budget.slow <- struct{}{}:
		<-p.budget.quick
		p.in = p.budget.slow
	default:
		p.timer.Reset(slowAfter)
	}
}

func (p *place) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	if p.in != nil {
		<-p.in
		p.in = nil
	}
}
