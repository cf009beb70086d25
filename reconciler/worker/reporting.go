// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"time"
)

// Waiting is the state of an object that a ResourceBuilder awaits.
type Waiting struct {
	// Reason and Message are the object's own, the message sanitized by
	// config/sanitize.
	Reason, Message string
	// Deadline is when the wait times out, zero for never.
	Deadline time.Time
	// Spent is the used part of the object's timeout. Stopped reports a wait that
	// doesn't count towards it.
	Spent   time.Duration
	Stopped bool
}

// Context keys of the functions behind ReportStep and ReportWaiting.
type (
	stepKey    struct{}
	waitingKey struct{}
)

// ReportStep reports the current step of a PayloadRetriever. ctx is that of
// RetrievePayload; with any other it does nothing.
func ReportStep(ctx context.Context, step Step) {
	if report, ok := ctx.Value(stepKey{}).(func(Step)); ok {
		report(step)
	}
}

// ReportWaiting reports what a ResourceBuilder waits for. ctx is that of Await;
// with any other it does nothing.
func ReportWaiting(ctx context.Context, waiting Waiting) {
	if report, ok := ctx.Value(waitingKey{}).(func(Waiting)); ok {
		report(waiting)
	}
}
