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

// EventID orders the events of a host: by boot, then by number. Numbers rise
// within a boot, also over restarts of the agent.
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

// ParseEventID reads what String wrote.
func ParseEventID(s string) (EventID, error) {
	if s == "" {
		return EventID{}, nil
	}
	i := strings.LastIndexByte(s, '/')
	if i <= 0 || len(s) > maxID {
		return EventID{}, fmt.Errorf("event id %.64q is not bootID/number", s)
	}
	seq, err := strconv.ParseUint(s[i+1:], 10, 64)
	if err != nil {
		return EventID{}, fmt.Errorf("event id %.64q has no number: %w", s, err)
	}
	return EventID{BootID: s[:i], Seq: seq}, nil
}

// Event is what happened on a host.
type Event struct {
	// TypeURL names the payload's type: lockstep/runtime/<type>.
	TypeURL string
	// ID is the event's place in the order.
	ID EventID
	// Time is when it was published.
	Time time.Time
	// OperationID is the operation that it belongs to, if any.
	OperationID string
	// Payload is what happened.
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
	// Backlog is how many events wait behind this one.
	Backlog int
	// Lost is how many events this watcher missed right before this one,
	// because it was slow or came too late. An info with Lost says so by
	// itself and has no Payload.
	Lost uint64
	// LostUnknown says that events were missed and nobody knows how many:
	// they are of an earlier boot or an earlier process.
	LostUnknown bool
}

// EventStream is where events are published and watched.
type EventStream interface {
	Watcher
	Publisher
}

// Publisher publishes events; it never blocks.
type Publisher interface {
	// Publish publishes a payload of an operation; the id may be empty.
	Publish(operationID string, p Payload)
}

// WatchFunc takes the events of a watch. The channel is closed when the watch
// ends; returning ends it.
type WatchFunc func(<-chan EventInfo)

// Watcher watches events.
type Watcher interface {
	// Watch calls f in the caller's goroutine and returns when f has
	// returned. The events begin with the next one, or where an option says.
	Watch(ctx context.Context, f WatchFunc, opts ...WatchOptionFunc) error
}

// WatchOptions say where a watch begins. At most one is set.
type WatchOptions struct {
	// TailEvents is how many past events come first; negative means all.
	TailEvents int
	// TailID is the id after which the watch begins.
	TailID EventID
	// TailDuration is how old the first event may be.
	TailDuration time.Duration
}

// WatchOptionFunc sets an option of a watch.
type WatchOptionFunc func(opts *WatchOptions) error

// errTwoTails says that options of a watch exclude each other.
var errTwoTails = errors.New("tail events, tail id and tail duration exclude each other: give one")

// Validate says whether at most one option is set.
func (o WatchOptions) Validate() error {
	n := 0
	for _, set := range []bool{o.TailEvents != 0, o.TailID != EventID{}, o.TailDuration != 0} {
		if set {
			n++
		}
	}
	if n > 1 {
		return errTwoTails
	}
	return nil
}

// WithTailEvents begins with that many past events, or with all that there
// are when number is negative.
func WithTailEvents(number int) WatchOptionFunc {
	return func(o *WatchOptions) error {
		o.TailEvents = number
		return o.Validate()
	}
}

// WithTailID begins after the event of that id.
func WithTailID(id EventID) WatchOptionFunc {
	return func(o *WatchOptions) error {
		o.TailID = id
		return o.Validate()
	}
}

// WithTailDuration begins with events that are at most that old.
func WithTailDuration(dur time.Duration) WatchOptionFunc {
	return func(o *WatchOptions) error {
		if dur < 0 {
			return fmt.Errorf("tail duration %s is negative", dur)
		}
		o.TailDuration = dur
		return o.Validate()
	}
}
