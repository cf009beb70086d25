// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// minReset is the minimum time between two resets for missing kinds, so that many
// objects of one missing kind don't cost a discovery each.
const minReset = 2 * time.Second

// mapper finds the resource of a kind. It caches discovery and repeats it when a
// kind is missing or a watched CRD changed. It has no timer; the reflector of a
// missing kind retries.
type mapper struct {
	client *discovery.DiscoveryClient
	// cached has what discovery maps; both are reset together.
	cached    discovery.CachedDiscoveryInterface
	discovery *restmapper.DeferredDiscoveryRESTMapper
	now       func() time.Time

	mu sync.Mutex
	// resets counts the resets, so that a result from before one isn't cached
	// after it.
	resets    int
	lastReset time.Time
	changes   chan struct{}
	mappings  map[schema.GroupVersionKind]*meta.RESTMapping
	// missing are the kinds that a caller requested and that weren't served.
	missing map[schema.GroupKind]bool
	// crds are the kinds of the watched CRDs, by the name of the CRD. They take
	// precedence over discovery, which lags behind.
	crds map[string]crdInfo
}

// crdInfo describes the kind of an established CRD.
type crdInfo struct {
	kind       schema.GroupKind
	plural     string
	namespaced bool
	storage    string
	served     []string
	// scales has the path of the replicas, such as ".spec.replicas", of each served
	// version with a scale subresource.
	scales map[string]string
}

func newMapper(rc *rest.Config, httpClient *http.Client, now func() time.Time) (*mapper, error) {
	dc, err := discovery.NewDiscoveryClientForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(dc)
	return &mapper{
		client:    dc,
		cached:    cached,
		discovery: restmapper.NewDeferredDiscoveryRESTMapper(cached),
		now:       now,
		changes:   make(chan struct{}),
		mappings:  map[schema.GroupVersionKind]*meta.RESTMapping{},
		missing:   map[schema.GroupKind]bool{},
		crds:      map[string]crdInfo{},
	}, nil
}

// resolve returns the mapping of a kind, in the preferred version if version is
// "".
func (m *mapper) resolve(gk schema.GroupKind, version string) (*meta.RESTMapping, error) {
	if mapping := m.lookup(gk, version); mapping != nil {
		return mapping, nil
	}
	m.mu.Lock()
	resets := m.resets
	m.mu.Unlock()
	var versions []string
	if version != "" {
		versions = []string{version}
	}
	mapping, err := m.discovery.RESTMapping(gk, versions...)
	if err != nil && IsNoMatch(err) && m.tryInvalidate() {
		resets++
		m.discovery.Reset()
		mapping, err = m.discovery.RESTMapping(gk, versions...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if IsNoMatch(err) {
			m.missing[gk] = true
		}
		return nil, err
	}
	if m.missing[gk] {
		delete(m.missing, gk)
		m.notifyLocked()
	}
	if m.resets == resets {
		m.mappings[gk.WithVersion(version)] = mapping
	}
	return mapping, nil
}

func (m *mapper) lookup(gk schema.GroupKind, version string) *meta.RESTMapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mapping := m.mappings[gk.WithVersion(version)]; mapping != nil {
		return mapping
	}
	for _, d := range m.crds {
		if d.kind == gk {
			if mapping := d.mapping(version); mapping != nil {
				m.mappings[gk.WithVersion(version)] = mapping
				return mapping
			}
		}
	}
	return nil
}

func (d crdInfo) mapping(version string) *meta.RESTMapping {
	if version == "" {
		version = d.storage
	}
	if d.plural == "" || !slices.Contains(d.served, version) {
		return nil
	}
	mapping := &meta.RESTMapping{
		Resource:         schema.GroupVersionResource{Group: d.kind.Group, Version: version, Resource: d.plural},
		GroupVersionKind: d.kind.WithVersion(version),
		Scope:            meta.RESTScopeRoot,
	}
	if d.namespaced {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return mapping
}

// tryInvalidate drops the cached mappings unless it did so within minReset.
func (m *mapper) tryInvalidate() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.now(); now.Sub(m.lastReset) >= minReset {
		m.lastReset = now
		m.invalidateLocked()
		return true
	}
	return false
}

// invalidateLocked drops the cached mappings; m.mu is held.
func (m *mapper) invalidateLocked() {
	m.resets++
	m.mappings = map[schema.GroupVersionKind]*meta.RESTMapping{}
}

