// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package resource is a host's state as versioned, owned and watched resources, and
// the controllers that derive one from another.
//
// It implements the concepts of github.com/cosi-project/runtime; docs/adr has the
// reason. A Store holds the resources. A Runtime runs controllers that declare their
// inputs and outputs, so that the dependency graph is known in advance.
package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// MaxResources is the maximum number of resources in a store.
const MaxResources = 10_000

// ConflictError means that a resource was changed in the meantime or has another
// owner.
type ConflictError struct {
	// Key is the key of the resource.
	Key nodeos.ResourceKey
	// Why states the stored and the given value.
	Why string
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("resource %s/%s/%s: %s", e.Key.Namespace, e.Key.Type, e.Key.Name, e.Why)
}

// Reason is the condition reason.
func (e *ConflictError) Reason() string { return "Conflict" }

// Store is an in-memory store; it implements nodeos.Resources and is safe for
// concurrent use.
type Store struct {
	mu      sync.Mutex
	all     map[nodeos.ResourceKey]entry
	changes uint64
	changed chan struct{} // closed and replaced at each change
}

var _ nodeos.Resources = (*Store)(nil)

// entry is a resource with the number of its last change: a recreated resource has
// an old version but a new number.
type entry struct {
	nodeos.Resource
	change uint64
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{all: map[nodeos.ResourceKey]entry{}, changed: make(chan struct{})}
}

// Get implements nodeos.Resources.
func (s *Store) Get(_ context.Context, key nodeos.ResourceKey) (nodeos.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[key]
	if !ok {
		return nodeos.Resource{}, fmt.Errorf("%w: %s/%s/%s", nodeos.ErrNoResource, key.Namespace, key.Type, key.Name)
	}
	return e.Resource, nil
}

// List implements nodeos.Resources.
func (s *Store) List(_ context.Context, namespace, kind string) ([]nodeos.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []nodeos.Resource
	for _, e := range s.list(namespace, kind) {
		out = append(out, e.Resource)
	}
	return out, nil
}

// list returns resources ordered by name; the lock is held.
func (s *Store) list(namespace, kind string) []entry {
	var out []entry
	for k, e := range s.all {
		if k.Namespace == namespace && k.Type == kind {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Put implements nodeos.Resources.
func (s *Store) Put(_ context.Context, r nodeos.Resource) (nodeos.Resource, error) {
	if r.Namespace == "" || r.Type == "" || r.Name == "" {
		return r, fmt.Errorf("resource %q/%q/%q: namespace, type and name are required", r.Namespace, r.Type, r.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.all[r.ResourceKey]
	switch {
	case r.Version != old.Version:
		return old.Resource, &ConflictError{Key: r.ResourceKey, Why: fmt.Sprintf("version is %d, the change is based on version %d", old.Version, r.Version)}
	case exists && old.Owner != r.Owner:
		return old.Resource, &ConflictError{Key: r.ResourceKey, Why: fmt.Sprintf("owner is %q, not %q", old.Owner, r.Owner)}
	case !exists && len(s.all) >= MaxResources:
		return r, fmt.Errorf("put resource: %d resources are stored, at most %d are allowed", len(s.all), MaxResources)
	}
	r.Version++
	s.changes++
	s.all[r.ResourceKey] = entry{Resource: r, change: s.changes}
	s.wake()
	return r, nil
}

// Delete implements nodeos.Resources.
func (s *Store) Delete(_ context.Context, key nodeos.ResourceKey, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.all[key]
	switch {
	case !ok:
		return nil
	case old.Owner != owner:
		return &ConflictError{Key: key, Why: fmt.Sprintf("owner is %q, not %q", old.Owner, owner)}
	}
	delete(s.all, key)
	s.wake()
	return nil
}

// wake notifies the watchers; the lock is held.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// snapshot returns the resources and a channel that is closed at the next change.
func (s *Store) snapshot(namespace, kind string) ([]entry, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(namespace, kind), s.changed
}

// Watch implements nodeos.Resources. A slow watcher receives only the last version
// of a resource, so that no queue can overflow.
func (s *Store) Watch(ctx context.Context, namespace, kind string, f func(nodeos.ResourceEvent) error) error {
	seen := map[nodeos.ResourceKey]entry{}
	synced := false
	for {
		now, changed := s.snapshot(namespace, kind)
		for _, e := range difference(seen, now) {
			if err := f(e); err != nil {
				return err
			}
		}
		if !synced {
			synced = true
			if err := f(nodeos.ResourceEvent{Synced: true}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// difference returns the changes since seen and updates seen. A recreated resource
// is a change.
func difference(seen map[nodeos.ResourceKey]entry, now []entry) []nodeos.ResourceEvent {
	var out []nodeos.ResourceEvent
	there := make(map[nodeos.ResourceKey]bool, len(now))
	for _, e := range now {
		there[e.ResourceKey] = true
		if seen[e.ResourceKey].change != e.change {
			out = append(out, nodeos.ResourceEvent{Resource: e.Resource})
			seen[e.ResourceKey] = e
		}
	}
	for key, e := range seen {
		if !there[key] {
			out = append(out, nodeos.ResourceEvent{Resource: e.Resource, Deleted: true})
			delete(seen, key)
		}
	}
	return out
}

// Update changes or creates a resource and retries after conflicts: f is called with
// the current spec (nil without one) and returns the next one and whether it differs.
func Update(ctx context.Context, s nodeos.Resources, key nodeos.ResourceKey, owner string, f func(spec any) (any, bool)) error {
	for range 100 {
		old, err := s.Get(ctx, key)
		if err != nil && !errors.Is(err, nodeos.ErrNoResource) {
			return err
		}
		next, differs := f(old.Spec)
		if !differs {
			return nil
		}
		_, err = s.Put(ctx, nodeos.Resource{ResourceKey: key, Version: old.Version, Owner: owner, Spec: next})
		var conflict *ConflictError
		if err == nil || !errors.As(err, &conflict) || (old.Version > 0 && old.Owner != owner) {
			return err
		}
	}
	return &ConflictError{Key: key, Why: "too many concurrent changes"}
}
