// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

// Publisher puts a status commit on its branch; sources/git has one.
type Publisher interface {
	Publish(ctx context.Context, c sources.StatusCommit) (sources.Pushed, error)
}

// Config is what a Writer needs.
type Config struct {
	Publisher Publisher
	// MinInterval between two commits; default 10 s.
	MinInterval time.Duration
	// Keep is how many lines of history.jsonl are kept; default 1000.
	Keep int
	// Now is the clock; required.
	Now func() time.Time
	// OnResult, if set, hears of each attempt: what to write into
	// GitSource.status. It's called on the Writer's goroutine and must not
	// block.
	OnResult func(Result)
}

// Result is what an attempt to publish came to.
type Result struct {
	Pushed sources.Pushed
	// Err is nil on success; it may carry Reason() string.
	Err error
	// Time of the attempt, and of the next one after a failure.
	Time, RetryAt time.Time
	// Key is Report.Key of what was tried.
	Key string
}

// Retry times after failures.
const (
	retryFirst  = 5 * time.Second
	retryMost   = 10 * time.Minute
	retryDenied = time.Hour // a refusal by policy heals only when people act
)

// Writer publishes the latest report that it was given. Put never waits for
// Git; Run is its one goroutine.
type Writer struct {
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	latest *Report

	state state // Run's own
}

// state is what the decision depends on besides the latest report.
type state struct {
	published string    // key of the last commit
	last      time.Time // when it was made
	failures  int       // in a row
	retryAt   time.Time // not before, after a failure
}

// NewWriter returns a Writer. published is the key of the report that the last
// commit told, from an earlier life, or "".
func NewWriter(cfg Config, published string) (*Writer, error) {
	if cfg.Publisher == nil || cfg.Now == nil {
		return nil, errors.New("a status writer needs a publisher and a clock")
	}
	if cfg.MinInterval <= 0 {
		cfg.MinInterval = 10 * time.Second
	}
	return &Writer{cfg: cfg, wake: make(chan struct{}, 1), state: state{published: published}}, nil
}

// Put hands over how the cluster stands now. It replaces a report that wasn't
// published yet and returns at once.
func (w *Writer) Put(r Report) {
	w.mu.Lock()
	w.latest = &r
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it's awake already
	}
}

// Run publishes until ctx ends. A push under way is cancelled with it.
func (w *Writer) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := w.step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// step publishes if it's time to, and returns how long to wait if nothing
// else happens.
func (w *Writer) step(ctx context.Context) time.Duration {
	w.mu.Lock()
	r := w.latest
	w.mu.Unlock()
	if r == nil {
		return time.Hour
	}
	now, key := w.cfg.Now(), r.Key()
	wait, due := w.state.decide(key, now, w.cfg.MinInterval)
	if !due {
		return wait
	}
	c, err := Render(*r, now, w.cfg.Keep)
	var pushed sources.Pushed
	if err == nil {
		pushed, err = w.cfg.Publisher.Publish(ctx, c)
	}
	if ctx.Err() != nil {
		return 0
	}
	w.state = w.state.after(key, err, w.cfg.Now())
	if w.cfg.OnResult != nil {
		w.cfg.OnResult(Result{Pushed: pushed, Err: err, Time: now, RetryAt: w.state.retryAt, Key: key})
	}
	wait, _ = w.state.decide(key, w.cfg.Now(), w.cfg.MinInterval)
	return wait
}

// decide says whether a report with this key is to be published at now, and
// else how long to wait.
func (s state) decide(key string, now time.Time, minInterval time.Duration) (wait time.Duration, due bool) {
	if key == s.published {
		return time.Hour, false
	}
	next := s.retryAt
	if at := s.last.Add(minInterval); !s.last.IsZero() && at.After(next) {
		next = at
	}
	if next.After(now) {
		return next.Sub(now), false
	}
	return 0, true
}

// after is the state after an attempt.
func (s state) after(key string, err error, now time.Time) state {
	if err == nil {
		return state{published: key, last: now}
	}
	s.failures++
	wait := min(retryFirst<<min(s.failures-1, 10), retryMost)
	var r interface{ Reason() string }
	if errors.As(err, &r) && r.Reason() == "StatusPushDenied" {
		wait = retryDenied
	}
	s.retryAt = now.Add(wait)
	return s
}
