// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// PruneOptions guard a prune.
type PruneOptions struct {
	// MaxPercent is the percentage of the inventory that may be deleted at
	// once, by the rule of payload.MayPrune.
	MaxPercent int
	// All lifts the guards for the deletion of the whole set by its
	// deletionPolicy.
	All bool
}

// PruneResult says what became of the objects that left the set.
type PruneResult struct {
	Deleted []payload.ObjectID
	// Orphaned left the inventory but stay in the cluster: the set found
	// them, or their kind needs consent.
	Orphaned []Orphan
	// Pending are being deleted; they stay in the inventory.
	Pending []payload.ObjectID
}

// Orphan is an object that isn't pruned, and why.
type Orphan struct {
	ID     payload.ObjectID
	Reason string
}

// Prune deletes the objects of the inventory that aren't in keep; what people
// took out of our hands belongs into it too. It goes
// backwards through the payload's order, waits for the objects of one run
// level before it begins the next, and shrinks the inventory only after the
// server confirmed that an object is gone. What can't be deleted is in the
// joined error; the rest goes on.
func (e *Engine) Prune(ctx context.Context, keep map[payload.ObjectID]bool, opts PruneOptions) (PruneResult, error) {
	gone, total := e.leaving(keep)
	var result PruneResult
	if len(gone) == 0 {
		return result, nil
	}
	if err := e.recallEach(ctx, gone); err != nil {
		return result, err // Else the guard would count less than is deleted.
	}
	if err := guard(payload.PruneCount{Deleted: len(e.deletable(gone)), Kept: total - len(gone), Total: total}, opts); err != nil {
		return result, err
	}
	e.markLeaving(gone)
	defer func() { e.noticeOrphans(result.Orphaned) }()
	var failures []error
	for level := range levels(gone) {
		failures = append(failures, e.pruneLevel(ctx, level, &result)...)
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		if len(failures) > 0 || len(result.Pending) > 0 {
			break // What is below may be needed to finish what is above.
		}
	}
	failures = append(failures, e.Flush(ctx))
	return result, errors.Join(failures...)
}

// leaving returns the entries that aren't kept, last of the payload first,
// and the size of the inventory.
func (e *Engine) leaving(keep map[payload.ObjectID]bool) ([]entry, int) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []entry
	total := 0
	for id, it := range e.items {
		if it.shard == noShard {
			continue
		}
		total++
		if !keep[id] {
			out = append(out, it.entry)
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return pruneOrder(a, b) })
	return out, total
}

func (e *Engine) markLeaving(gone []entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range gone {
		if it := e.items[gone[i].id()]; it != nil {
			it.leaving = true
		}
	}
}

// pruneOrder goes backwards through the payload; within a run level what
// others live in goes last.
func pruneOrder(a, b entry) int {
	if a.RunLevel != b.RunLevel {
		return b.RunLevel - a.RunLevel
	}
	if x, y := foundation(a), foundation(b); x != y {
		return x - y
	}
	return -byPlace(a, b)
}

// foundation ranks kinds that hold others.
func foundation(e entry) int {
	return kinds.Of(schema.GroupKind{Group: e.Group, Kind: e.Kind}).Contains
}

// levels yields groups of entries that may go together.
func levels(sorted []entry) func(yield func([]entry) bool) {
	return func(yield func([]entry) bool) {
		for len(sorted) > 0 {
			n := 1
			for n < len(sorted) && sorted[n].RunLevel == sorted[0].RunLevel && foundation(sorted[n]) == foundation(sorted[0]) {
				n++
			}
			if !yield(sorted[:n]) {
				return
			}
			sorted = sorted[n:]
		}
	}
}

// guard refuses to prune more than a release may plausibly drop.
func guard(l payload.PruneCount, opts PruneOptions) error {
	allowed, ok := payload.MayPrune(l, opts.MaxPercent)
	switch {
	case ok || opts.All:
		return nil
	case l.Kept == 0:
		return permanent(payload.ObjectID{}, ReasonPruneGuard,
			"the release would delete all %d objects of the set; to delete the set, delete its ClusterRelease with deletionPolicy: Prune", l.Deleted)
	default:
		return permanent(payload.ObjectID{}, ReasonPruneGuard,
			"the release would delete %d of %d objects; %d%% allow %d: raise spec.prune.maxPercent if that's meant",
			l.Deleted, l.Total, opts.MaxPercent, allowed)
	}
}

