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

// Publisher pushes status commits to a branch; sources/git has one.
type Publisher interface {
	Publish(ctx context.Context, c sources.StatusCommit) (sources.Pushed, error)
}

// WriterConfig configures a Writer. Publisher and Now are required.
type WriterConfig struct {
	Publisher Publisher
	// MinInterval between two commits; default 10 s.
	MinInterval time.Duration
	// Keep limits history.jsonl to its newest lines; default 1000.
	Keep int
	// Now is the clock.
	Now func() time.Time
	// OnResult, if set, receives the result of each attempt. It runs on the
	// Writer's goroutine and must not block.
	OnResult func(Result)
}

// Result is the result of an attempt to publish.
type Result struct {
	Pushed sources.Pushed
	// Err is nil on success; it may have Reason() string.
	Err error
	// Time of the attempt, and of the next one after a failure.
	Time, RetryAt time.Time
	// Key is the Report.Key of the attempted report.
	Key string
}

// Retry times after failures.
const (
	retryFirst  = 5 * time.Second
	retryMost   = 10 * time.Minute
	retryDenied = time.Hour // a denial by policy needs an operator
)

// Writer publishes the latest report of Put, which never waits for Git. Run is
// its only goroutine.
type Writer struct {
	cfg  WriterConfig
	wake chan struct{}

	mu     sync.Mutex
	latest *Report

	state state // used by Run alone
}

// state is the state of the publication.
type state struct {
	published string    // key of the last commit
	last      time.Time // when it was made
	failures  int       // consecutive
	retryAt   time.Time // earliest next attempt after a failure
}

// NewWriter returns a Writer. published is the Report.Key of the last commit,
// also of an earlier process, or "".
func NewWriter(cfg WriterConfig, published string) (*Writer, error) {
	if cfg.Publisher == nil || cfg.Now == nil {
		return nil, errors.New("status writer: Publisher and Now are required")
	}
	if cfg.MinInterval <= 0 {
		cfg.MinInterval = 10 * time.Second
	}
	return &Writer{cfg: cfg, wake: make(chan struct{}, 1), state: state{published: published}}, nil
}

// Put replaces the report to publish and returns immediately.
func (w *Writer) Put(r Report) {
	w.mu.Lock()
	w.latest = &r
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Run publishes until ctx ends, which also cancels a running push.
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

// step publishes a due report and returns the time until the next step.
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

// decide reports whether a report with this key is due, and how long to wait if
// it isn't.
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

// after returns the state after an attempt.
func (s state) after(key string, err error, now time.Time) state {
	if err == nil {
		return state{published: key, last: now}
	}
	s.failures++
	wait := min(retryFirst<<min(s.failures-1, 10), retryMost)
	var r interface{ Reason() string }
	if errors.As(err, &r) && r.Reason() == reasonPushDenied {
		wait = retryDenied
	}
	s.retryAt = now.Add(wait)
	return s
}
