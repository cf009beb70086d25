// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"
)

const (
	// slowAfter is how long a request may take a place that others wait for.
	// What takes longer waits for something else than the server's capacity:
	// mostly for a webhook that hangs.
	slowAfter = 2 * time.Second
	// slowPlaces bounds, for each place, the requests that take longer.
	slowPlaces = 8
)

// budget bounds the requests in flight over all sets. A request that turns out
// to be slow makes room for the others, so that a few objects behind a hanging
// webhook don't stop all that have nothing to do with it; only so many may.
type budget struct {
	quick, slow chan struct{}
	// patience is slowAfter but in tests.
	patience time.Duration
}

func newBudget(places int) *budget {
	places = max(places, 1)
	return &budget{quick: make(chan struct{}, places), slow: make(chan struct{}, places*slowPlaces), patience: slowAfter}
}

// size is the number of requests that may begin side by side.
func (b *budget) size() int { return cap(b.quick) }

// acquire waits for a place. Release it when the request ended.
func (b *budget) acquire(ctx context.Context) (*place, error) {
	select {
	case b.quick <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := &place{budget: b, in: b.quick}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(b.patience, p.giveWay)
	return p, nil
}

// place is one request's place in the budget.
type place struct {
	budget *budget
	timer  *time.Timer

	mu sync.Mutex
	in chan struct{} // nil once released
}

// giveWay moves the request to the slow ones, if there is room, or tries again
// later.
func (p *place) giveWay() {
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
		p.timer.Reset(p.budget.patience)
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
