// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// ProvidedAPIs are the APIs that manifests add to the API server.
type ProvidedAPIs struct {
	kinds    map[schema.GroupKind]bool
	versions map[schema.GroupVersionKind]bool
	groups   map[schema.GroupVersion]bool
}

// Provides returns the APIs of the CRDs and API services among the manifests,
// except for unmanaged objects in without.
func Provides(manifests []Manifest, without map[ObjectID]bool) ProvidedAPIs {
	b := ProvidedAPIs{kinds: map[schema.GroupKind]bool{}, versions: map[schema.GroupVersionKind]bool{}, groups: map[schema.GroupVersion]bool{}}
	for i := range manifests {
		m := &manifests[i]
		if m.Delete || without[m.ID] {
			continue
		}
		switch {
		case m.IsCRD():
			b.addCRD(m.Object)
		case m.ID.GroupKind() == kinds.APIService:
			group, _, _ := unstructured.NestedString(m.Object.Object, "spec", "group")
			version, _, _ := unstructured.NestedString(m.Object.Object, "spec", "version")
			b.groups[schema.GroupVersion{Group: group, Version: version}] = true
		}
	}
	return b
}

// addCRD adds the kind and the served versions of a CRD.
func (b *ProvidedAPIs) addCRD(crd *unstructured.Unstructured) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	gk := schema.GroupKind{Group: group, Kind: kind}
	b.kinds[gk] = true
	for _, v := range crdVersions(crd) {
		if served, _, _ := unstructured.NestedBool(v, "served"); served {
			name, _, _ := unstructured.NestedString(v, "name")
			b.versions[gk.WithVersion(name)] = true
		}
	}
}

// Kind reports whether the manifests include a CRD for the kind, in any version.
func (b ProvidedAPIs) Kind(gk schema.GroupKind) bool { return b.kinds[gk] }

// Served reports whether a CRD among the manifests serves the version.
func (b ProvidedAPIs) Served(gvk schema.GroupVersionKind) bool { return b.versions[gvk] }

// Registered reports whether the manifests include an API service for the group
// and version. Its kinds are unknown until it runs.
func (b ProvidedAPIs) Registered(gv schema.GroupVersion) bool { return b.groups[gv] }

// IsCRD reports whether the manifest is a CustomResourceDefinition.
func (m *Manifest) IsCRD() bool {
	return m.ID.GroupKind() == kinds.CustomResourceDefinition && !m.Delete
}

// CRDVersions returns the names of all versions of a CRD, served or not.
func (m *Manifest) CRDVersions() []string {
	var out []string
	for _, v := range crdVersions(m.Object) {
		if name, _, _ := unstructured.NestedString(v, "name"); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// crdVersions returns spec.versions. Callers must not modify the entries.
func crdVersions(crd *unstructured.Unstructured) []map[string]any {
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
