// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/drain"
	"github.com/lockstep-dev/lockstep/reconciler/gate"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
)

// poolSync is one Sync of one pool.
type poolSync struct {
	e      *Executor
	pool   rollout.Pool
	nodeOS *v1alpha1.NodeOS
	checks *gate.Checks
	fence  ledger.Fence
	obs    Observation

	mu           sync.Mutex
	fencedEpochs []uint64
	out          Result
}

// observe gathers the input of the plan. Hosts in flight report current facts;
// for the others the last facts are enough, because every disruptive step checks
// current facts first.
func (r *poolSync) observe(ctx context.Context, doc ledger.Document) (rollout.Input, error) {
	slots := map[string]ledger.Slot{}
	for uid, s := range doc.Slots {
		if s.Pool == r.pool.UID {
			slots[uid] = s
		}
	}
	obs, err := r.e.cfg.Facts.Observe(ctx, r.nodeOS, slots)
	if err != nil {
		return rollout.Input{}, fmt.Errorf("observe pool %s: %w", r.pool.Name, err)
	}
	r.obs = obs
	var inFlight []int
	for i := range obs.Members {
		m := &obs.Members[i]
		m.Agent = r.e.cfg.Agents.Observed(obs.HostIDs[m.Node.UID])
		m.LastError = r.e.lastError(m.Node.UID)
		if m.Agent.Facts != nil {
			m.Agent.Problem = mismatch(m.Node, m.Agent.Facts)
		}
		if _, ok := slots[m.Node.UID]; ok {
			inFlight = append(inFlight, i)
		}
	}
	r.each(ctx, len(inFlight), func(ctx context.Context, i int) {
		m := &obs.Members[inFlight[i]]
		r.refresh(ctx, m, slots[m.Node.UID])
	})
	return rollout.Input{
		Pool: r.pool, Members: obs.Members, Ledger: doc, Epoch: r.fence.Epoch,
		ClusterNodes: obs.ClusterNodes, Quorum: obs.Quorum, Pools: obs.Pools,
	}, ctx.Err()
}

// mismatch returns why the facts aren't those of the node; "" if they may be.
func mismatch(n rollout.Node, f *nodeos.HostFacts) string {
	if f.NodeName != "" && f.NodeName != n.Name {
		return sanitize.Line("the agent reports node " + f.NodeName)
	}
	return ""
}

// refresh updates the member of a host in flight.
func (r *poolSync) refresh(ctx context.Context, m *rollout.Member, s ledger.Slot) {
	id := r.obs.HostIDs[m.Node.UID]
	facts, err := r.e.cfg.Agents.Facts(ctx, id)
	if err != nil {
		m.Agent.Facts, m.Agent.Problem = nil, sanitize.Line(err.Error())
	} else {
		m.Agent.Facts, m.Agent.Problem = &facts, mismatch(m.Node, &facts)
		if m.Agent.Problem != "" {
			m.Agent.Facts = nil
		}
	}
	switch s.State {
	case ledger.Claimed, ledger.Draining, ledger.Drained:
		report, err := r.e.cfg.Evictor.Inspect(ctx, r.drainRequest(m.Node.Name), r.e.cfg.Now())
		if err != nil {
			m.Pods = rollout.Pods{Blocking: sanitize.Line(err.Error())}
			return
		}
		m.Pods = rollout.Pods{Observed: true, Remaining: report.Remaining, Blocking: report.Blocking()}
	case ledger.Verifying, ledger.Lost, ledger.Rebooting:
		if m.Agent.Facts != nil {
			m.Health = r.e.cfg.Facts.Health(ctx, s, m.Agent.Facts, r.checks)
		}
	default:
	}
}

func (r *poolSync) drainRequest(node string) drain.Request {
	policy := drain.Policy{Force: r.nodeOS.Spec.Drain.Force, GracePeriodSeconds: -1}
	if g := r.nodeOS.Spec.Drain.GracePeriodSeconds; g != nil {
		policy.GracePeriodSeconds = *g
	}
	return drain.Request{Node: node, KubeletDead: r.obs.KubeletDead[node], Policy: policy}
}

