// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package health evaluates whether an applied object is ready.
//
// It reads the watch cache of package live and sends no requests. The first
// matching rule applies: the manifest's own CEL expression; the contract of the
// kind (for example Job, CustomResourceDefinition, ClusterOperator, NodeOS);
// kstatus. A state older than the response to the apply is never evaluated, and
// an object with an observedGeneration is ready only once its controller
// observed the latest generation. Without one, a status from before the apply
// counts only after a short delay.
package health

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The reasons of verdicts that aren't ready. Other values are reasons of the
// kind's contract or of the object's own conditions.
const (
	ReasonNotObserved      = "NotObserved"
	ReasonNotFound         = "NotFound"
	ReasonTerminating      = "Terminating"
	ReasonInProgress       = "InProgress"
	ReasonFailed           = "HealthCheckFailed"
	ReasonInvalidRule      = "InvalidCELExpression"
	ReasonUnwatchable      = "Unwatchable"
	ReasonDeadlineExceeded = "HealthCheckTimeout"
)

// Verdict is the health of an object.
type Verdict struct {
	// Ready is true if the object is healthy.
	Ready bool
	// Failed is true if waiting can't help: the object reports a failure.
	Failed bool
	// Waiting is true if the object waits for something that isn't a fault, such
	// as a maintenance window. This time doesn't count against the timeout.
	Waiting bool
	// Reason and Message explain why the object isn't ready. They may contain
	// sanitized text of the object's own conditions.
	Reason, Message string
}

// Error reports that an object didn't become ready.
type Error struct {
	ID      payload.ObjectID
	Verdict Verdict
	// Waited is the time that counted against the timeout.
	Waited time.Duration
	reason string
}

// Error names the object, and the reason and message of its verdict.
func (e *Error) Error() string {
	if e.Verdict.Failed {
		return fmt.Sprintf("%s: %s: %s", e.ID, e.Verdict.Reason, e.Verdict.Message)
	}
	return fmt.Sprintf("%s not ready after %s: %s: %s", e.ID, e.Waited.Round(time.Second), e.Verdict.Reason, e.Verdict.Message)
}

// Reason returns the reason for a condition: the object's own if it failed, else
// ReasonDeadlineExceeded.
func (e *Error) Reason() string { return e.reason }

// Retriable reports whether the object may become ready without a change of its
// manifest.
func (e *Error) Retriable() bool { return e.Verdict.Reason != ReasonInvalidRule }

// Object returns the object that isn't ready.
func (e *Error) Object() payload.ObjectID { return e.ID }

// Checker evaluates the health of objects in the watch cache. It is safe for
// concurrent use.
type Checker struct {
	cache *live.Cache
	rules *rules
	now   func() time.Time
}

// NewChecker returns a Checker that reads from a running cache.
func NewChecker(cache *live.Cache, now func() time.Time) (*Checker, error) {
	r, err := newRules()
	if err != nil {
		return nil, err
	}
	return &Checker{cache: cache, rules: r, now: now}, nil
}

// evaluator evaluates an object by the contract of its kind.
type evaluator func(m *payload.Manifest, body *unstructured.Unstructured) Verdict

// Applied describes the response to the apply after which an object is
// evaluated.
type Applied struct {
	// ResourceVersion of the response; an older state is ReasonNotObserved. Empty
	// accepts any state.
	ResourceVersion string
	// Outdated is the DigestOf the response if the apply changed the
	// specification, else "". While the object has this digest, no controller
	// has written to it since.
	Outdated string
}

// DigestOf returns a digest of what controllers write to an object: its status
// and the fields of other managers.
func DigestOf(status, others live.Hash) string { return status.String() + "/" + others.String() }

// Check evaluates the manifest's object in its cached state.
func (c *Checker) Check(ctx context.Context, m *payload.Manifest, applied Applied) Verdict {
	return c.check(ctx, m, applied, Evaluate)
}

// checkSteady evaluates an object that isn't being rolled out.
func (c *Checker) checkSteady(ctx context.Context, m *payload.Manifest) Verdict {
	return c.check(ctx, m, Applied{}, evaluateSteady)
}

func (c *Checker) check(ctx context.Context, m *payload.Manifest, applied Applied, by evaluator) Verdict {
	if m.Delete || m.Wait == payload.WaitNone {
		return Verdict{Ready: true}
	}
	view := c.cache.Get(m.ID)
	switch view.State {
	case live.Absent:
		return evaluateAbsent(view, applied.ResourceVersion)
	case live.Present:
		return c.evaluatePresent(ctx, m, view.Object, applied, by)
	case live.Unknown:
	}
	return Verdict{Reason: ReasonUnwatchable, Message: "kind isn't watched yet"}
}

