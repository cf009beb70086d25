// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"regexp"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// Limits of streams.
const (
	maxStreamsPerCaller = 64
	maxStreams          = 256
	// eventBurst events are sent at once, then eventRate per second. A throttled
	// watcher falls behind in the ring and receives the number of lost events.
	eventBurst = 256
	eventRate  = 20
	maxLogLine = 16 << 10
)

// pacer rate-limits a stream. It's not safe for concurrent use.
type pacer struct {
	now    func() time.Time
	rate   float64
	burst  float64
	tokens float64
	last   time.Time
}

func newPacer(now func() time.Time) *pacer {
	return &pacer{now: now, rate: eventRate, burst: eventBurst, tokens: eventBurst, last: now()}
}

// wait returns when the next event may be sent; false means that ctx ended.
func (p *pacer) wait(ctx context.Context) bool {
	now := p.now()
	// A clock that jumps back changes nothing.
	if passed := now.Sub(p.last).Seconds(); passed > 0 {
		p.tokens = min(p.burst, p.tokens+passed*p.rate)
	}
	p.last = now
	p.tokens--
	if p.tokens >= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(time.Duration(-p.tokens / p.rate * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// WatchEvents implements agentpb.AgentServer.
func (s *service) WatchEvents(req *agentpb.WatchEventsRequest, stream agentpb.Agent_WatchEventsServer) error {
	release, err := s.admitStream(stream.Context())
	if err != nil {
		return err
	}
	defer release()
	options, err := tail(req)
	if err != nil {
		return refuse(codes.InvalidArgument, &agentpb.Refusal{Reason: "InvalidRequest"}, "%v", err)
	}
	ctx, cancel := s.untilStop(stream.Context())
	defer cancel()
	pace := newPacer(s.cfg.Now)
	var sendErr error
	err = s.cfg.Events.Watch(ctx, func(events <-chan nodeos.EventInfo) {
		for {
			select {
			case <-ctx.Done():
				return
			case info, ok := <-events:
				if !ok {
					return
				}
				if sendErr = sendEvent(ctx, stream, pace, info); sendErr != nil {
					return
				}
			}
		}
	}, options...)
	switch {
	case sendErr != nil:
		return sendErr
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return s.statusOf(err)
	default:
		return status.Error(codes.Unavailable, "event stream ended")
	}
}

// sendEvent sends the number of lost events, if any, and the event.
func sendEvent(ctx context.Context, stream agentpb.Agent_WatchEventsServer, pace *pacer, info nodeos.EventInfo) error {
	if info.Lost > 0 || info.LostUnknown {
		count := info.Lost
		if info.LostUnknown {
			count = 0
		}
		if err := stream.Send(wire.LostToProto(count)); err != nil {
			return err
		}
	}
	if info.Payload == nil {
		return nil
	}
	event := wire.EventToProto(info.Event)
	if event == nil {
		return nil
	}
	if !pace.wait(ctx) {
		return status.FromContextError(ctx.Err()).Err()
	}
	return stream.Send(event)
}

// tail converts the request to watch options; more than one is an error.
func tail(req *agentpb.WatchEventsRequest) ([]nodeos.WatchOptionFunc, error) {
	var options []nodeos.WatchOptionFunc
	if n := req.GetTailEvents(); n != 0 {
		options = append(options, nodeos.WithTailEvents(int(n)))
	}
	if text := req.GetTailId(); text != "" {
		id, err := nodeos.ParseEventID(text)
		if err != nil {
			return nil, err
		}
		options = append(options, nodeos.WithTailID(id))
	}
	if d := wire.DurationFromProto(req.GetTailDuration()); d != 0 {
		options = append(options, nodeos.WithTailDuration(d))
	}
	var check nodeos.WatchOptions
	for _, set := range options {
		if err := set(&check); err != nil {
			return nil, err
		}
	}
	return options, nil
}

// servicePattern is the format of service names; it excludes paths.
var servicePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Logs implements agentpb.AgentServer.
func (s *service) Logs(req *agentpb.LogsRequest, stream agentpb.Agent_LogsServer) error {
	release, err := s.admitStream(stream.Context())
	if err != nil {
		return err
	}
	defer release()
	if !servicePattern.MatchString(req.GetService()) {
		return refuse(codes.InvalidArgument, &agentpb.Refusal{Reason: "InvalidRequest"}, "invalid service name %.80q", req.GetService())
	}
	var options []nodeos.LogOption
	if n := req.GetTailLines(); n >= 0 {
		options = append(options, nodeos.WithTailLines(int(n)))
	}
	if req.GetFollow() {
		options = append(options, nodeos.WithFollow())
	}
	reader, err := s.cfg.Logs.ServiceLog(req.GetService()).Reader(options...)
	if err != nil {
		return refuse(codes.NotFound, &agentpb.Refusal{Reason: "NoSuchService"}, "log of %s: %v", req.GetService(), err)
	}
	ctx, cancel := s.untilStop(stream.Context())
	defer cancel()
	// A following reader blocks until it's closed.
	stop := context.AfterFunc(ctx, func() { _ = reader.Close() })
	defer func() {
		if stop() {
			_ = reader.Close()
		}
	}()
	if err := sendLines(reader, stream); err != nil && ctx.Err() == nil {
		return s.statusOf(err)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// sendLines sends whole lines; a longer line is sent in pieces.
func sendLines(from io.Reader, stream agentpb.Agent_LogsServer) error {
	lines := bufio.NewReaderSize(from, maxLogLine)
	for {
		data, _, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&agentpb.LogLine{Line: sanitize.Clip(string(data), maxLogLine)}); err != nil {
			return err
		}
	}
}

// admitStream counts a stream of a caller; release ends the count.
func (s *service) admitStream(ctx context.Context) (release func(), err error) {
	caller, err := callerFrom(ctx)
	if err != nil {
		return nil, err
	}
	key := caller.String()
	if !s.streams.acquire(key) {
		return nil, refuse(codes.ResourceExhausted, &agentpb.Refusal{Reason: "LimitExceeded", Retriable: true},
			"%s already has %d streams", key, maxStreamsPerCaller)
	}
	return func() { s.streams.release(key) }, nil
}

// untilStop returns a context that ends with the stream or the server, so that
// long-lived streams don't block a graceful stop.
func (s *service) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	joined, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.stopping, cancel)
	return joined, func() { stop(); cancel() }
}
