// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// line is one line of a log, without its newline.
type line struct {
	text string
	at   time.Time
}

// buffer is a bounded queue of lines, numbered from 0; the oldest are dropped first.
type buffer struct {
	limit int

	mu      sync.Mutex
	lines   []line
	first   uint64 // the number of lines[0]
	size    int
	changed chan struct{} // closed and replaced at each change
	closed  bool
}

func newBuffer(limit int) *buffer { return &buffer{limit: limit, changed: make(chan struct{})} }

// add appends a line and drops the oldest ones over the limit.
func (b *buffer) add(l line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, l)
	b.size += len(l.text) + 1
	drop := 0
	for b.size > b.limit && drop < len(b.lines)-1 {
		b.size -= len(b.lines[drop].text) + 1
		drop++
	}
	if drop > 0 {
		clear(b.lines[:drop]) // release the text to the garbage collector
		b.lines = b.lines[drop:]
		b.first += uint64(drop)
	}
	b.wake()
}

// wake notifies the waiting readers; the lock is held.
func (b *buffer) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// close closes the buffer and notifies the waiting readers.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.wake()
}

// get returns line n, or the oldest stored line after it, with its number and
// the number of lost lines. Without one it returns a channel to wait on; closed
// means that no more lines follow.
func (b *buffer) get(n uint64) (l line, at, lost uint64, changed <-chan struct{}, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < b.first {
		lost, n = b.first-n, b.first
	}
	if n-b.first < uint64(len(b.lines)) {
		return b.lines[n-b.first], n, lost, nil, false
	}
	return line{}, n, lost, b.changed, b.closed
}

// wait is a blocking get; false means that ctx ended or the buffer was closed.
func (b *buffer) wait(ctx context.Context, n uint64) (line, uint64, uint64, bool) {
	for {
		l, at, lost, changed, closed := b.get(n)
		if changed == nil {
			return l, at, lost, true
		}
		if closed {
			return line{}, 0, 0, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return line{}, 0, 0, false
		}
	}
}

// bounds returns the numbers of the oldest and the next line.
func (b *buffer) bounds() (first, next uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first, b.first + uint64(len(b.lines))
}

// writer splits its input into lines.
type writer struct {
	buffer *buffer
	now    func() time.Time

	mu   sync.Mutex
	part []byte
}

// Write implements io.Writer; it never fails.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := len(p)
	for len(p) > 0 {
		head, rest, found := bytes.Cut(p, []byte{'\n'})
		if room := MaxLine - len(w.part); len(head) > room {
			head, rest, found = p[:room], p[room:], true
		}
		w.part = append(w.part, head...)
		if found {
			w.flush()
		}
		p = rest
	}
	return total, nil
}

// flush ends the line; the lock is held.
func (w *writer) flush() {
	w.buffer.add(line{text: string(w.part), at: w.now()})
	w.part = w.part[:0]
}

// Close implements io.Closer; it ends an unfinished line.
func (w *writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.part) > 0 {
		w.flush()
	}
	return nil
}

// reader reads lines as text.
type reader struct {
	buffer *buffer
	follow bool
	next   uint64
	end    uint64          // end of a reader that doesn't follow
	ctx    context.Context //nolint:containedctx // Close interrupts Read.
	cancel context.CancelFunc

	mu      sync.Mutex
	pending []byte
}

// newReader returns a reader at the position of the options.
func newReader(b *buffer, o nodeos.LogOptions) *reader {
	first, next := b.bounds()
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // LogHandler.Reader has no context: Close ends it.
	r := &reader{buffer: b, follow: o.Follow, next: first, end: next, ctx: ctx, cancel: cancel}
	if o.TailLines != nil {
		r.next = next - min(uint64(*o.TailLines), next-first) //nolint:gosec // checked not to be negative.
	}
	return r
}

// Read implements io.Reader; a follower waits for lines until Close.
func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return 0, io.ErrClosedPipe
	}
	if len(r.pending) == 0 {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.pending)
	r.pending = r.pending[n:]
	return n, nil
}

// fill reads the next line.
func (r *reader) fill() error {
	if !r.follow && r.next >= r.end {
		return io.EOF
	}
	l, at, lost, ok := r.buffer.wait(r.ctx, r.next)
	if !ok {
		return io.EOF
	}
	r.pending = r.pending[:0]
	if lost > 0 {
		r.pending = fmt.Appendf(r.pending, "--- %d lines lost: the reader is too slow ---\n", lost)
	}
	r.pending = append(append(r.pending, l.text...), '\n')
	r.next = at + 1
	return nil
}

// Close implements io.Closer; it interrupts a waiting Read.
func (r *reader) Close() error {
	r.cancel()
	return nil
}
