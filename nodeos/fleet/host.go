// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// host manages the connection to one host.
type host struct {
	cfg    Config
	target Target
	cancel context.CancelFunc // set under Fleet.mu

	mu     sync.Mutex
	state  State
	client agentpb.AgentClient // nil while there is no connection
	// address is the connected address, or the one tried last.
	address string
	// lastEvent is the event after which a new stream continues.
	lastEvent string
}

func newHost(cfg Config, target Target) *host {
	return &host{cfg: cfg, target: target, state: State{Target: target, Err: &UnreachableError{Host: target.HostID, Err: errors.New("not dialed yet")}}}
}

func (h *host) stop() {
	if h.cancel != nil {
		h.cancel()
	}
}

func (h *host) snapshot() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// run connects, observes and reconnects until ctx ends.
func (h *host) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		connected, err := h.tryAll(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			failures = 0
		}
		h.disconnected(err)
		pause := dialDelay(failures)
		if errors.Is(err, errNoisy) {
			pause = noisyFor
		}
		failures++
		if backoff.Wait(ctx, pause) != nil {
			return
		}
	}
}

// tryAll tries the addresses in order and observes the first that answers until
// the connection breaks. It returns whether one answered, and the error.
func (h *host) tryAll(ctx context.Context) (bool, error) {
	if len(h.target.Addresses) == 0 {
		return false, &UnreachableError{Host: h.target.HostID, Err: errors.New("no address: set spec.address of its Host, or an InternalIP of its Node")}
	}
	var all []error
	for _, address := range h.target.Addresses {
		connected, err := h.observe(ctx, address)
		if connected || ctx.Err() != nil {
			return connected, err
		}
		all = append(all, err)
	}
	return false, errors.Join(all...)
}

// observe dials one address and follows the host until the connection breaks. It
// returns whether the host answered.
func (h *host) observe(ctx context.Context, address string) (connected bool, err error) {
	conn, err := h.dial(address)
	if err != nil {
		return false, &UnreachableError{Host: h.target.HostID, Address: address, Err: err}
	}
	defer func() { _ = conn.Close() }()
	client := agentpb.NewAgentClient(conn)
	hello, err := h.hello(ctx, client, address)
	if err != nil {
		return false, err
	}
	h.mu.Lock()
	h.client, h.address = client, address
	h.state.Capabilities = hello
	resume := h.lastEvent
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.client = nil
		h.mu.Unlock()
	}()
	return true, h.follow(ctx, client, address, resume)
}

// hello sends our version and checks the identity and version of the agent.
func (h *host) hello(ctx context.Context, client agentpb.AgentClient, address string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := client.Hello(ctx, &agentpb.HelloRequest{Version: h.cfg.Version})
	if err != nil {
		return nil, callError(h.target.HostID, address, "Hello", err)
	}
	// The certificate already proves both; don't send orders to an agent that
	// contradicts it.
	if answer.GetHostId() != h.target.HostID || answer.GetClusterUid() != h.cfg.ClusterUID {
		return nil, &UnreachableError{Host: h.target.HostID, Address: address, Err: fmt.Errorf("the agent reports host %s of cluster %s",
			sanitize.Line(answer.GetHostId()), sanitize.Line(answer.GetClusterUid()))}
	}
	agent := sanitize.Line(answer.GetVersion())
	if !supports(h.cfg.Version, agent) {
		return nil, &VersionError{Host: h.target.HostID, Agent: agent, Ours: h.cfg.Version}
	}
	capabilities := answer.GetCapabilities()
	if len(capabilities) > 64 {
		capabilities = capabilities[:64]
	}
	var names []string
	for _, name := range capabilities {
		names = append(names, sanitize.Line(name))
	}
	return names, nil
}

// unversioned is the version of a development build.
const unversioned = "dev"

// supports reports whether an agent's version is supported: the same major version
// and at most two minor versions older. The capabilities of a newer agent are
// used. A development build is compatible with all.
func supports(ours, agents string) bool {
	if ours == unversioned || agents == unversioned {
		return true
	}
	major, minor, err := nodeos.MajorMinor(ours)
	agentMajor, agentMinor, agentErr := nodeos.MajorMinor(agents)
	return err == nil && agentErr == nil && major == agentMajor && agentMinor+2 >= minor
}

// errNoisy disconnects a host that sends too many events.
var errNoisy = &noisyError{}

// noisyError means that a host sends too many events.
type noisyError struct{}

// Error implements error.
func (*noisyError) Error() string {
	return fmt.Sprintf("more than %d events per second received: reconnecting in %s", noisyRate, noisyFor)
}

// Reason is the condition reason.
func (*noisyError) Reason() string { return "Noisy" }