// reset drops the cached mappings and discovery, limited by minReset.
func (m *mapper) reset() {
	if m.tryInvalidate() {
		m.discovery.Reset()
	}
}

// observeCRD records a watched CRD, nil if it was deleted. If its kind changed, it
// drops the cached discovery and wakes callers that wait for a kind.
func (m *mapper) observeCRD(name string, crd *unstructured.Unstructured) {
	if !m.updateCRD(name, crd) {
		return
	}
	m.discovery.Reset() // Without the lock: it blocks until a running discovery ends.
	m.mu.Lock()
	defer m.mu.Unlock()
	m.invalidateLocked() // Mappings from before the reset.
	m.lastReset = m.now()
	m.notifyLocked()
}

// notifyLocked wakes callers that wait for a kind; m.mu is held.
func (m *mapper) notifyLocked() {
	close(m.changes)
	m.changes = make(chan struct{})
}

// updateCRD records a CRD and reports whether its kind changed.
func (m *mapper) updateCRD(name string, crd *unstructured.Unstructured) bool {
	d, established := parseCRD(crd)
	m.mu.Lock()
	defer m.mu.Unlock()
	old, had := m.crds[name]
	if had == established && reflect.DeepEqual(old, d) {
		return false
	}
	delete(m.crds, name)
	if established {
		m.crds[name] = d
	}
	m.invalidateLocked()
	return true
}

// changed returns a channel that is closed when the served kinds change.
func (m *mapper) changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}

// parseCRD returns the kind of an established CRD. It doesn't copy the schemas.
func parseCRD(crd *unstructured.Unstructured) (crdInfo, bool) {
	if crd == nil || !HasCondition(crd, "Established") {
		return crdInfo{}, false
	}
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, path...)
		return s
	}
	d := crdInfo{
		kind:       schema.GroupKind{Group: text("spec", "group"), Kind: text("spec", "names", "kind")},
		plural:     text("status", "acceptedNames", "plural"),
		namespaced: text("spec", "scope") == "Namespaced",
	}
	field, _, _ := unstructured.NestedFieldNoCopy(crd.Object, "spec", "versions")
	versions, _ := field.([]any)
	for _, v := range versions {
		entry, ok := v.(map[string]any)
		name, _ := entry["name"].(string)
		if !ok || entry["served"] != true {
			continue
		}
		d.served = append(d.served, name)
		if path, ok, _ := unstructured.NestedString(entry, "subresources", "scale", "specReplicasPath"); ok {
			if d.scales == nil {
				d.scales = map[string]string{}
			}
			d.scales[name] = path
		}
		if entry["storage"] == true {
			d.storage = name
		}
	}
	return d, true
}

// defaultReplicas is where all built-in kinds, and nearly all others, have the replicas
// of their scale subresource.
const defaultReplicas = "/spec/replicas"

// replicas returns the JSON pointer of the field that the resource's scale subresource
// sets; "" without one. A watched CRD names the field; otherwise cached discovery shows
// the subresource.
func (m *mapper) replicas(mapping *meta.RESTMapping) string {
	gvk := mapping.GroupVersionKind
	m.mu.Lock()
	for _, d := range m.crds {
		if d.kind == gvk.GroupKind() && slices.Contains(d.served, gvk.Version) {
			m.mu.Unlock()
			return strings.ReplaceAll(d.scales[gvk.Version], ".", "/")
		}
	}
	m.mu.Unlock()
	if m.cached == nil {
		return ""
	}
	resources, err := m.cached.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil {
		return ""
	}
	scale := mapping.Resource.Resource + "/scale"
	if slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == scale }) {
		return defaultReplicas
	}
	return ""
}

// Replicas returns the JSON pointer of the field that the kind's scale subresource
// sets, such as /spec/replicas; "" if the kind has no such subresource. It sends a
// request only if the cached discovery is outdated and the kind's CRD isn't watched.
func (c *Cache) Replicas(mapping *meta.RESTMapping) string { return c.mapper.replicas(mapping) }

// IsNoMatch reports whether err means that the server doesn't serve a kind.
func IsNoMatch(err error) bool { return meta.IsNoMatchError(err) }

// Mapping returns the resource and scope of a kind in its version. The error
// satisfies IsNoMatch if the server doesn't serve it.
func (c *Cache) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := c.mapper.resolve(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("find resource of %s: %w", gvk, err)
	}
	return mapping, nil
}
