// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// applyShared is what all releases of the process apply with: the budget of
// requests in flight, the metrics, and one watch cache. The cache reads with
// the reconciler's own role; only writes impersonate.
type applyShared struct {
	budget  *apply.Shared
	metrics *apply.Metrics
	live    *live.Cache
	config  *rest.Config
}

func newApplyShared(opts Options) (*applyShared, error) {
	cache, err := live.New(live.Config{REST: opts.Config, Now: opts.Now, Log: opts.Log.WithName("live")})
	if err != nil {
		return nil, fmt.Errorf("watch cache: %w", err)
	}
	return &applyShared{
		budget:  apply.NewShared(apply.DefaultConcurrency),
		metrics: apply.NewMetrics(),
		live:    cache,
		config:  opts.Config,
	}, nil
}

// Start implements manager.Runnable: watches run until ctx ends.
func (s *applyShared) Start(ctx context.Context) error { return s.live.Start(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*applyShared) NeedLeaderElection() bool { return true }

// as returns the configuration that impersonates a service account of our
// namespace. It is handed to reconciler/apply and to nothing else: applying
// arbitrary manifests takes an administrator's rights.
func (s *applyShared) as(serviceAccount string) *rest.Config {
	cfg := rest.CopyConfig(s.config)
	cfg.QPS = -1
	// The server adds the groups of a service account by itself; naming them
	// would take the right to impersonate groups.
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", v1alpha1.Namespace, serviceAccount),
	}
	return cfg
}
