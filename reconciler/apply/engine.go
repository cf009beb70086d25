// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package apply applies the manifests of a set, repairs drift, and prunes
// objects that left the set.
//
// A new or changed manifest costs one forced server-side apply, without a read
// or a dry run. Whether an unchanged one is in sync is decided without a request
// (Compare), from the watch cache of package live and the record of the last
// apply. Package inventory stores the records, also across restarts.
//
// For each object the engine observes (set, live), decides by pure functions
// (decide and prepare in plan.go) and sends the resulting requests (applier,
// deleter). Prune deletes only an object that the inventory lists under the same
// UID, that the set created, that still has the set's field manager, and that
// has no controller. Labels and annotations delete nothing.
//
// The package has many files, since each decision and each kind of request has one;
// all work on one set, whose lock they share.
//
// The callers order the manifests and wait for health.
package apply

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Mode is the state of the worker that applies a manifest.
type Mode int

// The modes.
const (
	// Updating applies a new target. The fields of changed manifests are taken
	// from other managers.
	Updating Mode = iota
	// Reconciling repairs an applied target. Contested fields are yielded, as
	// are those of unchanged manifests while Updating.
	Reconciling
)

// Action is what an apply did.
type Action string

// The actions.
const (
	// Unchanged objects are in sync and cost no request.
	Unchanged Action = "Unchanged"
	// Created objects didn't exist before.
	Created Action = "Created"
	// Updated objects have a changed manifest, or existed before their first
	// apply.
	Updated Action = "Updated"
	// Repaired objects were changed by others.
	Repaired Action = "Repaired"
	// Verified objects weren't changed by the apply.
	Verified Action = "Verified"
	// Replaced objects were deleted and recreated.
	Replaced Action = "Replaced"
	// Deleted objects were deleted by a delete manifest. The deletion may not have
	// ended: Leaving.
	Deleted Action = "Deleted"
	// Deferred objects are repaired or verified later, after too many recent
	// requests.
	Deferred Action = "Deferred"
)

// Change is the result of an apply.
type Change struct {
	ID     payload.ObjectID
	Action Action
	// UID and ResourceVersion are those of the object after the apply. Health
	// must not be evaluated on an older version.
	UID             string
	ResourceVersion string
	// Respecified is the object in the response if the apply increased its
	// generation, else nil: its status describes the former specification.
	Respecified *live.Object
	// Finished is true for a Job that completed and was removed by its TTL.
	Finished bool
	// Failed is the error of a Job that failed and was removed by its TTL; nil
	// otherwise. The Job runs again when its manifest changes.
	Failed error
	// Adopted is true if the object existed before the set's first apply; it is
	// never pruned.
	Adopted bool
}

// Event is what happened to an object. Its values are reasons of Kubernetes
// events.
type Event string

// The events.
const (
	// ReasonDriftRepaired: the object was changed or deleted by others, and
	// repaired.
	ReasonDriftRepaired Event = "DriftRepaired"
	// ReasonFieldYielded: fields of the object are yielded to another controller.
	ReasonFieldYielded Event = "FieldYielded"
	// ReasonAdoptedFields: the object existed before the set adopted it, and had
	// fields of other managers. Those in the manifest were taken; the others stay.
	ReasonAdoptedFields Event = "AdoptedFields"
	// ReasonPruned: the object left the set and was deleted.
	ReasonPruned Event = "Pruned"
	// ReasonOrphaned: the object left the set and stays in the cluster.
	ReasonOrphaned Event = "Orphaned"
)

// Notice is an event of one object.
type Notice struct {
	ID   payload.ObjectID
	What Event
	// Detail has the yielded or adopted fields and their managers, or why the object stays;
	// "" for other events.
	Detail string
}

// Config configures an engine.
type Config struct {
	// Owner names the set: "clusterrelease/<name>". The field manager is
	// "lockstep:" followed by it.
	Owner string
	// REST is the identity that writes the objects, by impersonation. Its rate
	// limits are replaced by Shared's budget.
	REST *rest.Config
	// Live is the running watch cache.
	Live *live.Cache
	// Inventory is the client for the inventory in Namespace, with the
	// reconciler's identity.
	Inventory corev1client.ConfigMapInterface
	// Namespace is Lockstep's namespace, which is never pruned; the default is
	// lockstep-system.
	Namespace string
	// Shared is common to all engines of the process.
	Shared *Shared
	// Metrics may be nil.
	Metrics *Metrics
	// Now is the clock.
	Now func() time.Time
	// DeletionWait bounds the wait for an object that is being deleted; the
	// default is 10 seconds.
	DeletionWait time.Duration
	// Notice, if set, receives events. It must not block or call the engine.
	Notice func(Notice)
	// Log gets what an operator may need to know and is no error.
	Log logr.Logger
}

