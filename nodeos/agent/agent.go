// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is the gRPC server on a host: it lets callers in by their
// certificates, decides by a table which methods their roles may call, turns
// calls into orders for the host's controller, and reports facts, events and
// logs.
//
// It holds no power of its own: what an order does is planned by nodeos and
// run by nodeos/runner; whether an image may boot is decided by the image
// source that the binary hands to the controller, under the trust document
// that TrustStore keeps. The package imports nothing of the cluster.
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

// DefaultPort is where agents listen unless told otherwise.
const DefaultPort = 50700

// Limits of the server.
const (
	// maxMessage of the wire: requests and answers, in bytes.
	maxWireMessage = 64 << 10
	maxHeaders     = 8 << 10
	bufferSize     = 4 << 10
	maxCalls       = 32 // at the same time on one connection
)

// Controller is what the agent drives: nodeos/runner has it.
type Controller interface {
	// Run starts a sequence; see nodeos.Controller.
	Run(ctx context.Context, seq nodeos.Sequence, data nodeos.Request, setters ...nodeos.ControllerOption) (nodeos.Ticket, error)
	// Decide gives a verdict on an operation that waits.
	Decide(ctx context.Context, d nodeos.Decision) error
	// Extend moves the deadline of the trial and returns it.
	Extend(ctx context.Context, e nodeos.Extension) (time.Time, error)
	// ResetFence forgets the accepted fence.
	ResetFence(ctx context.Context) error
	Observer
}

// Observer is what the agent asks about.
type Observer interface {
	// Facts returns what is true on the host now.
	Facts(ctx context.Context) (nodeos.HostFacts, error)
	// Fence returns the highest accepted fence.
	Fence() nodeos.Fence
	// Operation returns a known operation.
	Operation(id string) (nodeos.OperationStatus, bool)
}

// Config is what a server needs; every field but Log is required.
type Config struct {
	// Identity is the host's certificate, key and the callers' authority.
	Identity *mtls.Store
	// ClusterUID is the cluster that the host belongs to.
	ClusterUID string
	// Version is the agent's own, as semantic versioning has it.
	Version string
	// Controller runs sequences.
	Controller Controller
	// Events and Logs are the host's.
	Events nodeos.Watcher
	// Logs are the logs of the host's services.
	Logs nodeos.LoggingManager
	// Trust keeps the host's trust document.
	Trust *TrustStore
	// Now is the host's clock.
	Now func() time.Time
	// Log gets one line for each order and each refusal; nil: none.
	Log *zap.Logger
}

// Server serves one host. Make one with New, run it once with Serve.
type Server struct {
	grpc    *grpc.Server
	service *service
}

// New checks the configuration and makes a server.
func New(cfg Config) (*Server, error) {
	for name, missing := range map[string]bool{
		"Identity": cfg.Identity == nil, "ClusterUID": cfg.ClusterUID == "", "Version": cfg.Version == "", "Controller": cfg.Controller == nil,
		"Events": cfg.Events == nil, "Logs": cfg.Logs == nil, "Trust": cfg.Trust == nil, "Now": cfg.Now == nil,
	} {
		if missing {
			return nil, fmt.Errorf("agent: configuration has no %s", name)
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
	guard := guard{table: allowed(), now: cfg.Now}
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

// Serve accepts connections until ctx ends, then lets calls finish for up to
// grace and closes. It closes the listener and returns nil after a stop.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) error {
	s.service.stopping = ctx // before the first call; endless streams end with it
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
