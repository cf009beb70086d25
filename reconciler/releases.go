// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/excluded"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// applyWorkers is how many components of a release are applied at once.
const applyWorkers = 16

// releases hold the runtime of each ClusterRelease: its worker, its apply
// engine and what they need.
type releases struct {
	group
	opts   Options
	store  *state.Store
	ledger *ledger.Store
	maps   typedcorev1.ConfigMapInterface
	images *imageAccess
	shared *applyShared
	health *health.Checker
	gauges *releaseMetrics
	// reader reads from the API server, cached our kinds and Nodes from the
	// watches; discovery asks for the server's version.
	reader    client.Reader
	cached    client.Reader
	discovery discovery.ServerVersionInterface
	// event tells people of an object.
	event func(obj client.Object, kind, reason, message string)
	log   logr.Logger
	// changed wakes the controller of the release with that name.
	changed chan event.TypedGenericEvent[string]
	// ready is closed once the store was loaded.
	ready <-chan struct{}

	mu     sync.Mutex
	byName map[string]*releaseRuntime
}

// releaseRuntime is one ClusterRelease at work.
type releaseRuntime struct {
	name           string
	serviceAccount string
	worker         *worker.SyncWorker
	engine         *apply.Engine
	builder        *objectBuilder
	retriever      *retriever
	checks         *checks
	leftOut        *excluded.Recorder
	notices        *announcer
	stop           func()

	// written is when its status was written last; guarded by the controller,
	// which looks at one release at a time.
	written time.Time
}

// progressPause is the least time between two writes of status that only tell
// progress: an apply of a thousand objects isn't accompanied by as many writes.
const progressPause = time.Second

// early returns how long a write of status should wait still, zero if it's due.
func (rt *releaseRuntime) early(before, obj *v1alpha1.ClusterRelease, now time.Time) time.Duration {
	if onlyProgress(&before.Status, &obj.Status) {
		if wait := progressPause - now.Sub(rt.written); wait > 0 && wait <= progressPause {
			return wait
		}
	}
	rt.written = now
	return 0
}

// onlyProgress reports whether nothing but counts and messages differs.
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

func newReleases(o *Operator, images *imageAccess, shared *applyShared, checker *health.Checker) *releases {
	stored := o.kube.CoreV1().ConfigMaps(v1alpha1.Namespace)
	return &releases{
		opts: o.opts, store: o.base.store, ledger: ledger.NewStore(stored), maps: stored,
		images: images, shared: shared, health: checker, gauges: o.base.gauges, log: o.opts.Log.WithName("release"),
		reader: o.manager.GetAPIReader(), cached: o.base.client, discovery: o.kube.Discovery(), event: o.base.event,
		changed: make(chan event.TypedGenericEvent[string], 64), byName: map[string]*releaseRuntime{},
		ready: o.ready,
	}
}

// Start implements manager.Runnable: it ends all runtimes with ctx, and has
// refused releases looked at again when the trust policy changes.
func (r *releases) Start(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.wakeKnown(ctx)
		r.followTrust(ctx)
	}()
	r.run(ctx)
	<-done
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*releases) NeedLeaderElection() bool { return true }

// wakeKnown has every release looked at that an earlier process knew: one that
// was deleted meanwhile has no object that would lead to a look.
func (r *releases) wakeKnown(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.ready:
	}
	for name := range r.store.Releases() {
		select {
		case <-ctx.Done():
			return
		case r.changed <- event.TypedGenericEvent[string]{Object: name}:
		}
	}
}