// Engine applies one set. Its methods may be called concurrently; applies of the
// same object are serialized.
type Engine struct {
	set     *set
	applier *applier
	pruner  *pruner
	watcher *watcher
	dryRuns *dryRunner
}

// New returns an engine. Call Load first, and Close at the end.
func New(cfg Config) (*Engine, error) {
	switch {
	case cfg.Owner == "":
		return nil, errors.New("create the apply engine: an owner is required")
	case cfg.REST == nil || cfg.Live == nil || cfg.Inventory == nil || cfg.Shared == nil || cfg.Now == nil:
		return nil, errors.New("create the apply engine: REST, Live, Inventory, Shared and Now are required")
	}
	if cfg.DeletionWait == 0 {
		cfg.DeletionWait = 10 * time.Second
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "lockstep-system"
	}
	if cfg.Notice == nil {
		cfg.Notice = func(Notice) {}
	}
	w, err := newWire(cfg.REST, cfg.Shared.budget)
	if err != nil {
		return nil, err
	}
	s := newSet(&cfg)
	c := &client{wire: w, manager: s.manager, metrics: cfg.Metrics}
	d := &deleter{client: c, live: cfg.Live, now: cfg.Now, wait: cfg.DeletionWait}
	p := &pruner{set: s, client: c, deleter: d, live: cfg.Live, now: cfg.Now, namespace: cfg.Namespace, notify: cfg.Notice, log: cfg.Log}
	return &Engine{
		set:     s,
		pruner:  p,
		applier: &applier{set: s, client: c, deleter: d, pruner: p, live: cfg.Live, now: cfg.Now, metrics: cfg.Metrics, notify: cfg.Notice, log: cfg.Log},
		watcher: &watcher{set: s, live: cfg.Live, now: cfg.Now, log: cfg.Log, started: cfg.Now()},
		dryRuns: &dryRunner{set: s, client: c, live: cfg.Live, concurrency: cfg.Shared.budget.size()},
	}, nil
}

// Manager returns the set's field manager.
func (e *Engine) Manager() string { return e.set.manager }

// Load reads the inventory and starts to watch its objects. It returns the parts
// that it can't read: their objects are applied once, and then count as adopted.
func (e *Engine) Load(ctx context.Context) (problems []string, err error) {
	if problems, err = e.set.load(ctx); err != nil {
		return nil, err
	}
	e.pruner.recoverAll(ctx)
	return problems, nil
}

// Close ends all watches of the set. The inventory stays.
func (e *Engine) Close() { e.set.close() }

// Adopt sets the tools (helm, flux, argo) whose objects the following dry runs
// and applies may take over.
func (e *Engine) Adopt(tools []string) { e.set.setAdopt(tools) }

// Begin adds the objects of the manifests to the inventory, before the first of
// them is applied, so that a crash can't lose a created object. Objects that left
// the release stay until they are pruned. adopt is as in Adopt.
func (e *Engine) Begin(ctx context.Context, manifests []payload.Manifest, adopt []string) error {
	e.set.setAdopt(adopt)
	return e.set.begin(ctx, manifests)
}

// Exists reports whether the object of a manifest exists and isn't being deleted,
// whoever created it. An object outside the set costs a request.
func (e *Engine) Exists(ctx context.Context, m *payload.Manifest) (bool, error) {
	if e.set.has(m.ID) {
		switch view := e.set.live.Get(m.ID); view.State {
		case live.Present:
			return !view.Object.Deleting, nil
		case live.Absent:
			return false, nil
		case live.Unknown:
		}
	}
	mapping, err := e.set.live.Mapping(m.GVK)
	if live.IsNoMatch(err) {
		return false, nil
	}
	if err != nil {
		return false, classify(m.ID, err)
	}
	o, err := e.pruner.client.get(ctx, target{mapping: mapping, namespace: m.ID.Namespace, name: m.ID.Name})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, classify(m.ID, err)
	}
	return o.DeletionTimestamp == nil, nil
}

// Flush writes the changes of the inventory. If another process wrote it, Flush
// loads the added objects and returns a retriable error.
func (e *Engine) Flush(ctx context.Context) error { return e.set.flush(ctx) }

// Apply applies the manifest with one request, or none if the object is in sync.
// Its errors are *Error, or that of ctx.
func (e *Engine) Apply(ctx context.Context, m *payload.Manifest, mode Mode) (Change, error) {
	return e.applier.apply(ctx, m, mode)
}

// InSync reports whether applying the manifest would send no request.
func (e *Engine) InSync(ctx context.Context, m *payload.Manifest) (bool, error) {
	return e.set.inSync(ctx, m)
}