// pruneLevel deletes one group, then waits for it.
func (e *Engine) pruneLevel(ctx context.Context, level []entry, result *PruneResult) []error {
	var failures []error
	type waiting struct {
		it *item
		t  target
		o  *live.Object
	}
	var dying []waiting
	for _, en := range level {
		it := e.item(en.id())
		if it == nil {
			continue
		}
		t, o, why, err := e.pruneOne(ctx, it, en)
		switch {
		case err != nil:
			failures = append(failures, err)
		case why != "":
			result.Orphaned = append(result.Orphaned, Orphan{ID: it.id, Reason: why})
			e.forget(it)
			e.tell(it.id, ReasonOrphaned, why)
		case o == nil:
			result.Deleted = append(result.Deleted, it.id)
			e.forget(it)
			e.tell(it.id, ReasonPruned, "")
		default:
			dying = append(dying, waiting{it, t, o})
		}
	}
	deadline := e.cfg.Now().Add(e.cfg.DeletionWait)
	for _, w := range dying {
		if err := e.confirmGone(ctx, w.it.id, w.t, w.o, deadline); err != nil {
			result.Pending = append(result.Pending, w.it.id)
			failures = append(failures, err)
			continue
		}
		result.Deleted = append(result.Deleted, w.it.id)
		e.forget(w.it)
		e.tell(w.it.id, ReasonPruned, "")
	}
	return failures
}

// confirmGone waits for the end of a deletion, and asks the server for it.
func (e *Engine) confirmGone(ctx context.Context, id payload.ObjectID, t target, dying *live.Object, deadline time.Time) error {
	wait, cancel := context.WithTimeout(ctx, max(deadline.Sub(e.cfg.Now()), time.Millisecond))
	defer cancel()
	for {
		watched := true
		_ = e.cfg.Live.Await(wait, id, func(v live.View) bool { // The GET below decides.
			watched = v.State != live.Unknown
			return !watched || v.State == live.Absent && !older(v.AsOf, dying.ResourceVersion) ||
				v.State == live.Present && v.Object.UID != dying.UID
		})
		o, err := e.read(ctx, t)
		switch {
		case apierrors.IsNotFound(err) && !missingResource(err):
			return nil
		case err != nil:
			return classify(id, err)
		case o.UID != dying.UID:
			return nil // Somebody made another one of that name.
		case watched || !sleep(wait, unwatchedPause):
			return transient(id, ReasonTerminating, "the object is to go and is being deleted; %s", heldBy(o.Finalizers))
		}
	}
}

// unwatchedPause is the time between two looks at the deletion of an object
// whose kind can't be watched.
const unwatchedPause = 250 * time.Millisecond

func (e *Engine) item(id payload.ObjectID) *item {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.items[id]
}

// forget takes an object out of the inventory.
func (e *Engine) forget(it *item) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetLocked(it)
}

func (e *Engine) forgetLocked(it *item) {
	if e.items[it.id] != it {
		return
	}
	e.store.unplace(it)
	delete(e.items, it.id)
	delete(e.due, it.id)
	e.cfg.Live.Untrack(it.interest())
	e.cfg.Shared.release(it.id, e.cfg.Owner)
}

// pruneOne deletes one object. It returns the dying object to wait for, nil if
// it's gone, or why it was left alone.
func (e *Engine) pruneOne(ctx context.Context, it *item, en entry) (target, *live.Object, string, error) {
	it.busy.Lock()
	defer e.settle(it)
	if why := e.keepsAnyway(en); why != "" {
		return target{}, nil, why, nil
	}
	t, o, err := e.track(ctx, en)
	if o == nil || err != nil {
		return t, nil, "", err
	}
	summary := live.Summarize(o)
	if why := e.notOurs(en, summary); why != "" {
		return t, nil, why, nil
	}
	if o.DeletionTimestamp != nil {
		return t, summary, "", nil
	}
	err = e.wire.delete(ctx, t, o.UID, metav1.DeletePropagationForeground)
	e.cfg.Metrics.request("delete", outcome(err))
	if apierrors.IsNotFound(err) && !missingResource(err) {
		return t, nil, "", nil
	}
	return t, summary, "", classify(it.id, err)
}

// track reads an object of the inventory wherever it lives now: a version that
// it was applied in may not be served any more. It returns nil for an object
// that is gone.
func (e *Engine) track(ctx context.Context, en entry) (target, *metav1.PartialObjectMetadata, error) {
	t := target{namespace: en.Namespace, name: en.Name}
	var o *metav1.PartialObjectMetadata
	var err error
	if t.mapping, err = e.cfg.Live.Mapping(en.gvk()); err == nil {
		o, err = e.read(ctx, t)
	}
	if live.IsNoMatch(err) || missingResource(err) {
		if t.mapping, err = e.cfg.Live.Served(ctx, en.gvk().GroupKind()); err != nil {
			return t, nil, &Error{
				ID: en.id(), reason: ReasonTypeMissing, retriable: true, err: err,
				message: "the object is to go, but its kind can't be found, so it stays in the inventory: " + sanitize.Clip(err.Error(), messageLimit),
			}
		}
		if t.mapping == nil {
			return t, nil, nil // The kind is gone, and its objects with it.
		}
		o, err = e.read(ctx, t)
	}
	if apierrors.IsNotFound(err) && !missingResource(err) {
		return t, nil, nil
	}
	return t, o, classify(en.id(), err)
}