// followTrust wakes the workers when what was accepted changes: a new trust
// document may accept what the old one refused.
func (r *releases) followTrust(ctx context.Context) {
	var last trust.Digest
	for {
		changed := r.store.Changed()
		if current, ok := r.store.Trust(r.opts.Now()); ok && current.Document.Digest() != last {
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

// policy returns the trust document in force, nil without one.
func (r *releases) policy() *trust.Document {
	current, ok := r.store.Trust(r.opts.Now())
	if !ok {
		return nil
	}
	return current.Document
}

// get returns a release's runtime, nil if there is none.
func (r *releases) get(name string) *releaseRuntime {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byName[name]
}

// ensure returns the runtime of a ClusterRelease that is as its source said,
// made at the first call; one that applies as another service account is ended
// first.
func (r *releases) ensure(ctx context.Context, obj *v1alpha1.ClusterRelease) (*releaseRuntime, error) {
	account := accountOf(obj.Spec.ServiceAccountName)
	// Before the first write: the end may come while nobody looks.
	if err := r.store.SetDeletion(ctx, obj.Name, string(obj.Spec.DeletionPolicy), account, leftToPeople(&obj.Spec, r.opts.Now())...); err != nil {
		return nil, err
	}
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

func accountOf(name string) string {
	if name == "" {
		return "lockstep-applier"
	}
	return name
}

// engine makes the apply engine of a release and reads its inventory. notice,
// if set, hears of what happens to its objects.
func (r *releases) engine(ctx context.Context, name, account string, notice func(apply.Notice)) (*apply.Engine, error) {
	log := r.log.WithValues("release", name)
	engine, err := apply.New(apply.Config{
		Owner: ownerOf(name), REST: r.shared.as(account), Live: r.shared.live, Inventory: r.maps, Namespace: v1alpha1.Namespace,
		Shared: r.shared.budget, Metrics: r.shared.metrics, Now: r.opts.Now, Notice: notice, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("apply engine of ClusterRelease/%s: %w", name, err)
	}
	problems, err := engine.Load(ctx)
	if err != nil {
		engine.Close()
		return nil, fmt.Errorf("inventory of ClusterRelease/%s: %w", name, err)
	}
	for _, p := range problems {
		log.Info("inventory", "problem", p)
	}
	return engine, nil
}

// start makes and starts a runtime.
func (r *releases) start(ctx context.Context, obj *v1alpha1.ClusterRelease, account string) (*releaseRuntime, error) {
	name := obj.Name
	notices := newAnnouncer(r.opts.Now)
	engine, err := r.engine(ctx, name, account, notices.hear)
	if err != nil {
		return nil, err
	}
	refused := func(reason string) { r.gauges.refused(name, reason) }
	rt := &releaseRuntime{
		name: name, serviceAccount: account, engine: engine, notices: notices, written: r.opts.Now(),
		leftOut: excluded.New(r.maps, name),
		builder: &objectBuilder{engine: engine, health: r.health, now: r.opts.Now, policy: policyOf(&obj.Spec)},
		retriever: &retriever{
			name: name, registry: r.images, policy: r.policy, now: r.opts.Now, refused: refused,
			verified: func(took time.Duration, err error) { r.gauges.verified(name, took, err) },
		},
	}
	rt.builder.monitor = r.health.NewMonitor(func(m *payload.Manifest, v health.Verdict) {
		err, grace := rt.builder.judge(m, v)
		rt.worker.SetHealth(m.ID, err, grace)
	})
	rt.retriever.standing = func(d worker.Desired) bool {
		return standing(r.store.Release(name), d) || rt.checks.rollbackTo() == d.Version && d.Version != ""
	}
	rt.retriever.mark = r.mark
	rt.retriever.held = func() held { return r.held(rt) }
	rt.checks = &checks{
		name: name, engine: engine, store: r.store, policy: r.policy, live: r.shared.live, reader: r.reader, cached: r.cached,
		discovery: r.discovery, now: r.opts.Now, refused: refused, spec: *obj.Spec.DeepCopy(),
	}
	rt.worker, err = worker.New(worker.Config{
		Retriever: rt.retriever, Preconditions: rt.checks, Builder: countedDryRun{rt.builder, refused}, Reporter: reporter{r, name},
		Interval: obj.Spec.Interval.Duration, Restore: restoreOf(r.store.Release(name), &obj.Spec),
		Seed: seedOf(obj), Now: r.opts.Now,
		BeforeApply: r.beginning(name), ManifestEnded: tellEnds(r.log.WithValues("release", name)), SyncEnded: r.tellPasses(name),
	})
	if err != nil {
		rt.close()
		return nil, fmt.Errorf("worker of ClusterRelease/%s: %w", name, err)
	}
	if !r.launch(rt) {
		rt.close()
		return nil, fmt.Errorf("ClusterRelease/%s: %w", name, context.Canceled)
	}
	return rt, nil
}

// close lets go of what a runtime holds without goroutines.
func (rt *releaseRuntime) close() {
	rt.builder.monitor.Close()
	rt.engine.Close()
}

// held is what of a release is managed now. It is asked for at each load: the
// desired release may follow a restored one at once.
func (r *releases) held(rt *releaseRuntime) held {
	return held{accepted: rt.worker.Accepted(), enabled: r.store.Release(rt.name).Capabilities, made: rt.engine.Made()}
}

// launch starts the goroutines of a runtime; it reports false at the end of the
// process. They end in the reverse order.
func (r *releases) launch(rt *releaseRuntime) bool {
	log := r.log.WithValues("release", rt.name)
	var stops []func()
	rt.stop = func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}
	for _, work := range []func(context.Context){
		func(ctx context.Context) { r.announce(ctx, rt) },
		func(ctx context.Context) {
			rt.worker.Start(ctx, applyWorkers)
			r.flush(ctx, rt)
		},
		func(ctx context.Context) {
			logOnce(log, rt.engine.Watch(ctx, rt.worker.Drifted), "watching for drift ended")
		},
		rt.builder.monitor.Run,
	} {
		stop, ok := r.goWith(work)
		if !ok {
			rt.stop()
			return false
		}
		stops = append(stops, stop)
	}
	return true
}

// flushTime bounds the last write of an inventory.
const flushTime = 5 * time.Second

// flush writes what the last applies added to the inventory, also when the
// process ends: which objects were made here decides what may be pruned.
func (r *releases) flush(ctx context.Context, rt *releaseRuntime) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	logOnce(r.log.WithValues("release", rt.name), rt.engine.Flush(ctx), "the inventory can't be written")
}

// seedOf makes jitter and order differ from cluster to cluster, and stay the
// same for one release in one cluster.
func seedOf(obj *v1alpha1.ClusterRelease) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(obj.UID))
	return h.Sum64()
}

// restoreOf tells a new worker what an earlier process did.
func restoreOf(record state.Release, spec *v1alpha1.ClusterReleaseSpec) worker.Restore {
	var out worker.Restore
	if c := record.Accepted; c != nil {
		out.Accepted = desiredAs(c, selectionOf(spec))
		out.State, out.Unfinished = payload.ParseState(c.State)
		if len(c.Waits) > 0 {
			out.Waits = make(map[payload.ObjectID]worker.WaitClock, len(c.Waits))
		}
		for _, w := range c.Waits {
			out.Waits[payload.ObjectID(w.Object)] = clockOf(w)
		}
	}
	if len(record.Completed) > 0 {
		c := record.Completed[0]
		out.Applied = worker.Desired{Identity: c.Identity, Selection: selectionOf(spec)}
		if out.Accepted.Identity.Equal(c.Identity) {
			out.Applied = out.Accepted
		}
	}
	return out
}

func ownerOf(name string) string { return "clusterrelease/" + name }

// standing reports whether a release runs here or is the one before it: its
// signatures may have been made under a policy that has expired since.
func standing(record state.Release, d worker.Desired) bool {
	for i, c := range record.Completed {
		if i > 1 {
			break
		}
		if c.Identity.Equal(d.Identity) {
			return true
		}
	}
	return false
}

// end stops a release's runtime. Its inventory and what is remembered of it stay.
func (r *releases) end(name string) {
	r.mu.Lock()
	rt := r.byName[name]
	delete(r.byName, name)
	r.mu.Unlock()
	if rt != nil {
		rt.stop()
		rt.close()
	}
}

// leftToPeople names the objects that the overrides in force leave to people.
func leftToPeople(spec *v1alpha1.ClusterReleaseSpec, now time.Time) []state.Object {
	var out []state.Object
	for _, o := range overridesOf(spec, now) {
		out = append(out, state.Object(o.ID))
	}
	return out
}

// remove forgets a ClusterRelease that was deleted, also while no process ran,
// and whose runtime has ended. Its objects stay unless its deletion policy, as
// the source said it last, is Prune; those that overrides left to people stay even
// then. After an error it is to be called again.
func (r *releases) remove(ctx context.Context, name string) error {
	record, known := r.store.Releases()[name]
	if !known {
		return nil
	}
	engine, err := r.engine(ctx, name, accountOf(record.ServiceAccount), nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	if record.Deletion == string(v1alpha1.DeletionPrune) {
		keep := map[payload.ObjectID]bool{}
		for _, o := range record.Unmanaged {
			keep[payload.ObjectID(o)] = true
		}
		if _, err := engine.Prune(ctx, keep, apply.PruneOptions{All: true}); err != nil {
			return fmt.Errorf("delete the objects of ClusterRelease/%s: %w", name, err)
		}
	}
	if err := engine.Forget(ctx); err != nil {
		return fmt.Errorf("forget ClusterRelease/%s: %w", name, err)
	}
	if err := excluded.Delete(ctx, r.maps, name); err != nil {
		return fmt.Errorf("forget ClusterRelease/%s: %w", name, err)
	}
	return r.store.DropRelease(ctx, name)
}

// complete remembers a release that is level and raises its product's mark.
func (r *releases) complete(ctx context.Context, name, product string, done state.Completed) error {
	if last := r.store.Release(name).Completed; len(last) > 0 && last[0].Identity.Equal(done.Identity) && last[0].VersionHash == done.VersionHash {
		return nil
	}
	digest := done.VersionHash
	if _, d, ok := strings.Cut(done.Image, "@"); ok {
		digest = d
	}
	if err := r.ledger.RaiseMark(ctx, product, ledger.Image{Version: done.Version, Digest: digest}, r.opts.Now()); err != nil {
		return fmt.Errorf("high-water mark of %s: %w", product, err)
	}
	return r.store.Complete(ctx, name, product, done)
}

// loading reports whether a release that was being applied before hasn't been
// loaded by this process yet.
func (r *releases) loading() bool {
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

// mark returns the high-water mark of a product, "" before its first.
func (r *releases) mark(ctx context.Context, product string) (string, error) {
	snap, err := r.ledger.Load(ctx)
	if err != nil {
		return "", fmt.Errorf("high-water mark of %s: %w", product, err)
	}
	return snap.Document.Marks[product].Version, nil
}

// reporter wakes the controller when a worker's status changed.
type reporter struct {
	releases *releases
	name     string
}

// Report implements worker.StatusReporter. A full queue loses nothing: what is
// queued leads to a look at the newest status.
func (r reporter) Report(worker.SyncWorkerStatus) {
	select {
	case r.releases.changed <- event.TypedGenericEvent[string]{Object: r.name}:
	default:
	}
}

// yielded lists the fields that are left to other controllers.
func (rt *releaseRuntime) yielded() []string {
	var out []string
	for id, fields := range rt.engine.Yielded() {
		for _, f := range fields {
			out = append(out, fmt.Sprintf("%s %s to %s", id, f.Pointer, f.Manager))
		}
	}
	slices.Sort(out)
	return out[:min(len(out), 10)]
}

// manifest returns the manifest of an object in a payload that a release's
// worker has accepted, and that release's name: of first, if its payload has
// one, else of the first by name.
func (r *releases) manifest(id payload.ObjectID, first string) (*payload.Manifest, string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Sorted(maps.Keys(r.byName))
	if _, ok := r.byName[first]; ok {
		names = slices.Insert(names, 0, first)
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
