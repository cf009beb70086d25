// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const cluster = "uid-1"

var start = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

// core is a Controller that applies the decisions of runner to an in-memory state:
// orders are accepted as on a host, but nothing runs.
type core struct {
	mu    sync.Mutex
	state runner.State
	now   func() time.Time
}

func (c *core) policy() runner.Policy {
	return runner.Policy{ClusterUID: cluster, RestartInterval: 10 * time.Minute}
}

func (c *core) Run(_ context.Context, seq nodeos.Sequence, data nodeos.Request, _ ...nodeos.ControllerOption) (nodeos.Ticket, error) {
	plan, err := nodeos.Plan(seq, nodeos.ModeMetal, data)
	if err != nil {
		return nodeos.Ticket{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next, _, ticket, err := runner.Admit(c.state, runner.Order{Sequence: seq, Request: data, Plan: plan}, c.policy(), c.now())
	c.state = next
	return ticket, err
}

func (c *core) Decide(_ context.Context, d nodeos.Decision) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, _, err := runner.Decide(c.state, d, c.policy(), c.now())
	c.state = next
	return err
}

func (c *core) Extend(_ context.Context, e nodeos.Extension) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, _, until, err := runner.Extend(c.state, e, c.policy(), c.now())
	c.state = next
	return until, err
}

func (c *core) Fence() nodeos.Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Fence
}

func (c *core) ResetFence(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = runner.ResetFence(c.state)
	return nil
}

func (c *core) Facts(context.Context) (nodeos.HostFacts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nodeos.HostFacts{Mode: nodeos.ModeMetal, Inventory: nodeos.Inventory{Backend: "none", BootID: "boot-1"}, Fence: c.state.Fence}, nil
}

func (c *core) Operation(id string) (nodeos.OperationStatus, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Status(id)
}

// silent is an event stream and a logging manager without events and logs.
type silent struct{}

func (silent) Watch(ctx context.Context, f nodeos.WatchFunc, _ ...nodeos.WatchOptionFunc) error {
	events := make(chan nodeos.EventInfo)
	stop := context.AfterFunc(ctx, func() { close(events) })
	defer stop()
	f(events)
	return nil
}

func (silent) ServiceLog(service string) nodeos.LogHandler { return silentLog(service) }

func (silent) SetSenders([]nodeos.LogSender) []nodeos.LogSender { return nil }

type silentLog string

func (silentLog) Writer() (io.WriteCloser, error) { return nil, io.ErrClosedPipe }

func (l silentLog) Reader(...nodeos.LogOption) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("one\ntwo\n")), nil
}

// env is a server on loopback with its PKI.
type env struct {
	t       *testing.T
	pki     *mtls.Directory
	core    *core
	trust   *TrustStore
	address string
	stop    func()
	mu      sync.Mutex
	clock   time.Time
}

func (b *env) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock
}

func (b *env) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock = b.clock.Add(d)
}

// newEnv starts the server of host h1 over TLS.
func newEnv(t *testing.T, change ...func(*Config)) *env {
	t.Helper()
	pki, err := mtls.InitDirectory(filepath.Join(t.TempDir(), "pki"), cluster, start)
	if err != nil {
		t.Fatal(err)
	}
	b := &env{t: t, pki: pki, clock: start}
	b.core = &core{now: b.now}
	dir, _, err := pki.IssueHost("h1", nil, nil, start)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := mtls.Open(mtls.InDir(dir), b.now)
	if err != nil {
		t.Fatal(err)
	}
	b.trust, err = OpenTrustStore(t.TempDir(), b.now)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Identity: identity, ClusterUID: cluster, Version: "1.2.3", Controller: b.core,
		Events: silent{}, Logs: silent{}, Trust: b.trust, Now: b.now,
	}
	for _, f := range change {
		f(&cfg)
	}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, time.Second) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// conn connects as a caller with a role.
func (b *env) conn(name string, role mtls.Role) *grpc.ClientConn {
	b.t.Helper()
	dir, _, err := b.pki.IssueCaller(name, role, b.now())
	if err != nil {
		b.t.Fatal(err)
	}
	identity, err := mtls.Open(mtls.InDir(dir), b.now)
	if err != nil {
		b.t.Fatal(err)
	}
	config, err := identity.ClientConfig(mtls.Host{ClusterUID: cluster, HostID: "h1"})
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+b.address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *env) client(name string, role mtls.Role) agentpb.AgentClient {
	b.t.Helper()
	return agentpb.NewAgentClient(b.conn(name, role))
}

// refusalOf returns the details of a refused call.
func refusalOf(t *testing.T, err error) (*status.Status, *agentpb.Refusal) {
	t.Helper()
	st, ok := status.FromError(err)
	if !ok || err == nil {
		t.Fatalf("error %v is not a refusal", err)
	}
	for _, detail := range st.Details() {
		if refusal, ok := detail.(*agentpb.Refusal); ok {
			return st, refusal
		}
	}
	return st, &agentpb.Refusal{}
}

func order(id string, epoch uint64) *agentpb.Order {
	return &agentpb.Order{OperationId: id, Attempt: "a1", Fence: &agentpb.Fence{ClusterUid: cluster, Epoch: epoch}}
}

func osImage(c, version string) *agentpb.Image {
	return &agentpb.Image{
		Reference: "registry.example.com/platform/os@sha256:" + strings.Repeat(c, 64), Product: "platform-os", Version: version,
	}
}
