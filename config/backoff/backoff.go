// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff calculates and waits for the delays between retries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Delay returns the delay after a number of failed retries, from 0: first, doubled
// per failure, and at most limit.
func Delay(first, limit time.Duration, failures int) time.Duration {
	delay := min(max(first, 0), limit)
	for ; failures > 0 && delay > 0 && delay < limit; failures-- {
		delay = min(2*delay, limit)
	}
	return delay
}

// Jitter returns a random duration between half of d and d, so that many clients
// don't retry at the same time.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter needs no cryptographic randomness.
}

// Wait waits for d, or returns the error of ctx if it ends first.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
