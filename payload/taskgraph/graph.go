// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package taskgraph orders the manifests of a payload into a graph and walks
// it with bounded workers.
//
// The order depends on the state. Updating and RollingBack apply run level by run
// level, and the components of a run level in parallel. Within a component, Jobs
// are barriers; the manifests between two Jobs are applied stage by stage
// (kinds.Stage): all of a stage at once, then all of them are awaited. Objects whose
// readiness depends on workloads are awaited at the end of the component, and
// webhooks that reject requests without their server are applied once it is ready.
// With Order.Serial, the manifests of a component are applied in sequence instead,
// as the cluster-version-operator does.
//
// Initializing and Reconciling ignore run levels: objects only wait for their
// namespace and CRD, and in Initializing also for earlier stages of their
// component. Building and walking take time proportional to nodes and edges.
//
// CheckOrder finds the orders that can't work.
package taskgraph

import (
	"github.com/lockstep-dev/lockstep/payload"
)

// Order determines the permutation of a Reconciling graph, and the order within the
// components of an Updating one.
type Order struct {
	// Serial applies the manifests of a component in payload order and awaits each
	// of them; for payloads in CVO mode.
	Serial bool
	// Seed selects the permutation and Attempt rotates it. Each attempt starts
	// with another part of the payload, so that a failing component doesn't
	// always delay the same others.
	Seed    uint64
	Attempt int
}

// Node is a sequence of manifests to apply, or a group of applied manifests to
// await. A node without manifests is a barrier.
type Node struct {
	// Name for display, such as "30/monitoring".
	Name string
	// RunLevel and Component of the manifests; -1 and "" for a barrier.
	RunLevel  int
	Component string

	action action
	tasks  []int
	out    []edge
	in     int
}

// action is what a node does with its manifests.
type action int

// The zero action applies them in sequence; other nodes await them.
const (
	_ action = iota
	// await all at once; they were applied by earlier nodes.
	await
	// applyAndAwait one after another.
	applyAndAwait
)

// edge points to a node that starts later. A soft edge only orders: a failure of
// the first node doesn't block the second.
type edge struct {
	to   int
	soft bool
}

// Graph is an acyclic graph of manifests. It is immutable and safe for concurrent
// use.
type Graph struct {
	state     payload.State
	manifests []payload.Manifest
	nodes     []Node
	// awaits counts the nodes that await each manifest.
	awaits []int
}

// Build orders manifests for a state. It retains manifests, which callers must
// not modify afterwards.
func Build(manifests []payload.Manifest, state payload.State, order Order) *Graph {
	b := &builder{
		Graph:  &Graph{state: state, manifests: manifests, nodes: make([]Node, 0, len(manifests)), awaits: make([]int, len(manifests))},
		serial: order.Serial,
	}
	switch state {
	case payload.Updating:
		b.levels(b.effectiveLevels(), nil)
	case payload.RollingBack:
		b.rollBack()
	case payload.Initializing:
		b.initialize()
	default:
		b.reconcile(order)
	}
	return b.Graph
}

// Len returns the number of manifests.
func (g *Graph) Len() int { return len(g.manifests) }

// builder adds nodes and edges to a graph.
type builder struct {
	*Graph
	serial bool
	// byID is the result of objects.
	byID map[payload.ObjectID][]int
	// byNamespace is the result of workloads.
	byNamespace map[string][]int
	// claims are the deferred claims, by run level and component of the pods that
	// use them first.
	claims   map[int]map[string][]int
	deferred map[int]bool
}

// objects returns the manifests by object, without deletions. Before the selection
// of variants, an object can have several.
func (b *builder) objects() map[payload.ObjectID][]int {
	if b.byID == nil {
		b.byID = make(map[payload.ObjectID][]int, len(b.manifests))
		for i := range b.manifests {
			if m := &b.manifests[i]; !m.Delete {
				b.byID[m.ID] = append(b.byID[m.ID], i)
			}
		}
	}
	return b.byID
}

func (b *builder) node(name string, level int, component string, tasks ...int) int {
	b.nodes = append(b.nodes, Node{Name: name, RunLevel: level, Component: component, tasks: tasks})
	return len(b.nodes) - 1
}

// await adds a node that awaits the manifests; without any it is a barrier.
func (b *builder) await(name string, level int, component string, tasks []int) int {
	if len(tasks) == 0 {
		return b.barrier(name)
	}
	for _, i := range tasks {
		b.awaits[i]++
	}
	n := b.node(name, level, component, tasks...)
	b.nodes[n].action = await
	return n
}

func (b *builder) barrier(name string) int { return b.node(name, -1, "") }

// link adds an edge: to waits for from.
func (b *builder) link(from, to int, soft bool) {
	b.nodes[from].out = append(b.nodes[from].out, edge{to, soft})
	b.nodes[to].in++
}

// linkAll makes each node of to wait for all nodes of from. With a barrier
// between them, the number of edges is their sum instead of their product.
func (b *builder) linkAll(from, to []int, name string) {
	if len(from) > 1 && len(to) > 1 {
		gate := b.barrier(name)
		for _, f := range from {
			b.link(f, gate, false)
		}
		from = []int{gate}
	}
	for _, f := range from {
		for _, t := range to {
			b.link(f, t, false)
		}
	}
}

// isJob reports whether the manifest is a batch Job to apply. Later manifests of
// the component may depend on its result.
func isJob(m *payload.Manifest) bool {
	return m.ID.IsJob() && !m.Delete
}
