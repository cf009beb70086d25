// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// minReset is the least time between two resets for a kind that isn't there:
// many objects of one missing kind must not each cost a discovery.
const minReset = 2 * time.Second

// mapper finds the resource of a kind. It asks the server when it must, and
// anew when a kind is missing or a CustomResourceDefinition changed; by a timer
// only for a kind that is watched and missing, seldom.
type mapper struct {
	client    *discovery.DiscoveryClient
	discovery *restmapper.DeferredDiscoveryRESTMapper
	now       func() time.Time

	mu sync.Mutex
	// life counts the resets: what was asked before one says nothing after it.
	life      int
	lastReset time.Time
	changes   chan struct{}
	known     map[schema.GroupVersionKind]*meta.RESTMapping
	// missed are the kinds that somebody asked for while they weren't there.
	missed map[schema.GroupKind]bool
	// defined holds the kinds of the CRDs that are known from their watch, by
	// the CRD's name: they answer before discovery does.
	defined map[string]definition
}

// definition is what an established CRD says of its kind.
type definition struct {
	kind       schema.GroupKind
	plural     string
	namespaced bool
	storage    string
	served     []string
}

func newMapper(rc *rest.Config, httpClient *http.Client, now func() time.Time) (*mapper, error) {
	dc, err := discovery.NewDiscoveryClientForConfigAndClient(rc, httpClient)
	if err != nil {
		return nil, err
	}
	return &mapper{
		client:    dc,
		discovery: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(dc)),
		now:       now,
		changes:   make(chan struct{}),
		known:     map[schema.GroupVersionKind]*meta.RESTMapping{},
		missed:    map[schema.GroupKind]bool{},
		defined:   map[string]definition{},
	}, nil
}

// resolve returns the mapping of a kind. Without a version it takes the
// preferred one.
func (m *mapper) resolve(gk schema.GroupKind, version string) (*meta.RESTMapping, error) {
	if mapping := m.lookup(gk, version); mapping != nil {
		return mapping, nil
	}
	m.mu.Lock()
	life := m.life
	m.mu.Unlock()
	var versions []string
	if version != "" {
		versions = []string{version}
	}
	mapping, err := m.discovery.RESTMapping(gk, versions...)
	if err != nil && isNoMatch(err) && m.mayReset() {
		life++
		m.discovery.Reset()
		mapping, err = m.discovery.RESTMapping(gk, versions...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if isNoMatch(err) {
			m.missed[gk] = true
		}
		return nil, err
	}
	if m.missed[gk] {
		delete(m.missed, gk)
		m.tellLocked() // Somebody may wait for it.
	}
	if m.life == life {
		m.known[gk.WithVersion(version)] = mapping
	}
	return mapping, nil
}

func (m *mapper) lookup(gk schema.GroupKind, version string) *meta.RESTMapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mapping := m.known[gk.WithVersion(version)]; mapping != nil {
		return mapping
	}
	for _, d := range m.defined {
		if d.kind == gk {
			if mapping := d.mapping(version); mapping != nil {
				m.known[gk.WithVersion(version)] = mapping
				return mapping
			}
		}
	}
	return nil
}

func (d definition) mapping(version string) *meta.RESTMapping {
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

// mayReset allows a reset for a missing kind now and then.
func (m *mapper) mayReset() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.now(); now.Sub(m.lastReset) >= minReset {
		m.lastReset = now
		m.forgetLocked()
		return true
	}
	return false
}

// forgetLocked forgets the mappings; m.mu is held.
func (m *mapper) forgetLocked() {
	m.life++
	m.known = map[schema.GroupVersionKind]*meta.RESTMapping{}
}

// reset forgets what the server said.
func (m *mapper) reset() {
	if m.mayReset() {
		m.discovery.Reset()
	}
}

// define takes what a CRD says now; nil when it's gone. If that changed, it
// forgets what the server said and wakes who waits for a kind.
func (m *mapper) define(name string, crd *unstructured.Unstructured) {
	if !m.redefine(name, crd) {
		return
	}
	m.discovery.Reset() // Not with the lock held: it waits for a discovery that is under way.
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked() // What came from before the reset.
	m.lastReset = m.now()
	m.tellLocked()
}

// tellLocked wakes who waits for a kind; m.mu is held.
func (m *mapper) tellLocked() {
	close(m.changes)
	m.changes = make(chan struct{})
}

// redefine reports whether the CRD defines another kind than before.
func (m *mapper) redefine(name string, crd *unstructured.Unstructured) bool {
	d, usable := readDefinition(crd)
	m.mu.Lock()
	defer m.mu.Unlock()
	old, had := m.defined[name]
	if had == usable && reflect.DeepEqual(old, d) {
		return false
	}
	delete(m.defined, name)
	if usable {
		m.defined[name] = d
	}
	m.forgetLocked()
	return true
}

func (m *mapper) changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}

// readDefinition reads an established CRD without copying its schemas.
func readDefinition(crd *unstructured.Unstructured) (definition, bool) {
	if crd == nil || !HasCondition(crd, "Established") {
		return definition{}, false
	}
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, path...)
		return s
	}
	d := definition{
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
		if entry["storage"] == true {
			d.storage = name
		}
	}
	return d, true
}

// IsNoMatch reports whether the server doesn't know a kind.
func IsNoMatch(err error) bool { return isNoMatch(err) }

func isNoMatch(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	var kind *meta.NoKindMatchError
	var resource *meta.NoResourceMatchError
	return errors.As(err, &kind) || errors.As(err, &resource)
}

// Mapping returns the resource and scope of a kind in its version. The error
// satisfies IsNoMatch when the server doesn't know it.
func (c *Cache) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := c.mapper.resolve(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("resource of %s: %w", gvk, err)
	}
	return mapping, nil
}
