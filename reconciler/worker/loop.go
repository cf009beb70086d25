// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// defaultRetrieveTimeout limits verification, fetch, load and preconditions of a
// release.
const defaultRetrieveTimeout = 15 * time.Minute

// Config configures a SyncWorker. Retriever, Preconditions, Builder, Interval and
// Now are required.
type Config struct {
	Retriever     PayloadRetriever
	Preconditions Preconditions
	Builder       ResourceBuilder
	Reporter      StatusReporter
	// BeforeApply, if set, is called before the first write of a release in this
	// process. An error prevents the writes.
	BeforeApply func(ctx context.Context, work SyncWork) error
	// ManifestEnded, if set, is called with the result of each manifest of a sync
	// and of each repair. It must neither block nor call the worker.
	ManifestEnded func(m *payload.Manifest, err *UpdateError)
	// SyncEnded, if set, is called after each sync that ran to its end. It must
	// neither block nor call the worker.
	SyncEnded func(complete bool)
	// Interval between full syncs, and the longest wait after an error.
	Interval time.Duration
	// RetrieveTimeout limits one attempt to retrieve a release; 0 is 15 minutes.
	RetrieveTimeout time.Duration
	// Seed of jitter and order; it should differ per cluster.
	Seed uint64
	// Restore is the state of an earlier process.
	Restore Restore
	// Now is the clock.
	Now func() time.Time
}

// SyncWorker retrieves and applies the desired release and keeps it applied.
// Its methods are safe for concurrent use.
//
//	Initial      waits for the first Update
//	Updating     applies the accepted release; errors are retried with backoff
//	Reconciling  release complete: a sync per interval, a repair per drift
//
// A newly accepted release leads from any state to Updating.
type SyncWorker struct {
	config   Config
	statusCh chan SyncWorkerStatus
	// wakeAt has the time of the next tick for the loop.
	wakeAt chan time.Time

	mu      sync.Mutex
	core    core
	status  SyncWorkerStatus
	ctx     context.Context // of Start; parent of everything started
	workers int
	// ended is set after ctx ended: no action is started.
	ended bool
	// pending are actions from before Start.
	pending  []action
	stopLoad context.CancelFunc
	stopSync context.CancelFunc
	// stopPrune stops the running prune.
	stopPrune context.CancelFunc
	group     sync.WaitGroup
	locks     objectLocks
}

var _ ConfigSyncWorker = (*SyncWorker)(nil)

// New returns a worker that does nothing before Start and Update.
func New(config Config) (*SyncWorker, error) {
	switch {
	case config.Retriever == nil, config.Preconditions == nil, config.Builder == nil, config.Now == nil:
		return nil, errors.New("sync worker: Retriever, Preconditions, Builder and Now are required")
	case config.Interval <= 0:
		return nil, fmt.Errorf("sync worker: interval %s must be positive", config.Interval)
	}
	if config.RetrieveTimeout <= 0 {
		config.RetrieveTimeout = defaultRetrieveTimeout
	}
	w := &SyncWorker{
		config: config, statusCh: make(chan SyncWorkerStatus, 1), wakeAt: make(chan time.Time, 1),
		core: newCore(config.Interval, config.Seed, config.Restore),
	}
	w.status = w.core.status()
	return w, nil
}

// Update sets the desired release and returns the status immediately. state is
// used by the first call only: Initializing if no release has completed yet,
// Reconciling if the desired release is complete, else Updating.
func (w *SyncWorker) Update(generation int64, desired Desired, overrides []Override, state payload.State) *SyncWorkerStatus {
	w.dispatch(updated{generation, desired, overrides, state})
	return w.Status()
}

// Drifted reports drift of an object; its manifest is applied again, also during a
// sync. For an object that is being deleted, it reports that the deletion ended or
// that its finalizers changed. Other objects outside the release are ignored.
func (w *SyncWorker) Drifted(id payload.ObjectID) { w.dispatch(drifted{id}) }

// SetHealth sets the health of an object of the accepted release while no sync
// awaits it; a nil err is healthy. An err of EffectFailAfterInterval or worse is a
// failure once it persists for grace; others are only reported. Objects outside the
// release are ignored.
func (w *SyncWorker) SetHealth(id payload.ObjectID, err *UpdateError, grace time.Duration) {
	w.dispatch(healthObserved{id, err, grace})
}

// spent returns the used part of an object's timeout.
func (w *SyncWorker) spent(id payload.ObjectID) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.clocks[id].At(w.config.Now())
}

// RetryNow retries a rejected release and a failed sync immediately.
func (w *SyncWorker) RetryNow() { w.dispatch(retryNow{}) }

// SyncNow starts the next sync immediately, or after the running one.
func (w *SyncWorker) SyncNow() { w.dispatch(syncDue{}) }

// Pause stops all writes, or resumes them. Releases are still retrieved.
func (w *SyncWorker) Pause(on bool) { w.dispatch(pauseSet{on}) }

// SetInterval changes Config.Interval; it ignores intervals that aren't positive.
func (w *SyncWorker) SetInterval(d time.Duration) { w.dispatch(intervalSet{d}) }

