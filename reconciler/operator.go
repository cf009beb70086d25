// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/reconciler/cluster"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/policy"
	"github.com/lockstep-dev/lockstep/reconciler/pool"
	"github.com/lockstep-dev/lockstep/reconciler/release"
	"github.com/lockstep-dev/lockstep/reconciler/source"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// LeaseName is the name of the leader's Lease.
const LeaseName = "lockstep-reconciler"

// Options configure an Operator. Config, Log, Now and StateDir are required.
type Options struct {
	// Config reaches the API server with the reconciler's own role.
	Config *rest.Config
	Log    logr.Logger
	// Version of the program, for logs and user agents.
	Version string
	// Now is the clock.
	Now func() time.Time
	// StateDir holds mirrors and caches; its content may be lost at any time.
	StateDir string
	// TrustRootDigest pins the first trust document.
	TrustRootDigest trust.Digest
	// RegistriesFile configures access to registries; "" for the defaults.
	RegistriesFile string
	// Outbound has the proxy and the certificate authorities for Git servers and
	// registries.
	Outbound outbound.Settings
	// AllowLoopbackRegistries and AllowInsecureSources are insecure options, shown
	// as condition Insecure.
	AllowLoopbackRegistries bool
	AllowInsecureSources    bool
	// AgentPKIDir holds ca.crt, tls.crt and tls.key from lockstep pki issue caller;
	// "" disables hosts.
	AgentPKIDir string
	// ClusterUID identifies the cluster to agents; "" for the UID of namespace
	// kube-system.
	ClusterUID string
	// LeaderElection makes the process act only while it holds the lease.
	LeaderElection bool
	// LeaseDuration is the time after which another process may take over the lease
	// of a leader that stopped renewing it; zero for 30 seconds.
	LeaseDuration time.Duration
	// MetricsAddress and HealthAddress are listen addresses; "0" disables them.
	MetricsAddress, HealthAddress string
	// EventsAddress is the address of a Flux notification-controller; "" for none.
	EventsAddress string
}

// insecureOptions describes the insecure options that are set.
func (opts Options) insecureOptions() []string {
	var out []string
	if opts.AllowInsecureSources {
		out = append(out, "Git over http and file is allowed (--allow-insecure-sources)")
	}
	if opts.AllowLoopbackRegistries {
		out = append(out, "registries on loopback, without TLS, are allowed (--allow-loopback-registries)")
	}
	return out
}

// Operator runs the controllers. Its counterpart in OpenShift is the
// cluster-version-operator's type of the same name.
type Operator struct {
	opts    Options
	manager ctrl.Manager
	base    control.Base
	kube    kubernetes.Interface
	// uid identifies the cluster to agents.
	uid string
	// ready is closed once the leader has loaded the accepted state.
	ready chan struct{}
	// fail ends Run with an error; Run sets it.
	fail func(error)

	sources *source.Controller
}

// New returns an Operator. It sends one request to the API server, for the cluster's
// UID.
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
			return nil, fmt.Errorf("read UID of namespace %s: %w", metav1.NamespaceSystem, err)
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
	o := &Operator{opts: opts, manager: mgr, kube: kube, uid: uid, ready: make(chan struct{}), fail: func(error) {}}
	o.base = control.Base{
		Client:  mgr.GetClient(),
		Reader:  mgr.GetAPIReader(),
		Store:   state.New(kube.CoreV1().ConfigMaps(v1alpha1.Namespace)),
		Events:  recorder,
		Metrics: metrics.MustMakeRecorder(),
		Log:     opts.Log,
		Now:     opts.Now,
		Ready:   o.ready,
		Fatal:   o.fatal,
	}
	if err := o.assemble(); err != nil {
		return nil, err
	}
	return o, nil
}

// newManager returns the controller manager. It caches only the declared kinds of
// Lockstep's namespace, and Nodes.
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
	// Fewer than six renewals per minute by default, and two attempts before the
	// lease is lost.
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

