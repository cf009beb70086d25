// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/binary"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

const (
	// flushAfter gathers changes of the inventory into one write.
	flushAfter = 2 * time.Second
	// scanEvery is how often objects are looked through for those whose slow
	// verification is due.
	scanEvery = time.Minute
)

// Watch calls drifted for each object that isn't level any more, as rule R1
// sees it in the watches, and for those whose verification is due. The caller
// then applies the manifest that it last applied. drifted is called from this
// goroutine and must not block for long. Watch also writes the inventory,
// gathered, and returns when ctx ends.
func (e *Engine) Watch(ctx context.Context, drifted func(payload.ObjectID)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lastScan := e.cfg.Now()
	var flushAt time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.sub.Ready():
		case <-timer.C:
		}
		for id, ok := e.sub.Pop(); ok && ctx.Err() == nil; id, ok = e.sub.Pop() {
			e.look(id, drifted)
		}
		now := e.cfg.Now()
		if now.Sub(lastScan) >= scanEvery {
			e.scan(lastScan, now, drifted)
			lastScan = now
		}
		next := e.dueNow(now, drifted)
		flushAt = e.flushSome(ctx, flushAt, now)
		timer.Reset(e.nap(now, next, flushAt))
	}
}

// nap is the time until something has to be done without an event.
func (e *Engine) nap(now, due, flushAt time.Time) time.Duration {
	nap := scanEvery
	for _, at := range []time.Time{due, flushAt} {
		if !at.IsZero() {
			nap = min(nap, max(at.Sub(now), time.Millisecond))
		}
	}
	return nap
}

// flushSome writes the inventory when it has been changed for a while.
func (e *Engine) flushSome(ctx context.Context, at, now time.Time) time.Time {
	switch {
	case !e.store.dirty():
		return time.Time{}
	case at.IsZero():
		return now.Add(flushAfter)
	case now.Before(at):
		return at
	}
	if err := e.Flush(ctx); err != nil && ctx.Err() == nil {
		// The next apply that adds an object reports it; till then a crash
		// costs verifications, nothing else.
		e.cfg.Log.Error(err, "writing the inventory")
		return now.Add(scanEvery)
	}
	return time.Time{}
}

// look judges one object. An object that is being applied right now is looked
// at after that.
func (e *Engine) look(id payload.ObjectID, drifted func(payload.ObjectID)) {
	it := e.item(id)
	if it == nil {
		return
	}
	if !it.busy.TryLock() {
		it.again.Store(true)
		if !it.busy.TryLock() {
			return
		}
		it.again.Store(false) // It ended meanwhile.
	}
	needs := e.needs(it)
	it.busy.Unlock()
	if needs {
		drifted(id)
	}
}

// needs reports whether the object needs an apply now, and notes when if it
// does later.
func (e *Engine) needs(it *item) bool {
	view := e.cfg.Live.Get(it.id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if it.leaving {
		return false
	}
	if it.shard == noShard {
		return view.State == live.Present && !view.Object.Deleting // A delete manifest's object came back.
	}
	if !it.entry.applied() {
		return false // Its first apply is the worker's.
	}
	j := it.pace.remember(Compare(it.entry.record(), schema.GroupKind{Group: it.id.Group, Kind: it.id.Kind}, e.manager, view))
	if it.ends(view) {
		e.store.touch(it)
	}
	now := e.cfg.Now()
	var at time.Time
	switch j {
	case InSync, Done, Unseen, Dying:
		delete(e.due, it.id) // Of a dying object the end is an event.
		return false
	case Missing:
		if (it.entry.Finished || it.entry.Failed) && view.State == live.Absent {
			return false
		}
		at = it.pace.repairAt()
	case Unclear:
		at = it.pace.verifyAt()
	case Drifted:
		at = it.pace.repairAt()
	}
	if now.Before(at) {
		e.due[it.id] = at
		return false
	}
	return true
}

// ends notes how a Job came to its end, and reports whether that is news.
func (it *item) ends(view live.View) bool {
	if !it.id.IsJob() {
		return false
	}
	ours := view.Ended == it.entry.UID
	finished, failed := ours && view.Finished, ours && view.Failed
	if view.State == live.Present {
		body := view.Object.Body
		if view.Object.UID != it.entry.UID || body == nil {
			return false
		}
		finished, failed = live.HasCondition(body, "Complete"), live.FailedWithTTL(body)
	}
	news := finished && !it.entry.Finished || failed && !it.entry.Failed
	it.entry.Finished, it.entry.Failed = it.entry.Finished || finished, it.entry.Failed || failed
	return news
}

// dueNow looks at the objects that were put off until now, and returns when
// the next is due.
func (e *Engine) dueNow(now time.Time, drifted func(payload.ObjectID)) time.Time {
	e.mu.Lock()
	var ready []payload.ObjectID
	var next time.Time
	for id, at := range e.due {
		switch {
		case !now.Before(at):
			ready = append(ready, id)
			delete(e.due, id)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	e.mu.Unlock()
	for _, id := range ready {
		e.look(id, drifted)
	}
	return next
}

// scan forces a verification of the objects whose turn in the slow round came
// between two scans.
func (e *Engine) scan(from, to time.Time, drifted func(payload.ObjectID)) {
	e.mu.Lock()
	var ready []payload.ObjectID
	for id, it := range e.items {
		if it.entry.applied() && turnWithin(it, e.started, from, to, e.cfg.VerifyEvery) {
			it.entry.ResourceVersion = "" // Only a request can tell now.
			it.entry.Generation, it.entry.Foreign = -1, live.Digest{}
			ready = append(ready, id)
		}
	}
	e.mu.Unlock()
	for _, id := range ready {
		e.look(id, drifted)
	}
}

// turnWithin reports whether the object's turn lies in (from, to]. Turns are
// spread over the period by the object's desired hash.
func turnWithin(it *item, started, from, to time.Time, period time.Duration) bool {
	period = max(period, 1)
	offset := time.Duration(binary.BigEndian.Uint32(it.entry.Desired[:4]))*time.Microsecond%period + period/20
	since := to.Sub(started.Add(offset))
	return since >= 0 && to.Add(-(since % period)).After(from)
}
