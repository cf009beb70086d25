// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// EventID orders the events of a host: by boot, then by number. Numbers increase
// within a boot, across restarts of the agent too.
type EventID struct {
	// BootID is the boot in which the event happened.
	BootID string
	// Seq is the event's number in that boot.
	Seq uint64
}

// String returns bootID/seq; the zero id is empty.
func (id EventID) String() string {
	if id == (EventID{}) {
		return ""
	}
	return id.BootID + "/" + strconv.FormatUint(id.Seq, 10)
}

// ParseEventID parses the output of String.
func ParseEventID(s string) (EventID, error) {
	if s == "" {
		return EventID{}, nil
	}
	i := strings.LastIndexByte(s, '/')
	if i <= 0 || len(s) > maxID {
		return EventID{}, fmt.Errorf("parse event id %.64q: not bootID/number", s)
	}
	seq, err := strconv.ParseUint(s[i+1:], 10, 64)
	if err != nil {
		return EventID{}, fmt.Errorf("parse event id %.64q: %w", s, err)
	}
	return EventID{BootID: s[:i], Seq: seq}, nil
}

// Event is an event on a host.
type Event struct {
	// TypeURL names the payload's type: lockstep/runtime/<type>.
	TypeURL string
	// ID orders the event.
	ID EventID
	// Time is the time of publication.
	Time time.Time
	// OperationID is the operation that the event belongs to, if any.
	OperationID string
	// Payload is the content of the event.
	Payload Payload
}

// Payload is one of the event types of this package.
type Payload interface {
	// TypeName is the payload's type name.
	TypeName() string
}

// EventInfo is an event with the state of the watcher's queue.
type EventInfo struct {
	Event
	// Backlog is the number of events that wait behind this one.
	Backlog int
	// Lost is the number of events that this watcher missed directly before
	// this one, because it was slow or subscribed too late. An EventInfo with
	// Lost has no Payload.
	Lost uint64
	// LostUnknown means that an unknown number of events was missed: they
	// belong to an earlier boot or an earlier process.
	LostUnknown bool
}

// EventStream publishes and watches events.
type EventStream interface {
	Watcher
	Publisher
}

// Publisher publishes events; it never blocks.
type Publisher interface {
	// Publish publishes a payload of an operation; the id may be empty.
	Publish(operationID string, p Payload)
}

// WatchFunc receives the events of a watch. The channel is closed when the watch
// ends; returning from the function ends the watch.
type WatchFunc func(<-chan EventInfo)

// Watcher watches events.
type Watcher interface {
	// Watch calls f in the caller's goroutine and returns when f returns. The
	// watch starts with the next event, unless an option sets another start.
	Watch(ctx context.Context, f WatchFunc, opts ...WatchOptionFunc) error
}

// WatchOptions set the start of a watch. At most one is set.
type WatchOptions struct {
	// TailEvents is the number of past events to send first; negative means all.
	TailEvents int
	// TailID is the id after which the watch starts.
	TailID EventID
	// TailDuration is the maximum age of the first event.
	TailDuration time.Duration
}

// WatchOptionFunc sets an option of a watch.
type WatchOptionFunc func(opts *WatchOptions) error

// errExclusiveTails is returned when mutually exclusive watch options are set.
var errExclusiveTails = errors.New("tail events, tail id and tail duration are mutually exclusive")

// Validate checks that at most one option is set.
func (o WatchOptions) Validate() error {
	n := 0
	for _, set := range []bool{o.TailEvents != 0, o.TailID != EventID{}, o.TailDuration != 0} {
		if set {
			n++
		}
	}
	if n > 1 {
		return errExclusiveTails
	}
	return nil
}

// WithTailEvents starts with the given number of past events, or with all
// available events when number is negative.
func WithTailEvents(number int) WatchOptionFunc {
	return func(o *WatchOptions) error {
		o.TailEvents = number
		return o.Validate()
	}
}

// WithTailID starts after the event with that id.
func WithTailID(id EventID) WatchOptionFunc {
	return func(o *WatchOptions) error {
		o.TailID = id
		return o.Validate()
	}
}

// WithTailDuration starts with events that are at most dur old.
func WithTailDuration(dur time.Duration) WatchOptionFunc {
	return func(o *WatchOptions) error {
		if dur < 0 {
			return fmt.Errorf("tail duration %s is negative", dur)
		}
		o.TailDuration = dur
		return o.Validate()
	}
}
