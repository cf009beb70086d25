// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/gate"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
)

// Defaults of a Config.
const (
	defaultWorkers = 16
	defaultPoll    = 2 * time.Second
	stepTimeout    = 30 * time.Second
	// idleInterval is the interval of Sync for a pool without hosts in flight.
	idleInterval = time.Minute
	// maxLastErrors bounds the nodes whose last error is stored.
	maxLastErrors = 10_000
	// minInterval is the delay of the next Sync after the ledger changed.
	minInterval = 100 * time.Millisecond
)

// Ledger stores the slots of the cluster; see ledger.Store.
type Ledger interface {
	Load(ctx context.Context) (ledger.Snapshot, error)
	Swap(ctx context.Context, from ledger.Snapshot, to ledger.Document) (ledger.Snapshot, error)
	Acquire(ctx context.Context, clusterUID, holder string, reported []uint64) (ledger.Fence, error)
}

// Facts reads the cluster.
type Facts interface {
	// Observe returns the members of the pool: the nodes that it selects and
	// those of its slots. A slot without a member belongs to a deleted Node;
	// Observe must check this with the API server.
	Observe(ctx context.Context, n *v1alpha1.NodeOS, slots map[string]ledger.Slot) (Observation, error)
	// Node reads a Node from the API server, never from a cache.
	Node(ctx context.Context, name string) (rollout.Node, error)
	// Health runs the gates on the slot's host.
	Health(ctx context.Context, slot ledger.Slot, facts *nodeos.HostFacts, checks *gate.Checks) rollout.Health
}

// Observation is the observed state of a pool in the cluster.
type Observation struct {
	// Members are the hosts, without Agent, Pods, Health and LastError.
	Members []rollout.Member
	// HostIDs are the pinned host IDs, by Node UID.
	HostIDs map[string]string
	// KubeletDead are the nodes whose kubelet stopped reporting, by name.
	KubeletDead map[string]bool
	// Pools are the UIDs of all existing pools; nil if they weren't listed.
	Pools map[string]bool
	// ClusterNodes is how many nodes the cluster has.
	ClusterNodes int
	Quorum       rollout.Quorum
}

// Agents reads facts from agents and sends them orders.
type Agents interface {
	// Observed returns the last facts received over the current connection;
	// its Facts is nil if there is no connection.
	Observed(hostID string) rollout.Agent
	// Facts requests the current facts from the agent.
	Facts(ctx context.Context, hostID string) (nodeos.HostFacts, error)
	// Order sends an order. A nil error means that the agent accepted it, not
	// that it is done.
	Order(ctx context.Context, hostID string, o Order) error
}

// Order is a step that an agent performs.
type Order struct {
	// Kind is Stage, Activate, Commit or Rollback.
	Kind                 rollout.StepKind
	OperationID, Attempt string
	Fence                nodeos.Fence
	// Image is the target, with its expected product and version.
	Image nodeos.Image
	// Digest is that of the target. For Rollback it is that of the previous
	// image, or empty.
	Digest string
	// CommitDeadline, OnDeadline and AutoCommit are set for Activate only.
	CommitDeadline time.Duration
	OnDeadline     nodeos.DeadlineAction
	AutoCommit     bool
}

// Cordoner cordons and uncordons nodes; see drain.Cordoner.
type Cordoner interface {
	Cordon(ctx context.Context, name, uid, owner string) error
	Uncordon(ctx context.Context, name, uid, owner string) error
}

// Evictor evicts the pods of nodes; see drain.Evictor.
type Evictor interface {
	Inspect(ctx context.Context, r drain.Request, now time.Time) (drain.Report, error)
	Round(ctx context.Context, r drain.Request, now time.Time) (drain.Report, error)
}

// FencedError is the error of Agents.Order if the agent has seen a higher fence.
type FencedError interface {
	error
	// Stored returns the highest fence that the agent has seen.
	Stored() nodeos.Fence
}

// Config configures an Executor. All fields but the last two are required.
type Config struct {
	Ledger   Ledger
	Facts    Facts
	Agents   Agents
	Cordoner Cordoner
	Evictor  Evictor
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID string
	// Holder names this process; it must be unique per process start.
	Holder string
	Now    func() time.Time
	// Workers is how many steps are performed in parallel; 0 means 16.
	Workers int
	// Poll is the interval of Sync while hosts are in flight; 0 means 2 s.
	Poll time.Duration
}

// Executor rolls out the pools of a cluster. Sync may run concurrently for
// different pools.
type Executor struct {
	cfg Config

	mu    sync.Mutex
	fence ledger.Fence
	// lastErrors are the errors of the last steps that failed, by node UID.
	lastErrors map[string]string
}

// New returns an Executor, or an error if the configuration is incomplete.
func New(c Config) (*Executor, error) {
	switch {
	case c.Ledger == nil, c.Facts == nil, c.Agents == nil, c.Cordoner == nil, c.Evictor == nil, c.Now == nil:
		return nil, errors.New("rollout executor: Ledger, Facts, Agents, Cordoner, Evictor and Now are required")
	case c.ClusterUID == "" || c.Holder == "":
		return nil, errors.New("rollout executor: ClusterUID (the UID of namespace kube-system) and Holder are required")
	}
	if c.Workers <= 0 {
		c.Workers = defaultWorkers
	}
	if c.Poll <= 0 {
		c.Poll = defaultPoll
	}
	return &Executor{cfg: c, lastErrors: map[string]string{}}, nil
}

