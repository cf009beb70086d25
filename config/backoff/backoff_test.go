// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestDelayDoublesUpToTheLimit(t *testing.T) {
	for failures, want := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second} {
		if got := Delay(2*time.Second, 10*time.Second, failures); got != want {
			t.Errorf("after %d failures: %s, want %s", failures, got, want)
		}
	}
	for _, tc := range []struct {
		first    time.Duration
		failures int
		want     time.Duration
	}{
		{0, 5, 0}, {-time.Second, 5, 0}, {time.Hour, 0, 10 * time.Second}, {time.Second, -1, time.Second}, {time.Nanosecond, 1 << 40, 10 * time.Second},
	} {
		if got := Delay(tc.first, 10*time.Second, tc.failures); got != tc.want {
			t.Errorf("first %s after %d failures: %s, want %s", tc.first, tc.failures, got, tc.want)
		}
	}
}

func TestJitterIsBetweenHalfAndAll(t *testing.T) {
	for range 1000 {
		if got := Jitter(time.Second); got < time.Second/2 || got > time.Second {
			t.Fatalf("jitter of 1s is %s", got)
		}
	}
	if got := Jitter(0); got != 0 {
		t.Errorf("jitter of 0 is %s", got)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := Wait(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("waited %s, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Wait(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
