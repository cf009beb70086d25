// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/cluster"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// runtimes holds the runtime of each ClusterRelease. It is safe for concurrent use.
type runtimes struct {
	control.Group
	base     control.Base
	cluster  *cluster.Cluster
	store    *state.Store
	ledger   *ledger.Store
	maps     typedcorev1.ConfigMapInterface
	registry verify.Registry
	fetcher  *image.Fetcher
	health   *health.Checker
	metrics  *Metrics
	log      logr.Logger
	now      func() time.Time
	// changed is fired with the name of a release whose worker's status changed.
	changed control.Trigger

	sources Sources

	mu     sync.Mutex
	byName map[string]*runtime
	// retired are the engines of deleted releases whose objects are being handed
	// over.
	retired map[string]*apply.Engine
}

func newRuntimes(cfg Config) *runtimes {
	r := &runtimes{
		sources: cfg.Sources, retired: map[string]*apply.Engine{},
		base: cfg.Base, cluster: cfg.Cluster, store: cfg.Base.Store, ledger: cfg.Ledger, maps: cfg.ConfigMaps,
		registry: cfg.Registry, fetcher: cfg.Fetcher, health: cfg.Health, metrics: cfg.Metrics,
		log: cfg.Base.Log.WithName("release"), now: cfg.Base.Now,
		changed: control.NewTrigger(64), byName: map[string]*runtime{},
	}
	cfg.Cluster.Shared.SetKnown(r.exists)
	return r
}

// Start implements manager.Runnable: runtimes run until ctx ends, and rejected
// releases are retried when the trust policy changes.
func (r *runtimes) Start(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() {
		r.enqueueRecorded(ctx)
		r.followTrust(ctx)
	})
	group.Go(func() { r.followClaims(ctx) })
	r.Run(ctx)
	group.Wait()
	r.closeRetired()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*runtimes) NeedLeaderElection() bool { return true }

// enqueueRecorded enqueues every persisted release after a restart: one that was
// deleted meanwhile has no object that a watch would report.
func (r *runtimes) enqueueRecorded(ctx context.Context) {
	if r.base.WaitReady(ctx) != nil {
		return
	}
	for name := range r.store.Releases() {
		if !r.changed.Send(ctx, name) {
			return
		}
	}
}

