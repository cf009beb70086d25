// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"slices"
	"strconv"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// staged adds the components of one run level stage by stage.
type staged struct {
	*builder
	level int
	// nodeOf is the node that applies a manifest.
	nodeOf map[int]int
	// founded has the node that ends the first stage, for the namespaces and CRDs
	// that their component applies first.
	founded map[int]int
	// ready is the node that awaits a manifest together with its stage.
	ready map[int]int
}

// component adds the manifests of one component and returns its first nodes and its
// last one.
func (s *staged) component(name string, tasks []int) (starts []int, end int) {
	label := strconv.Itoa(s.level) + "/" + name
	end = -1
	var late []int
	for len(tasks) > 0 {
		if isJob(&s.manifests[tasks[0]]) {
			first, last := s.job(label, name, tasks[0], end)
			starts, end, tasks = firsts(starts, first), last, tasks[1:]
			continue
		}
		n := slices.IndexFunc(tasks, func(i int) bool { return isJob(&s.manifests[i]) })
		if n < 0 {
			n = len(tasks)
		}
		first, last, waits := s.stagesBetween(label, name, tasks[:n], end)
		starts, end, tasks = firsts(starts, first...), last, tasks[n:]
		late = append(late, waits...)
	}
	late = append(late, s.claims[s.level][name]...)
	if len(late) > 0 {
		last := s.await(label, s.level, name, late)
		s.link(end, last, false)
		end = last
	}
	return starts, end
}

// firsts returns starts, or first if there are none yet.
func firsts(starts []int, first ...int) []int {
	if len(starts) > 0 {
		return starts
	}
	return first
}

// job adds a Job, which waits for the node before unless that is -1.
func (s *staged) job(label, name string, i, before int) (first, last int) {
	first = s.node(label, s.level, name, i)
	s.nodeOf[i] = first
	if before >= 0 {
		s.link(before, first, false)
	}
	last = s.await(label, s.level, name, []int{i})
	s.link(first, last, false)
	return first, last
}

// stagesBetween adds the stages of the manifests between two Jobs, after the node before
// unless that is -1. It returns the nodes of the first stage, the last node, and the
// manifests that are awaited at the end of the component.
func (s *staged) stagesBetween(label, name string, tasks []int, before int) (starts []int, last int, late []int) {
	stages, early := s.stages(tasks)
	last = before
	for stage, group := range stages {
		var now []int
		var nodes []int
		for _, i := range group {
			node, ok := s.nodeOf[i]
			if !ok {
				node = s.node(label, s.level, name, i)
				s.nodeOf[i] = node
				if last >= 0 {
					s.link(last, node, false)
				}
			}
			nodes = append(nodes, node)
			switch {
			case s.deferred[i]: // to the component of its first consumer
			case awaitedLate(&s.manifests[i], kinds.Stage(stage)):
				late = append(late, i)
			default:
				now = append(now, i)
			}
		}
		var soft []int
		if kinds.Stage(stage) == kinds.Configuration {
			for _, i := range early {
				node := s.node(label, s.level, name, i)
				s.nodeOf[i] = node
				if last >= 0 {
					s.link(last, node, false)
				}
				soft = append(soft, node)
			}
		}
		if len(nodes)+len(soft) == 0 {
			continue
		}
		after := s.await(label, s.level, name, now)
		for _, node := range nodes {
			s.link(node, after, false)
		}
		for _, node := range soft {
			// Its webhook may be one of the workloads that come next.
			s.link(node, after, true)
		}
		for _, i := range now {
			s.ready[i] = after
			if kinds.Stage(stage) == kinds.Foundations && before < 0 {
				s.founded[i] = after
			}
		}
		starts = firsts(starts, append(nodes, soft...)...)
		last = after
	}
	return starts, last, late
}

// stages sorts the manifests of a segment by stage. early are those of Custom that
// are applied with the configuration, because workloads need what they create.
func (s *staged) stages(tasks []int) (stages [kinds.Stages][]int, early []int) {
	early = s.creators(tasks)
	defined := map[[2]string]bool{}
	groups := map[string]bool{}
	for _, i := range tasks {
		m := &s.manifests[i]
		if m.IsCRD() {
			if group, kind, ok := crdKind(m); ok {
				defined[[2]string{group, kind}] = true
			}
		}
		groups[m.GVK.GroupVersion().String()] = true
	}
	for _, i := range tasks {
		m := &s.manifests[i]
		stage := stageOf(m)
		switch {
		case defined[[2]string{m.ID.Group, m.ID.Kind}]:
			stage = kinds.Custom
		case m.ID.GroupKind() == kinds.APIService && groups[registered(m)]:
			// Its kinds exist once it is available.
			stage = kinds.Workloads
		}
		stages[stage] = append(stages[stage], i)
	}
	return stages, early
}

// linkFoundations makes manifests wait for the namespaces and CRDs of the other
// components of the run level.
func (s *staged) linkFoundations(tasks []int) {
	providers := s.providers()
	for _, i := range tasks {
		m := &s.manifests[i]
		if stageOf(m) == kinds.Foundations {
			continue // Cluster-scoped; a namespace set by mistake could cause a cycle.
		}
		for _, provider := range providers.of(m) {
			// Nothing precedes the foundations that their component applies first,
			// so this isn't a cycle.
			if after, ok := s.founded[provider]; ok && s.manifests[provider].Component != m.Component {
				s.link(after, s.nodeOf[i], false)
			}
		}
	}
}
