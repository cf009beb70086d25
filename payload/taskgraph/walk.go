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
	// Done is the number of manifests that were applied and awaited, as far as the
	// graph awaits them.
	Done int
	// Failures in payload order.
	Failures []Failure
	// Blocked is the number of manifests that weren't applied or weren't awaited
	// because of an earlier failure, Unreached of those because the context ended.
	Blocked, Unreached int
}

// Complete reports whether all manifests were applied and awaited.
func (r Result) Complete() bool {
	return len(r.Failures) == 0 && r.Blocked == 0 && r.Unreached == 0
}

// Func applies or awaits one manifest.
type Func func(ctx context.Context, m *payload.Manifest) error

// Walk applies each manifest in the order of the graph, in at most workers
// goroutines, and awaits those that later manifests wait for, each in a goroutine of
// its own: waits occupy no worker. It returns when all have finished. await may be
// nil: nothing is awaited then. A failure stops its node and blocks dependent nodes;
// all others continue. Once ctx ends, no further manifest is started.
func Walk(ctx context.Context, g *Graph, workers int, apply, await Func) Result {
	w := &walker{
		graph: g, apply: apply, await: await, waiting: make([]int, len(g.nodes)), blocked: make([]bool, len(g.nodes)), left: len(g.nodes),
		awaits: slices.Clone(g.awaits), settled: make([]bool, len(g.manifests)),
	}
	w.wake.L = &w.mu
	w.ready = make([]int, 0, len(g.nodes))
	for i := range g.nodes {
		if w.waiting[i] = g.nodes[i].in; w.waiting[i] == 0 {
			w.ready = append(w.ready, i)
		}
	}
	for range min(max(workers, 1), len(g.nodes)) {
		w.group.Go(func() { w.work(ctx) })
	}
	w.group.Wait()
	slices.SortFunc(w.result.Failures, func(a, b Failure) int { return cmp.Compare(a.index, b.index) })
	return w.result
}

// walker is one walk. ready is a queue; next is the index of its head.
type walker struct {
	graph        *Graph
	apply, await Func
	group        sync.WaitGroup

	mu      sync.Mutex
	wake    sync.Cond
	ready   []int
	next    int
	waiting []int
	// blocked nodes depend on a failed node.
	blocked []bool
	left    int
	// awaits counts the nodes that still have to await each manifest. Settled
	// manifests are counted in result.
	awaits  []int
	settled []bool
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
		switch {
		case w.blocked[n]:
			w.count(w.graph.nodes[n].tasks, &w.result.Blocked)
			w.finish(n, false)
		case w.graph.nodes[n].action == await && len(w.graph.nodes[n].tasks) > 0:
			// A worker is counted in the group, so it can add to it.
			w.group.Go(func() { w.awaitAll(ctx, n) })
		default:
			w.finish(n, w.run(ctx, n))
		}
	}
}

// count adds the manifests that aren't settled to counter.
func (w *walker) count(tasks []int, counter *int) {
	for _, i := range tasks {
		w.settle(i, counter)
	}
}

// settle counts a manifest once.
func (w *walker) settle(i int, counter *int) {
	if !w.settled[i] {
		w.settled[i] = true
		*counter++
	}
}

// run applies the manifests of a node. It releases the lock meanwhile.
func (w *walker) run(ctx context.Context, n int) (ok bool) {
	node := &w.graph.nodes[n]
	for k, i := range node.tasks {
		if ctx.Err() != nil {
			w.count(node.tasks[k:], &w.result.Unreached)
			return false
		}
		m := &w.graph.manifests[i]
		w.mu.Unlock()
		err := w.apply(ctx, m)
		if err == nil && node.action == applyAndAwait && w.await != nil {
			err = w.await(ctx, m)
		}
		w.mu.Lock()
		if err != nil {
			w.fail(i, err)
			w.count(node.tasks[k+1:], &w.result.Blocked)
			return false
		}
		if w.awaits[i] == 0 {
			w.settle(i, &w.result.Done)
		}
	}
	return true
}

// fail records a failure. Only the first one of a manifest counts.
func (w *walker) fail(i int, err error) {
	if !w.settled[i] {
		w.settled[i] = true
		w.result.Failures = append(w.result.Failures, Failure{Manifest: &w.graph.manifests[i], Err: err, index: i})
	}
}

// awaitAll awaits the manifests of a node.
func (w *walker) awaitAll(ctx context.Context, n int) {
	tasks := w.graph.nodes[n].tasks
	errs := make([]error, len(tasks))
	stopped := ctx.Err() != nil
	if w.await != nil && !stopped {
		var group sync.WaitGroup
		for k, i := range tasks {
			group.Go(func() { errs[k] = w.await(ctx, &w.graph.manifests[i]) })
		}
		group.Wait()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if stopped {
		w.count(tasks, &w.result.Unreached)
		w.finish(n, false)
		return
	}
	ok := true
	for k, i := range tasks {
		w.awaits[i]--
		switch {
		case errs[k] != nil:
			ok = false
			w.fail(i, errs[k])
		case w.awaits[i] == 0:
			w.settle(i, &w.result.Done)
		}
	}
	w.finish(n, ok)
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
