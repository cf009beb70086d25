// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package resource is a host's state as versioned, owned and watched
// resources, and the controllers that derive one from another.
//
// It has the concepts of github.com/cosi-project/runtime in a core of its
// own (docs/adr/0004-host-resources.md). A Store holds the resources. A Runtime runs
// controllers that declare what they read and write, so that who depends on
// whom is known before anything runs, and can be drawn.
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

// MaxResources is how many resources a store takes.
const MaxResources = 10_000

// ConflictError reports that a resource was changed by someone else meanwhile,
// or belongs to someone else.
type ConflictError struct {
	// Key is the resource.
	Key nodeos.ResourceKey
	// Why says what was found and what was offered.
	Why string
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("resource %s/%s/%s: %s", e.Key.Namespace, e.Key.Type, e.Key.Name, e.Why)
}

// Reason is the condition reason.
func (e *ConflictError) Reason() string { return "Conflict" }

// Store holds resources in memory; it implements nodeos.Resources and is safe
// for several goroutines.
type Store struct {
	mu      sync.Mutex
	all     map[nodeos.ResourceKey]entry
	changes uint64
	changed chan struct{} // closed and replaced at each change
}

var _ nodeos.Resources = (*Store)(nil)

// entry is a resource with the number of the change that made it: a resource
// that was removed and made again has an old version and a new number.
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
		return r, fmt.Errorf("resource %q/%q/%q lacks a namespace, a type or a name", r.Namespace, r.Type, r.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.all[r.ResourceKey]
	switch {
	case r.Version != old.Version:
		return old.Resource, &ConflictError{Key: r.ResourceKey, Why: fmt.Sprintf("its version is %d, the change is to version %d", old.Version, r.Version)}
	case exists && old.Owner != r.Owner:
		return old.Resource, &ConflictError{Key: r.ResourceKey, Why: fmt.Sprintf("it belongs to %q, not to %q", old.Owner, r.Owner)}
	case !exists && len(s.all) >= MaxResources:
		return r, fmt.Errorf("there are %d resources, at most %d are taken", len(s.all), MaxResources)
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
		return &ConflictError{Key: key, Why: fmt.Sprintf("it belongs to %q, not to %q", old.Owner, owner)}
	}
	delete(s.all, key)
	s.wake()
	return nil
}

// wake tells those who watch; the lock is held.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// snapshot lists resources and what tells of the next change of any.
func (s *Store) snapshot(namespace, kind string) ([]entry, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(namespace, kind), s.changed
}

// Watch implements nodeos.Resources. A slow watcher sees the last version of
// a resource, not each one: there is no queue that could overflow.
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

// difference returns what changed since seen, and brings seen up to date. A
// resource that was removed and made again was changed.
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

// Update changes a resource, or creates it, however often others change it
// meanwhile: f gets the current spec (nil without one) and returns the next,
// and whether it differs.
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
	return &ConflictError{Key: key, Why: "it changes all the time"}
}
