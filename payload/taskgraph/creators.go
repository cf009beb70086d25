// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"maps"
	"slices"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// creators returns the custom resources of a segment that its workloads seem to
// depend on. A workload that needs a Secret, ConfigMap or claim that the payload
// doesn't contain gets it from the custom resource that names it, such as
// cert-manager's Certificate or an ExternalSecret; that may need the custom
// resources which it names in turn, such as an Issuer. They would never be applied
// if the workload were awaited first.
func (b *builder) creators(tasks []int) []int {
	missing := b.missing(tasks)
	if len(missing) == 0 {
		return nil
	}
	mentioned := map[int][]string{}
	named := map[[2]string][]int{}
	var queue []int
	for _, i := range tasks {
		m := &b.manifests[i]
		if stageOf(m) != kinds.Custom || m.Delete {
			continue
		}
		mentioned[i] = names(m.Object.Object["spec"], []string{m.ID.Name})
		key := [2]string{m.ID.Namespace, m.ID.Name}
		named[key] = append(named[key], i)
		if slices.ContainsFunc(mentioned[i], func(name string) bool { return missing[[2]string{m.ID.Namespace, name}] }) {
			queue = append(queue, i)
		}
	}
	found := map[int]bool{}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		if found[i] {
			continue
		}
		found[i] = true
		for _, name := range mentioned[i] {
			queue = append(queue, named[[2]string{"", name}]...)
			queue = append(queue, named[[2]string{b.manifests[i].ID.Namespace, name}]...)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// missing returns the namespaces and names of the objects that workloads need and
// the payload doesn't contain.
func (b *builder) missing(tasks []int) map[[2]string]bool {
	out := map[[2]string]bool{}
	for _, i := range tasks {
		for _, n := range podNeeds(&b.manifests[i]) {
			if n.id.Namespace != "" && n.id.Kind != kinds.ServiceAccount.Kind && len(b.objects()[n.id]) == 0 {
				out[[2]string{n.id.Namespace, n.id.Name}] = true
			}
		}
	}
	return out
}

// maxName is the length of the longest name of an object.
const maxName = 253

// names appends the strings in content that could be names of objects.
func names(content any, out []string) []string {
	switch v := content.(type) {
	case string:
		if v != "" && len(v) <= maxName {
			out = append(out, v)
		}
	case []any:
		for _, item := range v {
			out = names(item, out)
		}
	case map[string]any:
		for _, item := range v {
			out = names(item, out)
		}
	}
	return out
}