// Lead acquires a new fence, above the stored and the reported epochs. Call it
// when leadership starts, before the first Sync. Sync calls it again if an agent
// rejects the fence or the ledger was lost.
func (e *Executor) Lead(ctx context.Context, reported []uint64) error {
	fence, err := e.cfg.Ledger.Acquire(ctx, e.cfg.ClusterUID, e.cfg.Holder, reported)
	if err != nil {
		return fmt.Errorf("lead the rollout: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fence = fence
	return nil
}

// currentFence returns the fence of this leader's orders.
func (e *Executor) currentFence() ledger.Fence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fence
}

// Pool is one pool to roll out.
type Pool struct {
	NodeOS *v1alpha1.NodeOS
	// Product is that of the verified image. Unverified and UnverifiedReason are
	// the message and the reason why the image isn't trusted; empty if it is.
	Product, Unverified, UnverifiedReason string
}

// Problem is a failed step. The next Sync repeats it if it is still in the plan.
type Problem struct {
	Host string
	Step rollout.StepKind
	Err  error
}

// Result is the result of Sync.
type Result struct {
	Decision rollout.Decision
	// Done are the steps that were performed without an error.
	Done []rollout.Step
	// Problems are the steps that failed.
	Problems []Problem
	// RequeueAfter is the delay of the next Sync if no event triggers it earlier.
	RequeueAfter time.Duration
}

// Sync observes the pool once, makes a plan and performs its steps. The error is
// ledger.ErrSuperseded if another leader has taken over: stop leading. Conflicts
// on the ledger and failed steps aren't errors.
func (e *Executor) Sync(ctx context.Context, p Pool) (Result, error) {
	pool, err := rollout.PoolOf(p.NodeOS)
	if err != nil {
		return Result{}, err
	}
	checks, err := gate.Compile(p.NodeOS.Spec.Gates.Checks)
	if err != nil {
		return Result{}, err
	}
	pool.Product, pool.Unverified, pool.UnverifiedReason = p.Product, p.Unverified, p.UnverifiedReason

	snap, fence, err := e.load(ctx)
	if err != nil {
		return Result{}, err
	}
	r := &poolSync{e: e, pool: pool, nodeOS: p.NodeOS, checks: checks, fence: fence}
	in, err := r.observe(ctx, snap.Document)
	if err != nil {
		return Result{}, err
	}
	now := e.cfg.Now()
	r.out.Decision = rollout.Plan(in, now)
	if r.out.Decision.Changed {
		_, err := e.cfg.Ledger.Swap(ctx, snap, r.out.Decision.Ledger)
		if errors.Is(err, ledger.ErrConflict) {
			r.out.Decision.Steps = nil
			r.out.RequeueAfter = minInterval
			return r.out, nil
		}
		if err != nil {
			return Result{}, err
		}
	}
	if err := r.perform(ctx, r.out.Decision.Steps); err != nil {
		return Result{}, err
	}
	r.out.RequeueAfter = nextSync(r.out, e.cfg.Poll, now)
	return r.out, nil
}

// setLastError sets or clears the error of a node's last step.
func (e *Executor) setLastError(uid string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		delete(e.lastErrors, uid)
		return
	}
	if len(e.lastErrors) >= maxLastErrors {
		clear(e.lastErrors)
	}
	e.lastErrors[uid] = sanitize.Line(err.Error())
}

func (e *Executor) lastError(uid string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastErrors[uid]
}

// load reads the ledger and checks that it contains this leader's fence.
func (e *Executor) load(ctx context.Context) (ledger.Snapshot, ledger.Fence, error) {
	fence := e.currentFence()
	if fence.Epoch == 0 {
		return ledger.Snapshot{}, fence, errors.New("rollout executor: Lead must be called before Sync")
	}
	for range 2 {
		snap, err := e.cfg.Ledger.Load(ctx)
		if err != nil {
			return ledger.Snapshot{}, fence, err
		}
		switch stored := snap.Document.Fence; {
		case stored == fence:
			return snap, fence, nil
		case stored.Epoch >= fence.Epoch: // equal: of another holder
			return ledger.Snapshot{}, fence, superseded(stored, fence)
		}
		// The ledger was lost or an older one was restored: acquire a new fence.
		if err := e.Lead(ctx, []uint64{fence.Epoch}); err != nil {
			return ledger.Snapshot{}, fence, err
		}
		fence = e.currentFence()
	}
	return ledger.Snapshot{}, fence, ledger.ErrConflict
}

func superseded(stored, own ledger.Fence) error {
	return fmt.Errorf("%w: stored epoch %d, own epoch %d", ledger.ErrSuperseded, stored.Epoch, own.Epoch)
}

// nextSync returns the delay of the next Sync.
func nextSync(r Result, poll time.Duration, now time.Time) time.Duration {
	wait := idleInterval
	if r.Decision.Changed {
		wait = minInterval
	} else if r.Decision.Status.Counts.InFlight > 0 || len(r.Decision.Steps) > 0 {
		wait = poll
	}
	if next := r.Decision.Next; !next.IsZero() {
		wait = min(wait, max(next.Sub(now), minInterval))
	}
	return wait
}
