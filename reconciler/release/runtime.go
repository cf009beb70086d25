// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/excluded"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// applyWorkers is the number of components of a release that are applied at once.
const applyWorkers = 16

// runtime is the running state of one ClusterRelease.
type runtime struct {
	name           string
	serviceAccount string
	worker         *worker.SyncWorker
	engine         *apply.Engine
	builder        *objectBuilder
	retriever      *retriever
	checks         *checks
	excluded       *excluded.Recorder
	notifier       *notifier
	stop           func()

	// written is the time of the last status write. Only the controller uses it,
	// which reconciles a release once at a time.
	written time.Time
}

// progressInterval is the minimum time between two status writes that change only
// progress.
const progressInterval = time.Second

// statusDelay returns the time after which the status may be written; zero for now.
func (rt *runtime) statusDelay(before, obj *v1alpha1.ClusterRelease, now time.Time) time.Duration {
	if onlyProgress(&before.Status, &obj.Status) {
		if wait := progressInterval - now.Sub(rt.written); wait > 0 && wait <= progressInterval {
			return wait
		}
	}
	rt.written = now
	return 0
}

// onlyProgress reports whether only counts and messages differ.
func onlyProgress(a, b *v1alpha1.ClusterReleaseStatus) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	if (a.Progress == nil) != (b.Progress == nil) || a.Progress != nil && a.Progress.State != b.Progress.State {
		return false
	}
	a.Progress, b.Progress = nil, nil
	for _, s := range []*v1alpha1.ClusterReleaseStatus{a, b} {
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
	}
	return equality.Semantic.DeepEqual(a, b)
}

// start returns a new, running runtime.
func (r *runtimes) start(ctx context.Context, obj *v1alpha1.ClusterRelease, account string) (*runtime, error) {
	name := obj.Name
	notifier := newNotifier(r.now)
	engine, err := r.engine(ctx, name, account, notifier.add)
	if err != nil {
		return nil, err
	}
	rejected := func(reason string) { r.metrics.rejected(name, reason) }
	rt := &runtime{
		name: name, serviceAccount: account, engine: engine, notifier: notifier, written: r.now(),
		excluded: excluded.New(r.maps, name),
		builder:  &objectBuilder{engine: engine, health: r.health, now: r.now, policy: policyOf(&obj.Spec)},
		retriever: &retriever{
			name: name, registry: r.registry, fetcher: r.fetcher, policy: r.policy, now: r.now, rejected: rejected,
			verified: func(took time.Duration, err error) { r.metrics.verified(name, took, err) },
		},
	}
	rt.builder.unsettled = func(ctx context.Context) string { return r.unsettled(ctx, name) }
	rt.builder.pruning = func(message string) { r.log.Info(message, "release", name) }
	rt.builder.monitor = r.health.NewMonitor(func(m *payload.Manifest, v health.Verdict) {
		err, grace := rt.builder.healthError(m, v)
		rt.worker.SetHealth(m.ID, err, grace)
	})
	rt.retriever.previouslyAccepted = func(d worker.Desired) bool {
		return previouslyAccepted(r.store.Release(name), d) || rt.checks.rollbackTo() == d.Version && d.Version != ""
	}
	rt.retriever.highWaterMark = r.highWaterMark
	rt.retriever.managed = func() managed { return r.managed(rt) }
	rt.checks = &checks{
		name: name, engine: engine, store: r.store, policy: r.policy, live: r.cluster.Live, reader: r.base.Reader, cached: r.base.Client,
		version: r.cluster.Version, rejected: rejected, spec: *obj.Spec.DeepCopy(), now: r.now,
	}
	rt.checks.clusterName = func() string {
		from, _ := rt.retriever.snapshot()
		return from.Cluster
	}
	rt.worker, err = worker.New(worker.Config{
		Retriever: rt.retriever, Preconditions: rt.checks, Builder: countedDryRun{rt.builder, rejected}, Reporter: reporter{r.changed, name},
		Interval: obj.Spec.Interval.Duration, Restore: restoreOf(r.store.Release(name), &obj.Spec),
		Seed: seedOf(obj), Now: r.now,
		BeforeApply: r.beforeApply(name), ManifestEnded: logManifests(r.log.WithValues("release", name)), SyncEnded: r.countSyncs(name),
	})
	if err != nil {
		rt.close()
		return nil, fmt.Errorf("worker of ClusterRelease/%s: %w", name, err)
	}
	if !r.launch(rt) {
		rt.close()
		return nil, fmt.Errorf("start ClusterRelease/%s: %w", name, context.Canceled)
	}
	return rt, nil
}

// close releases the resources of a runtime without goroutines.
func (rt *runtime) close() {
	rt.builder.monitor.Close()
	rt.engine.Close()
}

// managed returns what is managed of a release now. It is called at each load,
// since a load may follow another one at once.
func (r *runtimes) managed(rt *runtime) managed {
	return managed{accepted: rt.worker.Accepted(), enabled: r.store.Release(rt.name).Capabilities, created: rt.engine.Made()}
}

// launch starts the goroutines of a runtime, which end in reverse order. It returns
// false if the process ends.
func (r *runtimes) launch(rt *runtime) bool {
	log := r.log.WithValues("release", rt.name)
	var stops []func()
	rt.stop = func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}
	for _, work := range []func(context.Context){
		func(ctx context.Context) { r.emitNotices(ctx, rt) },
		func(ctx context.Context) {
			rt.worker.Start(ctx, applyWorkers)
			r.flush(ctx, rt)
		},
		func(ctx context.Context) {
			control.LogError(log, rt.engine.Watch(ctx, rt.worker.Drifted), "drift watch ended")
		},
		rt.builder.monitor.Run,
	} {
		stop, ok := r.Go(work)
		if !ok {
			rt.stop()
			return false
		}
		stops = append(stops, stop)
	}
	return true
}

// flushTimeout limits the last write of an inventory.
const flushTimeout = 5 * time.Second

// flush writes the pending changes of the inventory, also at the end of the
// process: objects created by the release may be pruned only if it lists them.
func (r *runtimes) flush(ctx context.Context, rt *runtime) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	control.LogError(r.log, rt.engine.Flush(ctx), "write inventory", "release", rt.name)
}

// seedOf returns a seed for jitter and order that differs between clusters and is
// stable per release.
func seedOf(obj *v1alpha1.ClusterRelease) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(obj.UID))
	return h.Sum64()
}

// maxYielded limits the yielded fields in the status.
const maxYielded = 10

// maxLost limits the named objects that can't be pruned.
const maxLost = 3

// lost returns the first objects that can't be pruned because their inventory was
// lost, and the number of all.
func (rt *runtime) lost() (named []string, total int) {
	ids := rt.engine.Lost()
	for _, id := range ids[:min(len(ids), maxLost)] {
		named = append(named, id.String())
	}
	return named, len(ids)
}

// yielded lists the fields that were yielded to other controllers.
func (rt *runtime) yielded() []string {
	var out []string
	for id, fields := range rt.engine.Yielded() {
		for _, f := range fields {
			out = append(out, fmt.Sprintf("%s %s to %s", id, f.Pointer, f.Manager))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxYielded)]
}
