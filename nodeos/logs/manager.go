// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package logs keeps the logs of a host's services: a bounded ring of lines a
// service, readers that tail and follow, and senders that carry lines
// elsewhere.
//
// Writing never waits for a reader or a sender. Who is too slow loses the
// oldest lines and is told how many: a reader by a line of its own in the
// text, a receiver by a log event.
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

// Limits that hold unless a Config says else.
const (
	// DefaultBytes is how many bytes of lines a service keeps.
	DefaultBytes = 1 << 20
	// DefaultServices is how many services can have logs.
	DefaultServices = 128
	// MaxLine is the longest line; longer ones are broken.
	MaxLine = 16 << 10
	// sendTimeout bounds one try of one sender.
	sendTimeout = 5 * time.Second
	// retryPause is between two tries.
	retryPause = time.Second
)

// Config is what a Manager needs.
type Config struct {
	// Bytes is how many bytes of lines a service keeps; 0 means DefaultBytes.
	Bytes int
	// Services is how many services can have logs; 0 means DefaultServices.
	Services int
	// Now is the clock.
	Now func() time.Time
}

// Manager keeps logs; it implements nodeos.LoggingManager. Its methods may be
// called from several goroutines. Close ends its senders.
type Manager struct {
	cfg    Config
	stop   context.CancelFunc
	ctx    context.Context //nolint:containedctx // the life of the sending goroutines, which Close ends.
	wg     sync.WaitGroup
	closed bool

	mu       sync.Mutex
	services map[string]*buffer

	sendMu  sync.Mutex
	senders []nodeos.LogSender
	swapped chan struct{} // closed and replaced by each SetSenders
}

var _ nodeos.LoggingManager = (*Manager)(nil)

// NewManager returns a manager without logs and senders; ctx bounds its
// sending.
func NewManager(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Now == nil || cfg.Bytes < 0 || cfg.Services < 0 {
		return nil, errors.New("a logging manager needs a clock and positive limits")
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

// Close ends all sending, wakes all followers, and waits for them.
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

// Services lists the services that have logs, ordered.
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

// current returns the senders and what tells of their replacement.
func (m *Manager) current() ([]nodeos.LogSender, <-chan struct{}) {
	m.sendMu.Lock()
	defer m.sendMu.Unlock()
	return m.senders, m.swapped
}

// handler is one service's log.
type handler struct {
	m       *Manager
	service string
}

// serviceName reports which names a service can have: they end up in fields and
// file names of whoever receives them.
func serviceName(s string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`).MatchString(s) {
		return fmt.Errorf("service %.64q: want 1 to 63 letters, digits, dots, dashes and underscores", s)
	}
	return nil
}

// Writer implements nodeos.LogHandler; the first one makes the log.
func (h handler) Writer() (io.WriteCloser, error) {
	if err := serviceName(h.service); err != nil {
		return nil, err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.m.closed {
		return nil, errors.New("the logs are closed")
	}
	b, ok := h.m.services[h.service]
	if !ok {
		if len(h.m.services) >= h.m.cfg.Services {
			return nil, fmt.Errorf("log of %s: %d services have logs already, at most %d can", h.service, len(h.m.services), h.m.cfg.Services)
		}
		b = newBuffer(h.m.cfg.Bytes)
		h.m.services[h.service] = b
		h.m.wg.Go(func() { h.m.send(h.service, b) }) // one for a service, not for a writer
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
		return nil, fmt.Errorf("log %q was not registered", h.service)
	}
	return newReader(b, o), nil
}

// send carries a service's lines to the senders, one after another.
func (m *Manager) send(service string, b *buffer) {
	next := uint64(0)
	for {
		line, at, lost, ok := b.wait(m.ctx, next)
		if !ok {
			return
		}
		if lost > 0 {
			m.deliver(&nodeos.LogEvent{
				Msg: fmt.Sprintf("%d lines were lost: the receiver is too slow", lost), Time: m.cfg.Now(),
				Level: zapcore.WarnLevel, Fields: map[string]any{fieldService: service, "lost": lost},
			})
		}
		event := Parse(line.text, line.at)
		event.Fields[fieldService] = service
		m.deliver(event)
		next = at + 1
	}
}

// fieldService is the field that names the service of a line.
const fieldService = "lockstep-service"

// deliver tries until a sender took the event, one said not to retry, or the
// manager is closed. It waits while there are no senders.
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

// again waits before the next try: for new senders, or for a while when there
// are some; false when the manager is closed.
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

// try sends to all at once and reports whether the event is done with.
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
