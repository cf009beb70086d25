// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const cluster = "uid-1"

// fakeAgent is an agent with configurable responses.
type fakeAgent struct {
	agentpb.UnimplementedAgentServer
	mu      sync.Mutex
	hello   *agentpb.HelloResponse
	facts   nodeos.HostFacts
	refusal error
	stages  int
	events  chan *agentpb.Event
	watched chan *agentpb.WatchEventsRequest
}

func newFakeAgent(hostID string) *fakeAgent {
	return &fakeAgent{
		hello: &agentpb.HelloResponse{
			Version: "1.4.0", HostId: hostID, ClusterUid: cluster, BootId: "boot-1",
			Capabilities: []string{"Hello", "GetFacts", "WatchEvents", "Stage", "GetOperation", "Commit"},
		},
		facts:   nodeos.HostFacts{Mode: nodeos.ModeMetal, Inventory: nodeos.Inventory{BootID: "boot-1"}},
		events:  make(chan *agentpb.Event, 4096),
		watched: make(chan *agentpb.WatchEventsRequest, 64),
	}
}

func (p *fakeAgent) Hello(context.Context, *agentpb.HelloRequest) (*agentpb.HelloResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hello, nil
}

func (p *fakeAgent) GetFacts(context.Context, *agentpb.GetFactsRequest) (*agentpb.Facts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return wire.FactsToProto(p.facts, wire.About{Version: p.hello.GetVersion()}), nil
}

func (p *fakeAgent) Stage(_ context.Context, req *agentpb.StageRequest) (*agentpb.OperationResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stages++
	if p.refusal != nil {
		return nil, p.refusal
	}
	return &agentpb.OperationResponse{Operation: &agentpb.Operation{
		Id: req.GetOrder().GetOperationId(), Sequence: "stageUpgrade", State: agentpb.OperationState_OPERATION_STATE_RUNNING,
	}}, nil
}

