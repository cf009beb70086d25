// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// effectiveLevels returns the run level of each manifest. Manifests without one
// have that of the previous file by name, as in CVO.
func (b *builder) effectiveLevels() []int {
	levels := make([]int, len(b.manifests))
	current := 0
	for i := range b.manifests {
		if l := b.manifests[i].RunLevel; l >= 0 {
			current = l
		}
		levels[i] = current
	}
	return levels
}

// levels adds a chain of run levels, without the manifests for which skip returns
// true; skip may be nil. It returns the nodes of the first run level.
func (b *builder) levels(levels []int, skip func(i int) bool) []int {
	b.deferClaims(levels)
	order := make([]int, 0, len(levels))
	for i := range levels {
		if skip == nil || !skip(i) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(levels[x], levels[y]) })
	var first, before []int
	for len(order) > 0 {
		level := levels[order[0]]
		n := slices.IndexFunc(order, func(i int) bool { return levels[i] != level })
		if n < 0 {
			n = len(order)
		}
		starts, ends := b.level(level, order[:n])
		if before == nil {
			first = starts
		} else {
			b.linkAll(before, starts, "before "+strconv.Itoa(level))
		}
		before, order = ends, order[n:]
	}
	return first
}

// deferClaims defers the wait for claims whose pods are all in later run levels: a
// claim can wait for its first consumer.
func (b *builder) deferClaims(levels []int) {
	b.claims, b.deferred = map[int]map[string][]int{}, map[int]bool{}
	if b.serial {
		return
	}
	first := map[int]int{}
	for i := range b.manifests {
		for _, n := range podNeeds(&b.manifests[i]) {
			if n.id.Kind != kinds.PersistentVolumeClaim.Kind {
				continue
			}
			for _, claim := range b.objects()[n.id] {
				if known, ok := first[claim]; !ok || levels[i] < levels[known] {
					first[claim] = i
				}
			}
		}
	}
	for _, claim := range slices.Sorted(maps.Keys(first)) {
		consumer := first[claim]
		level, component := levels[consumer], b.manifests[consumer].Component
		if level <= levels[claim] {
			continue
		}
		b.deferred[claim] = true
		if b.claims[level] == nil {
			b.claims[level] = map[string][]int{}
		}
		b.claims[level][component] = append(b.claims[level][component], claim)
	}
}

// level adds the components of one run level and returns their first and last
// nodes.
func (b *builder) level(level int, tasks []int) (starts, ends []int) {
	var names []string
	components := map[string][]int{}
	for _, i := range tasks {
		name := b.manifests[i].Component
		if _, known := components[name]; !known {
			names = append(names, name)
		}
		components[name] = append(components[name], i)
	}
	if b.serial {
		for _, name := range names {
			start, end := b.sequence(level, name, components[name])
			starts, ends = append(starts, start), append(ends, end)
		}
		return starts, ends
	}
	s := &staged{builder: b, level: level, nodeOf: map[int]int{}, founded: map[int]int{}, ready: map[int]int{}}
	for _, name := range names {
		start, end := s.component(name, components[name])
		starts, ends = append(starts, start...), append(ends, end)
	}
	s.linkFoundations(tasks)
	s.linkWebhooks(tasks)
	return starts, ends
}

// sequence adds the manifests of one component in payload order: a node for each
// Job, and one for the manifests before and after it.
func (b *builder) sequence(level int, name string, tasks []int) (start, end int) {
	start, end = -1, -1
	label := strconv.Itoa(level) + "/" + name
	for len(tasks) > 0 {
		n := slices.IndexFunc(tasks, func(i int) bool { return isJob(&b.manifests[i]) })
		switch {
		case n < 0:
			n = len(tasks)
		case n == 0:
			n = 1
		}
		next := b.node(label, level, name, tasks[:n:n]...)
		b.nodes[next].action = applyAndAwait
		if end >= 0 {
			b.link(end, next, false)
		} else {
			start = next
		}
		end, tasks = next, tasks[n:]
	}
	return start, end
}

// rollBack applies manifests marked rollback-first before all run levels: nodes
// roll back their OS before software that the newer OS may require.
func (b *builder) rollBack() {
	levels := b.effectiveLevels()
	marked := func(i int) bool { return b.manifests[i].RollbackFirst }
	var early []int
	for i := range levels {
		if marked(i) {
			early = append(early, i)
		}
	}
	if len(early) == 0 {
		b.levels(levels, nil)
		return
	}
	_, ends := b.level(-1, early)
	if starts := b.levels(levels, marked); len(starts) > 0 {
		b.linkAll(ends, starts, "after rollback-first")
	}
}
