// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Monitor reports health changes of a release's objects, also while no sync
// attempt runs. It reads watch events and sends no requests.
type Monitor struct {
	checker *Checker
	sub     *live.Subscription
	report  func(m *payload.Manifest, v Verdict)

	mu        sync.RWMutex
	manifests map[payload.ObjectID]*payload.Manifest
	// resend makes Run report unchanged verdicts once more.
	resend bool

	// reported holds the last reported verdicts, and classes the storage classes
	// of the claims that aren't ready; only Run uses them.
	reported map[payload.ObjectID]Verdict
	classes  map[payload.ObjectID]*classWatch
}

// NewMonitor returns a Monitor without objects. Run calls report, from one
// goroutine, with the first verdict of each object and with each changed one.
// Close the monitor when it isn't used anymore.
func (c *Checker) NewMonitor(report func(m *payload.Manifest, v Verdict)) *Monitor {
	m := &Monitor{
		checker: c, report: report, manifests: map[payload.ObjectID]*payload.Manifest{},
		reported: map[payload.ObjectID]Verdict{}, classes: map[payload.ObjectID]*classWatch{},
	}
	m.sub = c.cache.Subscribe(func(id payload.ObjectID) bool {
		return id.GroupKind() == storageClass.GroupKind() || m.manifest(id) != nil
	})
	return m
}

// Close ends the subscription.
func (m *Monitor) Close() { m.sub.Close() }

// Set replaces the monitored manifests. Those whose readiness needs only
// metadata are ignored; the caller must track the bodies of the others. Set is
// safe to call while Run runs.
func (m *Monitor) Set(manifests []payload.Manifest) {
	next := make(map[payload.ObjectID]*payload.Manifest)
	for i := range manifests {
		if f := &manifests[i]; !f.Delete && f.Wait != payload.WaitNone && live.NeedsBody(f) {
			next[f.ID] = f
		}
	}
	m.mu.Lock()
	before := m.manifests
	m.manifests = next
	m.resend = true // An equal verdict may differ in effect for the new release.
	m.mu.Unlock()
	for id := range before {
		m.sub.Push(id) // Run drops the verdicts of removed objects.
	}
	for id := range next {
		m.sub.Push(id)
	}
}

// Resend makes Run report the verdicts of all objects once more, for callers
// whose health policy changed. It is safe to call while Run runs.
func (m *Monitor) Resend() {
	m.mu.Lock()
	m.resend = true
	ids := slices.Collect(maps.Keys(m.manifests))
	m.mu.Unlock()
	for _, id := range ids {
		m.sub.Push(id)
	}
}

func (m *Monitor) manifest(id payload.ObjectID) *payload.Manifest {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.manifests[id]
}

// Run monitors the objects until ctx ends. It must be called once.
func (m *Monitor) Run(ctx context.Context) {
	defer func() {
		for _, class := range m.classes {
			class.stop()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.sub.Ready():
		}
		m.mu.Lock()
		if m.resend {
			clear(m.reported)
		}
		m.resend = false
		m.mu.Unlock()
		for id, ok := m.sub.Pop(); ok && ctx.Err() == nil; id, ok = m.sub.Pop() {
			m.check(ctx, id)
		}
	}
}

// check evaluates one object and reports a changed verdict. Objects that can't
// be evaluated now or are being recreated are left to sync attempts and repairs.
func (m *Monitor) check(ctx context.Context, id payload.ObjectID) {
	for claim, class := range m.classes {
		if class.class.ID == id {
			m.check(ctx, claim)
		}
	}
	manifest := m.manifest(id)
	if manifest == nil {
		delete(m.reported, id)
		m.follow(id, false)
		return
	}
	v := m.checker.checkSteady(ctx, manifest)
	m.follow(id, !v.Ready)
	switch v.Reason {
	case ReasonNotObserved, ReasonNotFound, ReasonTerminating, ReasonUnwatchable:
		return
	}
	if before, ok := m.reported[id]; ok && v == before {
		return
	}
	m.reported[id] = v
	m.report(manifest, v)
}

// follow tracks the storage class of a claim while it isn't ready.
func (m *Monitor) follow(id payload.ObjectID, unready bool) {
	class := m.classes[id]
	switch {
	case unready && id.GroupKind() == kinds.PersistentVolumeClaim:
		if class == nil {
			class = &classWatch{cache: m.checker.cache}
			m.classes[id] = class
		}
		_ = class.follow(id) // The subscription reports its changes.
	case class != nil:
		class.stop()
		delete(m.classes, id)
	}
}
