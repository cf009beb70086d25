// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package health tells whether an applied object is level yet: whether what
// the manifest asked for has come to be.
//
// It reads the watch cache of package live and asks the server nothing. The
// rules, first that fits: the manifest's own CEL expression; the kind's
// contract (Job, CustomResourceDefinition, ClusterOperator, NodeOS); kstatus.
// An object is judged only in a version that isn't older than the apply's
// answer, and where it counts generations, only when its controller observed
// the newest.
package health

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The reasons of verdicts that aren't level. Kinds' own reasons pass too.
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

// Verdict is what is known of an object's health.
type Verdict struct {
	// Ready tells that nothing more is waited for.
	Ready bool
	// Failed tells that waiting won't help: the object says that it gave up.
	Failed bool
	// Waiting tells that the object waits for something that is no fault, such
	// as a maintenance window: the clock of a wait stands still.
	Waiting bool
	// Reason and Message say why the object isn't level, in its own words
	// where it has some; they may hold foreign text that was made safe.
	Reason, Message string
}

// Error says that an object didn't become level.
type Error struct {
	ID      payload.ObjectID
	Verdict Verdict
	// Waited is how long, without the time that didn't count.
	Waited time.Duration
	reason string
}

// Error names the object and its own message.
func (e *Error) Error() string {
	if e.Verdict.Failed {
		return fmt.Sprintf("%s: %s: %s", e.ID, e.Verdict.Reason, e.Verdict.Message)
	}
	return fmt.Sprintf("%s isn't level after %s: %s: %s", e.ID, e.Waited.Round(time.Second), e.Verdict.Reason, e.Verdict.Message)
}

// Reason is the condition's reason: the object's own if it failed.
func (e *Error) Reason() string { return e.reason }

// Retriable reports whether it may become level by itself still.
func (e *Error) Retriable() bool { return e.Verdict.Reason != ReasonInvalidRule }

// Object returns the object that blocks.
func (e *Error) Object() payload.ObjectID { return e.ID }

// Checker judges objects by the cache. It may be used concurrently.
type Checker struct {
	cache *live.Cache
	rules *rules
	now   func() time.Time
}

// NewChecker makes a checker over a running cache.
func NewChecker(cache *live.Cache, now func() time.Time) (*Checker, error) {
	r, err := newRules()
	if err != nil {
		return nil, err
	}
	return &Checker{cache: cache, rules: r, now: now}, nil
}

// rule judges an object's body.
type rule func(m *payload.Manifest, body *unstructured.Unstructured) Verdict

// Check judges the manifest's object as the cache shows it now. since is the
// resource version of the apply's answer; older states aren't looked at.
func (c *Checker) Check(ctx context.Context, m *payload.Manifest, since string) Verdict {
	return c.check(ctx, m, since, Evaluate)
}

// standing judges the object while nobody changes it.
func (c *Checker) standing(ctx context.Context, m *payload.Manifest) Verdict {
	return c.check(ctx, m, "", judgeStanding)
}

func (c *Checker) check(ctx context.Context, m *payload.Manifest, since string, by rule) Verdict {
	if m.Delete || m.Wait == payload.WaitNone {
		return Verdict{Ready: true}
	}
	view := c.cache.Get(m.ID)
	switch view.State {
	case live.Absent:
		return absent(view, since)
	case live.Present:
		return c.present(ctx, m, view.Object, since, by)
	case live.Unknown:
	}
	return Verdict{Reason: ReasonUnwatchable, Message: "the kind isn't watched yet"}
}

func absent(view live.View, since string) Verdict {
	switch {
	case older(view.AsOf, since):
		// The end of a Job that it shows is that of the one before.
		return Verdict{Reason: ReasonNotObserved, Message: "the watch hasn't shown the object yet"}
	case view.Finished:
		return Verdict{Ready: true}
	default:
		return Verdict{Reason: ReasonNotFound, Message: "the object isn't there any more; it's applied anew"}
	}
}

func (c *Checker) present(ctx context.Context, m *payload.Manifest, o *live.Object, since string, by rule) Verdict {
	switch {
	case older(o.ResourceVersion, since):
		return Verdict{Reason: ReasonNotObserved, Message: "the watch hasn't shown the newest state yet"}
	case o.Deleting:
		return Verdict{Reason: ReasonTerminating, Message: fmt.Sprintf("the object is being deleted; finalizers: %.200q", o.Finalizers())}
	case !live.NeedsBody(m):
		return Verdict{Ready: true}
	case o.Body == nil:
		return Verdict{Reason: ReasonNotObserved, Message: "the watch hasn't shown the object's status yet"}
	default:
		return c.judge(ctx, m, o.Body, by)
	}
}

// judge applies the first rule that fits.
func (c *Checker) judge(ctx context.Context, m *payload.Manifest, body *unstructured.Unstructured, by rule) Verdict {
	if m.Health != "" {
		return c.rules.judge(ctx, m, body)
	}
	return by(m, body)
}

// Budget is how long an object may take to become level.
type Budget struct {
	// Total is the time it may take, Spent how much of it earlier waits for
	// the same manifest took.
	Total, Spent time.Duration
}

// leastWait is how long a wait lasts at least, whatever was spent before it:
// what became level meanwhile has to be seen.
const leastWait = 5 * time.Second

// Progress hears of a verdict that isn't level when it changes, and of how much
// of the budget was spent until then.
type Progress func(v Verdict, spent time.Duration)

// Wait waits until the manifest's object is level. It returns an *Error when
// the object says that it failed, or when the budget is spent, in which time
// spent waiting for a window doesn't count; or the cause of ctx's end. progress
// may be nil.
func (c *Checker) Wait(ctx context.Context, m *payload.Manifest, since string, budget Budget, progress Progress) error {
	if live.NeedsBody(m) {
		in := live.Interest{ID: m.ID, GVK: m.GVK, Body: true}
		c.cache.Track(in)
		defer c.cache.Untrack(in)
	}
	changes, stop := c.cache.Changes(m.ID)
	defer stop()
	w := newWaiter(m, budget, c.now(), progress)
	timer := time.NewTimer(w.nap())
	defer timer.Stop()
	for {
		v := c.Check(ctx, m, since)
		if v.Ready {
			return nil
		}
		if err := w.step(v, c.now()); err != nil {
			return err
		}
		timer.Reset(w.nap())
		select {
		case <-changes:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waiter is the clock of one wait: it stands still while the object waits for
// a window.
type waiter struct {
	m        *payload.Manifest
	budget   time.Duration
	spent    time.Duration
	last     time.Time
	verdict  Verdict
	progress Progress
}

func newWaiter(m *payload.Manifest, budget Budget, now time.Time, progress Progress) *waiter {
	return &waiter{m: m, budget: max(budget.Total, budget.Spent+leastWait), spent: budget.Spent, last: now, progress: progress}
}

// step takes the newest verdict; the time since the last one counts unless
// the object was waiting.
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

// nap is the longest time without a look at the clock.
func (w *waiter) nap() time.Duration {
	if w.verdict.Waiting {
		return time.Hour // An event ends it.
	}
	return max(w.budget-w.spent, time.Millisecond)
}

func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

func groupKind(m *payload.Manifest) schema.GroupKind { return m.GVK.GroupKind() }
