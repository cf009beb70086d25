// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
)

// Limits of the events about objects of a release.
const (
	// batchTime is the time in which notices are combined into one event per kind.
	batchTime = 2 * time.Second
	// repeatTime is the time in which a notice about the same object isn't repeated.
	repeatTime = 10 * time.Minute
	// maxNamed is the number of objects named in an event, maxTracked the number of
	// notices for which repeatTime holds.
	maxNamed   = 5
	maxTracked = 1024
)

// notifier combines notices about the objects of a release into events. It is safe
// for concurrent use.
type notifier struct {
	now  func() time.Time
	wake chan struct{}

	mu      sync.Mutex
	pending map[apply.Event]*batch
	sent    map[notice]*repeat
}

// batch is the pending event of one kind.
type batch struct {
	lines []string
	more  int
}

// notice identifies a notice, repeat when it was sent last and how often it was
// suppressed since.
type notice struct {
	id   payload.ObjectID
	what apply.Event
}

type repeat struct {
	at         time.Time
	suppressed int
}

func newNotifier(now func() time.Time) *notifier {
	return &notifier{
		now: now, wake: make(chan struct{}, 1),
		pending: map[apply.Event]*batch{}, sent: map[notice]*repeat{},
	}
}

// add adds a notice; it doesn't block.
func (a *notifier) add(n apply.Notice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, key := a.now(), notice{n.ID, n.What}
	last := a.sent[key]
	if last != nil && now.Sub(last.at) < repeatTime {
		last.suppressed++
		return
	}
	line := n.ID.String()
	if n.Detail != "" {
		line += " (" + n.Detail + ")"
	}
	if last != nil && last.suppressed > 0 {
		line += fmt.Sprintf(", %d more times since the last event", last.suppressed)
	}
	a.track(key, now)
	b := a.pending[n.What]
	if b == nil {
		b = &batch{}
		a.pending[n.What] = b
	}
	if len(b.lines) < maxNamed {
		b.lines = append(b.lines, line)
	} else {
		b.more++
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// track records a notice. At the limit it removes outdated ones, or all if none is.
func (a *notifier) track(key notice, now time.Time) {
	if len(a.sent) >= maxTracked {
		for k, t := range a.sent {
			if now.Sub(t.at) >= repeatTime {
				delete(a.sent, k)
			}
		}
		if len(a.sent) >= maxTracked {
			clear(a.sent)
		}
	}
	a.sent[key] = &repeat{at: now}
}

// objectEvent is one event.
type objectEvent struct {
	what    apply.Event
	message string
}

// take returns and clears the pending events.
func (a *notifier) take() []objectEvent {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []objectEvent
	for what, b := range a.pending {
		text := strings.Join(b.lines, "; ")
		if b.more > 0 {
			text += fmt.Sprintf("; and %d more", b.more)
		}
		out = append(out, objectEvent{what, summaryOf(what) + ": " + text})
	}
	clear(a.pending)
	slices.SortFunc(out, func(a, b objectEvent) int { return strings.Compare(string(a.what), string(b.what)) })
	return out
}

// summaryOf returns the first words of an event's message.
func summaryOf(what apply.Event) string {
	switch what {
	case apply.ReasonDriftRepaired:
		return "restored after external changes"
	case apply.ReasonFieldYielded:
		return "fields yielded to other managers"
	case apply.ReasonAdoptedFields:
		return "adopted with fields of other managers"
	case apply.ReasonPruned:
		return "removed from the release and deleted"
	case apply.ReasonOrphaned:
		return "removed from the release and kept in the cluster"
	default:
		return string(what)
	}
}

// run emits events until ctx ends, batchTime after the first notice of each batch.
func (a *notifier) run(ctx context.Context, emit func(objectEvent)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		timer := time.NewTimer(batchTime)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		for _, x := range a.take() {
			emit(x)
		}
	}
}

// emitNotices emits the events about objects of a release on its ClusterRelease.
func (r *runtimes) emitNotices(ctx context.Context, rt *runtime) {
	rt.notifier.run(ctx, func(x objectEvent) {
		var obj v1alpha1.ClusterRelease
		err := r.base.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: rt.name}, &obj)
		if err != nil {
			control.LogError(r.log, client.IgnoreNotFound(err), "emit event", "release", rt.name)
			return
		}
		r.base.Event(&obj, corev1.EventTypeNormal, string(x.what), x.message)
	})
}
