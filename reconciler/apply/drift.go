// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/go-logr/logr"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

const (
	// flushAfter collects the changes of the inventory for one write.
	flushAfter = 2 * time.Second
	// scanEvery is the interval of the search for objects whose periodic
	// verification is due.
	scanEvery = time.Minute
	// verifyPeriod is the period in which a request verifies each object, to bound
	// what the watches can't show.
	verifyPeriod = 24 * time.Hour
)

// watcher reports the objects that require an apply, and writes the inventory.
type watcher struct {
	set     *set
	live    *live.Cache
	now     func() time.Time
	log     logr.Logger
	started time.Time

	// flushed has the result of the running flush, nil if none runs. Only run uses it.
	flushed chan error
}

func (w *watcher) run(ctx context.Context, drifted func(payload.ObjectID)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lastScan := w.now()
	var flushAt time.Time
	for {
		select {
		case <-ctx.Done():
			if w.flushed != nil {
				w.flushEnded(ctx, <-w.flushed)
			}
			return nil
		case err := <-w.flushed:
			w.flushed = nil
			flushAt = w.flushEnded(ctx, err)
		case <-w.set.sub.Ready():
		case <-timer.C:
		}
		for id, ok := w.set.sub.Pop(); ok && ctx.Err() == nil; id, ok = w.set.sub.Pop() {
			w.check(id, drifted)
		}
		now := w.now()
		if now.Sub(lastScan) >= scanEvery {
			w.scan(lastScan, now, drifted)
			lastScan = now
		}
		next := w.checkDue(now, drifted)
		flushAt = w.flushDue(ctx, flushAt, now)
		timer.Reset(untilNext(now, next, flushAt))
	}
}

// untilNext returns the time until the earliest of the times, at most scanEvery.
// Zero times are ignored.
func untilNext(now time.Time, times ...time.Time) time.Duration {
	wait := scanEvery
	for _, at := range times {
		if !at.IsZero() {
			wait = min(wait, max(at.Sub(now), time.Millisecond))
		}
	}
	return wait
}

// flushDue starts to write the inventory once its first change is flushAfter old. A
// write may wait for an admission webhook; the checks of objects don't wait with it.
// at is when the write is due, zero without changes; it returns the next.
func (w *watcher) flushDue(ctx context.Context, at, now time.Time) time.Time {
	switch {
	case w.flushed != nil, !w.set.store.Dirty():
		return time.Time{}
	case at.IsZero():
		return now.Add(flushAfter)
	case now.Before(at):
		return at
	}
	ended := make(chan error, 1)
	w.flushed = ended
	go func() { ended <- w.set.flush(ctx) }()
	return time.Time{}
}

// flushEnded returns when the next write is due after one ended, zero for as usual.
func (w *watcher) flushEnded(ctx context.Context, err error) time.Time {
	if err == nil || ctx.Err() != nil {
		return time.Time{}
	}
	// The next apply that adds an object returns the error. Until then a crash only
	// costs verifications.
	w.log.Error(err, "can't write the inventory; retrying", "after", scanEvery.String())
	return w.now().Add(scanEvery)
}

// check reports the object if it requires an apply. An object that is being
// applied is checked afterwards.
func (w *watcher) check(id payload.ObjectID, drifted func(payload.ObjectID)) {
	it := w.set.item(id)
	if it == nil {
		return
	}
	if !it.busy.TryLock() {
		it.again.Store(true)
		if !it.busy.TryLock() {
			return
		}
		it.again.Store(false) // It was unlocked meanwhile.
	}
	required := w.set.requiresApply(it, w.live.Get(id))
	it.busy.Unlock()
	if required {
		drifted(id)
	}
}

// requiresApply reports whether the object requires an apply now, and schedules
// the next check if it does later.
func (s *set) requiresApply(it *item, view live.View) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it.deletion != nil {
		return true // Its deletion ended, or its finalizers changed.
	}
	if it.leaving {
		return false
	}
	if !it.entry.Stored() {
		return view.State == live.Present && !view.Object.Deleting // The object of a delete manifest was recreated.
	}
	if !it.entry.Applied() {
		return false // The worker makes the first apply.
	}
	v := it.pace.remember(it.compare(s.manager, view))
	if it.jobEnded(view) {
		s.store.Touch(it.entry)
	}
	var at time.Time
	switch v {
	case InSync, Done, Unwatched, Terminating:
		delete(s.due, it.id) // The end of a deletion is an event.
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
	if s.now().Before(at) {
		s.due[it.id] = at
		return false
	}
	return true
}

// compare makes the sync decision and remembers what was in sync; set.mu is held.
func (it *item) compare(manager string, view live.View) Verdict {
	v := Compare(it.entry.Record, it.id.GroupKind(), manager, view)
	if v == Unclear && onlyStatusDiffers(it.inSync, view.Object) {
		v = InSync
	}
	if v != InSync {
		return v
	}
	it.entry.Record = statusWritten(it.entry.Record, view)
	if o := view.Object; o != nil && o.ResourceVersion == it.entry.ResourceVersion {
		it.inSync = o
	}
	return v
}

// jobEnded records how a Job ended, and reports whether that is new.
func (it *item) jobEnded(view live.View) bool {
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
	isNew := finished && !it.entry.Finished || failed && !it.entry.Failed
	it.entry.Finished, it.entry.Failed = it.entry.Finished || finished, it.entry.Failed || failed
	return isNew
}

// checkDue checks the objects whose delay has ended, and returns when the next
// one ends.
func (w *watcher) checkDue(now time.Time, drifted func(payload.ObjectID)) time.Time {
	ready, next := w.set.popDue(now)
	for _, id := range ready {
		w.check(id, drifted)
	}
	return next
}

// popDue removes and returns the objects whose delay has ended, and when the
// next one ends.
func (s *set) popDue(now time.Time) (ready []payload.ObjectID, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.due {
		switch {
		case !now.Before(at):
			ready = append(ready, id)
			delete(s.due, id)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return ready, next
}

// scan checks the objects whose periodic verification became due in (from, to].
func (w *watcher) scan(from, to time.Time, drifted func(payload.ObjectID)) {
	for _, id := range w.set.expire(func(it *item) bool { return turnWithin(it, w.started, from, to, verifyPeriod) }) {
		w.check(id, drifted)
	}
}

// expire invalidates the records of the applied objects that match, so that only
// a request can verify them, and returns those.
func (s *set) expire(match func(*item) bool) (expired []payload.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, it := range s.items {
		if it.entry.Applied() && match(it) {
			it.entry.ResourceVersion = ""
			it.entry.Generation, it.entry.Others = -1, live.Hash{}
			expired = append(expired, id)
		}
	}
	return expired
}

// turnWithin reports whether the object's periodic verification is due in (from,
// to]. The desired hash spreads the objects over the period.
func turnWithin(it *item, started, from, to time.Time, period time.Duration) bool {
	period = max(period, 1)
	offset := time.Duration(binary.BigEndian.Uint32(it.entry.Desired[:4]))*time.Microsecond%period + period/20
	since := to.Sub(started.Add(offset))
	return since >= 0 && to.Add(-(since % period)).After(from)
}
