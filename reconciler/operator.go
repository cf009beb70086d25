// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// LeaseName is the name of the leader's Lease.
const LeaseName = "lockstep-reconciler"

// Options configure an Operator. Config, Log, Now and StateDir are required.
type Options struct {
	// Config reaches the API server with the reconciler's own, small role.
	Config *rest.Config
	Log    logr.Logger
	// Version of the program, for logs and user agents.
	Version string
	// Now is the clock.
	Now func() time.Time
	// StateDir holds mirrors; it may be lost at any time.
	StateDir string
	// TrustRootDigest pins the first trust document.
	TrustRootDigest trust.Digest
	// RegistriesFile says how registries are reached; "" for the defaults.
	RegistriesFile string
	// AllowLoopbackRegistries and AllowInsecureSources are doors for
	// development; they show as condition Insecure.
	AllowLoopbackRegistries bool
	AllowInsecureSources    bool
	// AgentPKIDir holds ca.crt, tls.crt and tls.key, as lockstep pki issue caller
	// makes them; "": no host is driven.
	AgentPKIDir string
	// ClusterUID identifies the cluster to agents; "": that of kube-system.
	ClusterUID string
	// ServiceAccount is the one that this process runs as.
	ServiceAccount string
	// LeaderElection makes the process act only while it holds the lease.
	LeaderElection bool
	// LeaseDuration is how long a silent leader keeps it.
	LeaseDuration time.Duration
	// MetricsAddress and HealthAddress are where the process serves; "0" for
	// nowhere.
	MetricsAddress, HealthAddress string
	// EventsAddress of a Flux notification-controller; "" for none.
	EventsAddress string
}

// Operator runs the controllers. Its counterpart in OpenShift is the
// cluster-version-operator's type of the same name.
type Operator struct {
	opts    Options
	manager ctrl.Manager
	base    base
	kube    kubernetes.Interface
	// uid identifies the cluster to agents.
	uid string
	// ready is closed once the leader has loaded what was accepted.
	ready chan struct{}
	// fail is what fatal calls; Run sets it.
	fail func(error)

	releases *releases
	sources  *sourceRuntimes
	hosts    *hostRuntime
}

// New builds an Operator. It speaks to the API server once, to learn the
// cluster's identity.
func New(ctx context.Context, opts Options) (*Operator, error) {
	if opts.Config == nil || opts.Now == nil || opts.StateDir == "" {
		return nil, errors.New("operator: Config, Now and StateDir are required")
	}
	kube, err := kubernetes.NewForConfig(opts.Config)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", opts.Config.Host, err)
	}
	uid := opts.ClusterUID
	if uid == "" {
		ns, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("identity of the cluster, the UID of namespace %s: %w", metav1.NamespaceSystem, err)
		}
		uid = string(ns.UID)
	}
	mgr, err := newManager(opts)
	if err != nil {
		return nil, err
	}
	recorder, err := events.NewRecorder(opts.Log, opts.EventsAddress, "lockstep-reconciler", events.WithManager(mgr))
	if err != nil {
		return nil, fmt.Errorf("event recorder: %w", err)
	}
	o := &Operator{opts: opts, manager: mgr, kube: kube, uid: uid, ready: make(chan struct{})}
	o.fail = func(error) {}
	o.base = base{
		client:  mgr.GetClient(),
		live:    mgr.GetAPIReader(),
		store:   state.New(kube.CoreV1().ConfigMaps(v1alpha1.Namespace)),
		events:  recorder,
		metrics: metrics.MustMakeRecorder(),
		gauges:  newReleaseMetrics(),
		now:     opts.Now,
		ready:   o.ready,
	}
	if err := o.assemble(); err != nil {
		return nil, err
	}
	return o, nil
}

