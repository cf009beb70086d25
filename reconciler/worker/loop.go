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

// defaultRetrieveTimeout bounds verification, fetch, load and checks of one
// release together.
const defaultRetrieveTimeout = 15 * time.Minute

// Config is what a SyncWorker needs.
type Config struct {
	Retriever     PayloadRetriever
	Preconditions Preconditions
	Builder       ResourceBuilder
	// Reporter may be nil.
	Reporter StatusReporter
	// BeforeApply is called before the first write of a release in this process; it
	// keeps the release from being applied by returning an error. It may be nil.
	BeforeApply func(ctx context.Context, work SyncWork) error
	// ManifestEnded hears how each manifest of a pass and each repair ended; err is nil
	// for what went well. It must not block or call the worker; nil for nobody.
	ManifestEnded func(m *payload.Manifest, err *UpdateError)
	// SyncEnded hears of each pass that wasn't cut short, and whether all was
	// level then; the same holds for it.
	SyncEnded func(level bool)
	// Interval of the full safety pass, and the longest wait after an error.
	Interval time.Duration
	// RetrieveTimeout bounds one try to retrieve a release; 0 is 15 minutes.
	RetrieveTimeout time.Duration
	// Seed of jitter and order; it should differ from cluster to cluster.
	Seed uint64
	// Restore is what the status says about the time before this process.
	Restore Restore
	// Now is the clock.
	Now func() time.Time
}

// SyncWorker retrieves and applies the desired release and keeps it applied.
// All its methods may be called by several goroutines.
//
//	Initial      waits for the first Update
//	Updating     applies the accepted release; an error is retried by backoff
//	Reconciling  it is level: passes at the interval, repairs at each drift
//
// A newly accepted release leads from any of them to Updating.
type SyncWorker struct {
	config   Config
	statusCh chan SyncWorkerStatus
	// woken passes the time of the next tick to the loop.
	woken chan time.Time

	mu      sync.Mutex
	core    core
	status  SyncWorkerStatus
	ctx     context.Context // Start's: it ends what was started.
	workers int
	// ended says that nothing is started any more.
	ended bool
	// pending are actions asked for before Start.
	pending  []action
	stopLoad context.CancelFunc
	stopPass context.CancelFunc
	group    sync.WaitGroup
	locks    objectLocks
}

// SyncWorker drives one release.
var _ ConfigSyncWorker = (*SyncWorker)(nil)

// New returns a worker that does nothing before Start and Update.
func New(config Config) (*SyncWorker, error) {
	switch {
	case config.Retriever == nil, config.Preconditions == nil, config.Builder == nil, config.Now == nil:
		return nil, errors.New("a sync worker needs a retriever, preconditions, a builder and a clock")
	case config.Interval <= 0:
		return nil, fmt.Errorf("the interval of a sync worker is %s, want more than 0", config.Interval)
	}
	if config.RetrieveTimeout <= 0 {
		config.RetrieveTimeout = defaultRetrieveTimeout
	}
	w := &SyncWorker{
		config: config, statusCh: make(chan SyncWorkerStatus, 1), woken: make(chan time.Time, 1),
		core: newCore(config.Interval, config.Seed, config.Restore),
	}
	w.status = w.core.status()
	return w, nil
}

// Update asks for a release and returns the status as it is then: it waits
// for nothing. The state is that of the release at the first call and ignored
// later: Initializing if none was ever level, Reconciling if the desired one
// is level, else Updating.
func (w *SyncWorker) Update(generation int64, desired Desired, overrides []Override, state payload.State) *SyncWorkerStatus {
	w.dispatch(updated{generation, desired, overrides, state})
	return w.Status()
}

// Drifted says that an object isn't as the worker left it; its manifest is
// applied anew, whatever else goes on. Others' objects are ignored.
func (w *SyncWorker) Drifted(id payload.ObjectID) { w.dispatch(drifted{id}) }

// SetHealth says how an object of the accepted release is while nobody waits for
// it; err is nil once it is well. An err of EffectFailAfterInterval or worse
// counts as a failure when it lasts longer than grace, a milder one is only
// reported. Others' objects are ignored.
func (w *SyncWorker) SetHealth(id payload.ObjectID, err *UpdateError, grace time.Duration) {
	w.dispatch(judged{id, err, grace})
}