// followTrust retries all workers when the active trust document changes: it may
// accept a rejected release.
func (r *runtimes) followTrust(ctx context.Context) {
	var last trust.Digest
	for {
		changed := r.store.Changed()
		if current, ok := r.store.Trust(r.now()); ok && current.Document.Digest() != last {
			last = current.Document.Digest()
			r.mu.Lock()
			for _, rt := range r.byName {
				rt.worker.RetryNow()
			}
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// policy returns the active trust document, nil without one.
func (r *runtimes) policy() *trust.Document {
	current, ok := r.store.Trust(r.now())
	if !ok {
		return nil
	}
	return current.Document
}

// get returns the runtime of a release, nil if there is none.
func (r *runtimes) get(name string) *runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byName[name]
}

// ensure returns the runtime of a release whose spec is the declared one. It starts
// the runtime if necessary, and restarts it for another service account.
func (r *runtimes) ensure(ctx context.Context, obj *v1alpha1.ClusterRelease) (*runtime, error) {
	account := serviceAccountOf(obj.Spec.ServiceAccountName)
	// Recorded before the first write: the object may be deleted while no process
	// runs.
	if err := r.store.SetDeletion(ctx, obj.Name, string(obj.Spec.DeletionPolicy), account, unmanagedObjects(&obj.Spec, r.now())...); err != nil {
		return nil, err
	}
	if err := r.inherit(ctx, obj); err != nil {
		return nil, err
	}
	r.endRetired(obj.Name) // It was declared again.
	if rt := r.get(obj.Name); rt != nil {
		if rt.serviceAccount == account {
			return rt, nil
		}
		r.end(obj.Name)
	}
	rt, err := r.start(ctx, obj, account)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byName[obj.Name] = rt
	return rt, nil
}

// defaultServiceAccount applies releases without spec.serviceAccountName.
const defaultServiceAccount = "lockstep-applier"

func serviceAccountOf(name string) string {
	if name == "" {
		return defaultServiceAccount
	}
	return name
}

func ownerOf(name string) string { return "clusterrelease/" + name }

// engine returns the apply engine of a release with its loaded inventory. notify,
// if set, receives notices about the release's objects.
func (r *runtimes) engine(ctx context.Context, name, account string, notify func(apply.Notice)) (*apply.Engine, error) {
	log := r.log.WithValues("release", name)
	engine, err := apply.New(apply.Config{
		Owner: ownerOf(name), REST: r.cluster.Impersonate(account), Live: r.cluster.Live, Inventory: r.maps, Namespace: v1alpha1.Namespace,
		Shared: r.cluster.Shared, Metrics: r.cluster.Metrics, Now: r.now, Notice: notify, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("apply engine of ClusterRelease/%s: %w", name, err)
	}
	problems, err := engine.Load(ctx)
	if err != nil {
		engine.Close()
		return nil, fmt.Errorf("load inventory of ClusterRelease/%s: %w", name, err)
	}
	for _, p := range problems {
		log.Info("inventory entry ignored", "problem", p)
	}
	return engine, nil
}

// end stops the runtime of a release. Its inventory and persisted state remain.
func (r *runtimes) end(name string) {
	r.mu.Lock()
	rt := r.byName[name]
	delete(r.byName, name)
	r.mu.Unlock()
	if rt != nil {
		rt.stop()
		rt.close()
	}
}

// complete records a completed release and raises the high-water mark of its
// product.
func (r *runtimes) complete(ctx context.Context, name, product string, done state.Completed) error {
	if last := r.store.Release(name).Completed; len(last) > 0 && last[0].Identity.Equal(done.Identity) && last[0].VersionHash == done.VersionHash {
		return nil
	}
	digest := done.VersionHash
	if _, d, ok := strings.Cut(done.Image, "@"); ok {
		digest = d
	}
	if err := r.ledger.RaiseMark(ctx, product, ledger.Image{Version: done.Version, Digest: digest}, r.now()); err != nil {
		return fmt.Errorf("raise high-water mark of %s: %w", product, err)
	}
	return r.store.Complete(ctx, name, product, done)
}

// highWaterMark returns the highest completed version of a product, "" if none
// completed yet.
func (r *runtimes) highWaterMark(ctx context.Context, product string) (string, error) {
	snap, err := r.ledger.Load(ctx)
	if err != nil {
		return "", fmt.Errorf("read high-water mark of %s: %w", product, err)
	}
	return snap.Document.Marks[product].Version, nil
}

// loading reports whether this process hasn't loaded the accepted payload of a
// release yet.
func (r *runtimes) loading() bool {
	for name, record := range r.store.Releases() {
		if record.Accepted == nil {
			continue
		}
		if rt := r.get(name); rt == nil || rt.worker.Accepted() == nil {
			return true
		}
	}
	return false
}

// manifest is Controller.Manifest.
func (r *runtimes) manifest(id payload.ObjectID, preferred string) (*payload.Manifest, string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Sorted(maps.Keys(r.byName))
	if _, ok := r.byName[preferred]; ok {
		names = slices.Insert(names, 0, preferred)
	}
	for _, name := range names {
		p := r.byName[name].worker.Accepted()
		if p == nil {
			continue
		}
		for i := range p.Manifests {
			if p.Manifests[i].ID == id && !p.Manifests[i].Delete {
				return &p.Manifests[i], name, true
			}
		}
	}
	return nil, "", false
}

// reporter enqueues a release when its worker's status changes.
type reporter struct {
	changed control.Trigger
	name    string
}

// Report implements worker.StatusReporter.
func (r reporter) Report(worker.SyncWorkerStatus) { r.changed.Fire(r.name) }
