// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
)

// CheckScope returns the manifests that no request could ever apply, because they
// have a namespace and their kind is cluster-scoped, or the reverse. It sends no
// request except to discover kinds, and ignores those that the server doesn't
// serve yet.
func (e *Engine) CheckScope(manifests []payload.Manifest) []Problem {
	var out []Problem
	for _, p := range checkScopes(manifests, e.set.live.Mapping) {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out
}

// mapper discovers the resource of a kind.
type mapper func(schema.GroupVersionKind) (*meta.RESTMapping, error)

// checkScopes returns the problem of each manifest, nil for most. The scopes of
// kinds that the manifests define are those of their CRDs, which may differ from
// the ones in the cluster.
func checkScopes(manifests []payload.Manifest, mapping mapper) []*Problem {
	scopes := payload.ScopesOf(manifests)
	discovered := map[schema.GroupVersionKind]kinds.Scope{}
	out := make([]*Problem, len(manifests))
	for i := range manifests {
		m := &manifests[i]
		if m.Delete {
			continue // It is absent, as the manifest requires.
		}
		scope := scopes.Of(m.GVK.GroupKind())
		if scope == kinds.UnknownScope {
			known, ok := discovered[m.GVK]
			if !ok {
				known = discoveredScope(mapping(m.GVK))
				discovered[m.GVK] = known
			}
			scope = known
		}
		if err := payload.CheckScope(m.ID, scope); err != nil {
			out[i] = &Problem{ID: m.ID, Err: permanent(m.ID, ReasonResourceInvalid, "%s%s", err, placeOf(m))}
		}
	}
	return out
}

// placeOf returns " (file:line)", or "" for manifests without a file.
func placeOf(m *payload.Manifest) string {
	if m.File == "" {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", m.File, m.Line)
}

// discoveredScope returns the scope of a mapping; it is unknown after an error.
func discoveredScope(mapping *meta.RESTMapping, err error) kinds.Scope {
	switch {
	case err != nil || mapping == nil || mapping.Scope == nil:
		return kinds.UnknownScope
	case mapping.Scope.Name() == meta.RESTScopeNameNamespace:
		return kinds.Namespaced
	default:
		return kinds.ClusterScoped
	}
}

// impossible reports whether the entry can't be that of an object: releases with
// such manifests were accepted by older versions.
func impossible(en *inventory.Entry, mapping *meta.RESTMapping) bool {
	return payload.CheckScope(en.ID(), discoveredScope(mapping, nil)) != nil
}

// forgetImpossible removes the entries of objects that can't exist from the
// inventory and from the list, and returns the rest.
func (p *pruner) forgetImpossible(entries []inventory.Entry) (rest []inventory.Entry) {
	for i := range entries {
		en := &entries[i]
		it := p.set.item(en.ID())
		mapping, err := p.live.Mapping(en.GVK())
		if it == nil || err != nil || !impossible(en, mapping) {
			rest = append(rest, *en)
			continue
		}
		p.log.Info("removing an object from the inventory that can't exist, since its namespace contradicts the scope of its kind", "object", en.ID().String())
		p.set.forget(it)
	}
	return rest
}
