// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// MaxConcurrent is the number of releases, and of pools, that are reconciled at
// once: a slow registry or a slow deletion of one doesn't delay the others.
const MaxConcurrent = 4

// Builder returns a builder of a controller for one of the declared kinds.
func Builder(mgr ctrl.Manager, name string, obj client.Object) *ctrl.Builder {
	return ctrl.NewControllerManagedBy(mgr).Named(name).For(obj, builder.WithPredicates(SpecOrAnnotations()))
}

// SpecOrAnnotations passes changes of spec, annotations and deletion. It filters
// changes of status, which the reconciler writes.
func SpecOrAnnotations() predicate.Predicate {
	return predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.NewPredicateFuncs(func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() }),
	)
}

// TrustAccepted passes changes of the accepted trust document, after which
// rejected commits and images are verified again.
func TrustAccepted() predicate.Predicate {
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

// Request returns the reconcile request of a declared object.
func Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}}
}

// EnqueueAll returns a handler that enqueues every object of the list's kind.
func (b *Base) EnqueueAll(list client.ObjectList) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return b.Requests(ctx, list)
	})
}

// Requests returns a request for each object of the list's kind, which is one of
// GitSourceList, ClusterReleaseList and NodeOSList.
func (b *Base) Requests(ctx context.Context, empty client.ObjectList) []reconcile.Request {
	list, ok := empty.DeepCopyObject().(client.ObjectList)
	if !ok {
		return nil
	}
	if err := b.Client.List(ctx, list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		LogError(b.Log, err, "list objects to enqueue")
		return nil
	}
	var out []reconcile.Request
	switch l := list.(type) {
	case *v1alpha1.GitSourceList:
		for i := range l.Items {
			out = append(out, Request(l.Items[i].Name))
		}
	case *v1alpha1.ClusterReleaseList:
		for i := range l.Items {
			out = append(out, Request(l.Items[i].Name))
		}
	case *v1alpha1.NodeOSList:
		for i := range l.Items {
			out = append(out, Request(l.Items[i].Name))
		}
	}
	return out
}

// Trigger requests reconciliations that no watch of the controller causes. One
// controller receives from a Trigger; any goroutine may send.
type Trigger chan event.TypedGenericEvent[string]

// NewTrigger returns a Trigger with a queue of the given length.
func NewTrigger(size int) Trigger { return make(Trigger, size) }

// Fire enqueues a name without blocking; a full queue drops it.
func (t Trigger) Fire(name string) {
	select {
	case t <- event.TypedGenericEvent[string]{Object: name}:
	default:
	}
}

// Send enqueues a name; it blocks while the queue is full and returns false when
// ctx ends.
func (t Trigger) Send(ctx context.Context, name string) bool {
	select {
	case <-ctx.Done():
		return false
	case t <- event.TypedGenericEvent[string]{Object: name}:
		return true
	}
}

// Source returns a source of the requests that f makes of each received name.
func (t Trigger) Source(f func(ctx context.Context, name string) []reconcile.Request) source.Source {
	return source.Channel(t, handler.TypedFuncs[string, reconcile.Request]{
		GenericFunc: func(ctx context.Context, e event.TypedGenericEvent[string], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			for _, r := range f(ctx, e.Object) {
				q.Add(r)
			}
		},
	})
}

// ByName returns a source of requests for the received names.
func (t Trigger) ByName() source.Source {
	return t.Source(func(_ context.Context, name string) []reconcile.Request {
		return []reconcile.Request{Request(name)}
	})
}
