// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package taskgraph orders the manifests of a payload into a graph and walks
// it with bounded workers.
//
// The order depends on the state. Updating and RollingBack go run level by
// run level; inside a level the components run in parallel, inside a
// component the manifests one after the other. Initializing and Reconciling
// know no levels, only what needs what: an object its namespace and its
// definition, and at first everything its component's permissions. Building
// and walking take time in proportion to nodes and edges.
package taskgraph

import (
	"github.com/lockstep-dev/lockstep/payload"
)

// Order seeds the permutation of a Reconciling graph.
type Order struct {
	// Seed chooses the permutation, Attempt turns it: with each attempt
	// another part of the payload comes first, so that one broken component
	// can't always hide the same others.
	Seed    uint64
	Attempt int
}

// Node is a number of manifests that are applied one after the other. A node
// without manifests is a barrier.
type Node struct {
	// Name is for people: "30/monitoring".
	Name string
	// RunLevel and Component are those of its manifests, -1 and "" for a
	// barrier.
	RunLevel  int
	Component string

	tasks []int
	out   []edge
	in    int
}

// edge leads to a node that starts later. A soft one only orders: the failure
// of the one doesn't keep the other from running.
type edge struct {
	to   int
	soft bool
}

// Graph is an acyclic order of manifests. It is immutable once built and may
// be walked any number of times.
type Graph struct {
	state     payload.State
	manifests []payload.Manifest
	nodes     []Node
}

// Build orders manifests for a state. It keeps manifests, which must not
// change afterwards.
func Build(manifests []payload.Manifest, state payload.State, order Order) *Graph {
	b := &builder{Graph: &Graph{state: state, manifests: manifests, nodes: make([]Node, 0, len(manifests))}}
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

// State returns the state that the graph was built for.
func (g *Graph) State() payload.State { return g.state }

// builder adds nodes and edges to a graph.
type builder struct {
	*Graph
}

// node adds a node of the given manifests.
func (b *builder) node(name string, level int, component string, tasks ...int) int {
	b.nodes = append(b.nodes, Node{Name: name, RunLevel: level, Component: component, tasks: tasks})
	return len(b.nodes) - 1
}

// barrier adds a node without manifests.
func (b *builder) barrier(name string) int { return b.node(name, -1, "") }

// link makes to wait for from.
func (b *builder) link(from, to int, soft bool) {
	b.nodes[from].out = append(b.nodes[from].out, edge{to, soft})
	b.nodes[to].in++
}

// linkAll makes each of to wait for all of from. Where both are many, a
// barrier between them keeps the number of edges their sum and not their
// product.
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

// isJob reports whether the manifest is a batch Job: what follows it in its
// component may rely on what it did.
func isJob(m *payload.Manifest) bool {
	return m.ID.IsJob() && !m.Delete
}
