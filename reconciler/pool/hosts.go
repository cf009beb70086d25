// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

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

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/hosts"
	"github.com/lockstep-dev/lockstep/reconciler/rollout/executor"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// runtime holds the connections to agents, the rollout executor and the syncer of
// Host objects. Without a PKI directory it is disabled.
type runtime struct {
	client   client.Client
	store    *state.Store
	identity *mtls.Store
	fleet    *fleet.Fleet
	executor *executor.Executor
	syncer   *hosts.Syncer
	log      logr.Logger
	now      func() time.Time
	// leading is closed once this process holds the fence.
	leading chan struct{}
	// hostChanged fires the Host controller, poolChanged all NodeOS.
	hostChanged, poolChanged control.Trigger

	mu        sync.Mutex
	delivered map[string]delivery // by host id
}

// delivery is the result of sending a trust document to a host.
type delivery struct {
	version int64
	// retry is when it is sent again to a host that rejected it; zero if accepted.
	retry time.Time
}

const (
	// retryTrust is the interval after which a rejected trust document is sent again.
	retryTrust = 10 * time.Minute
	// trustInterval is the interval at which the trust versions of hosts are checked.
	trustInterval = 10 * time.Second
)

// errNoHosts is returned while hosts are disabled.
var errNoHosts = control.NewError("HostsDisabled", true, errors.New(
	"no certificate for agents; start the reconciler with --pki-dir and a directory from lockstep pki issue caller"))

// newRuntime returns a runtime. It connects to no host before Start.
func newRuntime(cfg Config) (*runtime, error) {
	base := cfg.Base
	h := &runtime{
		client: base.Client, store: base.Store, log: base.Log.WithName("hosts"), now: base.Now,
		leading: make(chan struct{}), delivered: map[string]delivery{},
		hostChanged: control.NewTrigger(64), poolChanged: control.NewTrigger(64),
	}
	if cfg.PKIDir == "" {
		return h, nil
	}
	identity, err := mtls.Open(mtls.InDir(cfg.PKIDir), base.Now)
	if err != nil {
		return nil, fmt.Errorf("open certificate for agents in %s: %w", cfg.PKIDir, err)
	}
	h.identity = identity
	h.fleet, err = fleet.New(fleet.Config{
		Identity: identity, ClusterUID: cfg.ClusterUID, Version: cfg.Version, Now: base.Now,
		Changed: func(string) {
			h.hostChanged.Fire("")
			h.poolChanged.Fire("")
		},
	})
	if err != nil {
		return nil, err
	}
	h.syncer = hosts.NewSyncer(hosts.Config{Client: h.client, Namespace: v1alpha1.Namespace, Fleet: h.fleet, Now: base.Now})
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("hostname: %w", err)
	}
	node := os.Getenv("NODE_NAME") // set by the downward API
	h.executor, err = executor.New(executor.Config{
		Ledger: cfg.Ledger,
		Facts: executor.Cluster{
			Cached: h.client, Live: base.Reader, Namespace: v1alpha1.Namespace, OwnNode: node, Now: base.Now,
			Removed: func(pool string) bool {
				_, _, inPayload := base.Store.PoolOwner(pool)
				return !inPayload && base.Store.Removed(v1alpha1.KindNodeOS, pool)
			},
		},
		Agents:     executor.Fleet{Fleet: h.fleet},
		Cordoner:   drain.NewCordoner(cfg.Kube.CoreV1().Nodes()),
		Evictor:    drain.NewEvictor(drain.Config{Client: cfg.Kube, Jitter: rand.Float64}),
		ClusterUID: cfg.ClusterUID, Holder: fmt.Sprintf("%s/%d/%x", name, os.Getpid(), rand.Uint64()), //nolint:gosec // it must be unique, not secret
		Now: base.Now,
	})
	return h, err
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*runtime) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it acquires the fence, then maintains the
// connections until ctx ends.
func (h *runtime) Start(ctx context.Context) error {
	if h.fleet == nil {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		err := h.identity.Run(ctx, func(err error) { control.LogError(h.log, err, "reload certificate for agents") })
		control.LogError(h.log, err, "certificate watch ended")
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

// lead acquires the fence, with retries while the API server is unavailable.
func (h *runtime) lead(ctx context.Context) error {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		err := h.executor.Lead(ctx, nil)
		if err == nil {
			return nil
		}
		control.LogError(h.log, err, "acquire fence")
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// ready waits until the fence is held; it returns errNoHosts if hosts are disabled.
func (h *runtime) ready(ctx context.Context) error {
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

// setRollouts sets the rollout states of a pool's hosts, for their status.
func (h *runtime) setRollouts(pool string, states map[string]v1alpha1.HostRollout) {
	if h.syncer == nil {
		return
	}
	h.syncer.SetRollouts(pool, states)
	h.hostChanged.Fire("")
}

// deletePool removes the rollout states of a deleted NodeOS.
func (h *runtime) deletePool(name string) {
	if h.syncer != nil {
		h.syncer.SetRollouts(name, nil)
	}
}

// sync writes the Host objects; it returns the time until the next sync.
func (h *runtime) sync(ctx context.Context) (time.Duration, error) {
	if h.syncer == nil {
		return 0, nil
	}
	var pools v1alpha1.NodeOSList
	if err := h.client.List(ctx, &pools, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return 0, fmt.Errorf("list NodeOS objects: %w", err)
	}
	var selectors []labels.Selector
	for i := range pools.Items {
		if s, err := executor.Selector(&pools.Items[i]); err == nil {
			selectors = append(selectors, s)
		}
	}
	return h.syncer.Sync(ctx, selectors)
}

// deliverTrust sends the active trust document to agents with an older one. Agents
// verify its signatures themselves.
func (h *runtime) deliverTrust(ctx context.Context) {
	ticker := time.NewTicker(trustInterval)
	defer ticker.Stop()
	for {
		changed := h.store.Changed()
		if current, ok := h.store.Trust(h.now()); ok {
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

func (h *runtime) deliver(ctx context.Context, version int64, envelope []byte) {
	for _, state := range h.fleet.States() {
		id := state.Target.HostID
		if !state.Connected || state.About.TrustVersion >= version || !h.due(id, version) {
			continue
		}
		got, err := h.fleet.DeliverTrust(ctx, id, envelope)
		if ctx.Err() != nil {
			return
		}
		control.LogError(h.log, err, "deliver trust policy", "host", id)
		h.recordDelivery(id, version, got, err)
	}
}

// recordDelivery records the result of sending a version to a host.
func (h *runtime) recordDelivery(id string, version, got int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := delivery{version: got}
	if err != nil {
		d = delivery{version: version, retry: h.now().Add(retryTrust)}
	}
	h.delivered[id] = d
}

// due reports whether a version of the trust document is to be sent to a host.
func (h *runtime) due(id string, version int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.delivered[id]
	return d.version < version || !d.retry.IsZero() && !h.now().Before(d.retry)
}
