// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"context"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap/zapcore"
)

// LogEvent is a log line to send to a remote receiver.
type LogEvent struct {
	// Msg is the line's text.
	Msg string
	// Time is the time of the line.
	Time time.Time
	// Level is the level of the line.
	Level zapcore.Level
	// Fields are the structured fields of the line.
	Fields map[string]any
}

// LogHandler gives access to the log of one service.
type LogHandler interface {
	// Writer returns a writer of lines; closing it closes only this writer.
	Writer() (io.WriteCloser, error)
	// Reader returns a reader of the log; an unknown service is an error.
	Reader(opt ...LogOption) (io.ReadCloser, error)
}

// LogOptions are the options of a reader.
type LogOptions struct {
	// Follow continues with lines that are written later.
	Follow bool
	// TailLines starts that many lines before the end; nil starts at the
	// beginning.
	TailLines *int
}

// LogOption sets an option of a reader.
type LogOption func(*LogOptions) error

// WithFollow continues with lines that are written later.
func WithFollow() LogOption {
	return func(o *LogOptions) error {
		o.Follow = true
		return nil
	}
}

// WithTailLines starts that many lines before the end.
func WithTailLines(lines int) LogOption {
	return func(o *LogOptions) error {
		if lines < 0 {
			return fmt.Errorf("tail lines is %d, want 0 or more", lines)
		}
		o.TailLines = &lines
		return nil
	}
}

// LogSender sends log lines to a remote receiver. Its methods are safe for
// concurrent use.
type LogSender interface {
	// Send tries once, until success, an error or the end of ctx. An error that
	// wraps ErrDontRetry means that the event must not be sent again.
	Send(ctx context.Context, e *LogEvent) error
	// Close stops the sender, gracefully until ctx ends.
	Close(ctx context.Context) error
}

// LoggingManager stores the logs of a host's services.
type LoggingManager interface {
	// ServiceLog returns the log of a service, which may not exist yet.
	ServiceLog(service string) LogHandler
	// SetSenders replaces the senders of all logs and returns the previous
	// ones for the caller to close.
	SetSenders(senders []LogSender) []LogSender
}