func (p *fakeAgent) WatchEvents(req *agentpb.WatchEventsRequest, stream agentpb.Agent_WatchEventsServer) error {
	select {
	case p.watched <- req:
	default:
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case event := <-p.events:
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func (p *fakeAgent) boot(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts.BootID = id
}

// env is a PKI, a fleet under test and the events that it received.
type env struct {
	t     *testing.T
	pki   *mtls.Directory
	fleet *Fleet
	mu    sync.Mutex
	wake  chan struct{}
	seen  []nodeos.EventInfo
}

func newEnv(t *testing.T) *env {
	t.Helper()
	now := time.Now()
	pki, err := mtls.InitDirectory(filepath.Join(t.TempDir(), "pki"), cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := pki.IssueCaller("reconciler", mtls.RoleReconciler, now)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := mtls.Open(mtls.InDir(dir), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r := &env{t: t, pki: pki, wake: make(chan struct{}, 1)}
	r.fleet, err = New(Config{
		Identity: identity, ClusterUID: cluster, Version: "1.5.0", Now: time.Now,
		Changed: func(string) { r.notify() },
		Event: func(_ string, event nodeos.EventInfo) {
			r.mu.Lock()
			r.seen = append(r.seen, event)
			r.mu.Unlock()
			r.notify()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.fleet.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return r
}

func (r *env) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// serve starts an agent of a host at the given address.
func (r *env) serve(hostID, address string, agent agentpb.AgentServer) (string, func()) {
	r.t.Helper()
	dir, _, err := r.pki.IssueHost(hostID, nil, nil, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	identity, err := mtls.Open(mtls.InDir(dir), time.Now)
	if err != nil {
		r.t.Fatal(err)
	}
	config, err := identity.ServerConfig(cluster)
	if err != nil {
		r.t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	agentpb.RegisterAgentServer(server, agent)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	stop := sync.OnceFunc(func() { server.Stop(); <-done })
	r.t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// waitFor waits until fits returns true for a host's state.
func (r *env) waitFor(hostID, what string, fits func(State) bool) State {
	r.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		state, _ := r.fleet.State(hostID)
		if fits(state) {
			return state
		}
		select {
		case <-r.wake:
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("host %s: not %s in 20 s; state %+v", hostID, what, state)
		}
	}
}

func connected(s State) bool { return s.Connected }

func reasonOf(err error) string { return nodeos.ReasonOf(err, "") }

func image(c string) nodeos.Image {
	return nodeos.Image{
		Ref:     nodeos.ImageRef{Repository: "registry.example.com/os", Digest: "sha256:" + strings.Repeat(c, 64)},
		Product: "platform-os", Version: "2.0.0",
	}
}

func TestHostFactsFollowItsEvents(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	address, _ := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	state := r.waitFor("h1", "connected", connected)
	if state.Facts.BootID != "boot-1" || state.Facts.HostID != "h1" || state.About.Version != "1.4.0" {
		t.Errorf("state = %+v", state)
	}
	p.boot("boot-2")
	p.events <- wire.EventToProto(nodeos.Event{ID: nodeos.EventID{BootID: "boot-2", Seq: 1}, Payload: nodeos.EventTrial{What: "armed"}})
	r.waitFor("h1", "at boot-2", func(s State) bool { return s.Facts.BootID == "boot-2" })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) != 1 || r.seen[0].Payload != (nodeos.EventTrial{What: "armed"}) {
		t.Errorf("events = %+v", r.seen)
	}
}

func TestFleetReconnectsAfterARestartAndResumesEvents(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	address, stop := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "connected", connected)
	<-p.watched
	p.events <- wire.EventToProto(nodeos.Event{ID: nodeos.EventID{BootID: "boot-1", Seq: 41}, Payload: nodeos.EventRestart{}})
	r.waitFor("h1", "notified of the restart", func(State) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.seen) == 1
	})
	stop()
	r.waitFor("h1", "disconnected", func(s State) bool { return !s.Connected })
	if err := second(r.fleet.Stage(t.Context(), "h1", Order{OperationID: "op-1"}, image("a"))); reasonOf(err) != "Unreachable" || !strings.Contains(err.Error(), address) {
		t.Errorf("an order to an unreachable host = %v, want Unreachable with %s", err, address)
	}
	p.boot("boot-2")
	r.serve("h1", address, p)
	r.waitFor("h1", "back at boot-2", func(s State) bool { return s.Connected && s.Facts.BootID == "boot-2" })
	if again := <-p.watched; again.GetTailId() != "boot-1/41" {
		t.Errorf("the new stream starts after %q, want boot-1/41", again.GetTailId())
	}
}

func second[A any](_ A, err error) error { return err }

func TestUnreachableErrorNamesEachAddress(t *testing.T) {
	r := newEnv(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{closed, "no-port"}}, {HostID: "h2"}})
	state := r.waitFor("h1", "refused", func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), closed) })
	if reasonOf(state.Err) != "Unreachable" || !strings.Contains(state.Err.Error(), "no-port") {
		t.Errorf("error = %v with reason %q", state.Err, reasonOf(state.Err))
	}
	r.waitFor("h2", "reported without an address", func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), "spec.address") })
	if err := second(r.fleet.Stage(t.Context(), "h9", Order{OperationID: "op-1"}, image("a"))); reasonOf(err) != "Unreachable" {
		t.Errorf("an order to an unknown host = %v", err)
	}
}

func TestSecondAddressIsTriedWhenTheFirstFails(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	address, _ := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{"127.0.0.1:1", address}}})
	r.waitFor("h1", "connected", connected)
}

func TestT5AnotherHostAtTheAddressReceivesNoOrder(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h2")
	address, _ := r.serve("h2", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "refused", func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), "h2") })
	if err := second(r.fleet.Stage(t.Context(), "h1", Order{OperationID: "op-1"}, image("a"))); err == nil || p.stages != 0 {
		t.Errorf("an order reached another host: %v, %d", err, p.stages)
	}
}

func TestT5AgentReportingAnotherHostIDReceivesNoOrder(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h9")
	address, _ := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "refused", func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), "h9") })
}

func TestOnlyListedCapabilitiesAreOrdered(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	address, _ := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "connected", connected)
	_, err := r.fleet.Activate(t.Context(), "h1", Order{OperationID: "op-1"}, Activation{Image: image("a")})
	var version *VersionError
	if !errors.As(err, &version) || version.Method != "Activate" {
		t.Errorf("Activate = %v, want a VersionError", err)
	}
}

