// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Summary contains the sizes of a graph.
type Summary struct {
	// Tasks is the number of manifests, Nodes that of nodes that apply some.
	Tasks, Nodes int
	// Depth is the number of these nodes on the longest path.
	Depth int
	// Largest is the number of manifests of the largest of them.
	Largest int
}

// Summary returns the sizes of the graph.
func (g *Graph) Summary() Summary {
	s := Summary{Tasks: len(g.manifests)}
	depth := g.depths()
	for i := range g.nodes {
		s.Depth = max(s.Depth, depth[i])
		if g.nodes[i].applies() {
			s.Nodes++
			s.Largest = max(s.Largest, len(g.nodes[i].tasks))
		}
	}
	return s
}

// applies reports whether the node applies manifests.
func (n *Node) applies() bool { return len(n.tasks) > 0 && n.action != await }

// depths returns for each node the number of nodes that apply manifests on the
// longest path to it, including itself.
func (g *Graph) depths() []int {
	depth, waiting := make([]int, len(g.nodes)), make([]int, len(g.nodes))
	var ready []int
	for i := range g.nodes {
		if waiting[i] = g.nodes[i].in; waiting[i] == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		if g.nodes[i].applies() {
			depth[i]++
		}
		for _, e := range g.nodes[i].out {
			depth[e.to] = max(depth[e.to], depth[i])
			if waiting[e.to]--; waiting[e.to] == 0 {
				ready = append(ready, e.to)
			}
		}
	}
	return depth
}

// WriteText lists the manifests by step, one line per component, with their number
// and kinds.
func (g *Graph) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	summary := g.Summary()
	fmt.Fprintf(out, "%s: %d manifests in %d nodes, %d deep, the largest has %d\n", g.state, summary.Tasks, summary.Nodes, summary.Depth, summary.Largest)
	depth := g.depths()
	steps := make([]step, summary.Depth+1)
	for i := range g.nodes {
		if g.nodes[i].applies() {
			steps[depth[i]].add(&g.nodes[i])
		}
	}
	for i, s := range steps {
		if len(s.names) == 0 {
			continue
		}
		fmt.Fprintf(out, "step %d: %d in parallel\n", i, s.nodes)
		for _, name := range s.names {
			fmt.Fprintf(out, "  %-40s %4d  %s\n", name, len(s.tasks[name]), g.kinds(s.tasks[name]))
		}
	}
	return out.Flush()
}

// step has the manifests that are applied at one depth, by the name of their node.
type step struct {
	nodes int
	names []string
	tasks map[string][]int
}

func (s *step) add(n *Node) {
	if s.tasks == nil {
		s.tasks = map[string][]int{}
	}
	if _, known := s.tasks[n.Name]; !known {
		s.names = append(s.names, n.Name)
	}
	s.nodes++
	s.tasks[n.Name] = append(s.tasks[n.Name], n.tasks...)
}

// kinds counts the kinds of manifests, in order of first appearance.
func (g *Graph) kinds(tasks []int) string {
	if len(tasks) == 1 {
		return g.manifests[tasks[0]].ID.String()
	}
	var order []string
	count := map[string]int{}
	for _, i := range tasks {
		kind := g.manifests[i].ID.Kind
		if count[kind]++; count[kind] == 1 {
			order = append(order, kind)
		}
	}
	parts := make([]string, len(order))
	for i, kind := range order {
		parts[i] = kind
		if count[kind] > 1 {
			parts[i] = fmt.Sprintf("%d %s", count[kind], kind)
		}
	}
	return strings.Join(parts, ", ")
}

// WriteDOT writes the graph in Graphviz format, for dot -Tsvg.
func (g *Graph) WriteDOT(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "digraph %q {\n  rankdir=LR\n  node [shape=box]\n", g.state)
	for i := range g.nodes {
		n := &g.nodes[i]
		if len(n.tasks) == 0 {
			fmt.Fprintf(out, "  n%d [shape=point, tooltip=%q]\n", i, n.Name)
			continue
		}
		var names []string
		for _, t := range n.tasks[:min(len(n.tasks), maxListed)] {
			names = append(names, g.manifests[t].ID.String())
		}
		if more := len(n.tasks) - maxListed; more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		label, shape := n.Name, ""
		if n.action == await {
			label, shape = "ready: "+n.Name, ", shape=ellipse"
		}
		fmt.Fprintf(out, "  n%d [label=%q, tooltip=%q%s]\n", i, fmt.Sprintf("%s\n%d", label, len(n.tasks)), strings.Join(names, "\n"), shape)
	}
	for i := range g.nodes {
		edges := slices.Clone(g.nodes[i].out)
		slices.SortFunc(edges, func(a, b edge) int { return a.to - b.to })
		for _, e := range edges {
			style := ""
			if e.soft {
				style = " [style=dashed]"
			}
			fmt.Fprintf(out, "  n%d -> n%d%s\n", i, e.to, style)
		}
	}
	fmt.Fprint(out, "}\n")
	return out.Flush()
}

// maxListed limits the manifests in a node's tooltip.
const maxListed = 100
