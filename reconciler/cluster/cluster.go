// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster holds what all controllers use of one Kubernetes cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Cluster is one cluster to which releases are applied. It is safe for concurrent
// use.
type Cluster struct {
	// REST reaches the API server with the reconciler's own role.
	REST *rest.Config
	// Live is the watch cache. It reads with the reconciler's own role.
	Live *live.Cache
	// Shared is the budget of concurrent requests, and the owner of each object,
	// of all releases.
	Shared *apply.Shared
	// Metrics are those of all apply engines.
	Metrics *apply.Metrics
	// Version returns the version of the API server.
	Version discovery.ServerVersionInterface
}

// Config configures a Cluster. REST and Now are required.
type Config struct {
	REST *rest.Config
	Now  func() time.Time
	Log  logr.Logger
}

// New returns a Cluster. It sends no request before Start.
func New(cfg Config) (*Cluster, error) {
	if cfg.REST == nil || cfg.Now == nil {
		return nil, errors.New("cluster: REST and Now are required")
	}
	cache, err := live.New(live.Config{REST: cfg.REST, Now: cfg.Now, Log: cfg.Log.WithName("live")})
	if err != nil {
		return nil, fmt.Errorf("watch cache: %w", err)
	}
	version, err := discovery.NewDiscoveryClientForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("discovery client: %w", err)
	}
	return &Cluster{
		REST: cfg.REST, Live: cache, Shared: apply.NewShared(apply.DefaultConcurrency), Metrics: apply.NewMetrics(), Version: version,
	}, nil
}

// Start implements manager.Runnable: watches run until ctx ends.
func (c *Cluster) Start(ctx context.Context) error { return c.Live.Start(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Cluster) NeedLeaderElection() bool { return true }

// Impersonate returns a client configuration that impersonates a service account
// of Lockstep's namespace. Only reconciler/apply may use it: applying arbitrary
// manifests requires cluster-admin.
func (c *Cluster) Impersonate(serviceAccount string) *rest.Config {
	cfg := rest.CopyConfig(c.REST)
	cfg.QPS = -1
	// The API server adds the groups of a service account; naming them would
	// require the right to impersonate groups.
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", v1alpha1.Namespace, serviceAccount),
	}
	return cfg
}