// Status returns a copy of the status.
func (w *SyncWorker) Status() *SyncWorkerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.DeepCopy()
}

// StatusCh returns a channel with the latest status; a newer one replaces one that
// wasn't received.
func (w *SyncWorker) StatusCh() <-chan SyncWorkerStatus { return w.statusCh }

// Desired returns the desired release.
func (w *SyncWorker) Desired() Desired {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.desired
}

// Accepted returns the payload being applied, nil before the first.
func (w *SyncWorker) Accepted() *payload.Payload {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.core.accepted == nil {
		return nil
	}
	return w.core.accepted.payload
}

// Start runs until ctx ends and everything that it started has returned. A sync
// applies at most maxWorkers objects concurrently. A worker is started once.
func (w *SyncWorker) Start(ctx context.Context, maxWorkers int) {
	w.mu.Lock()
	w.ctx, w.workers = ctx, max(maxWorkers, 1)
	pending := w.pending
	w.pending = nil
	for _, a := range pending {
		w.perform(a)
	}
	w.mu.Unlock()

	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			w.ended = true
			w.mu.Unlock()
			w.group.Wait()
			return
		case at := <-w.wakeAt:
			timer.Reset(w.until(at))
		case <-timer.C:
			w.dispatch(ticked{})
		}
	}
}

// idle is the wait of the loop if nothing is due.
const idle = 24 * time.Hour

func (w *SyncWorker) until(at time.Time) time.Duration {
	if at.IsZero() {
		return idle
	}
	return max(at.Sub(w.config.Now()), 0)
}

// dispatch passes an event to the core and performs the resulting actions.
func (w *SyncWorker) dispatch(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var actions []action
	before := w.core.sync
	w.core, actions = next(w.core, e, w.config.Now())
	w.notifyEnded(e, before)
	w.publish()
	for _, a := range actions {
		if w.ctx == nil {
			w.pending = append(w.pending, a)
			continue
		}
		w.perform(a)
	}
}

// notifyEnded calls ManifestEnded or SyncEnded for an event that ends a manifest or
// a sync. before is the sync before the event. The lock is held.
func (w *SyncWorker) notifyEnded(e event, before syncAttempt) {
	ended := func(m *payload.Manifest, err *UpdateError) {
		if w.config.ManifestEnded != nil && m != nil {
			w.config.ManifestEnded(m, err)
		}
	}
	switch e := e.(type) {
	case manifestDone:
		if !e.skipped {
			ended(e.manifest, e.err)
		}
	case repaired:
		if w.core.accepted != nil && !e.deferred {
			ended(w.core.accepted.manifest(e.id), e.err)
		}
	case syncEnded:
		if w.config.SyncEnded != nil && e.number == before.number && before.running && !before.stopping {
			w.config.SyncEnded(e.complete && e.err == nil)
		}
	}
}

// publish publishes the status of the core if it changed, so that callers which
// call the worker on each report don't loop. The lock is held.
func (w *SyncWorker) publish() {
	status := w.core.status()
	if reflect.DeepEqual(status, w.status) { //nolint:govet // a changed error message is a change
		return
	}
	w.status = status
	select {
	case <-w.statusCh:
	default:
	}
	w.statusCh <- w.status // never blocks: only the holder of the lock sends
	if w.config.Reporter != nil {
		w.config.Reporter.Report(w.status)
	}
}

// perform starts an action. The lock is held.
func (w *SyncWorker) perform(a action) {
	if w.ended || w.ctx.Err() != nil {
		return
	}
	switch a := a.(type) {
	case startLoad:
		ctx, cancel := context.WithTimeout(w.ctx, w.config.RetrieveTimeout)
		w.stopLoad = cancel
		w.group.Go(func() { defer cancel(); w.load(ctx, a) })
	case stopLoad:
		w.stopLoad()
	case startSync:
		ctx, cancel := context.WithCancel(w.ctx)
		w.stopSync = cancel
		w.group.Go(func() { defer cancel(); w.sync(ctx, a) })
	case stopSync:
		w.stopSync()
	case startPrune:
		ctx, cancel := context.WithCancel(w.ctx)
		w.stopPrune = cancel
		w.group.Go(func() { defer cancel(); w.prune(ctx, a) })
	case stopPrune:
		w.stopPrune()
	case repair:
		w.group.Go(func() { w.repair(w.ctx, a.manifest.ID) })
	case wake:
		select {
		case <-w.wakeAt:
		default:
		}
		w.wakeAt <- a.at
	}
}

// objectLocks prevent a repair and a sync from applying one object concurrently.
type objectLocks struct {
	mu   sync.Mutex
	held map[payload.ObjectID]chan struct{}
}

// lock waits for the lock of an object.
func (l *objectLocks) lock(ctx context.Context, id payload.ObjectID) (unlock func(), err error) {
	for {
		l.mu.Lock()
		other, taken := l.held[id]
		if !taken {
			if l.held == nil {
				l.held = map[payload.ObjectID]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
