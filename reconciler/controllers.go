// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// specOrAnnotations lets changes of spec, annotations and deletion through, and
// keeps changes of status out, which are this process's own.
func specOrAnnotations() predicate.Predicate {
	return predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.NewPredicateFuncs(func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() }),
	)
}

// named returns the request for an object of ours.
func named(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}}
}

// wakeups is a source of requests for the names that come over a channel.
func wakeups(ch chan event.TypedGenericEvent[string], f func(ctx context.Context, name string) []reconcile.Request) source.Source {
	return source.Channel(ch, handler.TypedFuncs[string, reconcile.Request]{
		GenericFunc: func(ctx context.Context, e event.TypedGenericEvent[string], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			for _, r := range f(ctx, e.Object) {
				q.Add(r)
			}
		},
	})
}

func (o *Operator) addTrust() error {
	r := &trustReconciler{base: o.base, pin: o.opts.TrustRootDigest}
	return o.build("trustpolicy", &v1alpha1.TrustPolicy{}).Complete(o.quiet(r))
}

// build begins a controller of one of our kinds.
func (o *Operator) build(name string, obj client.Object) *ctrl.Builder {
	return ctrl.NewControllerManagedBy(o.manager).Named(name).For(obj, builder.WithPredicates(specOrAnnotations()))
}

func (o *Operator) addSources() error {
	decoder, err := desired.NewDecoder()
	if err != nil {
		return fmt.Errorf("schemas of the declared kinds: %w", err)
	}
	r := &sourceReconciler{base: o.base, opts: o.opts, sources: o.sources, decoder: decoder}
	declared := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		// An edit of a declared object has its source put it back.
		if name := obj.GetAnnotations()[v1alpha1.AnnotationSource]; name != "" {
			return []reconcile.Request{named(name)}
		}
		kind, _ := kindOf(obj)
		if name, _, ok := o.base.store.Owner(kind, obj.GetName()); ok {
			return []reconcile.Request{named(name)}
		}
		return nil
	})
	return o.build("gitsource", &v1alpha1.GitSource{}).
		Watches(&v1alpha1.ClusterRelease{}, declared, builder.WithPredicates(o.edits())).
		Watches(&v1alpha1.NodeOS{}, declared, builder.WithPredicates(o.edits())).
		Watches(&v1alpha1.TrustPolicy{}, declared, builder.WithPredicates(o.edits())).
		Watches(&v1alpha1.GitSource{}, declared, builder.WithPredicates(o.edits())).
		Watches(&v1alpha1.TrustPolicy{}, o.all(&v1alpha1.GitSourceList{}), builder.WithPredicates(trustAccepted())).
		WatchesRawSource(wakeups(o.sources.edits, func(_ context.Context, name string) []reconcile.Request {
			return []reconcile.Request{named(name)}
		})).
		Complete(o.quiet(r))
}

// edits are changes that leave a declared object otherwise than its source said:
// the source's own applies aren't among them, and need no look at Git.
func (o *Operator) edits() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			changed := e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				!equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
				!equality.Semantic.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
			return changed && !o.sources.asDeclared(e.ObjectNew)
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// trustAccepted is a change of the trust document in force: commits that were
// refused are judged again.
func trustAccepted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, okWas := e.ObjectOld.(*v1alpha1.TrustPolicy)
			is, okIs := e.ObjectNew.(*v1alpha1.TrustPolicy)
			return okWas && okIs && was.Status.AcceptedDigest != is.Status.AcceptedDigest
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// all enqueues every object of a list of ours.
func (o *Operator) all(list client.ObjectList) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return o.everyOne(ctx, list)
	})
}

// everyOne returns a request for each object of a list of ours.
func (o *Operator) everyOne(ctx context.Context, empty client.ObjectList) []reconcile.Request {
	list, ok := empty.DeepCopyObject().(client.ObjectList)
	if !ok {
		return nil
	}
	if err := o.base.client.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		logOnce(o.opts.Log, err, "list for a wake-up")
		return nil
	}
	var out []reconcile.Request
	switch l := list.(type) {
	case *v1alpha1.GitSourceList:
		for i := range l.Items {
			out = append(out, named(l.Items[i].Name))
		}
	case *v1alpha1.ClusterReleaseList:
		for i := range l.Items {
			out = append(out, named(l.Items[i].Name))
		}
	case *v1alpha1.NodeOSList:
		for i := range l.Items {
			out = append(out, named(l.Items[i].Name))
		}
	}
	return out
}

