// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package release is the controller of ClusterRelease: it runs a sync worker per
// release, which retrieves, checks and applies the payload, and shows its progress
// in the status.
//
// The package has many files, since each part that a worker needs has one, with its
// tests: retrieval, checks, waivers, claims, the builder, records and notices.
package release

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
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
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/cluster"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// Sources is the part of the GitSource controller that this one uses.
type Sources interface {
	// NotFromSource returns why an object must not be acted upon, and nothing if
	// its spec is the declared one.
	NotFromSource(obj client.Object, kind string, spec any) status.HeldBy
	// ValidateSpec returns why a spec is invalid for this version, nil for a valid one.
	ValidateSpec(ctx context.Context, kind, name string, spec any) error
	// RemovedFromGit returns why an object whose declaration left Git starts
	// nothing new, and nothing for any other object.
	RemovedFromGit(kind, name string) status.HeldBy
	// Origin returns the source that declares an object and its revision, and false
	// if there is none.
	Origin(kind, name string) (from control.Origin, revision string, ok bool)
	// Applying reports whether a commit is being applied: objects that it declares
	// may not exist yet.
	Applying() bool
}

// Config configures a Controller. All fields but InsecureOptions are required.
type Config struct {
	Base    control.Base
	Cluster *cluster.Cluster
	Sources Sources
	// SourceChanges receives when the accepted state of a source changes.
	SourceChanges control.Trigger
	// ConfigMaps are those of Lockstep's namespace, for the inventories and the
	// lists of excluded objects.
	ConfigMaps typedcorev1.ConfigMapInterface
	// Ledger has the high-water marks.
	Ledger *ledger.Store
	// Registry verifies signatures, Fetcher fetches payloads.
	Registry verify.Registry
	Fetcher  *image.Fetcher
	Health   *health.Checker
	Metrics  *Metrics
	// InsecureOptions are the insecure options of the process, for the condition
	// Insecure.
	InsecureOptions []string
}

// Controller hands the desired release of each ClusterRelease to its sync worker
// and writes the worker's status. Its exported methods are safe for concurrent use.
type Controller struct {
	control.Base
	sources         Sources
	sourceChanges   control.Trigger
	insecureOptions []string
	metrics         *Metrics
	runtimes        *runtimes
	specs           specs
}

// New returns a Controller.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Base.Validate(); err != nil {
		return nil, fmt.Errorf("ClusterRelease controller: %w", err)
	}
	if cfg.Cluster == nil || cfg.Sources == nil || cfg.SourceChanges == nil || cfg.ConfigMaps == nil || cfg.Ledger == nil ||
		cfg.Registry == nil || cfg.Fetcher == nil || cfg.Health == nil || cfg.Metrics == nil {
		return nil, errors.New("ClusterRelease controller: all fields of Config but InsecureOptions are required")
	}
	return &Controller{
		Base: cfg.Base, sources: cfg.Sources, sourceChanges: cfg.SourceChanges, insecureOptions: cfg.InsecureOptions,
		metrics: cfg.Metrics, runtimes: newRuntimes(cfg),
	}, nil
}

// SetupWithManager registers the controller and the runtimes of releases.
func (r *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(r.runtimes); err != nil {
		return err
	}
	dependents := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
		var list v1alpha1.ClusterReleaseList
		if err := r.Client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
			control.LogError(r.Log, err, "list dependent releases", "release", obj.GetName())
			return nil
		}
		var out []reconcile.Request
		for i := range list.Items {
			if slices.Contains(list.Items[i].Spec.DependsOn, obj.GetName()) {
				out = append(out, control.Request(list.Items[i].Name))
			}
		}
		return out
	})
	return control.Builder(mgr, "clusterrelease", &v1alpha1.ClusterRelease{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: control.MaxConcurrent}).
		Watches(&v1alpha1.ClusterRelease{}, dependents).
		Watches(&v1alpha1.NodeOS{}, r.EnqueueAll(&v1alpha1.ClusterReleaseList{}), builder.WithPredicates(poolHalted())).
		WatchesRawSource(r.runtimes.changed.ByName()).
		WatchesRawSource(r.sourceChanges.Source(func(ctx context.Context, _ string) []reconcile.Request {
			return r.Requests(ctx, &v1alpha1.ClusterReleaseList{})
		})).
		Complete(r.Guard(r))
}

// poolHalted passes NodeOS objects that become halted or no longer are: both change
// the condition Upgradeable of releases.
func poolHalted() predicate.Predicate {
	halted := func(obj client.Object) bool {
		pool, ok := obj.(*v1alpha1.NodeOS)
		return ok && meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionHalted)
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return halted(e.ObjectOld) != halted(e.ObjectNew) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return halted(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// Manifest returns the manifest of an object in an accepted payload, and the name
// of the release: preferred if its payload contains the object, otherwise the first
// by name. It returns false if no accepted payload contains the object.
func (r *Controller) Manifest(id payload.ObjectID, preferred string) (*payload.Manifest, string, bool) {
	return r.runtimes.manifest(id, preferred)
}

// Loading reports whether the accepted payload of a release is still being loaded
// after a restart.
func (r *Controller) Loading() bool { return r.runtimes.loading() }
