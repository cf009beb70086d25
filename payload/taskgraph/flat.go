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

func stageOf(m *payload.Manifest) kinds.Stage {
	return kinds.Of(m.ID.GroupKind()).Stage
}

// addDependencies makes each manifest wait for its namespace and its CRD if the
// payload contains them.
func (b *builder) addDependencies(nodeOf []int) {
	p := b.providers()
	for i := range b.manifests {
		m := &b.manifests[i]
		if stageOf(m) == kinds.Foundations {
			continue // Cluster-scoped; a namespace set by mistake could cause a cycle.
		}
		for _, provider := range p.of(m) {
			b.link(nodeOf[provider], nodeOf[i], false)
		}
	}
}

// providers are the manifests without which others can't be applied: namespaces by
// name and CRDs by group and kind.
type providers struct {
	namespaces map[string]int
	crds       map[[2]string]int
}

func (b *builder) providers() providers {
	p := providers{map[string]int{}, map[[2]string]int{}}
	for i := range b.manifests {
		m := &b.manifests[i]
		switch {
		case m.Delete:
		case m.ID.GroupKind() == kinds.Namespace:
			p.namespaces[m.ID.Name] = i
		case m.IsCRD():
			if group, kind, ok := crdKind(m); ok {
				p.crds[[2]string{group, kind}] = i
			}
		}
	}
	return p
}

// of returns the namespace and the CRD of a manifest, as far as there are any.
func (p providers) of(m *payload.Manifest) []int {
	var out []int
	if i, ok := p.namespaces[m.ID.Namespace]; ok && m.ID.Namespace != "" {
		out = append(out, i)
	}
	if i, ok := p.crds[[2]string{m.ID.Group, m.ID.Kind}]; ok {
		out = append(out, i)
	}
	return out
}

// crdKind returns the group and kind that a CRD defines.
func crdKind(m *payload.Manifest) (group, kind string, ok bool) {
	spec, _ := m.Object.Object["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ = spec["group"].(string)
	kind, _ = names["kind"].(string)
	// A CRD for CRDs would be a cycle; the API server rejects it.
	return group, kind, group != "" && kind != "" && group != "apiextensions.k8s.io"
}

// initialize adds one node per manifest, so that each waits only for its
// dependencies. Ready nodes start in the order of nodes: foundations come first.
func (b *builder) initialize() {
	nodeOf := make([]int, len(b.manifests))
	byComponent := map[string][]int{}
	var components []string
	for _, foundations := range []bool{true, false} {
		for i := range b.manifests {
			m := &b.manifests[i]
			if (stageOf(m) == kinds.Foundations) != foundations {
				continue
			}
			nodeOf[i] = b.single(i)
			if foundations {
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
	b.addDependencies(nodeOf)
	b.awaitServers(nodeOf)
}

func (b *builder) single(i int) int {
	m := &b.manifests[i]
	return b.node(strconv.Itoa(m.RunLevel)+"/"+m.Component, m.RunLevel, m.Component, i)
}

// stagesOf links the manifests of one component. Segments end at Jobs, which are
// awaited. Stages of a segment have soft edges: a rejected Role doesn't block the
// Service.
func (b *builder) stagesOf(component string, tasks, nodeOf []int) {
	gate := -1
	for len(tasks) > 0 {
		n := slices.IndexFunc(tasks, func(i int) bool { return isJob(&b.manifests[i]) })
		job, jobTask := -1, -1
		segment := tasks
		if n >= 0 {
			segment, jobTask = tasks[:n], tasks[n]
			job, tasks = nodeOf[jobTask], tasks[n+1:]
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
		gate = b.await(component, -1, component, []int{jobTask})
		b.link(job, gate, false)
	}
}

// segment links the stages of the manifests between two Jobs. gate is the
// previous Job or -1. It returns the node that the next Job waits for, or -1.
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

// attemptsPerShuffle is the number of attempts with the same permutation.
const attemptsPerShuffle = 8

// reconcile adds one node per manifest, in permuted order. Dependencies remain, so
// that a deleted namespace is recreated before its objects.
func (b *builder) reconcile(order Order) {
	n := len(b.manifests)
	permuted := make([]int, n)
	for i := range permuted {
		permuted[i] = i
	}
	round, turn := uint64(max(order.Attempt, 0)/attemptsPerShuffle), max(order.Attempt, 0)%attemptsPerShuffle
	random := rand.New(rand.NewPCG(order.Seed, round)) //nolint:gosec // Not security-sensitive.
	random.Shuffle(n, func(i, j int) { permuted[i], permuted[j] = permuted[j], permuted[i] })
	nodeOf := make([]int, n)
	for k := range n {
		i := permuted[(k+turn*n/attemptsPerShuffle)%n]
		nodeOf[i] = b.single(i)
	}
	b.addDependencies(nodeOf)
}
