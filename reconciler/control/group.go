// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"sync"
)

// Group runs goroutines until a context ends, and waits for them.
type Group struct {
	mu  sync.Mutex
	ctx context.Context //nolint:containedctx // the life of the goroutines, set once by Run
	wg  sync.WaitGroup
}

// Run makes the group usable until ctx ends, then waits for its goroutines.
func (g *Group) Run(ctx context.Context) {
	g.mu.Lock()
	g.ctx = ctx
	g.mu.Unlock()
	<-ctx.Done()
	// A concurrent Go returns false now, or its goroutine is waited for.
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wg.Wait()
}

// Go runs f in a goroutine. Its context ends with the group or with stop, which
// waits for f. It returns false before Run and after its end.
func (g *Group) Go(f func(context.Context)) (stop func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil || g.ctx.Err() != nil {
		return nil, false
	}
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan struct{})
	g.wg.Go(func() {
		defer close(done)
		f(ctx)
	})
	return func() {
		cancel()
		<-done
	}, true
}

// LeaderFunc is a function that runs while this process is the leader.
type LeaderFunc func(context.Context) error

// Start implements manager.Runnable.
func (f LeaderFunc) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (LeaderFunc) NeedLeaderElection() bool { return true }
