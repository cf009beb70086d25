// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/lockstep-dev/lockstep/payload"
)

// Failure is a manifest that failed to apply.
type Failure struct {
	Manifest *payload.Manifest
	Err      error
	// index of the manifest in the payload.
	index int
}

// Result is the result of a walk.
type Result struct {
	// Done is the number of applied manifests.
	Done int
	// Failures in payload order.
	Failures []Failure
	// Blocked is the number of manifests not tried because of an earlier failure,
	// Unreached of those not tried because the context ended.
	Blocked, Unreached int
}

// Complete reports whether all manifests were applied.
func (r Result) Complete() bool {
	return len(r.Failures) == 0 && r.Blocked == 0 && r.Unreached == 0
}

// Walk calls do for each manifest in the order of the graph, in at most workers
// goroutines, and returns when all have finished. A failure stops its node and
// blocks dependent nodes; all others continue. Once ctx ends, no further manifest
// is started.
func Walk(ctx context.Context, g *Graph, workers int, do func(ctx context.Context, m *payload.Manifest) error) Result {
	w := &walker{graph: g, do: do, waiting: make([]int, len(g.nodes)), blocked: make([]bool, len(g.nodes)), left: len(g.nodes)}
	w.wake.L = &w.mu
	w.ready = make([]int, 0, len(g.nodes))
	for i := range g.nodes {
		if w.waiting[i] = g.nodes[i].in; w.waiting[i] == 0 {
			w.ready = append(w.ready, i)
		}
	}
	var group sync.WaitGroup
	for range min(max(workers, 1), len(g.nodes)) {
		group.Go(func() { w.work(ctx) })
	}
	group.Wait()
	slices.SortFunc(w.result.Failures, func(a, b Failure) int { return cmp.Compare(a.index, b.index) })
	return w.result
}

// walker is one walk. ready is a queue; next is the index of its head.
type walker struct {
	graph *Graph
	do    func(ctx context.Context, m *payload.Manifest) error

	mu      sync.Mutex
	wake    sync.Cond
	ready   []int
	next    int
	waiting []int
	// blocked nodes depend on a failed node.
	blocked []bool
	left    int
	result  Result
}

// work runs ready nodes until all have finished.
func (w *walker) work(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.next == len(w.ready) && w.left > 0 {
			w.wake.Wait()
		}
		if w.left == 0 {
			return
		}
		n := w.ready[w.next]
		w.next++
		ok := w.run(ctx, n)
		w.finish(n, ok)
	}
}

// run applies the manifests of a node. It releases the lock meanwhile.
func (w *walker) run(ctx context.Context, n int) (ok bool) {
	node := &w.graph.nodes[n]
	if w.blocked[n] {
		w.result.Blocked += len(node.tasks)
		return false
	}
	for k, i := range node.tasks {
		if ctx.Err() != nil {
			w.result.Unreached += len(node.tasks) - k
			return false
		}
		m := &w.graph.manifests[i]
		w.mu.Unlock()
		err := w.do(ctx, m)
		w.mu.Lock()
		if err != nil {
			w.result.Failures = append(w.result.Failures, Failure{Manifest: m, Err: err, index: i})
			w.result.Blocked += len(node.tasks) - k - 1
			return false
		}
		w.result.Done++
	}
	return true
}

// finish marks a node as finished and adds nodes without further dependencies to
// the queue.
func (w *walker) finish(n int, ok bool) {
	for _, e := range w.graph.nodes[n].out {
		if !ok && !e.soft {
			w.blocked[e.to] = true
		}
		if w.waiting[e.to]--; w.waiting[e.to] == 0 {
			w.ready = append(w.ready, e.to)
			w.wake.Signal()
		}
	}
	if w.left--; w.left == 0 {
		w.wake.Broadcast()
	}
}
