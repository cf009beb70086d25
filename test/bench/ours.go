// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// ownNamespace has the inventories.
const ownNamespace = "lockstep-system"

// The concurrency of the reconciler: objects per sync of an update, and of a
// later sync.
const (
	updateWidth    = 16
	reconcileWidth = updateWidth / 2
)

// ours is the apply part of the reconciler: watch cache, engine and task
// graph, wired as in the reconciler.
type ours struct {
	cache  *live.Cache
	engine *apply.Engine
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// startOurs starts it as a new process does. drifted may be nil.
func startOurs(ctx context.Context, config *rest.Config, owner string, drifted func(context.Context, *apply.Engine, payload.ObjectID)) (*ours, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the inventory: %w", err)
	}
	cache, err := live.New(live.Config{REST: config, Now: time.Now, Log: logr.Discard()})
	if err != nil {
		return nil, err
	}
	engine, err := apply.New(apply.Config{
		Owner: "clusterrelease/" + owner, REST: config, Live: cache, Namespace: ownNamespace,
		Inventory: kube.CoreV1().ConfigMaps(ownNamespace), Shared: apply.NewShared(apply.DefaultConcurrency), Now: time.Now,
		Log: logr.Discard(),
	})
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancel(ctx)
	o := &ours{cache: cache, engine: engine, cancel: cancel}
	o.group.Go(func() { _ = cache.Start(inner) }) // It ends with its context only.
	if problems, err := engine.Load(ctx); err != nil || len(problems) > 0 {
		o.close()
		return nil, errors.Join(fmt.Errorf("inventory of %s: %q", owner, problems), err)
	}
	o.group.Go(func() {
		// Its error is that of the context.
		_ = engine.Watch(inner, func(id payload.ObjectID) {
			if drifted != nil {
				o.group.Go(func() { drifted(inner, engine, id) })
			}
		})
	})
	return o, nil
}

// close ends it as a killed process does.
func (o *ours) close() {
	o.cancel()
	o.group.Wait()
	o.engine.Close()
}

// pass applies the manifests and returns how many objects had which result.
func (o *ours) pass(ctx context.Context, ms []payload.Manifest, state payload.State, begin bool) (map[apply.Action]int, error) {
	mode, width := apply.Updating, updateWidth
	if state == payload.Reconciling {
		mode, width = apply.Reconciling, reconcileWidth
	}
	if begin {
		if err := o.engine.Begin(ctx, ms, nil); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	actions := map[apply.Action]int{}
	graph := taskgraph.Build(ms, state, taskgraph.Order{})
	result := taskgraph.Walk(ctx, graph, width, func(ctx context.Context, m *payload.Manifest) error {
		change, err := o.applyOne(ctx, m, mode)
		mu.Lock()
		defer mu.Unlock()
		actions[change.Action]++
		return err
	}, nil)
	if !result.Complete() {
		err := ctx.Err()
		if len(result.Failures) > 0 {
			err = result.Failures[0].Err
		}
		return actions, fmt.Errorf("pass: %d done, %d failed, %d blocked: %w", result.Done, len(result.Failures), result.Blocked, err)
	}
	return actions, o.engine.Flush(ctx)
}

// retryAfter is the pause before an object is retried whose kind isn't served
// yet.
const retryAfter = 50 * time.Millisecond

// applyOne retries transient errors for a while, as the worker does.
func (o *ours) applyOne(ctx context.Context, m *payload.Manifest, mode apply.Mode) (apply.Change, error) {
	for try := 0; ; try++ {
		change, err := o.engine.Apply(ctx, m, mode)
		var refusal *apply.Error
		if err == nil || try == 100 || !errors.As(err, &refusal) || !refusal.Retriable() {
			return change, err
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return change, ctx.Err()
		}
	}
}

// kept counts the cached objects of the manifests' kinds, and waits until they
// are there.
func (o *ours) kept(ctx context.Context, ms []payload.Manifest) (int, error) {
	seen := map[schema.GroupKind]bool{}
	n := 0
	for i := range ms {
		gk := ms[i].GVK.GroupKind()
		if seen[gk] {
			continue
		}
		seen[gk] = true
		if err := o.cache.WaitSynced(ctx, gk); err != nil {
			return 0, err
		}
		n += o.cache.Objects(gk)
	}
	return n, nil
}
