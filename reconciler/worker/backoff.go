// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"math/rand/v2"
	"time"
)

// jitterPercent is the maximum extension of a wait, so that clusters don't retry
// at the same time.
const jitterPercent = 20

// backoff returns the wait after a number of consecutive failures: 1/8, 1/4 and 1/2
// of the interval, then the interval.
func backoff(interval time.Duration, failures int) time.Duration {
	switch {
	case failures <= 1:
		return interval / 8
	case failures == 2:
		return interval / 4
	case failures == 3:
		return interval / 2
	default:
		return interval
	}
}

// jitter extends d by up to jitterPercent, deterministically per seed and draw.
func jitter(d time.Duration, seed, draw uint64) time.Duration {
	extra := int64(d) * jitterPercent / 100
	if extra <= 0 {
		return d
	}
	random := rand.New(rand.NewPCG(seed, draw)) //nolint:gosec // not security-sensitive
	return d + time.Duration(random.Int64N(extra))
}