// newManager makes the controller manager: caches for our kinds in our
// namespace and for Nodes, nothing else.
func newManager(opts Options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	ours := cache.ByObject{Namespaces: map[string]cache.Config{v1alpha1.Namespace: {}}}
	lease := opts.LeaseDuration
	if lease == 0 {
		lease = 30 * time.Second
	}
	// Not quite six renewals a minute by default, and two tries before the lease
	// is given up.
	renew, retry := lease*2/3, lease*3/8
	mgr, err := ctrl.NewManager(opts.Config, ctrl.Options{
		Scheme:                        scheme,
		Logger:                        opts.Log,
		Metrics:                       metricsserver.Options{BindAddress: opts.MetricsAddress},
		HealthProbeBindAddress:        opts.HealthAddress,
		LeaderElection:                opts.LeaderElection,
		LeaderElectionID:              LeaseName,
		LeaderElectionNamespace:       v1alpha1.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&v1alpha1.GitSource{}:      ours,
				&v1alpha1.ClusterRelease{}: ours,
				&v1alpha1.NodeOS{}:         ours,
				&v1alpha1.Host{}:           ours,
				&v1alpha1.TrustPolicy{}:    ours,
				&corev1.Node{}:             {},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Pod{}, &corev1.Namespace{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("controller manager: %w", err)
	}
	return mgr, nil
}

// assemble makes the runtimes and registers the controllers.
func (o *Operator) assemble() error {
	reg, err := newRegistry(o.opts)
	if err != nil {
		return err
	}
	shared, err := newApplyShared(o.opts)
	if err != nil {
		return err
	}
	for _, c := range append(shared.metrics.Collectors(), o.base.gauges.collectors()...) {
		if err := ctrlmetrics.Registry.Register(c); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	checker, err := health.NewChecker(shared.live, o.opts.Now)
	if err != nil {
		return fmt.Errorf("health rules: %w", err)
	}
	o.sources = newSourceRuntimes(o)
	// A process that starts while the registry is away goes on with the release
	// that the one before it had brought.
	kept, err := registry.NewCache(reg, filepath.Join(o.opts.StateDir, "registry"), o.opts.Now)
	if err != nil {
		return err
	}
	o.releases = newReleases(o, &imageAccess{registry: kept, fetcher: image.New(kept, image.Limits{})}, shared, checker)
	o.hosts, err = newHostRuntime(o)
	if err != nil {
		return err
	}
	for _, add := range []func() error{
		func() error { return o.manager.Add(leaderFunc(o.load)) },
		func() error { return o.manager.Add(shared) },
		func() error { return o.manager.Add(o.releases) },
		func() error { return o.manager.Add(o.sources) },
		o.addTrust, o.addSources, o.addReleases, o.addHosts,
		o.addReporter,
		func() error { return o.manager.AddHealthzCheck("ping", healthz.Ping) },
		func() error { return o.manager.AddReadyzCheck("ping", healthz.Ping) },
	} {
		if err := add(); err != nil {
			return err
		}
	}
	return nil
}

// Run runs the operator until ctx ends or the lease is lost; a lost lease is an
// error, and the process must exit then.
func (o *Operator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o.fail = func(err error) { cancel(err) }
	if err := o.manager.Start(ctx); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// fatal ends Run with the error: this process must not go on.
func (o *Operator) fatal(err error) { o.fail(err) }

// load reads what was accepted, once this process is the leader; controllers
// wait for it.
func (o *Operator) load(ctx context.Context) error {
	if err := o.base.store.Load(ctx); err != nil {
		return err
	}
	close(o.ready)
	<-ctx.Done()
	return nil
}

// leaderFunc is a function that runs while this process is the leader.
type leaderFunc func(context.Context) error

// Start implements manager.Runnable.
func (f leaderFunc) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (leaderFunc) NeedLeaderElection() bool { return true }

// group runs goroutines that end with a context and are waited for.
type group struct {
	mu  sync.Mutex
	ctx context.Context //nolint:containedctx // the life of the goroutines, set once by run
	wg  sync.WaitGroup
}

// run makes the group usable until ctx ends, then waits for its goroutines.
func (g *group) run(ctx context.Context) {
	g.mu.Lock()
	g.ctx = ctx
	g.mu.Unlock()
	<-ctx.Done()
	// Whoever holds the lock now either sees the end or is waited for.
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wg.Wait()
}

// goWith runs f with a context that ends with the group or by the returned
// function, which waits for f. It reports false before run and after its end.
func (g *group) goWith(f func(context.Context)) (stop func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil || g.ctx.Err() != nil {
		return nil, false
	}
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan struct{})
	g.wg.Go(func() {
		defer close(done)
		f(ctx)
	})
	return func() {
		cancel()
		<-done
	}, true
}

// newRegistry makes the client for registries.
func newRegistry(opts Options) (*registry.Client, error) {
	var cfg registry.Config
	if opts.RegistriesFile != "" {
		var err error
		if cfg, err = registry.LoadConfig(opts.RegistriesFile); err != nil {
			return nil, err
		}
	}
	return registry.New(cfg, registry.Options{
		AllowLoopback: opts.AllowLoopbackRegistries, Now: opts.Now, UserAgent: "lockstep-reconciler/" + opts.Version,
	})
}
