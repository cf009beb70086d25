// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package source is the controller of GitSource: it fetches a repository, decodes
// the declared objects and applies them. It also reports which objects in the
// cluster match the accepted revision.
package source

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// Config configures a Controller. Base, StateDir and Secrets are required.
type Config struct {
	Base control.Base
	// StateDir holds the mirrors; its content may be lost at any time.
	StateDir string
	// Outbound has the proxy and the certificate authorities for Git servers.
	Outbound outbound.Settings
	// AllowInsecure permits Git over http and file, and plain directories.
	AllowInsecure bool
	// InsecureOptions are the insecure options of the process, for the condition
	// Insecure.
	InsecureOptions []string
	// RootDigest pins the first trust document; "" for none.
	RootDigest trust.Digest
	// Secrets are those of Lockstep's namespace.
	Secrets typedcorev1.SecretInterface
	// Releases and Pools are fired when the accepted revision of a source changes,
	// and while one is being applied.
	Releases, Pools control.Trigger
}

// Controller applies the objects that a Git repository declares. Its exported
// methods are safe for concurrent use.
type Controller struct {
	control.Base
	cfg      Config
	runtimes *runtimes
	decoder  *desired.Decoder
}

// New returns a Controller.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Base.Validate(); err != nil {
		return nil, fmt.Errorf("GitSource controller: %w", err)
	}
	if cfg.StateDir == "" || cfg.Secrets == nil {
		return nil, errors.New("GitSource controller: StateDir and Secrets are required")
	}
	decoder, err := desired.NewDecoder()
	if err != nil {
		return nil, fmt.Errorf("schemas of the declared kinds: %w", err)
	}
	return &Controller{Base: cfg.Base, cfg: cfg, runtimes: newRuntimes(cfg), decoder: decoder}, nil
}

// SetupWithManager registers the controller and its directory watches.
func (r *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(r.runtimes); err != nil {
		return err
	}
	declared := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		// The source of an edited object restores it.
		if name := obj.GetAnnotations()[v1alpha1.AnnotationSource]; name != "" {
			return []reconcile.Request{control.Request(name)}
		}
		kind, _ := kindOf(obj)
		if name, _, ok := r.Store.Owner(kind, obj.GetName()); ok {
			return []reconcile.Request{control.Request(name)}
		}
		return nil
	})
	return control.Builder(mgr, "gitsource", &v1alpha1.GitSource{}).
		Watches(&v1alpha1.ClusterRelease{}, declared, builder.WithPredicates(r.edits())).
		Watches(&v1alpha1.NodeOS{}, declared, builder.WithPredicates(r.edits())).
		Watches(&v1alpha1.TrustPolicy{}, declared, builder.WithPredicates(r.edits())).
		Watches(&v1alpha1.GitSource{}, declared, builder.WithPredicates(r.edits())).
		Watches(&v1alpha1.TrustPolicy{}, r.EnqueueAll(&v1alpha1.GitSourceList{}), builder.WithPredicates(control.TrustAccepted())).
		WatchesRawSource(r.runtimes.edits.ByName()).
		Complete(r.Guard(r))
}

// edits passes changes after which an object differs from its declaration. It
// filters the source's own applies, which need no fetch.
func (r *Controller) edits() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			changed := e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				!equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
				!equality.Semantic.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
			return changed && !r.runtimes.asDeclared(e.ObjectNew)
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
