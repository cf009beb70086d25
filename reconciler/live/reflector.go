// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// minWatchTimeout is the minimum duration of a watch. Renewals are the only
	// requests for a kind without changes.
	minWatchTimeout = 30 * time.Minute
	minBackoff      = 250 * time.Millisecond
	maxBackoff      = 30 * time.Second
	// missingBackoff is the maximum backoff for a kind that the server doesn't
	// serve, because each attempt costs a full discovery. A watched CRD or a
	// successful Mapping of the kind ends the backoff.
	missingBackoff = 15 * time.Minute
)

// reflector lists and watches one kind and writes to its store.
type reflector struct {
	cache   *Cache
	kind    *kind
	session int
}

// run keeps the store in sync with the cluster until ctx ends.
func (r *reflector) run(ctx context.Context) {
	c, gk := r.cache, r.kind.gk
	backoff := minBackoff
	version := r.kind.version()
	for ctx.Err() == nil {
		began := c.cfg.Now()
		changed := c.mapper.changed() // Before the attempt, so that no change is missed.
		err := r.listAndWatch(ctx, version)
		if ctx.Err() != nil {
			return
		}
		// A watch that the server ends returns no error; its duration shows
		// whether it worked.
		if c.cfg.Now().Sub(began) > maxBackoff {
			backoff = minBackoff
		}
		if err != nil && !apierrors.IsResourceExpired(err) {
			if r.kind.settle(r.session, err) {
				c.logUnwatchable(gk, err)
			}
			c.cfg.Log.V(1).Info("watch failed", "kind", gk.String(), "error", err.Error(), "retryIn", backoff.String())
			if apierrors.IsNotFound(err) || IsNoMatch(err) {
				// The version may not be served anymore: alternate between it and
				// the preferred one.
				if version == "" {
					version = r.kind.version()
				} else {
					version = ""
				}
			}
			if apierrors.IsNotFound(err) {
				c.mapper.reset()
			}
		}
		longest := maxBackoff
		if IsNoMatch(err) {
			longest = missingBackoff
		}
		backoff = min(backoff, longest)
		if pause(ctx, backoff, changed) {
			backoff = minBackoff
		} else {
			backoff *= 2
		}
	}
}

// pause waits for d. It returns true early if changed is closed, and false early
// if ctx ends.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (r *reflector) listAndWatch(ctx context.Context, version string) error {
	c, gk := r.cache, r.kind.gk
	mapping, err := c.mapper.resolve(gk, version)
	if err != nil {
		return err
	}
	bodies := r.kind.beginWatch(r.session, mapping.Resource.Version)
	ctx = klog.NewContext(ctx, c.cfg.Log.V(2)) // run logs failures.
	upstream := cache.NewReflectorWithOptions(c.listWatch(mapping.Resource, bodies), nil, r, cache.ReflectorOptions{
		Name:            gk.String(),
		TypeDescription: gk.String(),
		MinWatchTimeout: minWatchTimeout,
		Backoff:         &wait.Backoff{Duration: minBackoff, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 4 * time.Second},
	})
	if err := upstream.ListAndWatchWithContext(ctx); err != nil {
		return fmt.Errorf("watch %s: %w", mapping.Resource, err)
	}
	return nil
}

// listWatch requests metadata as protobuf, or whole objects as JSON.
func (c *Cache) listWatch(gvr schema.GroupVersionResource, bodies bool) cache.ListerWatcher {
	if bodies {
		r := c.dynamic.Resource(gvr)
		return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if err := c.checkNotRestored(ctx, gvr, o); err != nil {
					return nil, err
				}
				return r.Watch(ctx, o)
			},
		}, c.dynamic)
	}
	r := c.meta.Resource(gvr)
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := c.checkNotRestored(ctx, gvr, o); err != nil {
				return nil, err
			}
			return r.Watch(ctx, o)
		},
	}, c.meta)
}

// checkNotRestored returns a ResourceExpired error if a watch would start at a
// resource version that the server hasn't reached: after a restore of etcd, such
// a watch stays silent and misses changes until the versions have caught up. It
// costs one list of one object per renewal of a watch.
func (c *Cache) checkNotRestored(ctx context.Context, gvr schema.GroupVersionResource, o metav1.ListOptions) error {
	if o.ResourceVersion == "" || o.ResourceVersion == "0" || o.SendInitialEvents != nil && *o.SendInitialEvents {
		return nil
	}
	newest, err := c.meta.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if order, err := resourceversion.CompareResourceVersion(newest.ResourceVersion, o.ResourceVersion); err == nil && order < 0 {
		return apierrors.NewResourceExpired(fmt.Sprintf("server is at resource version %s, older than %s: etcd was restored", newest.ResourceVersion, o.ResourceVersion))
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (r *reflector) Add(obj any) error { return r.put(obj) }

// Update implements cache.ReflectorStore.
func (r *reflector) Update(obj any) error { return r.put(obj) }

// Resync implements cache.ReflectorStore.
func (r *reflector) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore.
func (r *reflector) Bookmark(resourceVersion string) error {
	r.kind.update(r.session, func(s *store) { s.advance(resourceVersion) })
	return nil
}

func (r *reflector) put(obj any) error {
	md, body, err := splitObject(obj)
	if err != nil {
		return err
	}
	at, o := keyOf(md), Summarize(md)
	if r.kind.update(r.session, func(s *store) { s.put(at, o, body) }) {
		r.cache.observe(r.kind.gk, at.name, body)
		r.kind.notify(at)
	}
	return nil
}

// Delete implements cache.ReflectorStore. The object has the resource version of
// its deletion.
func (r *reflector) Delete(obj any) error {
	md, body, err := splitObject(obj)
	if err != nil {
		return err
	}
	at, end := keyOf(md), jobEnd{md.GetUID(), endingOf(r.kind.gk, body)}
	if r.kind.update(r.session, func(s *store) { s.remove(at, md.GetResourceVersion(), end) }) {
		r.cache.observe(r.kind.gk, at.name, nil)
		r.kind.notify(at)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (r *reflector) Replace(list []any, resourceVersion string) error {
	next := make(map[key]*Object, len(list))
	bodies := make(map[key]*unstructured.Unstructured, 0)
	for _, item := range list {
		md, body, err := splitObject(item)
		if err != nil {
			return err
		}
		at := keyOf(md)
		next[at] = Summarize(md)
		if body != nil {
			bodies[at] = body
		}
	}
	var changed []key
	if !r.kind.update(r.session, func(s *store) { changed = s.replace(next, bodies, resourceVersion) }) {
		return nil
	}
	if r.kind.settle(r.session, nil) {
		r.cache.cfg.Log.Info("kind can be watched again", "kind", r.kind.gk.String())
	}
	for at, body := range bodies {
		r.cache.observe(r.kind.gk, at.name, body)
	}
	for _, at := range changed {
		r.kind.notify(at)
	}
	return nil
}

// splitObject returns the metadata of a watched object, and the body without its
// managedFields if the object is whole.
func splitObject(obj any) (metav1.Object, *unstructured.Unstructured, error) {
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		return o, nil, nil
	case *unstructured.Unstructured:
		md := &metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(),
			DeletionTimestamp: o.GetDeletionTimestamp(), Finalizers: o.GetFinalizers(),
			Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
			OwnerReferences: o.GetOwnerReferences(), ManagedFields: o.GetManagedFields(),
		}
		o.SetManagedFields(nil)
		return md, o, nil
	default:
		return nil, nil, fmt.Errorf("watch delivered unexpected %T", obj)
	}
}