// keepsAnyway says why the inventory itself forbids to delete the object, ""
// if it doesn't.
func (e *Engine) keepsAnyway(en entry) string {
	switch {
	case !en.applied():
		return "it was never applied"
	case !en.Created:
		return "it existed before this set took it over"
	}
	if why := protected(en.id(), e.cfg.Namespace); why != "" {
		return why
	}
	if needsConsent(en.id()) && !en.Confirmed {
		return "objects of kind " + en.Kind + " are only pruned when their manifest carried " + payload.AnnotationPrune + ": confirmed"
	}
	return ""
}

// notOurs says why the live object isn't the one that the set made, "" if it
// is. The UID is also a precondition of the deletion.
func (e *Engine) notOurs(en entry, o *live.Object) string {
	_, managed := o.OwnFieldsOf(e.manager)
	switch {
	case o.UID != en.UID:
		return "another object has its name now"
	case !managed:
		return "the set's field manager isn't on it any more"
	case o.Controlled:
		return "a controller owns it"
	}
	for _, own := range o.OwnFields {
		if own.Manager.Value() != e.manager {
			return "another set, " + own.Manager.Value() + ", manages it"
		}
	}
	if e.knownUnderOtherName(en) {
		return "the set still has it under another API group"
	}
	return ""
}

// knownUnderOtherName reports whether another entry has the same UID: one
// object may be served by two API groups.
func (e *Engine) knownUnderOtherName(en entry) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for id, it := range e.items {
		if it.entry.UID == en.UID && id != en.id() {
			return true
		}
	}
	return false
}

// protected says why an object is never deleted, whatever a payload or an
// inventory says; "" if it may be.
func protected(id payload.ObjectID, own string) string {
	system := func(namespace string) bool {
		return namespace == own || namespace == "default" || strings.HasPrefix(namespace, "kube-")
	}
	switch {
	case id.GroupKind() == kinds.Namespace && system(id.Name):
		return "namespace " + id.Name + " is protected"
	case id.Namespace == own && id.Group != payload.Group:
		return "everything in namespace " + own + " is protected"
	case id.Group == "apiextensions.k8s.io" && strings.HasSuffix(id.Name, "."+payload.Group):
		return "our own definitions are protected"
	case id.Namespace != "" && strings.HasPrefix(id.Namespace, "kube-"):
		return "objects in " + id.Namespace + " are protected"
	default:
		return ""
	}
}

// needsConsent reports whether more would go with the object than itself.
func needsConsent(id payload.ObjectID) bool {
	return kinds.Of(id.GroupKind()).Consent
}

// carryOutDelete makes the object of a delete manifest go. The signed payload
// asks for it by name, so it needs no inventory; protected objects stay.
func (e *Engine) carryOutDelete(ctx context.Context, it *item, found target, view live.View) (Change, error) {
	change := Change{ID: it.id, Action: Unchanged}
	if found.mapping == nil {
		return change, nil
	}
	if view.State == live.Absent {
		e.settleDeleted(it)
		return change, nil
	}
	if why := protected(it.id, e.cfg.Namespace); why != "" {
		return change, permanent(it.id, ReasonProtected, "%s; remove the delete manifest", why)
	}
	e.mu.RLock()
	en := it.entry
	e.mu.RUnlock()
	t, o, err := e.track(ctx, en)
	if err != nil {
		return change, err
	}
	if o == nil {
		e.settleDeleted(it)
		return change, nil
	}
	if o.DeletionTimestamp == nil {
		err = e.wire.delete(ctx, t, o.UID, metav1.DeletePropagationForeground)
		e.cfg.Metrics.request("delete", outcome(err))
		if err != nil && (!apierrors.IsNotFound(err) || missingResource(err)) {
			return change, classify(it.id, err)
		}
	}
	if err := e.confirmGone(ctx, it.id, t, live.Summarize(o), e.cfg.Now().Add(e.cfg.DeletionWait)); err != nil {
		return change, err
	}
	change.Action = Deleted
	e.settleDeleted(it)
	return change, nil
}

// settleDeleted drops a deleted object from the inventory, but goes on
// watching it: it may come back.
func (e *Engine) settleDeleted(it *item) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.store.unplace(it)
	it.entry.setRecord(Record{})
	it.entry.Created = false
}
