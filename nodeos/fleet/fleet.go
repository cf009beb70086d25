// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package fleet is the reconciler's end of the wire to the agents on hosts: it
// keeps one connection to each host, observes the host's facts and events, and
// carries orders.
//
// It decides nothing. Which host takes which step is for reconciler/rollout;
// whether what a host says about itself agrees with its Node is for
// reconciler/hosts. What it guarantees is who is at the other end: a
// connection is to the host of that id in that cluster, or there is none.
//
// A Fleet owns its goroutines: two for each target while Run runs, none
// afterwards. All methods may be called from several goroutines.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// Limits of a fleet.
const (
	// callTimeout bounds every call but streams.
	callTimeout = 15 * time.Second
	// refreshEvery is the shortest time between two readings of a host's facts
	// that events ask for.
	refreshEvery = 500 * time.Millisecond
	// backoffFirst and backoffMost bound the wait between two dials.
	backoffFirst = 500 * time.Millisecond
	backoffMost  = 30 * time.Second
	// A host that sends more events than this loses its connection for noisyFor.
	noisyBurst = 512
	noisyRate  = 25
	noisyFor   = 30 * time.Second
)

// Target is a host to keep a connection to.
type Target struct {
	// HostID is the pinned identity: the other end must have its certificate.
	HostID string
	// Addresses are host:port, tried in order.
	Addresses []string
}

// State is what is known of a host. It is a value: it doesn't change.
type State struct {
	// Target is who it is about.
	Target Target
	// Connected reports that the connection stands and Facts are being observed.
	Connected bool
	// Facts are the last that were read; zero before the first time. While not
	// Connected they are history, by which nothing may be decided.
	Facts nodeos.HostFacts
	// About is what the agent said about itself.
	About wire.About
	// Capabilities are the methods that the agent lets us call.
	Capabilities []string
	// LastSeen is when the host last answered.
	LastSeen time.Time
	// Err says why there is no connection: an *UnreachableError or an error
	// with a reason of its own. Nil while Connected.
	Err error
}

// Config is what a fleet needs; Changed and Event may be nil.
type Config struct {
	// Identity is the reconciler's certificate and the hosts' authority.
	Identity *mtls.Store
	// ClusterUID is the cluster whose hosts are called.
	ClusterUID string
	// Version is our own, told to agents and compared with theirs.
	Version string
	// Now is the clock.
	Now func() time.Time
	// Changed is called after each change of a host's state, from the host's
	// goroutine; it must be quick.
	Changed func(hostID string)
	// Event is called for each event of a host, in their order.
	Event func(hostID string, event nodeos.EventInfo)
}

// Fleet keeps connections to hosts. Make one with New and run it with Run.
type Fleet struct {
	cfg Config

	mu      sync.Mutex
	hosts   map[string]*host
	running context.Context // the life of Run; nil before it
	stopped bool            // Run is ending: nothing starts any more
	wait    sync.WaitGroup
}

// New checks the configuration and makes a fleet without targets.
func New(cfg Config) (*Fleet, error) {
	if cfg.Identity == nil || cfg.ClusterUID == "" || cfg.Version == "" || cfg.Now == nil {
		return nil, errors.New("fleet: configuration needs Identity, ClusterUID, Version and Now")
	}
	own, err := mtls.CallerOf(cfg.Identity.Leaf())
	if err != nil {
		return nil, fmt.Errorf("fleet: own certificate: %w", err)
	}
	if own.ClusterUID != cfg.ClusterUID {
		return nil, fmt.Errorf("fleet: own certificate is of cluster %s, want %s", own.ClusterUID, cfg.ClusterUID)
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(string, nodeos.EventInfo) {}
	}
	return &Fleet{cfg: cfg, hosts: map[string]*host{}}, nil
}

// Run keeps the connections until ctx ends and all goroutines are gone. It
// runs once.
func (f *Fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.running != nil {
		f.mu.Unlock()
		return errors.New("fleet: runs already, or ran before")
	}
	f.running = ctx
	for _, h := range f.hosts {
		f.start(ctx, h)
	}
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.wait.Wait()
	return nil
}

// SetTargets reports which hosts there are: new ones are dialled, gone ones are
// left, changed ones are dialled anew.
func (f *Fleet) SetTargets(targets []Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]bool{}
	for _, target := range targets {
		target.Addresses = slices.Clone(target.Addresses)
		wanted[target.HostID] = true
		if old, ok := f.hosts[target.HostID]; ok {
			if slices.Equal(old.target.Addresses, target.Addresses) {
				continue
			}
			old.stop()
		}
		h := newHost(f.cfg, target)
		f.hosts[target.HostID] = h
		f.start(f.running, h)
	}
	for id, h := range f.hosts {
		if !wanted[id] {
			h.stop()
			delete(f.hosts, id)
		}
	}
}

// start runs a host's goroutines; f.mu is held.
func (f *Fleet) start(running context.Context, h *host) {
	if running == nil || f.stopped {
		return
	}
	ctx, cancel := context.WithCancel(running)
	h.cancel = cancel
	f.wait.Go(func() {
		defer cancel()
		h.keep(ctx)
	})
}

// State returns what is known of a host; false for one that is no target.
func (f *Fleet) State(hostID string) (State, bool) {
	h, err := f.host(hostID)
	if err != nil {
		return State{}, false
	}
	return h.snapshot(), true
}

// States returns what is known of all targets, by host id.
func (f *Fleet) States() []State {
	f.mu.Lock()
	hosts := maps.Clone(f.hosts)
	f.mu.Unlock()
	out := make([]State, 0, len(hosts))
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		out = append(out, hosts[id].snapshot())
	}
	return out
}

func (f *Fleet) host(hostID string) (*host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, ok := f.hosts[hostID]
	if !ok {
		return nil, &UnreachableError{Host: hostID, Err: errors.New("it is no target: no Host object names it")}
	}
	return h, nil
}

// backoff is how long to wait after so many failed dials in a row: doubled
// each time, bounded, and spread so that a thousand hosts don't dial at once.
func backoff(failures int) time.Duration {
	wait := backoffMost
	if failures < 7 {
		wait = min(backoffMost, backoffFirst<<failures)
	}
	return wait/2 + rand.N(wait/2+1) //nolint:gosec // Spreading dials needs no secrecy.
}

// sleep waits, or returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
