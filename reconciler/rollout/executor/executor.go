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
	// idle is how often a pool with nothing in flight is planned anyway.
	idleInterval = time.Minute
	// maxLastErrors bounds the nodes whose last failure is remembered.
	maxLastErrors = 10_000
	// soon is when a pass is repeated after it wrote the ledger or lost a race.
	minInterval = 100 * time.Millisecond
)

// Ledger is the one record of the cluster.
type Ledger interface {
	Load(ctx context.Context) (ledger.Snapshot, error)
	Swap(ctx context.Context, from ledger.Snapshot, to ledger.Document) (ledger.Snapshot, error)
	Acquire(ctx context.Context, clusterUID, holder string, reported []uint64) (ledger.Fence, error)
}

// Facts reads the cluster.
type Facts interface {
	// Observe returns the members of the pool: what it selects, and the nodes
	// that hold one of the slots. A slot whose Node isn't among them is that
	// of a deleted Node: Observe has asked the API server itself.
	Observe(ctx context.Context, n *v1alpha1.NodeOS, slots map[string]ledger.Slot) (Observation, error)
	// Node reads a Node from the API server, not from a cache.
	Node(ctx context.Context, name string) (rollout.Node, error)
	// Health runs the gates on a host that boots slot's target.
	Health(ctx context.Context, slot ledger.Slot, facts *nodeos.HostFacts, checks *gate.Checks) rollout.Health
}

// Observation is what's seen of a pool in the cluster.
type Observation struct {
	// Members lack what agents say, pods and health.
	Members []rollout.Member
	// HostIDs are the pinned identities, by Node UID.
	HostIDs map[string]string
	// KubeletDead are the nodes whose kubelet doesn't report, by name.
	KubeletDead map[string]bool
	// Pools are the UIDs of the pools that exist; nil: not known.
	Pools map[string]bool
	// ClusterNodes is how many nodes the cluster has.
	ClusterNodes int
	Quorum       rollout.Quorum
}

// Agents asks hosts and gives them orders.
type Agents interface {
	// Observed returns the facts that were seen last over a connection that
	// stands; Facts is nil where there is none.
	Observed(hostID string) rollout.Agent
	// Facts asks the agent now.
	Facts(ctx context.Context, hostID string) (nodeos.HostFacts, error)
	// Order hands over an order; that it was taken is not that it's done.
	Order(ctx context.Context, hostID string, o Order) error
}

// Order is a step that an agent does.
type Order struct {
	// Kind is Stage, Activate, Commit or Rollback.
	Kind                 rollout.StepKind
	OperationID, Attempt string
	Fence                nodeos.Fence
	// Image is the target, with the product and version that it must have.
	Image nodeos.Image
	// Digest is the target's, for Commit; for Rollback it's that of the system
	// to go back to, or empty.
	Digest string
	// CommitDeadline, OnDeadline and AutoCommit go with Activate.
	CommitDeadline time.Duration
	OnDeadline     nodeos.DeadlineAction
	AutoCommit     bool
}

// Cordoner marks nodes.
type Cordoner interface {
	Cordon(ctx context.Context, name, uid, owner string) error
	Uncordon(ctx context.Context, name, uid, owner string) error
}

// Evictor empties nodes.
type Evictor interface {
	Inspect(ctx context.Context, r drain.Request, now time.Time) (drain.Report, error)
	Round(ctx context.Context, r drain.Request, now time.Time) (drain.Report, error)
}

// FencedError is how Agents.Order says that the agent has seen a higher fence.
type FencedError interface {
	error
	// Stored is the agent's fence.
	Stored() nodeos.Fence
}

// Config makes an Executor. All but the last two are needed.
type Config struct {
	Ledger   Ledger
	Facts    Facts
	Agents   Agents
	Cordoner Cordoner
	Evictor  Evictor
	// ClusterUID is the UID of the namespace kube-system.
	ClusterUID string
	// Holder names this process; unique to its life.
	Holder string
	Now    func() time.Time
	// Workers do steps at once; zero: 16.
	Workers int
	// Poll is how often hosts in flight are looked at; zero: 2 s.
	Poll time.Duration
}

// Executor drives the pools of a cluster. Passes over different pools may run
// at once; they meet in the ledger.
type Executor struct {
	cfg Config

	mu    sync.Mutex
	fence ledger.Fence
	// refused says why the last step on a node failed, by its UID; for people.
	lastErrors map[string]string
}

// New checks the configuration.
func New(c Config) (*Executor, error) {
	switch {
	case c.Ledger == nil, c.Facts == nil, c.Agents == nil, c.Cordoner == nil, c.Evictor == nil, c.Now == nil:
		return nil, errors.New("rollout executor: Ledger, World, Agents, Cordoner, Evictor and Now are needed")
	case c.ClusterUID == "" || c.Holder == "":
		return nil, errors.New("rollout executor: the cluster's UID (that of the namespace kube-system) and a holder's name are needed")
	}
	if c.Workers <= 0 {
		c.Workers = defaultWorkers
	}
	if c.Poll <= 0 {
		c.Poll = defaultPoll
	}
	return &Executor{cfg: c, lastErrors: map[string]string{}}, nil
}

// Lead acquires a new fence, above what is stored and what agents report. It's
// called when leadership begins, before the first pass; a pass calls it again
// when an agent refuses the fence or the ledger was lost.
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

// currentFence returns the fence that orders carry now.
func (e *Executor) currentFence() ledger.Fence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fence
}

// Pool is one pool to drive.
type Pool struct {
	NodeOS *v1alpha1.NodeOS
	// Product is what the verified image is; Unverified says why it isn't
	// trusted, UnverifiedReason in one word, both empty if it is.
	Product, Unverified, UnverifiedReason string
}

// Problem is a step that didn't succeed; the next pass tries again if it's
// still wanted.
type Problem struct {
	Host string
	Step rollout.StepKind
	Err  error
}

// Result is what a pass did.
type Result struct {
	Decision rollout.Decision
	// Done are the steps that were handed over without an error.
	Done []rollout.Step
	// Problems are those that failed, and hosts that couldn't be asked.
	Problems []Problem
	// RequeueAfter is when the next pass is due even if nothing happens.
	RequeueAfter time.Duration
}

// Sync looks at the pool once, plans and does the steps. The error is
// ledger.ErrSuperseded when another leader has taken over: stop leading. Lost
// races and refused steps are no errors.
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

// note keeps or clears why the last step on a node failed.
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

// load reads the ledger and makes sure that it's under our fence.
func (e *Executor) load(ctx context.Context) (ledger.Snapshot, ledger.Fence, error) {
	fence := e.currentFence()
	if fence.Epoch == 0 {
		return ledger.Snapshot{}, fence, errors.New("rollout executor: Lead comes before the first pass")
	}
	for range 2 {
		snap, err := e.cfg.Ledger.Load(ctx)
		if err != nil {
			return ledger.Snapshot{}, fence, err
		}
		switch stored := snap.Document.Fence; {
		case stored == fence:
			return snap, fence, nil
		case stored.Epoch >= fence.Epoch: // equal: another holder's
			return ledger.Snapshot{}, fence, fmt.Errorf("%w: epoch %d, ours is %d", ledger.ErrSuperseded, stored.Epoch, fence.Epoch)
		}
		// The ledger was lost or is an older one: lead anew, above ourselves.
		if err := e.Lead(ctx, []uint64{fence.Epoch}); err != nil {
			return ledger.Snapshot{}, fence, err
		}
		fence = e.currentFence()
	}
	return ledger.Snapshot{}, fence, ledger.ErrConflict
}

// again says when to look next.
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
