// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// JSONLines sends log events as JSON objects: one per line over TCP, one per
// packet over UDP. It implements nodeos.LogSender; its methods are safe for
// concurrent use.
type JSONLines struct {
	network, address string
	tags             map[string]string
	dial             func(ctx context.Context, network, address string) (net.Conn, error)

	token chan net.Conn // contains the connection, or nil, between calls of Send
}

var _ nodeos.LogSender = (*JSONLines)(nil)

// NewJSONLines returns a sender to tcp://host:port or udp://host:port that adds
// tags to each event. It connects at the first Send.
func NewJSONLines(endpoint string, tags map[string]string) (*JSONLines, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, errors.New("parse the log receiver address: want tcp://host:port or udp://host:port")
	}
	if (u.Scheme != "tcp" && u.Scheme != "udp") || u.Port() == "" || u.User != nil {
		return nil, fmt.Errorf("parse the log receiver address %q: want tcp://host:port or udp://host:port", u.Redacted())
	}
	s := &JSONLines{
		network: u.Scheme, address: u.Host, tags: maps.Clone(tags),
		dial: (&net.Dialer{Timeout: sendTimeout}).DialContext, token: make(chan net.Conn, 1),
	}
	s.token <- nil
	return s, nil
}

// encode returns the encoded event.
func (s *JSONLines) encode(e *nodeos.LogEvent) ([]byte, error) {
	m := make(map[string]any, len(e.Fields)+len(s.tags)+3)
	maps.Copy(m, e.Fields)
	for k, v := range s.tags {
		m[k] = v
	}
	m["msg"], m["lockstep-time"], m["lockstep-level"] = e.Msg, e.Time.Format(time.RFC3339Nano), e.Level.String()
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the log event: %w: %w", err, nodeos.ErrDontRetry)
	}
	if s.network == "tcp" {
		data = append(data, '\n')
	}
	return data, nil
}

// Send implements nodeos.LogSender.
func (s *JSONLines) Send(ctx context.Context, e *nodeos.LogEvent) error {
	data, err := s.encode(e)
	if err != nil {
		return err
	}
	var conn net.Conn
	select {
	case conn = <-s.token:
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, err = s.write(ctx, conn, data)
	s.token <- conn
	return err
}

// write sends data and returns the connection for the next call; nil after an
// error.
func (s *JSONLines) write(ctx context.Context, conn net.Conn, data []byte) (net.Conn, error) {
	if conn == nil {
		var err error
		if conn, err = s.dial(ctx, s.network, s.address); err != nil {
			return nil, fmt.Errorf("dial the log receiver: %w", err)
		}
	}
	deadline, _ := ctx.Deadline()
	err := conn.SetWriteDeadline(deadline)
	n := 0
	if err == nil {
		n, err = conn.Write(data)
	}
	if err == nil {
		return conn, nil
	}
	err = fmt.Errorf("send to the log receiver %s: %w", s.address, errors.Join(err, conn.Close()))
	if n > 0 { // sent in part: a retry would duplicate it
		err = fmt.Errorf("%w: %w", err, nodeos.ErrDontRetry)
	}
	return nil, err
}

// Close implements nodeos.LogSender. It waits for a running Send until ctx ends.
func (s *JSONLines) Close(ctx context.Context) error {
	select {
	case conn := <-s.token:
		s.token <- nil
		if conn == nil {
			return nil
		}
		return conn.Close()
	case <-ctx.Done():
		return ctx.Err()
	}
}
