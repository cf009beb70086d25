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

// Failure is a manifest that couldn't be applied.
type Failure struct {
	Manifest *payload.Manifest
	Err      error
	// index is the manifest's place in the payload.
	index int
}

// Result is what became of a walk.
type Result struct {
	// Done counts the manifests that were applied.
	Done int
	// Failures are in payload order.
	Failures []Failure
	// Blocked counts manifests that weren't tried because one before them
	// failed; Unreached those that weren't because the context ended.
	Blocked, Unreached int
}

// Complete reports that every manifest was applied.
func (r Result) Complete() bool {
	return len(r.Failures) == 0 && r.Blocked == 0 && r.Unreached == 0
}

// Walk calls do for each manifest in an order that the graph allows, by at
// most workers goroutines, and returns when all have ended. A failure ends
// its node and keeps what depends on it from running; everything else goes
// on. When ctx ends, no further manifest is started.
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

// walker is one walk. The ready list is a queue: nodes are appended at its
// end and taken from next on.
type walker struct {
	graph *Graph
	do    func(ctx context.Context, m *payload.Manifest) error

	mu      sync.Mutex
	wake    sync.Cond
	ready   []int
	next    int
	waiting []int
	// blocked nodes depend on one that failed.
	blocked []bool
	left    int
	result  Result
}

// work takes ready nodes until none is left.
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

// run applies the manifests of a node; it gives the lock up meanwhile.
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

// finish counts the node off and makes those ready that waited for it only.
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
