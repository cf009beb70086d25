// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"math/rand/v2"
	"time"
)

// jitterPercent is by how much a wait may be longer than asked for, so that
// many clusters don't come back at the same moment.
const jitterPercent = 20

// backoff returns how long to wait after so many failures in a row: an
// eighth, a quarter and a half of the interval, then all of it.
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

// jitter lengthens d by up to jitterPercent; the same seed and draw give the
// same length.
func jitter(d time.Duration, seed, draw uint64) time.Duration {
	extra := int64(d) * jitterPercent / 100
	if extra <= 0 {
		return d
	}
	random := rand.New(rand.NewPCG(seed, draw)) //nolint:gosec // A wait is no secret.
	return d + time.Duration(random.Int64N(extra))
}