// DryRun sends the manifests that aren't in sync as dry runs, and returns those
// that the server would refuse, in the order of the manifests, and those of
// CheckScope, for which it sends no request. A kind or namespace that the
// manifests provide may be missing.
func (e *Engine) DryRun(ctx context.Context, manifests []payload.Manifest) ([]Problem, error) {
	return e.dryRuns.run(ctx, manifests)
}

// Watch calls drifted for every object that requires an apply: the watch shows
// that it isn't in sync, or its verification is due. The caller then applies the
// last manifest. It also calls drifted for changes of the objects in Leaving; the
// caller then prunes again. drifted is called from this goroutine and must not block. Watch
// also writes the inventory, and returns when ctx ends.
func (e *Engine) Watch(ctx context.Context, drifted func(payload.ObjectID)) error {
	return e.watcher.run(ctx, drifted)
}

// Prune deletes the objects of the inventory that aren't in keep, which must
// also contain those that users excluded. It follows the reverse order of the
// payload, and finishes a run level before the next one. An object leaves the
// inventory once the server confirms its deletion. One whose deletion doesn't end in
// time is pending, which is no error; Leaving describes it. While the watch shows
// that it is still being deleted, further prunes send no request for it. Objects
// that can't be deleted are in the joined error.
func (e *Engine) Prune(ctx context.Context, keep map[payload.ObjectID]bool, opts PruneOptions) (PruneResult, error) {
	return e.pruner.prune(ctx, keep, opts)
}

// Leaves reports whether the inventory has objects that aren't in keep.
func (e *Engine) Leaves(keep map[payload.ObjectID]bool) bool {
	gone, _ := e.set.inventory(keep)
	return len(gone) > 0
}

// Forget deletes the inventory and leaves the objects in the cluster.
func (e *Engine) Forget(ctx context.Context) error { return e.set.destroy(ctx) }

// Yielded returns the yielded fields by object.
func (e *Engine) Yielded() map[payload.ObjectID][]inventory.Yield { return e.set.yielded() }

// Lost returns the applied objects that an inventory of the set may have listed
// which was lost, ordered by identity. The set doesn't know whether it created
// them, so they are never pruned. An object that the set creates again isn't lost.
func (e *Engine) Lost() []payload.ObjectID {
	ids := e.set.lost()
	slices.SortFunc(ids, payload.ObjectID.Compare)
	return ids
}

// Prunable returns the objects of the inventory that a prune may delete once
// they leave the set and that no other set claims, ordered by identity, and the
// size of the inventory.
func (e *Engine) Prunable() (ids []payload.ObjectID, total int) {
	all, total := e.set.inventory(nil)
	deletable := slices.DeleteFunc(e.pruner.deletable(all), func(en inventory.Entry) bool {
		return e.set.shared.claimant(en.ID(), e.set.owner) != ""
	})
	return sortedIDs(deletable), total
}

// Protected returns the objects of the inventory whose manifests forbid to prune
// them, ordered by identity.
func (e *Engine) Protected() []payload.ObjectID {
	all, _ := e.set.inventory(nil)
	return sortedIDs(slices.DeleteFunc(all, func(en inventory.Entry) bool { return !en.Protected }))
}

// Made returns the objects of the inventory that the set created, ordered by
// identity.
func (e *Engine) Made() []payload.ObjectID {
	all, _ := e.set.inventory(nil)
	return sortedIDs(slices.DeleteFunc(all, func(en inventory.Entry) bool { return !en.Created }))
}

func sortedIDs(entries []inventory.Entry) (ids []payload.ObjectID) {
	for i := range entries {
		ids = append(ids, entries[i].ID())
	}
	slices.SortFunc(ids, payload.ObjectID.Compare)
	return ids
}

// Others returns the owners of those objects of the manifests that belong to
// another set of this process, except objects that it gives. It sends no request;
// objects of other tools are found by a dry run.
func (e *Engine) Others(manifests []payload.Manifest) map[payload.ObjectID]string {
	return handovers{e.set}.ownedByOthers(manifests)
}

// Leaving returns the pruned objects and those of delete manifests whose deletion
// hasn't ended, ordered by identity. It sends no request.
func (e *Engine) Leaving() []Leaving { return e.pruner.leaving() }

// Deleting returns the objects that are still to be deleted according to the
// watches: those that left the set, and those of delete manifests.
func (e *Engine) Deleting() []payload.ObjectID {
	going := e.set.going() // The cache must not be read with the set locked.
	going = slices.DeleteFunc(going, func(id payload.ObjectID) bool { return e.set.live.Get(id).State != live.Present })
	slices.SortFunc(going, payload.ObjectID.Compare)
	return going
}
