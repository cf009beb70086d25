// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"crypto/sha256"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// Scopes are the scopes of kinds: of Kubernetes' own ones and of those whose CRD
// was added. The zero value has the former. It isn't safe for concurrent use
// with Add.
type Scopes struct {
	defined map[schema.GroupKind]kinds.Scope
}

// Add adds the kind that the object defines if it is a CRD.
func (s *Scopes) Add(content map[string]any) {
	if group, kind := groupKind(content); group != kinds.CustomResourceDefinition.Group || kind != kinds.CustomResourceDefinition.Kind {
		return
	}
	spec, _ := content["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	if s.defined == nil {
		s.defined = map[schema.GroupKind]kinds.Scope{}
	}
	switch gk := (schema.GroupKind{Group: group, Kind: kind}); spec["scope"] {
	case "Cluster":
		s.defined[gk] = kinds.ClusterScoped
	case "Namespaced":
		s.defined[gk] = kinds.Namespaced
	}
}

// Of returns the scope of a kind, or kinds.UnknownScope.
func (s Scopes) Of(gk schema.GroupKind) kinds.Scope {
	if scope, ok := s.defined[gk]; ok {
		return scope
	}
	return kinds.ScopeOf(gk)
}

// ScopesOf returns the scopes of Kubernetes' kinds and of the CRDs among the
// manifests.
func ScopesOf(manifests []Manifest) Scopes {
	var s Scopes
	for i := range manifests {
		if m := &manifests[i]; m.IsCRD() {
			s.Add(m.Object.Object)
		}
	}
	return s
}

// CheckScope returns an error if an object of the scope can't have the identity:
// a cluster-scoped object with a namespace, or a namespaced one without. No
// request could ever create it.
func CheckScope(id ObjectID, scope kinds.Scope) error {
	switch {
	case scope == kinds.ClusterScoped && id.Namespace != "":
		return fmt.Errorf("%s is cluster-scoped, but has namespace %s; remove metadata.namespace", id.Kind, id.Namespace)
	case scope == kinds.Namespaced && id.Namespace == "":
		return fmt.Errorf("%s is namespaced, but has no namespace; set metadata.namespace", id.Kind)
	default:
		return nil
	}
}

// ScopeErrors returns a *LoadError for each manifest that no request could ever
// apply, as far as the kind is built into Kubernetes or defined by the payload. A
// cluster checks all kinds before it applies a release.
func (p *Payload) ScopeErrors() []error {
	scopes := ScopesOf(p.Manifests)
	var out []error
	for i := range p.Manifests {
		m := &p.Manifests[i]
		if err := CheckScope(m.ID, scopes.Of(m.ID.GroupKind())); err != nil {
			out = append(out, &LoadError{Kind: ReasonInvalid, File: m.File, Document: m.Document, Line: m.Line, Message: m.ID.String() + ": " + err.Error()})
		}
	}
	return out
}

// dropNamespace removes the namespace of a cluster-scoped object of a CVO payload,
// as CVO's typed clients do, with a warning.
func (p *Payload) dropNamespace(m *Manifest) error {
	if m.ID.Namespace == "" || kinds.ScopeOf(m.ID.GroupKind()) != kinds.ClusterScoped {
		return nil
	}
	p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: namespace %s is removed, since the kind is cluster-scoped", m.ID, m.ID.Namespace))
	m.Object.SetNamespace("")
	m.ID.Namespace = ""
	var b builder
	if err := b.canonical(m.Object.Object); err != nil {
		return err
	}
	m.JSON, m.Hash = b.scratch, sha256.Sum256(b.scratch)
	return nil
}
