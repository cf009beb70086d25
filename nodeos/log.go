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

// LogEvent is a log line to be sent elsewhere.
type LogEvent struct {
	// Msg is the line's text.
	Msg string
	// Time is when it was written.
	Time time.Time
	// Level is its level.
	Level zapcore.Level
	// Fields are what else the line says.
	Fields map[string]any
}

// LogHandler gives access to the log of one service.
type LogHandler interface {
	// Writer returns a writer of lines; closing it ends nothing but itself.
	Writer() (io.WriteCloser, error)
	// Reader returns a reader of the log; an unknown service is an error.
	Reader(opt ...LogOption) (io.ReadCloser, error)
}

// LogOptions are the options of a reader.
type LogOptions struct {
	// Follow goes on with what is written later.
	Follow bool
	// TailLines begins that many lines before the end; nil means at the
	// beginning.
	TailLines *int
}

// LogOption sets an option of a reader.
type LogOption func(*LogOptions) error

// WithFollow goes on with what is written later.
func WithFollow() LogOption {
	return func(o *LogOptions) error {
		o.Follow = true
		return nil
	}
}

// WithTailLines begins that many lines before the end.
func WithTailLines(lines int) LogOption {
	return func(o *LogOptions) error {
		if lines < 0 {
			return fmt.Errorf("tail of %d lines, want 0 or more", lines)
		}
		o.TailLines = &lines
		return nil
	}
}

// LogSender sends log lines elsewhere. Its methods may be called from several
// goroutines.
type LogSender interface {
	// Send tries once, until success, error or the end of ctx. An error that
	// wraps ErrDontRetry says that the event must not be sent again.
	Send(ctx context.Context, e *LogEvent) error
	// Close stops the sender, gracefully while ctx lasts.
	Close(ctx context.Context) error
}

// LoggingManager keeps the logs of a host's services.
type LoggingManager interface {
	// ServiceLog returns the log of a service that may not exist yet.
	ServiceLog(service string) LogHandler
	// SetSenders swaps the senders of all logs and returns the previous ones,
	// which the caller closes.
	SetSenders(senders []LogSender) []LogSender
}
