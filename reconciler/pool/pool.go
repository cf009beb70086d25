// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package pool is the controller of NodeOS and Host: it verifies OS images, runs
// the rollout executor over the hosts of each NodeOS, and keeps the connections to
// agents.
package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// Sources is the part of the GitSource controller that this one uses.
type Sources interface {
	// NotFromSource returns why an object must not be acted upon, and nothing if
	// its spec is the declared one.
	NotFromSource(obj client.Object, kind string, spec any) status.HeldBy
	// RemovedFromGit returns why an object whose declaration left Git starts
	// nothing new, and nothing for any other object.
	RemovedFromGit(kind, name string) status.HeldBy
	// Origin returns the source that declares an object and its revision, and false
	// if there is none.
	Origin(kind, name string) (from control.Origin, revision string, ok bool)
}

// Releases is the part of the ClusterRelease controller that this one uses.
type Releases interface {
	// Manifest returns the manifest of an object in an accepted payload, and the
	// name of the release; the preferred release comes first.
	Manifest(id payload.ObjectID, preferred string) (*payload.Manifest, string, bool)
	// Loading reports whether an accepted payload is still being loaded after a
	// restart.
	Loading() bool
}

// Config configures a Controller. Base, Kube, Sources, Releases, SourceChanges,
// Ledger, Registry and Metrics are required.
type Config struct {
	Base     control.Base
	Kube     kubernetes.Interface
	Sources  Sources
	Releases Releases
	// SourceChanges receives when the accepted state of a source changes.
	SourceChanges control.Trigger
	// Ledger has the rollout slots, the fence and the high-water marks.
	Ledger *ledger.Store
	// Registry verifies the signatures of OS images.
	Registry verify.Registry
	Metrics  *Metrics
	// PKIDir has ca.crt, tls.crt and tls.key for connections to agents; "" disables
	// hosts.
	PKIDir string
	// ClusterUID identifies the cluster to agents, Version the program.
	ClusterUID, Version string
}

// Controller updates the hosts of each NodeOS to its operating system. Its exported
// methods are safe for concurrent use.
type Controller struct {
	control.Base
	sources       Sources
	releases      Releases
	sourceChanges control.Trigger
	ledger        *ledger.Store
	metrics       *Metrics
	hosts         *runtime
	decoder       *desired.Decoder
	verifier      *osVerifier

	mu sync.Mutex
	// specs caches the spec hashes of NodeOS manifests, by hash of the manifest.
	specs map[string]string
	// synced is the time of the last sync of each pool.
	synced map[string]time.Time
}

// New returns a Controller. It connects to no host before it is started.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Base.Validate(); err != nil {
		return nil, fmt.Errorf("NodeOS controller: %w", err)
	}
	if cfg.Kube == nil || cfg.Sources == nil || cfg.Releases == nil || cfg.SourceChanges == nil || cfg.Ledger == nil ||
		cfg.Registry == nil || cfg.Metrics == nil {
		return nil, errors.New("NodeOS controller: Kube, Sources, Releases, SourceChanges, Ledger, Registry and Metrics are required")
	}
	decoder, err := desired.NewDecoder()
	if err != nil {
		return nil, fmt.Errorf("schemas of the declared kinds: %w", err)
	}
	hosts, err := newRuntime(cfg)
	if err != nil {
		return nil, err
	}
	return &Controller{
		Base: cfg.Base, sources: cfg.Sources, releases: cfg.Releases, sourceChanges: cfg.SourceChanges, ledger: cfg.Ledger,
		metrics: cfg.Metrics, hosts: hosts, decoder: decoder,
		verifier: newOSVerifier(cfg.Registry, cfg.Base.Store, cfg.Base.Now),
		specs:    map[string]string{}, synced: map[string]time.Time{},
	}, nil
}

// SetupWithManager registers the controllers of NodeOS and Host, and the
// connections to agents.
func (r *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(r.hosts); err != nil {
		return err
	}
	pools := func(ctx context.Context, _ string) []reconcile.Request {
		return r.Requests(ctx, &v1alpha1.NodeOSList{})
	}
	all := r.EnqueueAll(&v1alpha1.NodeOSList{})
	err := control.Builder(mgr, "nodeos", &v1alpha1.NodeOS{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: control.MaxConcurrent}).
		Watches(&corev1.Node{}, all, builder.WithPredicates(nodeChanged())).
		Watches(&v1alpha1.Host{}, all, builder.WithPredicates(control.SpecOrAnnotations())).
		Watches(&v1alpha1.ClusterRelease{}, all, builder.WithPredicates(control.SpecOrAnnotations())).
		Watches(&v1alpha1.TrustPolicy{}, all, builder.WithPredicates(control.TrustAccepted())).
		WatchesRawSource(r.hosts.poolChanged.Source(pools)).
		WatchesRawSource(r.sourceChanges.Source(pools)).
		Complete(r.Guard(r))
	if err != nil {
		return err
	}
	return r.setupHosts(mgr)
}

// setupHosts registers the controller of Host. A single request covers all Hosts,
// which are synced at once.
func (r *Controller) setupHosts(mgr ctrl.Manager) error {
	single := func(context.Context, string) []reconcile.Request { return []reconcile.Request{control.Request("all")} }
	enqueue := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request { return single(ctx, "") })
	return ctrl.NewControllerManagedBy(mgr).Named("host").
		Watches(&v1alpha1.Host{}, enqueue).
		Watches(&corev1.Node{}, enqueue, builder.WithPredicates(nodeChanged())).
		Watches(&v1alpha1.NodeOS{}, enqueue, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.hosts.hostChanged.Source(single)).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			if err := r.WaitReady(ctx); err != nil {
				return reconcile.Result{}, err
			}
			again, err := r.hosts.sync(ctx)
			return reconcile.Result{RequeueAfter: max(again, 0)}, err
		}))
}

// nodeChanged passes the changes of a Node that a rollout depends on; it filters
// heartbeats.
func nodeChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, okWas := e.ObjectOld.(*corev1.Node)
			is, okIs := e.ObjectNew.(*corev1.Node)
			if !okWas || !okIs {
				return false
			}
			return was.Spec.Unschedulable != is.Spec.Unschedulable ||
				was.Status.NodeInfo != is.Status.NodeInfo ||
				nodeReady(was) != nodeReady(is) ||
				!equality.Semantic.DeepEqual(was.Labels, is.Labels) ||
				!equality.Semantic.DeepEqual(was.Annotations, is.Annotations) ||
				!equality.Semantic.DeepEqual(was.Status.Addresses, is.Status.Addresses)
		},
	}
}

func nodeReady(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}
