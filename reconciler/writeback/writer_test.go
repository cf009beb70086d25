// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

// fakeBranch is a status branch that fails and hangs on demand.
type fakeBranch struct {
	mu   sync.Mutex
	err  error
	got  []string
	at   []time.Time
	hang bool
}

func (b *fakeBranch) Publish(ctx context.Context, c sources.StatusCommit) (sources.Pushed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = append(b.at, time.Now())
	if b.hang {
		<-ctx.Done()
		return sources.Pushed{}, ctx.Err()
	}
	if b.err != nil {
		return sources.Pushed{}, b.err
	}
	b.got = append(b.got, c.Subject)
	return sources.Pushed{}, nil
}

func (b *fakeBranch) set(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *fakeBranch) commits() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}

func (b *fakeBranch) attempts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.at)
}

// start starts a Writer on b and returns it with a function that stops it.
func start(t *testing.T, b *fakeBranch) (*Writer, func()) {
	t.Helper()
	w, err := NewWriter(WriterConfig{Publisher: b, MinInterval: 10 * time.Second, Now: time.Now}, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return w, func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// wait advances the synctest clock by d.
func wait(d time.Duration) { <-time.NewTimer(d).C }

func at(done int) Report {
	r := updating()
	r.Releases[0].Done = done
	return r
}

func TestTheLatestReportWinsWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBranch{}
		w, stop := start(t, b)
		defer stop()
		w.Put(at(0))
		synctest.Wait()
		if b.commits() != 1 {
			t.Fatalf("%d commits after the first report, want 1 immediately", b.commits())
		}
		for done := 100; done <= 800; done += 100 {
			w.Put(at(done))
			synctest.Wait()
		}
		if b.commits() != 1 {
			t.Errorf("%d commits within the interval, want 1", b.commits())
		}
		wait(10 * time.Second)
		synctest.Wait()
		if b.commits() != 2 || b.got[1] != "status: prod at 1.4.2 (Progressing 61 %) [skip ci]" {
			t.Errorf("commits %v, want one more, of the latest report", b.got)
		}
		w.Put(at(801))
		wait(24 * time.Hour)
		if b.commits() != 2 {
			t.Errorf("a small change was committed: %v", b.got)
		}
	})
}

func TestOneCommitFollowsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBranch{err: errors.New("down")}
		w, stop := start(t, b)
		defer stop()
		for done := range 9 {
			w.Put(at(done * 100))
			wait(20 * time.Minute)
		}
		if n := b.attempts(); n < 10 || n > 40 {
			t.Errorf("%d attempts in three hours, want a bounded backoff", n)
		}
		b.set(nil)
		wait(retryMost)
		synctest.Wait()
		if b.commits() != 1 {
			t.Errorf("commits %v, want exactly one", b.got)
		}
	})
}

type deniedError struct{}

func (deniedError) Error() string  { return "protected branch" }
func (deniedError) Reason() string { return "StatusPushDenied" }

func TestADeniedPushIsRetriedHourly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBranch{err: deniedError{}}
		w, stop := start(t, b)
		defer stop()
		w.Put(at(0))
		wait(10*time.Hour - time.Second)
		synctest.Wait()
		if b.attempts() != 10 {
			t.Errorf("%d attempts in ten hours, want 10", b.attempts())
		}
	})
}

func TestAHangingServerDoesNotBlockPutOrStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBranch{hang: true}
		w, stop := start(t, b)
		before := time.Now()
		for done := range 500 {
			w.Put(at(done))
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("Put took %s", d)
		}
		stop() // synctest fails if the goroutine leaks
	})
}

func TestAPublishedReportIsNotPublishedAgainAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBranch{}
		w, err := NewWriter(WriterConfig{Publisher: b, Now: time.Now}, at(0).Key())
		if err != nil {
			t.Fatal(err)
		}
		w.Put(at(0))
		w.step(t.Context())
		if b.commits() != 0 {
			t.Error("the same report was published again")
		}
	})
}
