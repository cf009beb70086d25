// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// ProvidedAPIs is what manifests add to what the API server serves.
type ProvidedAPIs struct {
	kinds    map[schema.GroupKind]bool
	versions map[schema.GroupVersionKind]bool
	groups   map[schema.GroupVersion]bool
}

// Provides reads the definitions and API services among the manifests, but for
// those whose object is in without, which nobody applies.
func Provides(manifests []Manifest, without map[ObjectID]bool) ProvidedAPIs {
	b := ProvidedAPIs{kinds: map[schema.GroupKind]bool{}, versions: map[schema.GroupVersionKind]bool{}, groups: map[schema.GroupVersion]bool{}}
	for i := range manifests {
		m := &manifests[i]
		if m.Delete || without[m.ID] {
			continue
		}
		switch {
		case m.Defines():
			b.define(m.Object)
		case m.ID.GroupKind() == kinds.APIService:
			group, _, _ := unstructured.NestedString(m.Object.Object, "spec", "group")
			version, _, _ := unstructured.NestedString(m.Object.Object, "spec", "version")
			b.groups[schema.GroupVersion{Group: group, Version: version}] = true
		}
	}
	return b
}

// define notes what a CustomResourceDefinition defines.
func (b *ProvidedAPIs) define(crd *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	gk := schema.GroupKind{Group: group, Kind: kind}
	b.kinds[gk] = true
	for _, v := range definedVersions(crd) {
		if served, _, _ := unstructured.NestedBool(v, "served"); served {
			name, _, _ := unstructured.NestedString(v, "name")
			b.versions[gk.WithVersion(name)] = true
		}
	}
}

// Kind reports whether a definition is among the manifests, whatever versions
// it has.
func (b ProvidedAPIs) Kind(gk schema.GroupKind) bool { return b.kinds[gk] }

// Served reports whether a definition among the manifests serves the version.
func (b ProvidedAPIs) Served(gvk schema.GroupVersionKind) bool { return b.versions[gvk] }

// Registered reports whether an API service for the group and version is among
// the manifests: which kinds it will serve is known to its server alone.
func (b ProvidedAPIs) Registered(gv schema.GroupVersion) bool { return b.groups[gv] }

// Defines reports whether the manifest is a CustomResourceDefinition.
func (m *Manifest) Defines() bool {
	return m.ID.GroupKind() == kinds.CustomResourceDefinition && !m.Delete
}

// DefinedVersions are the names of the versions of a CustomResourceDefinition,
// served or not.
func (m *Manifest) DefinedVersions() []string {
	var out []string
	for _, v := range definedVersions(m.Object) {
		if name, _, _ := unstructured.NestedString(v, "name"); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// definedVersions reads spec.versions, whose entries must not be changed.
func definedVersions(crd *unstructured.Unstructured) []map[string]any {
	spec, _ := crd.Object["spec"].(map[string]any)
	list, _ := spec["versions"].([]any)
	var out []map[string]any
	for _, entry := range list {
		if v, ok := entry.(map[string]any); ok {
			out = append(out, v)
		}
	}
	return out
}