// follow reads facts and events until an error.
func (h *host) follow(parent context.Context, client agentpb.AgentClient, address, resume string) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	request := &agentpb.WatchEventsRequest{TailId: resume}
	stream, err := client.WatchEvents(ctx, request)
	if err != nil {
		return callError(h.target.HostID, address, "WatchEvents", err)
	}
	// The watch is opened before the facts are read, so that no change is missed.
	if err := h.refresh(ctx, client, address); err != nil {
		return err
	}
	dirty := make(chan struct{}, 1)
	broken := make(chan error, 1)
	var reader sync.WaitGroup
	reader.Go(func() { broken <- h.read(stream, address, dirty) })
	defer reader.Wait()
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-broken:
			return err
		case <-dirty:
			if err := h.refresh(ctx, client, address); err != nil {
				return err
			}
			if err := backoff.Wait(ctx, refreshEvery); err != nil {
				return err
			}
		}
	}
}

// read receives events until the stream breaks.
func (h *host) read(stream agentpb.Agent_WatchEventsClient, address string, dirty chan<- struct{}) error {
	budget, last := float64(noisyBurst), h.cfg.Now()
	for {
		event, err := stream.Recv()
		if err != nil {
			return callError(h.target.HostID, address, "WatchEvents", err)
		}
		now := h.cfg.Now()
		budget = min(noisyBurst, budget+max(0, now.Sub(last).Seconds())*noisyRate)
		if last, budget = now, budget-1; budget < 0 {
			return &UnreachableError{Host: h.target.HostID, Address: address, Err: errNoisy}
		}
		info := wire.EventFromProto(event)
		h.mu.Lock()
		if id := info.ID.String(); id != "" {
			h.lastEvent = id
		}
		h.state.LastSeen = now
		h.mu.Unlock()
		h.cfg.Event(h.target.HostID, info)
		if _, progress := info.Payload.(nodeos.EventProgress); progress {
			continue // progress doesn't change the facts
		}
		select {
		case dirty <- struct{}{}:
		default: // a refresh is already pending
		}
	}
}

// refresh reads the facts and reports the change.
func (h *host) refresh(ctx context.Context, client agentpb.AgentClient, address string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := client.GetFacts(ctx, &agentpb.GetFactsRequest{})
	if err != nil {
		return callError(h.target.HostID, address, "GetFacts", err)
	}
	h.observed(wire.FactsFromProto(answer))
	return nil
}

// observed stores new facts.
func (h *host) observed(facts nodeos.HostFacts, about wire.About) {
	facts.HostID = h.target.HostID // from the certificate
	h.mu.Lock()
	h.state.Connected, h.state.Err = true, nil
	h.state.Facts, h.state.About, h.state.LastSeen = facts, about, h.cfg.Now()
	h.mu.Unlock()
	h.cfg.Changed(h.target.HostID)
}

// disconnected stores the cause of a disconnect. The same cause again isn't
// reported as a change.
func (h *host) disconnected(err error) {
	if err == nil {
		err = &UnreachableError{Host: h.target.HostID, Err: errors.New("connection closed")}
	}
	h.mu.Lock()
	changed := h.state.Connected || h.state.Err == nil || h.state.Err.Error() != err.Error()
	h.state.Connected, h.state.Err = false, err
	h.mu.Unlock()
	if changed {
		h.cfg.Changed(h.target.HostID)
	}
}

// connection returns the client, or the cause of the disconnect.
func (h *host) connection(method string) (agentpb.AgentClient, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client == nil {
		err := h.state.Err
		if err == nil {
			err = &UnreachableError{Host: h.target.HostID, Address: h.address, Err: errors.New("connection lost")}
		}
		return nil, "", err
	}
	if !slices.Contains(h.state.Capabilities, method) {
		return nil, "", &VersionError{Host: h.target.HostID, Agent: h.state.About.Version, Ours: h.cfg.Version, Method: method}
	}
	return h.client, h.address, nil
}

func (h *host) dial(address string) (*grpc.ClientConn, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("address is not host:port: %w", err)
	}
	creds := hostCredentials{store: h.cfg.Identity, want: mtls.Host{ClusterUID: h.cfg.ClusterUID, HostID: h.target.HostID}}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(creds), grpc.WithAuthority(h.target.HostID), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithMaxHeaderListSize(8<<10), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<10), grpc.MaxCallSendMsgSize(64<<10)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	)
}

// hostCredentials are TLS credentials for one host; each handshake uses the current
// certificate.
type hostCredentials struct {
	store *mtls.Store
	want  mtls.Host
}

// ClientHandshake implements credentials.TransportCredentials.
func (c hostCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.store.ClientConfig(c.want)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, c.want.HostID, raw)
}

// ServerHandshake implements credentials.TransportCredentials; a fleet never serves.
func (c hostCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("fleet credentials are for clients only")
}

// Info implements credentials.TransportCredentials.
func (c hostCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c hostCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials; the name is
// fixed.
func (c hostCredentials) OverrideServerName(string) error {
	return errors.New("the server name is the host id and can't be overridden")
}
