// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package fleet is the reconciler's client to the agents on hosts: it maintains one
// connection per host, observes the host's facts and events, and sends orders.
//
// It guarantees the identity of the peer: a connection is to the host with that id in
// that cluster. Rollout decisions are made in reconciler/rollout; reconciler/hosts
// compares a host's facts with its Node.
//
// A Fleet owns two goroutines per target while Run runs. All methods are safe for
// concurrent use.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// Limits of a fleet.
const (
	// callTimeout limits every call except streams.
	callTimeout = 15 * time.Second
	// refreshEvery is the minimum time between two reads of a host's facts that are
	// caused by events.
	refreshEvery = 500 * time.Millisecond
	// backoffFirst and backoffMost limit the delay between two dials.
	backoffFirst = 500 * time.Millisecond
	backoffMost  = 30 * time.Second
	// A host that sends more events than this is disconnected for noisyFor.
	noisyBurst = 512
	noisyRate  = 25
	noisyFor   = 30 * time.Second
)

// Target is a host to connect to.
type Target struct {
	// HostID is the expected identity in the host's certificate.
	HostID string
	// Addresses are host:port pairs, tried in order.
	Addresses []string
}

// State is an immutable snapshot of a host's state.
type State struct {
	// Target is the host.
	Target Target
	// Connected means that the host is connected and Facts are current.
	Connected bool
	// Facts are the last received facts; zero before the first ones. While not
	// Connected they are outdated and must not be used for decisions.
	Facts nodeos.HostFacts
	// About is the agent's description of itself.
	About wire.About
	// Capabilities are the methods that the agent allows us to call.
	Capabilities []string
	// LastSeen is the time of the host's last response.
	LastSeen time.Time
	// Err is the cause of a disconnect: an *UnreachableError or an error with a
	// reason of its own. It's nil while Connected.
	Err error
}

// Config configures a Fleet; Changed and Event are optional.
type Config struct {
	// Identity is the reconciler's certificate and the hosts' authority.
	Identity *mtls.Store
	// ClusterUID is the UID of the hosts' cluster.
	ClusterUID string
	// Version is our version, sent to agents and compared with theirs.
	Version string
	// Now is the clock.
	Now func() time.Time
	// Changed is called after each change of a host's state, in the host's
	// goroutine; it must not block.
	Changed func(hostID string)
	// Event is called for each event of a host, in order.
	Event func(hostID string, event nodeos.EventInfo)
}

// Fleet maintains connections to hosts. Create it with New and call Run.
type Fleet struct {
	cfg Config

	mu      sync.Mutex
	hosts   map[string]*host
	running context.Context // the context of Run; nil before it
	stopped bool            // Run is ending: start nothing
	wait    sync.WaitGroup
}

// New validates the configuration and returns a fleet without targets.
func New(cfg Config) (*Fleet, error) {
	if cfg.Identity == nil || cfg.ClusterUID == "" || cfg.Version == "" || cfg.Now == nil {
		return nil, errors.New("fleet configuration: Identity, ClusterUID, Version and Now are required")
	}
	own, err := mtls.CallerOf(cfg.Identity.Leaf())
	if err != nil {
		return nil, fmt.Errorf("fleet: own certificate: %w", err)
	}
	if own.ClusterUID != cfg.ClusterUID {
		return nil, fmt.Errorf("fleet: own certificate is for cluster %s, want %s", own.ClusterUID, cfg.ClusterUID)
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	if cfg.Event == nil {
		cfg.Event = func(string, nodeos.EventInfo) {}
	}
	return &Fleet{cfg: cfg, hosts: map[string]*host{}}, nil
}

// Run maintains the connections until ctx ends and all goroutines have ended. It's
// called once.
func (f *Fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.running != nil {
		f.mu.Unlock()
		return errors.New("fleet: Run was already called")
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

// SetTargets sets the hosts: new ones are connected, removed ones disconnected,
// changed ones reconnected.
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

// start starts a host's goroutines; f.mu is held.
func (f *Fleet) start(running context.Context, h *host) {
	if running == nil || f.stopped {
		return
	}
	ctx, cancel := context.WithCancel(running)
	h.cancel = cancel
	f.wait.Go(func() {
		defer cancel()
		h.run(ctx)
	})
}

// State returns the state of a host; false if it's not a target.
func (f *Fleet) State(hostID string) (State, bool) {
	h, err := f.host(hostID)
	if err != nil {
		return State{}, false
	}
	return h.snapshot(), true
}

// States returns the states of all targets, sorted by host id.
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
		return nil, &UnreachableError{Host: hostID, Err: errors.New("not a target: no Host object has this id")}
	}
	return h, nil
}

// dialDelay returns the delay before the next dial after a number of failed ones.
func dialDelay(failures int) time.Duration {
	return backoff.Jitter(backoff.Delay(backoffFirst, backoffMost, failures))
}
