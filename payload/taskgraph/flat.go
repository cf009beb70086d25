// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// stageOf returns the stage of a manifest's kind.
func stageOf(m *payload.Manifest) kinds.Stage {
	return kinds.Of(m.ID.GroupKind()).Stage
}

// needs links each manifest's node to those of its namespace and its
// definition, where the payload carries them. nodeOf is -1 for none.
func (b *builder) needs(nodeOf []int) {
	namespaces, definitions := b.providers()
	for i := range b.manifests {
		m := &b.manifests[i]
		if stageOf(m) == kinds.Foundations {
			continue // They have no namespace; one that claims to could close a cycle.
		}
		if provider, ok := namespaces[m.ID.Namespace]; ok && m.ID.Namespace != "" {
			b.need(nodeOf, provider, i)
		}
		if provider, ok := definitions[[2]string{m.ID.Group, m.ID.Kind}]; ok {
			b.need(nodeOf, provider, i)
		}
	}
}

// need makes the user wait for its provider.
func (b *builder) need(nodeOf []int, provider, user int) {
	b.link(nodeOf[provider], nodeOf[user], false)
}

// providers finds the namespaces by name and the definitions by the group and
// kind that they define.
func (b *builder) providers() (namespaces map[string]int, definitions map[[2]string]int) {
	namespaces, definitions = map[string]int{}, map[[2]string]int{}
	for i := range b.manifests {
		m := &b.manifests[i]
		switch {
		case m.Delete:
		case m.ID.GroupKind() == kinds.Namespace:
			namespaces[m.ID.Name] = i
		case m.ID.GroupKind() == kinds.CustomResourceDefinition:
			if group, kind, ok := defined(m); ok {
				definitions[[2]string{group, kind}] = i
			}
		}
	}
	return namespaces, definitions
}

// defined returns the group and kind that a definition defines.
func defined(m *payload.Manifest) (group, kind string, ok bool) {
	spec, _ := m.Object.Object["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ = spec["group"].(string)
	kind, _ = names["kind"].(string)
	// A definition of definitions would be a cycle; the server refuses it.
	return group, kind, group != "" && kind != "" && group != "apiextensions.k8s.io"
}

// initialize gives each manifest a node of its own, so that nothing waits but
// for what it needs. Foundations come first in the order of nodes, which is
// the order in which ready ones are started.
func (b *builder) initialize() {
	nodeOf := make([]int, len(b.manifests))
	byComponent := map[string][]int{}
	var components []string
	for pass := range 2 {
		for i := range b.manifests {
			m := &b.manifests[i]
			if (stageOf(m) == kinds.Foundations) != (pass == 0) {
				continue
			}
			nodeOf[i] = b.single(i)
			if pass == 0 {
				continue
			}
			if _, known := byComponent[m.Component]; !known {
				components = append(components, m.Component)
			}
			byComponent[m.Component] = append(byComponent[m.Component], i)
		}
	}
	for _, name := range components {
		b.stagesOf(name, byComponent[name], nodeOf)
	}
	b.needs(nodeOf)
}

// single adds a node of one manifest.
func (b *builder) single(i int) int {
	m := &b.manifests[i]
	return b.node(strconv.Itoa(m.RunLevel)+"/"+m.Component, m.RunLevel, m.Component, i)
}

// stagesOf links the manifests of one component: segments end at Jobs, and
// inside a segment the stages follow each other softly, for a Role that is
// refused is no reason to leave the Service out.
func (b *builder) stagesOf(component string, tasks, nodeOf []int) {
	gate := -1
	for len(tasks) > 0 {
		n := slices.IndexFunc(tasks, func(i int) bool { return isJob(&b.manifests[i]) })
		job := -1
		segment := tasks
		if n >= 0 {
			segment, job = tasks[:n], nodeOf[tasks[n]]
			tasks = tasks[n+1:]
		} else {
			tasks = nil
		}
		last := b.segment(component, segment, nodeOf, gate)
		if job < 0 {
			return
		}
		if last >= 0 {
			b.link(last, job, last != gate)
		}
		gate = job
	}
}

// segment links the stages of manifests between two Jobs. gate is the Job
// before them, or -1; the result is what the next Job has to wait for, or -1.
func (b *builder) segment(component string, tasks, nodeOf []int, gate int) int {
	var byStage [kinds.Stages][]int
	for _, i := range tasks {
		s := stageOf(&b.manifests[i])
		byStage[s] = append(byStage[s], nodeOf[i])
	}
	before, hard := gate, true
	for _, nodes := range byStage {
		if len(nodes) == 0 {
			continue
		}
		after := b.barrier(component)
		for _, n := range nodes {
			if before >= 0 {
				b.link(before, n, !hard)
			}
			b.link(n, after, true)
		}
		before, hard = after, false
	}
	return before
}

// turns is how many attempts share one permutation.
const turns = 8

// reconcile gives each manifest a node of its own, in a permuted order; only
// needs are kept, so that a namespace that somebody deleted comes back before
// what was in it.
func (b *builder) reconcile(order Order) {
	n := len(b.manifests)
	permuted := make([]int, n)
	for i := range permuted {
		permuted[i] = i
	}
	round, turn := uint64(max(order.Attempt, 0)/turns), max(order.Attempt, 0)%turns
	random := rand.New(rand.NewPCG(order.Seed, round)) //nolint:gosec // An order is no secret.
	random.Shuffle(n, func(i, j int) { permuted[i], permuted[j] = permuted[j], permuted[i] })
	nodeOf := make([]int, n)
	for k := range n {
		i := permuted[(k+turn*n/turns)%n]
		nodeOf[i] = b.single(i)
	}
	b.needs(nodeOf)
}
