// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/hosts"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout/executor"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// hostRuntime is what the process keeps for hosts: the connections to agents,
// the executor of rollouts and the syncer of Host objects. Without a PKI
// directory it is off, and NodeOS objects say so.
type hostRuntime struct {
	opts     Options
	client   client.Client
	store    *state.Store
	identity *mtls.Store
	fleet    *fleet.Fleet
	executor *executor.Executor
	syncer   *hosts.Syncer
	log      logr.Logger
	// leading is closed once this process holds a fence.
	leading chan struct{}
	// hostChanged wakes the Host controller, poolChanged all NodeOS.
	hostChanged, poolChanged chan event.TypedGenericEvent[string]

	mu        sync.Mutex
	delivered map[string]delivery // by host id
}

// delivery is what came of handing a trust document to a host.
type delivery struct {
	version int64
	// retry is when a host that refused it is asked again; zero if it accepted.
	retry time.Time
}

// retryTrust is how long a host that refused a trust document isn't asked again.
const retryTrust = 10 * time.Minute

// errNoHosts says that hosts can't be driven.
var errNoHosts = &reasonError{"HostsDisabled", true, errors.New(
	"the reconciler has no certificate for agents: start it with --pki-dir, a directory as lockstep pki issue caller makes it")}

// newHostRuntime makes the runtime; it speaks to no host before Start.
func newHostRuntime(o *Operator) (*hostRuntime, error) {
	h := &hostRuntime{
		opts: o.opts, client: o.manager.GetClient(), store: o.base.store, log: o.opts.Log.WithName("hosts"),
		leading: make(chan struct{}), delivered: map[string]delivery{},
		hostChanged: make(chan event.TypedGenericEvent[string], 64),
		poolChanged: make(chan event.TypedGenericEvent[string], 64),
	}
	if o.opts.AgentPKIDir == "" {
		return h, nil
	}
	identity, err := mtls.Open(mtls.InDir(o.opts.AgentPKIDir), o.opts.Now)
	if err != nil {
		return nil, fmt.Errorf("certificate for agents in %s: %w", o.opts.AgentPKIDir, err)
	}
	h.identity = identity
	h.fleet, err = fleet.New(fleet.Config{
		Identity: identity, ClusterUID: o.uid, Version: o.opts.Version, Now: o.opts.Now,
		Changed: func(string) {
			notify(h.hostChanged)
			notify(h.poolChanged)
		},
	})
	if err != nil {
		return nil, err
	}
	h.syncer = hosts.NewSyncer(hosts.Config{Client: h.client, Namespace: v1alpha1.Namespace, Fleet: h.fleet, Now: o.opts.Now})
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this machine: %w", err)
	}
	node := os.Getenv("NODE_NAME") // by the downward API
	h.executor, err = executor.New(executor.Config{
		Ledger: ledger.NewStore(o.kube.CoreV1().ConfigMaps(v1alpha1.Namespace)),
		Facts: executor.Cluster{
			Cached: h.client, Live: o.manager.GetAPIReader(), Namespace: v1alpha1.Namespace, OwnNode: node, Now: o.opts.Now,
		},
		Agents:     executor.Fleet{Fleet: h.fleet},
		Cordoner:   drain.NewCordoner(o.kube.CoreV1().Nodes()),
		Evictor:    drain.NewEvictor(drain.Config{Client: o.kube, Jitter: rand.Float64}),
		ClusterUID: o.uid, Holder: fmt.Sprintf("%s/%d/%x", name, os.Getpid(), rand.Uint64()), //nolint:gosec // it must be unique, not secret
		Now: o.opts.Now,
	})
	return h, err
}

// notify wakes all who listen; a full queue holds enough wake-ups.
func notify(ch chan event.TypedGenericEvent[string]) {
	select {
	case ch <- event.TypedGenericEvent[string]{}:
	default:
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*hostRuntime) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it raises the fence, then keeps the
// connections until ctx ends.
func (h *hostRuntime) Start(ctx context.Context) error {
	if h.fleet == nil {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		logOnce(h.log, h.identity.Run(ctx, func(err error) { logOnce(h.log, err, "the certificate for agents can't be read again") }), "watching the certificate ended")
	})
	wg.Go(func() { h.deliverTrust(ctx) })
	if err := h.lead(ctx); err != nil {
		return err
	}
	close(h.leading)
	if err := h.fleet.Run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("connections to agents: %w", err)
	}
	return nil
}

// lead acquires the fence; the API server may be away at the start.
func (h *hostRuntime) lead(ctx context.Context) error {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		err := h.executor.Lead(ctx, nil)
		if err == nil {
			return nil
		}
		logOnce(h.log, err, "the fence can't be raised yet")
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// ready waits until hosts can be driven.
func (h *hostRuntime) ready(ctx context.Context) error {
	if h.fleet == nil {
		return errNoHosts
	}
	select {
	case <-h.leading:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setRollouts says where a pool's rollout has its hosts, for their status.
func (h *hostRuntime) setRollouts(pool string, states map[string]v1alpha1.HostRollout) {
	if h.syncer == nil {
		return
	}
	h.syncer.SetRollouts(pool, states)
	notify(h.hostChanged)
}

// forgetPool forgets a NodeOS that was deleted.
func (h *hostRuntime) forgetPool(name string) {
	if h.syncer != nil {
		h.syncer.SetRollouts(name, nil)
	}
}

// sync keeps the Host objects; it returns when it's due again.
func (h *hostRuntime) sync(ctx context.Context) (time.Duration, error) {
	if h.syncer == nil {
		return 0, nil
	}
	var pools v1alpha1.NodeOSList
	if err := h.client.List(ctx, &pools, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return 0, fmt.Errorf("list the pools: %w", err)
	}
	var selectors []labels.Selector
	for i := range pools.Items {
		if s, err := executor.Selector(&pools.Items[i]); err == nil {
			selectors = append(selectors, s)
		}
	}
	return h.syncer.Sync(ctx, selectors)
}

// deliverTrust hands the trust document in force to agents that have an older
// one. Agents accept it only by its own signatures; this is a carrier.
func (h *hostRuntime) deliverTrust(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		changed := h.store.Changed()
		if current, ok := h.store.Trust(h.opts.Now()); ok {
			h.deliver(ctx, current.Document.Version, current.Envelope)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (h *hostRuntime) deliver(ctx context.Context, version int64, envelope []byte) {
	for _, state := range h.fleet.States() {
		id := state.Target.HostID
		if !state.Connected || state.About.TrustVersion >= version || !h.due(id, version) {
			continue
		}
		got, err := h.fleet.DeliverTrust(ctx, id, envelope)
		if ctx.Err() != nil {
			return
		}
		logOnce(h.log.WithValues("host", id), err, "the trust document isn't accepted by the host")
		h.delivery(id, version, got, err)
	}
}

// delivery notes what came of handing a version to a host.
func (h *hostRuntime) delivery(id string, version, got int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := delivery{version: got}
	if err != nil {
		d = delivery{version: version, retry: h.opts.Now().Add(retryTrust)}
	}
	h.delivered[id] = d
}

// due reports whether a host should be handed a version of the trust document.
func (h *hostRuntime) due(id string, version int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.delivered[id]
	return d.version < version || !d.retry.IsZero() && !h.opts.Now().Before(d.retry)
}
