// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// Limits of connections. The first two apply before authentication, the third
// after it.
const (
	maxPerAddress = 64
	maxTotal      = 512
	maxPerCaller  = 32
)

// counter counts open connections or streams, by key and in total.
type counter struct {
	mu         sync.Mutex
	open       map[string]int
	total      int
	each, most int
}

func newCounter(each, most int) *counter {
	return &counter{open: map[string]int{}, each: each, most: most}
}

// acquire adds one, or returns false at a limit.
func (c *counter) acquire(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[key] >= c.each || c.total >= c.most {
		return false
	}
	c.open[key]++
	c.total++
	return true
}

// release removes one; keys with a zero count are deleted.
func (c *counter) release(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.open[key]--; c.open[key] <= 0 {
		delete(c.open, key)
	}
}

// countedConn releases its count when it's closed.
type countedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

func counted(conn net.Conn, c *counter, key string) net.Conn {
	return &countedConn{Conn: conn, release: sync.OnceFunc(func() { c.release(key) })}
}

// limitedListener closes connections over the limits immediately, so that one
// address can't exhaust them for all others.
type limitedListener struct {
	net.Listener
	counter *counter
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := conn.RemoteAddr().String()
		if host, _, err := net.SplitHostPort(key); err == nil {
			key = host
		}
		if l.counter.acquire(key) {
			return counted(conn, l.counter, key), nil
		}
		_ = conn.Close()
	}
}

// callerInfo is the result of a handshake.
type callerInfo struct {
	credentials.TLSInfo
	caller   mtls.Caller
	notAfter time.Time
}

// callerCredentials are TLS credentials that identify and count callers.
type callerCredentials struct {
	credentials.TransportCredentials
	cluster string
	counter *counter
}

func newCallerCredentials(config *tls.Config, cluster string) callerCredentials {
	return callerCredentials{
		TransportCredentials: credentials.NewTLS(config),
		cluster:              cluster,
		counter:              newCounter(maxPerCaller, maxTotal),
	}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c callerCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	info, ok := auth.(credentials.TLSInfo)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("handshake returned %T, want TLS", auth), conn.Close())
	}
	caller, err := mtls.CallerIn(info.State, c.cluster)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	key := caller.String()
	if !c.counter.acquire(key) {
		return nil, nil, errors.Join(fmt.Errorf("%s already has %d connections", key, maxPerCaller), conn.Close())
	}
	return counted(conn, c.counter, key), callerInfo{TLSInfo: info, caller: caller, notAfter: info.State.PeerCertificates[0].NotAfter}, nil
}

// ClientHandshake implements credentials.TransportCredentials; agents never dial.
func (c callerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("agent credentials are for servers only")
}

// Clone implements credentials.TransportCredentials.
func (c callerCredentials) Clone() credentials.TransportCredentials { return c }
