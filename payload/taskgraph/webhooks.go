// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"strconv"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// servers returns the workloads of the payload behind the webhooks that reject
// requests while these don't run. A webhook without a failurePolicy is one of them.
func (b *builder) servers(m *payload.Manifest) []int {
	if gk := m.ID.GroupKind(); m.Delete || gk != kinds.ValidatingWebhookConfiguration && gk != kinds.MutatingWebhookConfiguration {
		return nil
	}
	var out []int
	for _, hook := range mapsAt(m.Object.Object, "webhooks") {
		if text(hook, "failurePolicy") != "Ignore" {
			service := mapAt(mapAt(hook, "clientConfig"), "service")
			out = append(out, b.behind(text(service, "namespace"), text(service, "name"))...)
		}
	}
	return out
}

// behind returns the workloads whose pods a Service of the payload selects.
func (b *builder) behind(namespace, service string) []int {
	var out []int
	for _, s := range b.objects()[id(kinds.Service.Group, kinds.Service.Kind, namespace, service)] {
		selector := mapAt(mapAt(b.manifests[s].Object.Object, "spec"), "selector")
		if len(selector) == 0 {
			continue
		}
		for _, i := range b.workloads()[namespace] {
			if contains(podLabels(&b.manifests[i]), selector) {
				out = append(out, i)
			}
		}
	}
	return out
}

// workloads returns the awaited workloads with pods by namespace.
func (b *builder) workloads() map[string][]int {
	if b.byNamespace == nil {
		b.byNamespace = map[string][]int{}
		for i := range b.manifests {
			m := &b.manifests[i]
			if !m.Delete && m.Wait != payload.WaitNone && podSpec(m) != nil {
				b.byNamespace[m.ID.Namespace] = append(b.byNamespace[m.ID.Namespace], i)
			}
		}
	}
	return b.byNamespace
}

func podLabels(m *payload.Manifest) map[string]any {
	object := m.Object.Object
	if m.ID.GroupKind() != kinds.Pod {
		object = mapAt(mapAt(object, "spec"), "template")
	}
	return mapAt(mapAt(object, "metadata"), "labels")
}

// contains reports whether labels has all of selector.
func contains(labels, selector map[string]any) bool {
	for key, want := range selector {
		if labels[key] != want {
			return false
		}
	}
	return true
}

// awaitServers makes the webhooks of a first install wait until their servers are
// ready. All other objects are awaited at the end.
func (b *builder) awaitServers(nodeOf []int) {
	ready := map[int]int{}
	for i := range b.manifests {
		for _, server := range b.servers(&b.manifests[i]) {
			if server == i || b.reaches(nodeOf[i], nodeOf[server]) {
				continue // A Job between them; CheckOrder reports it.
			}
			after, ok := ready[server]
			if !ok {
				m := &b.manifests[server]
				after = b.await(strconv.Itoa(m.RunLevel)+"/"+m.Component, m.RunLevel, m.Component, []int{server})
				b.link(nodeOf[server], after, false)
				ready[server] = after
			}
			b.link(after, nodeOf[i], false)
		}
	}
}

// linkWebhooks makes the webhooks of a run level wait until their servers in other
// components of the level are ready. Those in their own component, and in lower
// levels, already are.
func (s *staged) linkWebhooks(tasks []int) {
	for _, i := range tasks {
		for _, server := range s.servers(&s.manifests[i]) {
			after, ok := s.ready[server]
			if ok && s.manifests[server].Component != s.manifests[i].Component && !s.reaches(s.nodeOf[i], after) {
				s.link(after, s.nodeOf[i], false)
			}
		}
	}
}

// reaches reports whether the node to waits for from, directly or not. Only Jobs
// allow that for a webhook and its server.
func (b *builder) reaches(from, to int) bool {
	if !b.hasJobs() {
		return false // Nothing of a run level follows webhooks but Jobs.
	}
	seen := map[int]bool{from: true}
	stack := []int{from}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n == to {
			return true
		}
		for _, e := range b.nodes[n].out {
			if !seen[e.to] {
				seen[e.to] = true
				stack = append(stack, e.to)
			}
		}
	}
	return false
}

func (b *builder) hasJobs() bool {
	for i := range b.manifests {
		if isJob(&b.manifests[i]) {
			return true
		}
	}
	return false
}
