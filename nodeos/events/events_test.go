// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lockstep-dev/lockstep/nodeos"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRing(t *testing.T, capacity int) *Ring {
	t.Helper()
	r, err := New(Config{Capacity: capacity, BootID: "boot", First: FirstOf(1), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// publish publishes n numbered events.
func publish(r *Ring, from, n int) {
	for i := range n {
		r.Publish("", nodeos.EventProgress{Done: int64(from + i)})
	}
}

// collect watches until the backlog is empty and returns the received numbers or
// "lost n".
func collect(t *testing.T, r *Ring, opts ...nodeos.WatchOptionFunc) []string {
	t.Helper()
	var out []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.Publish("", nodeos.EventRestart{}) // marks the end
	err := r.Watch(ctx, func(ch <-chan nodeos.EventInfo) {
		for e := range ch {
			switch p := e.Payload.(type) {
			case nodeos.EventProgress:
				out = append(out, fmt.Sprint(p.Done))
			case nodeos.EventRestart:
				return
			default:
				out = append(out, fmt.Sprintf("lost %d %v", e.Lost, e.LostUnknown))
			}
		}
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func TestTailEventsReturnsTheLastStoredEvents(t *testing.T) {
	for name, tc := range map[string]struct {
		published, tail int
		want            []string
	}{
		"the last one":           {200, 2, numbers(199, 200)},
		"five":                   {200, 6, numbers(195, 200)},
		"more than published":    {30, 40, numbers(0, 30)},
		"all":                    {200, -1, numbers(101, 200)},
		"more than the capacity": {200, 1000, numbers(101, 200)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, 100)
			publish(r, 0, tc.published)
			if diff := cmp.Diff(tc.want, collect(t, r, nodeos.WithTailEvents(tc.tail))); diff != "" {
				t.Errorf("tail of %d (-want +got):\n%s", tc.tail, diff)
			}
		})
	}
}

func TestWatchResumesAfterTheGivenEvent(t *testing.T) {
	r := newRing(t, 100)
	publish(r, 0, 20)
	for i := range 20 {
		id := nodeos.EventID{BootID: "boot", Seq: FirstOf(1) + uint64(i)}
		parsed, err := nodeos.ParseEventID(id.String())
		if err != nil {
			t.Fatal(err)
		}
		got := collect(t, r, nodeos.WithTailID(parsed))
		if diff := cmp.Diff(numbers(i+1, 20), got); diff != "" {
			t.Fatalf("after %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestLateResumeReportsTheLostEvents(t *testing.T) {
	r := newRing(t, 10)
	publish(r, 0, 30) // and the end mark: 21 … 29 are stored
	got := collect(t, r, nodeos.WithTailID(nodeos.EventID{BootID: "boot", Seq: FirstOf(1) + 4}))
	if diff := cmp.Diff(append([]string{"lost 16 false"}, numbers(21, 30)...), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResumeFromAnEarlierBootOrProcessReportsUnknownLoss(t *testing.T) {
	for name, id := range map[string]nodeos.EventID{
		"another boot":    {BootID: "earlier", Seq: 7},
		"another process": {BootID: "boot", Seq: 7},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, 10)
			publish(r, 0, 2)
			got := collect(t, r, nodeos.WithTailID(id))
			if diff := cmp.Diff([]string{"lost 0 true", "0", "1"}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTailDurationReturnsRecentEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 100)
		publish(r, 0, 20)
		time.Sleep(3 * time.Second)
		publish(r, 20, 10)
		for d, want := range map[time.Duration][]string{
			0: nil, 2 * time.Second: numbers(20, 30), 10 * time.Second: numbers(0, 30),
		} {
			if d == 0 {
				continue
			}
			if diff := cmp.Diff(want, collect(t, r, nodeos.WithTailDuration(d))); diff != "" {
				t.Errorf("tail of %s (-want +got):\n%s", d, diff)
			}
		}
	})
}

func TestTailOptionsAreMutuallyExclusive(t *testing.T) {
	r := newRing(t, 10)
	never := func(<-chan nodeos.EventInfo) { t.Error("the watch started") }
	id := nodeos.WithTailID(nodeos.EventID{BootID: "boot"})
	for name, opts := range map[string][]nodeos.WatchOptionFunc{
		"events and id":       {nodeos.WithTailEvents(1), id},
		"events and duration": {nodeos.WithTailEvents(1), nodeos.WithTailDuration(1)},
		"id and duration":     {id, nodeos.WithTailDuration(1)},
	} {
		if err := r.Watch(t.Context(), never, opts...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSlowWatcherReceivesTheNumberOfLostEventsAndContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 10)
		var got []nodeos.EventInfo
		slow := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			err := r.Watch(ctx, func(ch <-chan nodeos.EventInfo) {
				for e := range ch {
					got = append(got, e)
					<-slow
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		publish(r, 0, 1)
		synctest.Wait() // the watcher has received 0 and sleeps
		publish(r, 1, 1)
		synctest.Wait() // the pump has taken 1
		publish(r, 2, 100)
		close(slow)
		synctest.Wait()
		cancel()
		wg.Wait()
		var lost uint64
		events := 0
		for _, e := range got {
			lost += e.Lost
			if e.Payload != nil {
				events++
			}
		}
		if lost != 90 || events != 12 {
			t.Errorf("got %d events and %d lost, want 12 and 90", events, lost)
		}
		if last := got[len(got)-1]; last.Backlog != 0 {
			t.Errorf("the last event has a backlog of %d", last.Backlog)
		}
	})
}

func TestAllWatchersReceiveEventsInTheSameOrder(t *testing.T) {
	r := newRing(t, 4000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { publish(r, 0, 500) })
	}
	seen := make([][]uint64, 3)
	for w := range seen {
		wg.Go(func() {
			err := r.Watch(t.Context(), func(ch <-chan nodeos.EventInfo) {
				for e := range ch {
					seen[w] = append(seen[w], e.ID.Seq)
					if len(seen[w]) == 2000 {
						return
					}
				}
			}, nodeos.WithTailEvents(-1))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for w := range seen {
		for i, n := range seen[w] {
			if n != FirstOf(1)+uint64(i) {
				t.Fatalf("watcher %d received number %d at position %d", w, n-FirstOf(1), i)
			}
		}
	}
}

func TestWatchEndsWithItsContextOrItsFunction(t *testing.T) {
	r := newRing(t, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Watch(ctx, func(ch <-chan nodeos.EventInfo) {
		for range ch {
		}
	}); err != nil {
		t.Error(err)
	}
	publish(r, 0, 3)
	if err := r.Watch(t.Context(), func(<-chan nodeos.EventInfo) {}, nodeos.WithTailEvents(-1)); err != nil {
		t.Error(err)
	}
}

func BenchmarkPublish(b *testing.B) {
	r, err := New(Config{BootID: "boot", Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r.Publish("op", nodeos.EventProgress{})
	}
}