// concurrent is how many releases, and how many pools, are looked at at once: a
// slow registry or a slow deletion of one doesn't hold up the others.
const concurrent = 4

func (o *Operator) addReleases() error {
	r := &releaseReconciler{base: o.base, opts: o.opts, releases: o.releases, sources: o.sources}
	dependents := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
		var list v1alpha1.ClusterReleaseList
		if err := o.base.client.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
			return nil
		}
		var out []reconcile.Request
		for i := range list.Items {
			if slices.Contains(list.Items[i].Spec.DependsOn, obj.GetName()) {
				out = append(out, named(list.Items[i].Name))
			}
		}
		return out
	})
	return o.build("clusterrelease", &v1alpha1.ClusterRelease{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent}).
		Watches(&v1alpha1.ClusterRelease{}, dependents).
		Watches(&v1alpha1.NodeOS{}, o.all(&v1alpha1.ClusterReleaseList{}), builder.WithPredicates(poolHalted())).
		WatchesRawSource(wakeups(o.releases.changed, func(_ context.Context, name string) []reconcile.Request {
			return []reconcile.Request{named(name)}
		})).
		WatchesRawSource(wakeups(o.sources.changed, func(ctx context.Context, _ string) []reconcile.Request {
			return o.everyOne(ctx, &v1alpha1.ClusterReleaseList{})
		})).
		Complete(o.quiet(r))
}

// poolHalted is a pool that is halted, or goes on: both change what speaks
// against an upgrade.
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

func (o *Operator) addHosts() error {
	if err := o.manager.Add(o.hosts); err != nil {
		return err
	}
	decoder, err := desired.NewDecoder()
	if err != nil {
		return fmt.Errorf("schemas of the declared kinds: %w", err)
	}
	pools := func(ctx context.Context, _ string) []reconcile.Request {
		return o.everyOne(ctx, &v1alpha1.NodeOSList{})
	}
	r := &poolReconciler{
		base: o.base, sources: o.sources, releases: o.releases, hosts: o.hosts, decoder: decoder, images: o.releases.images,
		fatal:    func(err error) { o.fail(err) }, // Run sets it
		verified: map[string]osVerdict{}, specs: map[string]string{}, passed: map[string]time.Time{},
	}
	err = o.build("nodeos", &v1alpha1.NodeOS{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent}).
		Watches(&corev1.Node{}, o.all(&v1alpha1.NodeOSList{}), builder.WithPredicates(nodeMatters())).
		Watches(&v1alpha1.Host{}, o.all(&v1alpha1.NodeOSList{}), builder.WithPredicates(specOrAnnotations())).
		Watches(&v1alpha1.ClusterRelease{}, o.all(&v1alpha1.NodeOSList{}), builder.WithPredicates(specOrAnnotations())).
		Watches(&v1alpha1.TrustPolicy{}, o.all(&v1alpha1.NodeOSList{}), builder.WithPredicates(trustAccepted())).
		WatchesRawSource(wakeups(o.sources.edits, func(_ context.Context, name string) []reconcile.Request {
			return []reconcile.Request{named(name)}
		})).
		WatchesRawSource(wakeups(o.hosts.poolChanged, pools)).
		WatchesRawSource(wakeups(o.sources.poolsChanged, pools)).
		Complete(o.quiet(r))
	if err != nil {
		return err
	}
	// One request stands for all Hosts: they are synced at once.
	one := func(context.Context, string) []reconcile.Request { return []reconcile.Request{named("all")} }
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{named("all")}
	})
	return ctrl.NewControllerManagedBy(o.manager).Named("host").
		Watches(&v1alpha1.Host{}, once).
		Watches(&corev1.Node{}, once, builder.WithPredicates(nodeMatters())).
		Watches(&v1alpha1.NodeOS{}, once, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(wakeups(o.hosts.hostChanged, one)).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			if err := o.base.waitReady(ctx); err != nil {
				return reconcile.Result{}, err
			}
			again, err := o.hosts.sync(ctx)
			return reconcile.Result{RequeueAfter: max(again, 0)}, err
		}))
}

// nodeMatters lets those changes of a Node through that a rollout looks at;
// heartbeats aren't among them.
func nodeMatters() predicate.Predicate {
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

// doors lists the doors for development that this process has open.
func (opts Options) doors() []string {
	var out []string
	if opts.AllowInsecureSources {
		out = append(out, "Git over http and file is allowed (--allow-insecure-sources)")
	}
	if opts.AllowLoopbackRegistries {
		out = append(out, "registries on loopback, without TLS, are allowed (--allow-loopback-registries)")
	}
	return out
}
