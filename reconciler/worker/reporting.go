// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"time"
)

// Waiting is what an Apply waits for.
type Waiting struct {
	// Reason and Message are the object's own; the message must have passed
	// config/sanitize.
	Reason, Message string
	// Deadline is when the wait ends in an error, zero if it has none.
	Deadline time.Time
	// Spent is how much of the object's time is spent by now, and Stopped says
	// that it waits for something that doesn't count.
	Spent   time.Duration
	Stopped bool
}

// keys of the reporters that a context carries to the caller's code: they
// save each implementer a reference to the worker.
type (
	stepKey    struct{}
	waitingKey struct{}
)

// ReportStep names the step that a PayloadRetriever is in; ctx is the one
// that RetrievePayload was called with. With another it does nothing.
func ReportStep(ctx context.Context, step Step) {
	if report, ok := ctx.Value(stepKey{}).(func(Step)); ok {
		report(step)
	}
}

// ReportWaiting says for what a ResourceBuilder waits; ctx is the one that
// Apply was called with. With another it does nothing.
func ReportWaiting(ctx context.Context, waiting Waiting) {
	if report, ok := ctx.Value(waitingKey{}).(func(Waiting)); ok {
		report(waiting)
	}
}
