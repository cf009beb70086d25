// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

// kind shares the store of one kind between its reflector and the callers of
// the cache.
type kind struct {
	gk       schema.GroupKind
	notifier *notifier
	cancel   context.CancelFunc // Stops the reflector; guarded by Cache.mu.

	mu    sync.RWMutex
	store *store
	// session is the number of the current reflector. Reflectors with a lower
	// number were replaced and must not write.
	session int
	changed chan struct{} // Closed when the sync state changes.
}

func newKind(gk schema.GroupKind, version string, n *notifier) *kind {
	return &kind{gk: gk, notifier: n, store: newStore(gk, version), changed: make(chan struct{})}
}

func (k *kind) track(id payload.ObjectID, version string, body bool) (restart, fetch bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store.track(key{id.Namespace, id.Name}, version, body)
}

func (k *kind) untrack(id payload.ObjectID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store.untrack(key{id.Namespace, id.Name})
}

func (k *kind) switchVersion(id payload.ObjectID, served func(version string) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store.switchVersion(key{id.Namespace, id.Name}, served)
}

// addBody adds a fetched body to its object and notifies subscribers.
func (k *kind) addBody(body *unstructured.Unstructured) {
	body.SetManagedFields(nil)
	k.mu.Lock()
	added := k.store.addBody(body)
	k.mu.Unlock()
	if added {
		k.notify(keyOf(body))
	}
}

func (k *kind) get(at key) View {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.store.get(at)
}

func (k *kind) size() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.store.objects)
}

// version returns the API version in which the kind is to be watched.
func (k *kind) version() string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.store.spec.version
}

// syncState returns the sync state and a channel that is closed when it changes.
func (k *kind) syncState() (syncState, <-chan struct{}) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.store.sync, k.changed
}

// nextSession ends the current reflector's right to write and returns the number
// of the next one.
func (k *kind) nextSession() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.session++
	return k.session
}

// beginWatch records the API version that a reflector watches, and returns
// whether it must watch bodies.
func (k *kind) beginWatch(session int, version string) (bodies bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if session == k.session {
		k.store.watching = version
	}
	return k.store.spec.bodies
}

// update changes the store. It does nothing and returns false if the session was
// replaced.
func (k *kind) update(session int, change func(*store)) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if session != k.session {
		return false
	}
	change(k.store)
	return true
}

// settle records a list or a failure of the reflector, see syncState.settle.
func (k *kind) settle(session int, err error) (flipped bool) {
	k.update(session, func(s *store) {
		flipped = s.sync.settle(err)
		k.broadcast()
	})
	return flipped
}

// expire marks a kind without a first list as Unwatchable, see syncState.expire.
func (k *kind) expire(err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.store.sync.expire(err) {
		return false
	}
	k.broadcast()
	return true
}

// broadcast wakes all that wait for the sync state; k.mu is held.
func (k *kind) broadcast() {
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kind) notify(at key) {
	k.notifier.notify(payload.ObjectID{Group: k.gk.Group, Kind: k.gk.Kind, Namespace: at.namespace, Name: at.name})
}

func compareKinds(a, b schema.GroupKind) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind))
}
