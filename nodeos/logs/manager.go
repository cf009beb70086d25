// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package logs stores the logs of a host's services: a bounded ring of lines per
// service, readers that tail and follow, and senders that forward lines to remote
// receivers.
//
// Writing never waits for a reader or a sender. A slow one loses the oldest lines
// and receives their number: a reader as a line in the text, a receiver as a log
// event.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Default limits.
const (
	// DefaultBytes is the size of the stored lines per service, in bytes.
	DefaultBytes = 1 << 20
	// DefaultServices is the maximum number of services with logs.
	DefaultServices = 128
	// MaxLine is the maximum length of a line in bytes; longer ones are split.
	MaxLine = 16 << 10
	// sendTimeout limits one attempt of one sender.
	sendTimeout = 5 * time.Second
	// retryPause is the delay between two attempts.
	retryPause = time.Second
)

// Config configures a Manager.
type Config struct {
	// Bytes is the size of the stored lines per service; 0 means DefaultBytes.
	Bytes int
	// Services is the maximum number of services; 0 means DefaultServices.
	Services int
	// Now is the clock.
	Now func() time.Time
}

// Manager stores logs; it implements nodeos.LoggingManager. Its methods are safe
// for concurrent use. Close stops its senders.
type Manager struct {
	cfg    Config
	stop   context.CancelFunc
	ctx    context.Context //nolint:containedctx // Close ends the sending goroutines.
	wg     sync.WaitGroup
	closed bool

	mu       sync.Mutex
	services map[string]*buffer

	sendMu  sync.Mutex
	senders []nodeos.LogSender
	swapped chan struct{} // closed and replaced by each SetSenders
}

var _ nodeos.LoggingManager = (*Manager)(nil)

// NewManager returns a manager without logs and senders; sending ends with ctx.
func NewManager(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Now == nil || cfg.Bytes < 0 || cfg.Services < 0 {
		return nil, errors.New("logging manager: Now is required and limits must not be negative")
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = DefaultBytes
	}
	if cfg.Services == 0 {
		cfg.Services = DefaultServices
	}
	ctx, stop := context.WithCancel(ctx)
	return &Manager{cfg: cfg, ctx: ctx, stop: stop, services: map[string]*buffer{}, swapped: make(chan struct{})}, nil
}

// Close stops all sending, ends all followers, and waits for them.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	all := make([]*buffer, 0, len(m.services))
	for _, b := range m.services {
		all = append(all, b)
	}
	m.mu.Unlock()
	m.stop()
	for _, b := range all {
		b.close()
	}
	m.wg.Wait()
	return nil
}

// Services returns the names of the services with logs, sorted.
func (m *Manager) Services() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]string, 0, len(m.services))
	for name := range m.services {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// ServiceLog implements nodeos.LoggingManager.
func (m *Manager) ServiceLog(service string) nodeos.LogHandler { return handler{m, service} }

// SetSenders implements nodeos.LoggingManager.
func (m *Manager) SetSenders(senders []nodeos.LogSender) []nodeos.LogSender {
	m.sendMu.Lock()
	defer m.sendMu.Unlock()
	old := m.senders
	m.senders = slices.Clone(senders)
	close(m.swapped)
	m.swapped = make(chan struct{})
	return old
}

// current returns the senders and a channel that is closed at their replacement.
func (m *Manager) current() ([]nodeos.LogSender, <-chan struct{}) {
	m.sendMu.Lock()
	defer m.sendMu.Unlock()
	return m.senders, m.swapped
}

// handler is the log of one service.
type handler struct {
	m       *Manager
	service string
}

// serviceName validates a service name, which receivers may use in fields and file
// names.
func serviceName(s string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`).MatchString(s) {
		return fmt.Errorf("invalid service name %.64q: want 1 to 63 letters, digits, dots, dashes and underscores", s)
	}
	return nil
}

// Writer implements nodeos.LogHandler; the first writer creates the log.
func (h handler) Writer() (io.WriteCloser, error) {
	if err := serviceName(h.service); err != nil {
		return nil, err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.m.closed {
		return nil, errors.New("logging manager is closed")
	}
	b, ok := h.m.services[h.service]
	if !ok {
		if len(h.m.services) >= h.m.cfg.Services {
			return nil, fmt.Errorf("log of %s: %d services have logs, at most %d are allowed", h.service, len(h.m.services), h.m.cfg.Services)
		}
		b = newBuffer(h.m.cfg.Bytes)
		h.m.services[h.service] = b
		h.m.wg.Go(func() { h.m.send(h.service, b) }) // one per service
	}
	return &writer{buffer: b, now: h.m.cfg.Now}, nil
}

// Reader implements nodeos.LogHandler.
func (h handler) Reader(opts ...nodeos.LogOption) (io.ReadCloser, error) {
	var o nodeos.LogOptions
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	h.m.mu.Lock()
	b, ok := h.m.services[h.service]
	h.m.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("no log of service %q", h.service)
	}
	return newReader(b, o), nil
}

// send forwards the lines of a service to the senders, in order.
func (m *Manager) send(service string, b *buffer) {
	next := uint64(0)
	for {
		line, at, lost, ok := b.wait(m.ctx, next)
		if !ok {
			return
		}
		if lost > 0 {
			m.deliver(&nodeos.LogEvent{
				Msg: fmt.Sprintf("%d lines lost: the receiver is too slow", lost), Time: m.cfg.Now(),
				Level: zapcore.WarnLevel, Fields: map[string]any{fieldService: service, "lost": lost},
			})
		}
		event := Parse(line.text, line.at)
		event.Fields[fieldService] = service
		m.deliver(event)
		next = at + 1
	}
}

// fieldService is the field with the service name.
const fieldService = "lockstep-service"

// deliver retries until a sender accepts the event, one returns ErrDontRetry, or
// the manager is closed. It waits while there are no senders.
func (m *Manager) deliver(e *nodeos.LogEvent) {
	for {
		senders, swapped := m.current()
		if len(senders) > 0 && m.try(senders, e) {
			return
		}
		if !m.again(swapped, len(senders) > 0) {
			return
		}
	}
}

// again waits before the next attempt: for new senders, or for retryPause if
// there are some; false means that the manager is closed.
func (m *Manager) again(swapped <-chan struct{}, some bool) bool {
	var later <-chan time.Time
	if some {
		timer := time.NewTimer(retryPause)
		defer timer.Stop()
		later = timer.C
	}
	select {
	case <-m.ctx.Done():
		return false
	case <-swapped:
	case <-later:
	}
	return true
}

// try sends to all senders concurrently and reports whether the event is done.
func (m *Manager) try(senders []nodeos.LogSender, e *nodeos.LogEvent) bool {
	ctx, cancel := context.WithTimeout(m.ctx, sendTimeout)
	defer cancel()
	done := make([]bool, len(senders))
	var wg sync.WaitGroup
	for i, s := range senders {
		wg.Go(func() {
			err := s.Send(ctx, e)
			done[i] = err == nil || errors.Is(err, nodeos.ErrDontRetry)
		})
	}
	wg.Wait()
	return slices.Contains(done, true)
}