// perform performs the steps in parallel.
func (r *poolSync) perform(ctx context.Context, steps []rollout.Step) error {
	r.each(ctx, len(steps), func(ctx context.Context, i int) {
		s := steps[i]
		err := r.do(ctx, s)
		r.e.setLastError(s.NodeUID, err)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.out.Done = append(r.out.Done, s)
			return
		}
		r.out.Problems = append(r.out.Problems, Problem{Host: s.Node, Step: s.Kind, Err: err})
		var fenced FencedError
		if errors.As(err, &fenced) && fenced.Stored().ClusterUID == r.fence.ClusterUID {
			r.fencedEpochs = append(r.fencedEpochs, fenced.Stored().Epoch)
		}
	})
	if len(r.fencedEpochs) > 0 {
		// An agent has seen a higher epoch: raise the stored one first. If it is
		// another leader's, the next Sync detects that.
		return r.raiseFence(ctx)
	}
	return nil
}

// raiseFence acquires a new fence unless another leader has taken over.
func (r *poolSync) raiseFence(ctx context.Context) error {
	snap, err := r.e.cfg.Ledger.Load(ctx)
	if err != nil {
		return err
	}
	if f := snap.Document.Fence; f.Epoch > r.fence.Epoch || f.Epoch == r.fence.Epoch && f != r.fence {
		return superseded(f, r.fence)
	}
	return r.e.Lead(ctx, r.fencedEpochs)
}

// each calls f for 0 to n-1 on at most Workers goroutines and waits for them.
func (r *poolSync) each(ctx context.Context, n int, f func(context.Context, int)) {
	one := func(i int) {
		ctx, cancel := context.WithTimeout(ctx, stepTimeout)
		defer cancel()
		f(ctx, i)
	}
	if workers := min(n, r.e.cfg.Workers); workers > 1 {
		var wg sync.WaitGroup
		next := make(chan int)
		for range workers {
			wg.Go(func() {
				for i := range next {
					one(i)
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		wg.Wait()
		return
	}
	for i := range n {
		one(i)
	}
}

// do performs one step after checking current facts.
func (r *poolSync) do(ctx context.Context, s rollout.Step) error {
	switch s.Kind {
	case rollout.StepCordon:
		return r.e.cfg.Cordoner.Cordon(ctx, s.Node, s.NodeUID, s.Slot.Owner())
	case rollout.StepUncordon:
		return r.e.cfg.Cordoner.Uncordon(ctx, s.Node, s.NodeUID, s.Slot.Owner())
	default:
	}
	n, err := r.e.cfg.Facts.Node(ctx, s.Node)
	if err != nil {
		return err
	}
	if s.Kind == rollout.StepEvict {
		if err := rollout.Permit(s, n, nil); err != nil {
			return err
		}
		req := r.drainRequest(s.Node)
		req.Delete = s.Force
		_, err := r.e.cfg.Evictor.Round(ctx, req, r.e.cfg.Now())
		return err
	}
	return r.order(ctx, s, n)
}

// order sends an order after checking the agent's current facts.
func (r *poolSync) order(ctx context.Context, s rollout.Step, n rollout.Node) error {
	id := r.obs.HostIDs[s.NodeUID]
	facts, err := r.e.cfg.Agents.Facts(ctx, id)
	if err != nil {
		return err
	}
	if cause := mismatch(n, &facts); cause != "" {
		return fmt.Errorf("%s %s: %s", strings.ToLower(string(s.Kind)), s.Node, cause)
	}
	if err := rollout.Permit(s, n, &facts); err != nil {
		return err
	}
	ref, err := nodeos.ParseImageRef(s.Slot.Ref)
	if err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(string(s.Kind)), s.Node, err)
	}
	o := Order{
		Kind: s.Kind, OperationID: s.OperationID, Attempt: s.Attempt,
		Fence:  nodeos.Fence{ClusterUID: r.fence.ClusterUID, Epoch: r.fence.Epoch},
		Image:  nodeos.Image{Ref: ref, Product: r.pool.Product, Version: s.Slot.Target.Version},
		Digest: s.Slot.Target.Digest,
	}
	if s.Kind == rollout.StepActivate {
		o.CommitDeadline, o.OnDeadline, o.AutoCommit = r.pool.CommitDeadline, nodeos.DeadlineRollback, s.AutoCommit
		if r.pool.HaltOnFailure {
			o.OnDeadline = nodeos.DeadlineHold
		}
	}
	if s.Kind == rollout.StepRollback {
		o.Digest = s.Slot.PrevDigest
	}
	return r.e.cfg.Agents.Order(ctx, id, o)
}
