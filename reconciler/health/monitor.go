// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Monitor follows the health of a set's objects by their watches, also while
// nobody waits for them. It costs no request.
type Monitor struct {
	checker *Checker
	sub     *live.Subscription
	report  func(m *payload.Manifest, v Verdict)

	mu        sync.RWMutex
	manifests map[payload.ObjectID]*payload.Manifest
	// anew asks Run to report what isn't level once more.
	anew bool

	// told is what was reported last; only Run uses it.
	told map[payload.ObjectID]Verdict
}

// NewMonitor makes a monitor of no object. report is called by Run, from one
// goroutine, with the first verdict of each object and with each that differs
// from the one before. Close the monitor when it isn't used any more.
func (c *Checker) NewMonitor(report func(m *payload.Manifest, v Verdict)) *Monitor {
	m := &Monitor{checker: c, report: report, manifests: map[payload.ObjectID]*payload.Manifest{}, told: map[payload.ObjectID]Verdict{}}
	m.sub = c.cache.Subscribe(func(id payload.ObjectID) bool { return m.manifest(id) != nil })
	return m
}

// Close ends the subscription.
func (m *Monitor) Close() { m.sub.Close() }

// Set replaces what is followed: those of the manifests whose level is read
// from more than metadata. Their bodies must be tracked by somebody. It may be
// called while Run runs.
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
	m.anew = true // The same verdict is another one for another release.
	m.mu.Unlock()
	for id := range before {
		m.sub.Push(id) // Those that left are forgotten.
	}
	for id := range next {
		m.sub.Push(id)
	}
}

// Resend has what isn't level reported once more: it counts as something else
// now. It may be called while Run runs.
func (m *Monitor) Resend() {
	m.mu.Lock()
	m.anew = true
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

// Run follows the objects until ctx ends. It is called once.
func (m *Monitor) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.sub.Ready():
		}
		m.mu.Lock()
		if m.anew {
			clear(m.told)
		}
		m.anew = false
		m.mu.Unlock()
		for id, ok := m.sub.Pop(); ok && ctx.Err() == nil; id, ok = m.sub.Pop() {
			m.look(ctx, id)
		}
	}
}

// look judges one object. What can't be judged now, or is being made anew, is
// no news: repairs and passes tell of it.
func (m *Monitor) look(ctx context.Context, id payload.ObjectID) {
	manifest := m.manifest(id)
	if manifest == nil {
		delete(m.told, id)
		return
	}
	v := m.checker.standing(ctx, manifest)
	switch v.Reason {
	case ReasonNotObserved, ReasonNotFound, ReasonTerminating, ReasonUnwatchable:
		return
	}
	if before, known := m.told[id]; known && v == before {
		return
	}
	m.told[id] = v
	m.report(manifest, v)
}
