// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/events"
	"github.com/lockstep-dev/lockstep/nodeos/logs"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// newRing returns an event ring.
func newRing(t *testing.T, capacity int) *events.Ring {
	t.Helper()
	ring, err := events.New(events.Config{Capacity: capacity, BootID: "boot-1", First: 1, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func TestWatchSendsPastEventsThenNewOnes(t *testing.T) {
	ring := newRing(t, 100)
	b := newEnv(t, func(c *Config) { c.Events = ring })
	for i := range 5 {
		ring.Publish("op-1", nodeos.EventProgress{Task: "past", Done: int64(i)})
	}
	stream, err := b.client("reader", mtls.RoleReader).WatchEvents(t.Context(), &agentpb.WatchEventsRequest{TailEvents: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{3, 4} {
		got, err := stream.Recv()
		if err != nil || got.GetProgress().GetDone() != want || got.GetOperationId() != "op-1" {
			t.Fatalf("event = %v, %v; want progress %d", got, err, want)
		}
	}
	ring.Publish("", nodeos.EventRestart{Cmd: nodeos.RebootRestart})
	if got, err := stream.Recv(); err != nil || got.GetRestart().GetCommand() != "restart" {
		t.Errorf("event = %v, %v", got, err)
	}
}

func TestWatchReportsLostEvents(t *testing.T) {
	ring := newRing(t, 10)
	b := newEnv(t, func(c *Config) { c.Events = ring })
	for i := range 30 {
		ring.Publish("", nodeos.EventProgress{Done: int64(i)})
	}
	stream, err := b.client("reader", mtls.RoleReader).WatchEvents(t.Context(), &agentpb.WatchEventsRequest{TailId: "boot-1/5"})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetLost() == nil || first.GetLost().GetCount() != 15 {
		t.Fatalf("first event = %v, %v; want 15 lost", first, err)
	}
	if second, err := stream.Recv(); err != nil || second.GetProgress().GetDone() != 20 {
		t.Errorf("second event = %v, %v", second, err)
	}
}

func TestEventsAreRateLimitedAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newPacer(time.Now), time.Now()
		for range eventBurst {
			p.wait(t.Context())
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the burst took %s", took)
		}
		for range 10 * eventRate {
			p.wait(t.Context())
		}
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("%d more events took %s, want 10 s", 10*eventRate, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if p.wait(ctx) {
			t.Error("wait returned true after ctx ended")
		}
	})
}

func TestFollowedLogStreamsUntilTheServerStops(t *testing.T) {
	manager, err := logs.NewManager(t.Context(), logs.Config{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := manager.Close(); err != nil {
			t.Error(err)
		}
	})
	writer, err := manager.ServiceLog("agent").Writer()
	if err != nil {
		t.Fatal(err)
	}
	write := func(format string, args ...any) {
		t.Helper()
		if _, err := fmt.Fprintf(writer, format+"\n", args...); err != nil {
			t.Fatal(err)
		}
	}
	b := newEnv(t, func(c *Config) { c.Logs = manager })
	write("one")
	write("two\x1b[31m red")
	client := b.client("reader", mtls.RoleReader)
	stream, err := client.Logs(t.Context(), &agentpb.LogsRequest{Service: "agent", TailLines: 1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if line, err := stream.Recv(); err != nil || line.GetLine() != "two[31m red" {
		t.Errorf("line = %q, %v: want it without the escape sequence", line.GetLine(), err)
	}
	write("three")
	if line, err := stream.Recv(); err != nil || line.GetLine() != "three" {
		t.Errorf("line = %q, %v", line.GetLine(), err)
	}
	missing, err := client.Logs(t.Context(), &agentpb.LogsRequest{Service: "nobody", TailLines: -1})
	if err == nil {
		_, err = missing.Recv()
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("the log of a service that doesn't exist = %v", err)
	}
	b.stop() // returns although the stream is open
	if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream after the stop = %v", err)
	}
}

func TestStreamsPerCallerAreLimited(t *testing.T) {
	s := &service{streams: newCounter(1, 2)}
	ctx := context.WithValue(t.Context(), callerKey{}, mtls.Caller{ClusterUID: cluster, Name: "a", Role: mtls.RoleReader})
	release, err := s.admitStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.admitStream(ctx); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second stream = %v", err)
	}
	release()
	if _, err := s.admitStream(ctx); err != nil {
		t.Errorf("a stream after the first ended = %v", err)
	}
}

func TestEventWithoutAWireTypeIsSkipped(t *testing.T) {
	if got := wire.EventToProto(nodeos.Event{}); got != nil {
		t.Errorf("an event without a payload = %v", got)
	}
}
