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
	// Tasks is the number of manifests, Nodes that of nodes with manifests.
	Tasks, Nodes int
	// Depth is the number of nodes on the longest path, without barriers.
	Depth int
	// Largest is the number of manifests of the largest node.
	Largest int
}

// Summary returns the sizes of the graph.
func (g *Graph) Summary() Summary {
	s := Summary{Tasks: len(g.manifests)}
	depth := g.depths()
	for i := range g.nodes {
		n := len(g.nodes[i].tasks)
		if n > 0 {
			s.Nodes++
		}
		s.Depth, s.Largest = max(s.Depth, depth[i]), max(s.Largest, n)
	}
	return s
}

// depths returns for each node the number of nodes with manifests on the longest
// path to it, including itself.
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
		if len(g.nodes[i].tasks) > 0 {
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

// WriteText lists the nodes by step, one per line, with their component, number
// of manifests and kinds.
func (g *Graph) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	summary := g.Summary()
	fmt.Fprintf(out, "%s: %d manifests in %d nodes, %d deep, the largest has %d\n", g.state, summary.Tasks, summary.Nodes, summary.Depth, summary.Largest)
	depth := g.depths()
	steps := make([][]int, summary.Depth+1)
	for i := range g.nodes {
		if len(g.nodes[i].tasks) > 0 {
			steps[depth[i]] = append(steps[depth[i]], i)
		}
	}
	for step, nodes := range steps {
		if len(nodes) == 0 {
			continue
		}
		fmt.Fprintf(out, "step %d: %d in parallel\n", step, len(nodes))
		for _, i := range nodes {
			n := &g.nodes[i]
			fmt.Fprintf(out, "  %-40s %4d  %s\n", n.Name, len(n.tasks), g.kinds(n))
		}
	}
	return out.Flush()
}

// kinds counts the kinds of a node, in order of first appearance.
func (g *Graph) kinds(n *Node) string {
	if len(n.tasks) == 1 {
		return g.manifests[n.tasks[0]].ID.String()
	}
	var order []string
	count := map[string]int{}
	for _, i := range n.tasks {
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
		fmt.Fprintf(out, "  n%d [label=%q, tooltip=%q]\n", i, fmt.Sprintf("%s\n%d", n.Name, len(n.tasks)), strings.Join(names, "\n"))
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