func TestAgentsOfTheLastThreeMinorVersionsAreSupported(t *testing.T) {
	for versions, want := range map[[2]string]bool{
		{"1.5.0", "1.5.0"}: true, {"1.5.0", "1.3.9"}: true, {"1.5.0", "1.2.9"}: false, {"1.5.0", "1.9.0"}: true,
		{"1.5.0", "2.0.0"}: false, {"1.5.0", "v1.4.0-rc.1"}: true, {"1.5.0", "newest"}: false, {"1.5.0", "1.5"}: true, {"1.5.0", "1.5.0junk"}: false, {"1.x", "1.5.0"}: false, {"1.5.0", ""}: false,
		{"dev", "1.5.0"}: true, {"1.5.0", "dev"}: true,
	} {
		if got := supports(versions[0], versions[1]); got != want {
			t.Errorf("supports(%q, %q) = %v, want %v", versions[0], versions[1], got, want)
		}
	}
}

func TestRefusalReturnsTheStoredFenceToTheLeader(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	st, err := status.New(codes.FailedPrecondition, "fence epoch 3 is lower\nthan 9").WithDetails(&agentpb.Refusal{
		Reason: "Fenced", StoredFence: &agentpb.Fence{ClusterUid: cluster, Epoch: 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.refusal = st.Err()
	address, _ := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "connected", connected)
	_, err = r.fleet.Stage(t.Context(), "h1", Order{OperationID: "op-1", Fence: nodeos.Fence{ClusterUID: cluster, Epoch: 3}}, image("a"))
	var fenced interface{ Stored() nodeos.Fence }
	if !errors.As(err, &fenced) || fenced.Stored() != (nodeos.Fence{ClusterUID: cluster, Epoch: 9}) {
		t.Fatalf("Stage = %v, want the stored fence 9", err)
	}
	var refused *RefusedError
	if !errors.As(err, &refused) || reasonOf(err) != "Fenced" || strings.Contains(err.Error(), "\n") {
		t.Errorf("refusal = %+v", refused)
	}
}

func TestFloodingHostIsDisconnectedAndOthersAreServed(t *testing.T) {
	r, loud, calm := newEnv(t), newFakeAgent("h1"), newFakeAgent("h2")
	loudAt, _ := r.serve("h1", "127.0.0.1:0", loud)
	calmAt, _ := r.serve("h2", "127.0.0.1:0", calm)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{loudAt}}, {HostID: "h2", Addresses: []string{calmAt}}})
	r.waitFor("h2", "connected", connected)
	r.waitFor("h1", "connected", connected)
	for range 4000 {
		loud.events <- wire.EventToProto(nodeos.Event{Payload: nodeos.EventProgress{Task: "x"}})
	}
	state := r.waitFor("h1", "left alone", func(s State) bool { return reasonOf(s.Err) == "Noisy" })
	if state.Connected {
		t.Error("the flooding host is still connected")
	}
	if _, _, err := r.fleet.Facts(t.Context(), "h2"); err != nil {
		t.Errorf("the calm host = %v", err)
	}
}

func TestRemovedTargetIsDisconnected(t *testing.T) {
	r, p := newEnv(t), newFakeAgent("h1")
	address, stop := r.serve("h1", "127.0.0.1:0", p)
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.waitFor("h1", "connected", connected)
	r.fleet.SetTargets(nil)
	if _, ok := r.fleet.State("h1"); ok {
		t.Error("a removed host has a state")
	}
	if len(r.fleet.States()) != 0 {
		t.Error("States contains a removed host")
	}
	stop()
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{address}}})
	r.fleet.SetTargets([]Target{{HostID: "h1", Addresses: []string{"127.0.0.1:1"}}})
	if ids := r.fleet.States(); len(ids) != 1 || !slices.Equal(ids[0].Target.Addresses, []string{"127.0.0.1:1"}) {
		t.Errorf("States = %+v", ids)
	}
}

func TestDialBackoffGrowsAndIsBounded(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: backoffFirst, 3: 8 * backoffFirst, 7: backoffMost, 1000: backoffMost} {
		for range 50 {
			if got := dialDelay(failures); got < most/2 || got > most {
				t.Fatalf("dialDelay(%d) = %s, want between %s and %s", failures, got, most/2, most)
			}
		}
	}
}
