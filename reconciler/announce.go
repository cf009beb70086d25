// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

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
)

// Bounds of the events about objects: those of a moment are gathered into one a
// happening, which names a few; of one object the same isn't told again for a
// while, and so many objects are remembered for that.
const (
	gatherNotices = 2 * time.Second
	quietNotices  = 10 * time.Minute
	namedNotices  = 5
	maxNotices    = 1024
)

// announcer makes events of what happens to the objects of a release.
type announcer struct {
	now  func() time.Time
	wake chan struct{}

	mu      sync.Mutex
	pending map[apply.Event]*gathered
	told    map[told]*telling
}

// gathered is what happened alike since the last event.
type gathered struct {
	lines []string
	more  int
}

// told is one thing that people have heard of, telling when, and how often it
// happened since.
type told struct {
	id   payload.ObjectID
	what apply.Event
}

type telling struct {
	at    time.Time
	since int
}

func newAnnouncer(now func() time.Time) *announcer {
	return &announcer{
		now: now, wake: make(chan struct{}, 1),
		pending: map[apply.Event]*gathered{}, told: map[told]*telling{},
	}
}

// hear takes a notice of an engine; it doesn't block.
func (a *announcer) hear(n apply.Notice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, key := a.now(), told{n.ID, n.What}
	known := a.told[key]
	if known != nil && now.Sub(known.at) < quietNotices {
		known.since++
		return
	}
	line := n.ID.String()
	if n.Detail != "" {
		line += " (" + n.Detail + ")"
	}
	if known != nil && known.since > 0 {
		line += fmt.Sprintf(", %d times more in between", known.since)
	}
	a.remember(key, now)
	g := a.pending[n.What]
	if g == nil {
		g = &gathered{}
		a.pending[n.What] = g
	}
	if len(g.lines) < namedNotices {
		g.lines = append(g.lines, line)
	} else {
		g.more++
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// remember notes what is about to be told. When too much is remembered, what is
// old enough goes, and all if that doesn't help.
func (a *announcer) remember(key told, now time.Time) {
	if len(a.told) >= maxNotices {
		for k, t := range a.told {
			if now.Sub(t.at) >= quietNotices {
				delete(a.told, k)
			}
		}
		if len(a.told) >= maxNotices {
			clear(a.told)
		}
	}
	a.told[key] = &telling{at: now}
}

// announcement is one event.
type announcement struct {
	what    apply.Event
	message string
}

// take returns what was gathered.
func (a *announcer) take() []announcement {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []announcement
	for what, g := range a.pending {
		text := strings.Join(g.lines, "; ")
		if g.more > 0 {
			text += fmt.Sprintf("; and %d more", g.more)
		}
		out = append(out, announcement{what, sentence(what) + ": " + text})
	}
	clear(a.pending)
	slices.SortFunc(out, func(a, b announcement) int { return strings.Compare(string(a.what), string(b.what)) })
	return out
}

// sentence says what happened, in words.
func sentence(what apply.Event) string {
	switch what {
	case apply.ReasonDriftRepaired:
		return "changed or removed by others, and put back"
	case apply.ReasonFieldYielded:
		return "fields are left to others"
	case apply.ReasonPruned:
		return "left the release and deleted"
	case apply.ReasonOrphaned:
		return "left the release and kept in the cluster"
	default:
		return string(what)
	}
}

// run emits what it hears until ctx ends, a moment after the first of it.
func (a *announcer) run(ctx context.Context, emit func(announcement)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		timer := time.NewTimer(gatherNotices)
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

// announce emits events about the objects of a release, at the ClusterRelease.
func (r *releases) announce(ctx context.Context, rt *releaseRuntime) {
	rt.notices.run(ctx, func(x announcement) {
		var obj v1alpha1.ClusterRelease
		err := r.cached.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: rt.name}, &obj)
		if err != nil {
			logOnce(r.log.WithValues("release", rt.name), client.IgnoreNotFound(err), "an event can't be made")
			return
		}
		r.event(&obj, corev1.EventTypeNormal, string(x.what), x.message)
	})
}
