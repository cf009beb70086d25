// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is the gRPC server on a host. It authenticates callers by their
// certificates, authorizes methods by a static role table, converts calls to
// orders for the host's controller, and reports facts, events and logs.
//
// nodeos plans an order and nodeos/runner executes it. The image source, which
// the binary passes to the controller, verifies images against the trust document
// in TrustStore. The package has no access to the cluster.
package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// DefaultPort is the default TCP port of agents.
const DefaultPort = 50700

// Limits of the server.
const (
	// maxWireMessage limits requests and responses, in bytes.
	maxWireMessage = 64 << 10
	maxHeaders     = 8 << 10
	bufferSize     = 4 << 10
	maxCalls       = 32 // concurrent calls per connection
)

// Controller executes orders; nodeos/runner implements it.
type Controller interface {
	// Run starts a sequence; see nodeos.Controller.
	Run(ctx context.Context, seq nodeos.Sequence, data nodeos.Request, setters ...nodeos.ControllerOption) (nodeos.Ticket, error)
	// Decide applies a verdict to a waiting operation.
	Decide(ctx context.Context, d nodeos.Decision) error
	// Extend moves the commit deadline and returns it.
	Extend(ctx context.Context, e nodeos.Extension) (time.Time, error)
	// ResetFence clears the stored fence.
	ResetFence(ctx context.Context) error
	Observer
}

// Observer reads the state of the controller.
type Observer interface {
	// Facts returns the current facts of the host.
	Facts(ctx context.Context) (nodeos.HostFacts, error)
	// Fence returns the highest accepted fence.
	Fence() nodeos.Fence
	// Operation returns the status of an operation.
	Operation(id string) (nodeos.OperationStatus, bool)
}

// Config configures a Server; every field but Log is required.
type Config struct {
	// Identity is the host's certificate, key and the callers' authority.
	Identity *mtls.Store
	// ClusterUID is the cluster that the host belongs to.
	ClusterUID string
	// Version is the agent's semantic version.
	Version string
	// Controller runs sequences.
	Controller Controller
	// Events is the host's event stream.
	Events nodeos.Watcher
	// Logs are the logs of the host's services.
	Logs nodeos.LoggingManager
	// Trust stores the host's trust document.
	Trust *TrustStore
	// Now is the host's clock.
	Now func() time.Time
	// Log receives one line per order and per refusal; nil disables it.
	Log *zap.Logger
}

// Server is the agent's gRPC server. Create one with New and call Serve once.
type Server struct {
	grpc    *grpc.Server
	service *service
}

// New validates the configuration and returns a server.
func New(cfg Config) (*Server, error) {
	for name, missing := range map[string]bool{
		"Identity": cfg.Identity == nil, "ClusterUID": cfg.ClusterUID == "", "Version": cfg.Version == "", "Controller": cfg.Controller == nil,
		"Events": cfg.Events == nil, "Logs": cfg.Logs == nil, "Trust": cfg.Trust == nil, "Now": cfg.Now == nil,
	} {
		if missing {
			return nil, fmt.Errorf("agent configuration: %s is required", name)
		}
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	own, err := mtls.HostOf(cfg.Identity.Leaf())
	if err != nil {
		return nil, fmt.Errorf("agent: own certificate: %w", err)
	}
	tlsConfig, err := cfg.Identity.ServerConfig(cfg.ClusterUID)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	svc := &service{cfg: cfg, host: own, streams: newCounter(maxStreamsPerCaller, maxStreams)}
	guard := guard{table: roleTable(), now: cfg.Now}
	server := grpc.NewServer(
		grpc.Creds(newCallerCredentials(tlsConfig, cfg.ClusterUID)),
		grpc.MaxRecvMsgSize(maxWireMessage), grpc.MaxSendMsgSize(maxWireMessage), grpc.MaxHeaderListSize(maxHeaders),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		grpc.MaxConcurrentStreams(maxCalls), grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(guard.unary), grpc.StreamInterceptor(guard.stream),
		grpc.UnknownServiceHandler(refuseUnknown),
	)
	agentpb.RegisterAgentServer(server, svc)
	return &Server{grpc: server, service: svc}, nil
}

// Serve accepts connections until ctx ends, then waits up to grace for running
// calls. It closes the listener and returns nil after a stop.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) error {
	s.service.stopping = ctx // set before the first call; ends long-lived streams
	done := make(chan error, 1)
	go func() {
		done <- s.grpc.Serve(&limitedListener{Listener: listener, counter: newCounter(maxPerAddress, maxTotal)})
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	timer := time.AfterFunc(grace, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
	if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