// spent returns how much of its time an object has used.
func (w *SyncWorker) spent(id payload.ObjectID) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.clocks[id].At(w.config.Now())
}

// RetryNow says that something changed outside that may help: a release that
// waits for its next try is tried at once.
func (w *SyncWorker) RetryNow() { w.dispatch(lookAgain{}) }

// Pause stops everything that writes, or resumes it. Retrieval goes on.
func (w *SyncWorker) Pause(on bool) { w.dispatch(pausing{on}) }

// SetInterval changes the interval of Config; one that isn't positive is
// ignored.
func (w *SyncWorker) SetInterval(d time.Duration) { w.dispatch(paced{d}) }

// Status returns a copy of the status.
func (w *SyncWorker) Status() *SyncWorkerStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.DeepCopy()
}

// StatusCh returns a channel that has the latest status after a change; what
// isn't read in time is replaced by what is newer.
func (w *SyncWorker) StatusCh() <-chan SyncWorkerStatus { return w.statusCh }

// Desired returns what the worker is asked for.
func (w *SyncWorker) Desired() Desired {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.desired
}

// Accepted returns the payload that is being applied, nil before the first.
func (w *SyncWorker) Accepted() *payload.Payload {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.core.accepted == nil {
		return nil
	}
	return w.core.accepted.payload
}

// Start runs until ctx ends and everything that it started has returned. At
// most maxWorkers objects are applied at once by a pass. A worker is started
// once.
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
		case at := <-w.woken:
			timer.Reset(w.until(at))
		case <-timer.C:
			w.dispatch(ticked{})
		}
	}
}

// idle is how long the loop sleeps when nothing is due.
const idle = 24 * time.Hour

func (w *SyncWorker) until(at time.Time) time.Duration {
	if at.IsZero() {
		return idle
	}
	return max(at.Sub(w.config.Now()), 0)
}

// dispatch gives an event to the core and performs what it asks for.
func (w *SyncWorker) dispatch(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var actions []action
	before := w.core.pass
	w.core, actions = next(w.core, e, w.config.Now())
	w.tellEnded(e, before)
	w.publish()
	for _, a := range actions {
		if w.ctx == nil {
			w.pending = append(w.pending, a)
			continue
		}
		w.perform(a)
	}
}

// tellEnded tells how it went with a manifest or a pass, if the event says so;
// before is the pass as it was. The lock is held.
func (w *SyncWorker) tellEnded(e event, before pass) {
	ended := func(m *payload.Manifest, err *UpdateError) {
		if w.config.ManifestEnded != nil && m != nil {
			w.config.ManifestEnded(m, err)
		}
	}
	switch e := e.(type) {
	case appliedOne:
		if !e.skipped {
			ended(e.manifest, e.err)
		}
	case repaired:
		if w.core.accepted != nil {
			ended(w.core.accepted.manifest(e.id), e.err)
		}
	case passed:
		if w.config.SyncEnded != nil && e.number == before.number && before.running && !before.stopping {
			w.config.SyncEnded(e.complete && e.err == nil)
		}
	}
}

// publish shows the core's status if it changed: those who drive the worker
// by what it reports, and so call it at each report, must come to rest. The
// lock is held.
func (w *SyncWorker) publish() {
	status := w.core.status()
	if reflect.DeepEqual(status, w.status) { //nolint:govet // Errors are compared too: another text is a change.
		return
	}
	w.status = status
	select {
	case <-w.statusCh:
	default:
	}
	w.statusCh <- w.status // There is room: only the holder of the lock sends.
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
	case startPass:
		ctx, cancel := context.WithCancel(w.ctx)
		w.stopPass = cancel
		w.group.Go(func() { defer cancel(); w.pass(ctx, a) })
	case stopPass:
		w.stopPass()
	case repair:
		w.group.Go(func() { w.repair(w.ctx, a.manifest.ID) })
	case wake:
		select {
		case <-w.woken:
		default:
		}
		w.woken <- a.at
	}
}

// objectLocks keep a repair and a pass from applying one object at once.
type objectLocks struct {
	mu   sync.Mutex
	held map[payload.ObjectID]chan struct{}
}

// lock returns when nobody else holds the object; unlock gives it back.
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