func evaluateAbsent(view live.View, since string) Verdict {
	switch {
	case older(view.AsOf, since):
		// A completion in this view is that of the previous Job.
		return Verdict{Reason: ReasonNotObserved, Message: "object not in the watch cache yet"}
	case view.Finished:
		return Verdict{Ready: true}
	default:
		return Verdict{Reason: ReasonNotFound, Message: "object not found; it is recreated automatically"}
	}
}

func (c *Checker) evaluatePresent(ctx context.Context, m *payload.Manifest, o *live.Object, applied Applied, by evaluator) Verdict {
	switch {
	case older(o.ResourceVersion, applied.ResourceVersion):
		return Verdict{Reason: ReasonNotObserved, Message: "latest change not in the watch cache yet"}
	case o.Deleting:
		return Verdict{Reason: ReasonTerminating, Message: fmt.Sprintf("object is being deleted; finalizers: %.200q", o.Finalizers())}
	case !live.NeedsBody(m):
		return Verdict{Ready: true}
	case o.Body == nil:
		return Verdict{Reason: ReasonNotObserved, Message: "object status not in the watch cache yet"}
	}
	var v Verdict
	if m.Health != "" {
		v = c.rules.evaluate(ctx, m, o.Body)
	} else {
		v = by(m, o.Body)
	}
	switch {
	case v.Reason == reasonClaimPending:
		return pendingClaim(v, o.Body, c.cache.Get(classOf(o.Body)))
	case v.Ready && applied.Outdated == DigestOf(o.Status, o.OtherManagers) && undated(m, o.Body):
		return Verdict{Reason: ReasonNotObserved, Message: "status is that of the former specification; its controller hasn't reported since the apply"}
	}
	return v
}

// Budget is the time in which an object must become ready.
type Budget struct {
	// Total is the timeout. Spent is the part of it that earlier waits for the
	// same manifest used.
	Total, Spent time.Duration
}

// minWait is the minimum duration of a wait, even if the budget is spent, so
// that an object that became ready in the meantime is observed.
const minWait = 5 * time.Second

// Progress is called with each changed verdict that isn't ready, and with the
// budget spent so far.
type Progress func(v Verdict, spent time.Duration)

// settleAfter is how long a status from before the apply doesn't count if
// nothing in it names the generation that it describes. A controller that has
// nothing new to report writes no status.
const settleAfter = 10 * time.Second

// Wait waits until the manifest's object is ready. It returns an *Error when the
// object failed or the budget is spent, or the cause of ctx. Time with
// Verdict.Waiting doesn't count against the budget. progress may be nil.
func (c *Checker) Wait(ctx context.Context, m *payload.Manifest, applied Applied, budget Budget, progress Progress) error {
	if live.NeedsBody(m) {
		in := live.Interest{ID: m.ID, GVK: m.GVK, Body: true}
		c.cache.Track(in)
		defer c.cache.Untrack(in)
	}
	changes, stop := c.cache.Changes(m.ID)
	defer stop()
	class := classWatch{cache: c.cache}
	defer class.stop()
	began := c.now()
	w := newWaiter(m, budget, began, progress)
	timer := time.NewTimer(w.remaining())
	defer timer.Stop()
	for {
		now := c.now()
		settling := settleAfter - now.Sub(began)
		if settling <= 0 {
			applied.Outdated = ""
		}
		v := c.Check(ctx, m, applied)
		if v.Ready {
			return nil
		}
		if err := w.step(v, now); err != nil {
			return err
		}
		wait := w.remaining()
		if applied.Outdated != "" {
			wait = min(wait, settling)
		}
		timer.Reset(wait)
		select {
		case <-changes:
		case <-class.follow(m.ID):
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waiter measures the time of one wait. It stops while the verdict is Waiting.
type waiter struct {
	m        *payload.Manifest
	budget   time.Duration
	spent    time.Duration
	last     time.Time
	verdict  Verdict
	progress Progress
}

func newWaiter(m *payload.Manifest, budget Budget, now time.Time, progress Progress) *waiter {
	return &waiter{m: m, budget: max(budget.Total, budget.Spent+minWait), spent: budget.Spent, last: now, progress: progress}
}

// step records a verdict. The time since the previous verdict counts unless that
// was Waiting.
func (w *waiter) step(v Verdict, now time.Time) error {
	if !w.verdict.Waiting {
		w.spent += now.Sub(w.last)
	}
	w.last = now
	if v != w.verdict && w.progress != nil {
		w.progress(v, w.spent)
	}
	w.verdict = v
	if v.Failed {
		return &Error{ID: w.m.ID, Verdict: v, Waited: w.spent, reason: v.Reason}
	}
	if w.spent >= w.budget && !v.Waiting {
		return &Error{ID: w.m.ID, Verdict: v, Waited: w.spent, reason: ReasonDeadlineExceeded}
	}
	return nil
}

// remaining returns the time until the next check if no event arrives.
func (w *waiter) remaining() time.Duration {
	if w.verdict.Waiting {
		return time.Hour
	}
	return max(w.budget-w.spent, time.Millisecond)
}

func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}