// assemble creates the controllers and registers them with the manager.
func (o *Operator) assemble() error {
	target, err := cluster.New(cluster.Config{REST: o.opts.Config, Now: o.opts.Now, Log: o.opts.Log})
	if err != nil {
		return err
	}
	checker, err := health.NewChecker(target.Live, o.opts.Now)
	if err != nil {
		return fmt.Errorf("health rules: %w", err)
	}
	reg, err := newRegistry(o.opts)
	if err != nil {
		return err
	}
	// The accepted release survives a restart while the registry is unavailable.
	cached, err := registry.NewCache(reg, filepath.Join(o.opts.StateDir, "registry"), o.opts.Now)
	if err != nil {
		return err
	}
	maps, insecure := o.kube.CoreV1().ConfigMaps(v1alpha1.Namespace), o.opts.insecureOptions()
	toReleases, toPools := control.NewTrigger(16), control.NewTrigger(16)
	releaseMetrics, poolMetrics := release.NewMetrics(), pool.NewMetrics()

	trusts, err := policy.New(policy.Config{Base: o.base, RootDigest: o.opts.TrustRootDigest})
	if err != nil {
		return err
	}
	o.sources, err = source.New(source.Config{
		Base: o.base, StateDir: o.opts.StateDir, Outbound: o.opts.Outbound, AllowInsecure: o.opts.AllowInsecureSources, InsecureOptions: insecure,
		RootDigest: o.opts.TrustRootDigest, Secrets: o.kube.CoreV1().Secrets(v1alpha1.Namespace), Releases: toReleases, Pools: toPools,
	})
	if err != nil {
		return err
	}
	releases, err := release.New(release.Config{
		Base: o.base, Cluster: target, Sources: o.sources, SourceChanges: toReleases, ConfigMaps: maps, Ledger: ledger.NewStore(maps),
		Registry: cached, Fetcher: image.New(cached, image.Limits{}), Health: checker, Metrics: releaseMetrics, InsecureOptions: insecure,
	})
	if err != nil {
		return err
	}
	pools, err := pool.New(pool.Config{
		Base: o.base, Kube: o.kube, Sources: o.sources, Releases: releases, SourceChanges: toPools, Ledger: ledger.NewStore(maps),
		Registry: cached, Metrics: poolMetrics, PKIDir: o.opts.AgentPKIDir, ClusterUID: o.uid, Version: o.opts.Version,
	})
	if err != nil {
		return err
	}
	for _, c := range slices.Concat(target.Metrics.Collectors(), releaseMetrics.Collectors(), poolMetrics.Collectors()) {
		if err := ctrlmetrics.Registry.Register(c); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	reporter, err := o.newReporter()
	if err != nil {
		return err
	}
	for _, runnable := range []manager.Runnable{control.LeaderFunc(o.load), target, reporter} {
		if err := o.manager.Add(runnable); err != nil {
			return err
		}
	}
	for _, controller := range []interface{ SetupWithManager(ctrl.Manager) error }{trusts, o.sources, releases, pools} {
		if err := controller.SetupWithManager(o.manager); err != nil {
			return err
		}
	}
	if err := o.manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return o.manager.AddReadyzCheck("ping", healthz.Ping)
}

// Run runs the operator until ctx ends or the lease is lost. A lost lease is an
// error, after which the process must exit.
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

// fatal ends Run with an error, and with it the process.
func (o *Operator) fatal(err error) { o.fail(err) }

// load loads the accepted state once this process is the leader; controllers wait
// for it.
func (o *Operator) load(ctx context.Context) error {
	if err := o.base.Store.Load(ctx); err != nil {
		return err
	}
	close(o.ready)
	<-ctx.Done()
	return nil
}

// newRegistry returns the client for registries.
func newRegistry(opts Options) (*registry.Client, error) {
	var cfg registry.Config
	if opts.RegistriesFile != "" {
		var err error
		if cfg, err = registry.LoadConfig(opts.RegistriesFile); err != nil {
			return nil, err
		}
	}
	return registry.New(cfg, registry.Options{
		AllowLoopback: opts.AllowLoopbackRegistries, Outbound: opts.Outbound, Now: opts.Now, UserAgent: "lockstep-reconciler/" + opts.Version,
	})
}
