// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// PruneOptions limit a prune.
type PruneOptions struct {
	// MaxPercent is the percentage of the inventory that may be deleted at
	// once, as in payload.MayPrune.
	MaxPercent int
	// All lifts the limits, to delete the whole set by its deletionPolicy.
	All bool
}

// PruneResult lists the objects that left the set.
type PruneResult struct {
	Deleted []payload.ObjectID
	// Orphaned objects left the inventory and stay in the cluster.
	Orphaned []Orphan
	// Held objects stay in the inventory until another set takes them, or no
	// longer claims them.
	Held []Held
	// Pending objects are being deleted and stay in the inventory. Waiting counts the
	// objects that are deleted after them.
	Pending []payload.ObjectID
	Waiting int
}

// Orphan is an object that isn't deleted, and why.
type Orphan struct {
	ID     payload.ObjectID
	Reason string
}

// Held is an object that isn't deleted because another set claims it.
type Held struct {
	ID payload.ObjectID
	// By is the owner of that set.
	By string
}

// pruner deletes objects that left the set, and those of delete manifests.
type pruner struct {
	set       *set
	client    *client
	deleter   *deleter
	live      *live.Cache
	now       func() time.Time
	namespace string
	notify    func(Notice)
	log       logr.Logger
}

func (p *pruner) prune(ctx context.Context, keep map[payload.ObjectID]bool, opts PruneOptions) (PruneResult, error) {
	gone, total := p.set.inventory(keep)
	var result PruneResult
	known := len(gone)
	gone = p.forgetImpossible(gone)
	total -= known - len(gone)
	gone = slices.DeleteFunc(gone, func(en inventory.Entry) bool { return p.held(en.ID(), &result) })
	if len(gone) == 0 {
		if known > 0 {
			return result, p.set.flush(ctx)
		}
		return result, nil
	}
	if err := p.recoverRecords(ctx, gone); err != nil {
		return result, err // The guard would count fewer objects than are deleted.
	}
	if err := guard(payload.PruneCount{Deleted: len(p.deletable(gone)), Kept: total - len(gone), Total: total}, opts); err != nil {
		return result, err
	}
	p.set.markLeaving(gone)
	defer func() {
		for _, o := range result.Orphaned {
			p.log.Info("object left the set and stays in the cluster", "object", o.ID.String(), "reason", o.Reason)
		}
	}()
	var failures []error
	done := 0
	for group := range pruneGroups(gone) {
		done += len(group)
		failures = append(failures, p.pruneGroup(ctx, group, &result)...)
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		if len(failures) > 0 || len(result.Pending) > 0 {
			result.Waiting = len(gone) - done
			break // Finalizers may depend on the objects of lower run levels.
		}
	}
	failures = append(failures, p.set.flush(ctx))
	return result, errors.Join(failures...)
}

// markLeaving marks the objects as being pruned.
func (s *set) markLeaving(gone []inventory.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range gone {
		if it := s.items[gone[i].ID()]; it != nil {
			it.leaving = true
		}
	}
}

// deletable returns the entries that a prune may delete according to the
// inventory.
func (p *pruner) deletable(entries []inventory.Entry) []inventory.Entry {
	var out []inventory.Entry
	for i := range entries {
		if it := p.set.item(entries[i].ID()); it != nil && p.dying(it) {
			continue // It was counted when its deletion started.
		}
		if keepReason(&entries[i], p.namespace) == "" {
			out = append(out, entries[i])
		}
	}
	return out
}

// pruneOrder is the reverse of the payload's order; within a run level, objects
// that contain others follow these.
func pruneOrder(a, b *inventory.Entry) int {
	if a.RunLevel != b.RunLevel {
		return b.RunLevel - a.RunLevel
	}
	if x, y := containment(a), containment(b); x != y {
		return x - y
	}
	return -inventory.ComparePosition(*a, *b)
}

// containment ranks the kinds that contain other objects.
func containment(e *inventory.Entry) int {
	return kinds.Of(schema.GroupKind{Group: e.Group, Kind: e.Kind}).Contains
}

// pruneGroups yields the entries that are deleted together.
func pruneGroups(sorted []inventory.Entry) func(yield func([]inventory.Entry) bool) {
	return func(yield func([]inventory.Entry) bool) {
		for len(sorted) > 0 {
			n := 1
			for n < len(sorted) && sorted[n].RunLevel == sorted[0].RunLevel && containment(&sorted[n]) == containment(&sorted[0]) {
				n++
			}
			if !yield(sorted[:n]) {
				return
			}
			sorted = sorted[n:]
		}
	}
}

// guard refuses to delete more objects than opts allow.
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
			"the release would delete %d of %d objects, more than the %d that spec.prune.maxPercent: %d allows; raise it to continue",
			l.Deleted, l.Total, allowed, opts.MaxPercent)
	}
}

// pruneGroup deletes the objects of a group and waits until they are gone.
func (p *pruner) pruneGroup(ctx context.Context, group []inventory.Entry, result *PruneResult) []error {
	var failures []error
	type pending struct {
		it    *item
		t     target
		o     *live.Object
		since time.Time
	}
	var terminating []pending
	for i := range group {
		en := &group[i]
		it := p.set.item(en.ID())
		if it == nil {
			continue
		}
		if p.pending(it) {
			result.Pending = append(result.Pending, it.id)
			continue
		}
		t, o, since, keep, err := p.pruneOne(ctx, it, en)
		switch {
		case errors.Is(err, errHeld):
			p.held(it.id, result)
		case err != nil:
			failures = append(failures, err)
		case keep == neverApplied:
			p.set.forget(it) // There is nothing of the set in the cluster.
		case keep != "":
			result.Orphaned = append(result.Orphaned, Orphan{ID: it.id, Reason: keep})
			p.set.forget(it)
			p.notify(Notice{ID: it.id, What: ReasonOrphaned, Detail: keep})
		case o == nil:
			p.deleted(it, result)
		default:
			terminating = append(terminating, pending{it, t, o, since})
		}
	}
	deadline := p.now().Add(p.deleter.wait)
	for _, d := range terminating {
		until := deadline
		if p.recorded(d.it, d.o) {
			until = p.now() // It was awaited before; now the watch reports it.
		}
		err := p.deleter.confirmGone(ctx, d.it.id, d.t, d.o, until)
		if still := stillTerminating(err); still != nil {
			result.Pending = append(result.Pending, d.it.id)
			p.record(d.it, d.o, d.since, still)
			continue
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		p.deleted(d.it, result)
	}
	return failures
}

func (p *pruner) deleted(it *item, result *PruneResult) {
	result.Deleted = append(result.Deleted, it.id)
	p.set.forget(it)
	p.notify(Notice{ID: it.id, What: ReasonPruned})
}

// pruneOne deletes one object. It returns the terminating object and since when it
// is, nil if it is gone, or why it is kept.
func (p *pruner) pruneOne(ctx context.Context, it *item, en *inventory.Entry) (t target, terminating *live.Object, since time.Time, keep string, err error) {
	it.busy.Lock()
	defer p.set.settle(it)
	keep = keepReason(en, p.namespace)
	if keep != "" && keep != neverApplied {
		return target{}, nil, since, keep, nil
	}
	t, o, err := p.deleter.find(ctx, en)
	if keep == neverApplied {
		if err == nil && o != nil && managedfields.OwnFields(o.ManagedFields, p.set.manager) != nil {
			keep = preexisting // The process ended before it recorded the adoption.
		}
		return t, nil, since, keep, err
	}
	if o == nil || err != nil {
		return t, nil, since, "", err
	}
	since = deletedAt(o, p.now())
	summary := live.Summarize(o)
	if keep := notOurs(en, summary, p.set.managerOn(it)); keep != "" {
		return t, nil, since, keep, nil
	}
	if p.set.containsUID(en) {
		return t, nil, since, "the set still contains it under another API group", nil
	}
	if o.DeletionTimestamp != nil {
		return t, summary, since, "", nil
	}
	if !p.beginDeletion(it) {
		return t, nil, since, "", errHeld
	}
	err = p.client.delete(ctx, t, o.UID)
	if notFound(err) {
		return t, nil, since, "", nil
	}
	return t, summary, since, "", classify(it.id, err)
}

// Why entries aren't deleted.
const (
	neverApplied = "it was never applied"
	preexisting  = "it existed before the set adopted it"
)

// errHeld is the result for an object that another set began to claim.
var errHeld = errors.New("another set claims the object")

// held reports whether another set claims the object, and adds it to the result.
func (p *pruner) held(id payload.ObjectID, result *PruneResult) bool {
	by := p.set.shared.claimant(id, p.set.owner)
	if by == "" {
		return false
	}
	result.Held = append(result.Held, Held{ID: id, By: by})
	return true
}

// beginDeletion marks the object as being deleted, from when it can't be handed
// over. It returns false if another set claims it; it.busy is held.
func (p *pruner) beginDeletion(it *item) bool {
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	it.leaving = s.shared.claimant(it.id, s.owner) == ""
	it.deleting = it.leaving
	return it.deleting
}

// keepReason returns why the entry forbids to delete the object, or "". own is
// Lockstep's namespace.
func keepReason(en *inventory.Entry, own string) string {
	switch {
	case !en.Applied():
		return neverApplied
	case !en.Created:
		return preexisting
	case en.Protected:
		return "its manifest had the annotation " + payload.AnnotationPrune + ": disabled"
	}
	if why := protected(en.ID(), own); why != "" {
		return why
	}
	if kinds.Of(en.ID().GroupKind()).Consent && !en.Confirmed {
		return "pruning a " + en.Kind + " requires the annotation " + payload.AnnotationPrune + ": confirmed on its manifest"
	}
	return ""
}

// notOurs returns why the live object isn't the one that the set created, or "".
// The deletion also has the UID as a precondition.
func notOurs(en *inventory.Entry, o *live.Object, manager string) string {
	_, managed := o.OwnFieldsOf(manager)
	switch {
	case o.UID != en.UID:
		return "it was replaced by another object of its name"
	case !managed:
		return "it has lost the set's field manager"
	case o.Controlled:
		return "it has a controller"
	}
	for _, own := range o.OwnFields {
		if other := own.Manager.Value(); other != manager {
			return "it is also managed by " + other
		}
	}
	return ""
}

// protected returns why an object must not be deleted, whatever a payload or an
// inventory contains, or "". own is Lockstep's namespace.
func protected(id payload.ObjectID, own string) string {
	system := func(namespace string) bool {
		return namespace == own || namespace == "default" || strings.HasPrefix(namespace, "kube-")
	}
	switch {
	case id.GroupKind() == kinds.Namespace && system(id.Name):
		return "namespace " + id.Name + " is protected"
	case id.Namespace == own && id.Group != payload.Group:
		return "objects in namespace " + own + " are protected"
	case id.Group == kinds.CustomResourceDefinition.Group && strings.HasSuffix(id.Name, "."+payload.Group):
		return "Lockstep's CRDs are protected"
	case strings.HasPrefix(id.Namespace, "kube-"):
		return "objects in namespace " + id.Namespace + " are protected"
	default:
		return ""
	}
}

// deleteNamed deletes the object of a delete manifest. It needs no inventory
// entry, because the signed payload names the object; protected objects are
// refused.
func (p *pruner) deleteNamed(ctx context.Context, it *item, found target, view live.View) (Change, error) {
	change := Change{ID: it.id, Action: Unchanged}
	if found.mapping == nil {
		return change, nil
	}
	if view.State == live.Absent {
		p.settleDeleted(it)
		return change, nil
	}
	if why := protected(it.id, p.namespace); why != "" {
		return change, permanent(it.id, ReasonProtected, "%s; remove the delete manifest", why)
	}
	if p.pending(it) {
		change.Action = Deleted
		return change, nil
	}
	en := p.set.entry(it)
	t, o, err := p.deleter.find(ctx, &en)
	if err != nil {
		return change, err
	}
	since := deletedAt(o, p.now())
	if o == nil {
		p.settleDeleted(it)
		return change, nil
	}
	if o.DeletionTimestamp == nil {
		if err := p.client.delete(ctx, t, o.UID); err != nil && !notFound(err) {
			return change, classify(it.id, err)
		}
	}
	change.Action = Deleted
	err = p.deleter.confirmGone(ctx, it.id, t, live.Summarize(o), p.now().Add(p.deleter.wait))
	if still := stillTerminating(err); still != nil {
		p.record(it, live.Summarize(o), since, still)
		return change, nil // Leaving reports it.
	}
	if err != nil {
		return change, err
	}
	p.settleDeleted(it)
	return change, nil
}

// settleDeleted removes a deleted object from the inventory. It stays tracked,
// since it may be recreated.
func (p *pruner) settleDeleted(it *item) {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.set.store.Remove(it.entry)
	it.entry.Record = inventory.Record{}
	it.entry.Created, it.deletion = false, nil
}

// recoverAll recovers the records of all objects while these are as the process
// left them that created them: their next change hides who created them. What
// can't be recovered is tried again by prune.
func (p *pruner) recoverAll(ctx context.Context) {
	all, _ := p.set.inventory(nil)
	all = slices.DeleteFunc(all, func(en inventory.Entry) bool {
		if en.Applied() || en.Taken != nil {
			return true
		}
		// Whether a kind was deleted costs a discovery each, so not now.
		_, err := p.live.Mapping(en.GVK().GroupKind().WithVersion(""))
		return live.IsNoMatch(err)
	})
	if err := p.recoverRecords(ctx, all); err != nil {
		p.log.Info("can't determine yet whether the set created some objects", "error", err.Error())
	}
}

// recoverRecords completes the entries without a record, in place and in the
// inventory. It returns the joined errors of those that it can't complete.
func (p *pruner) recoverRecords(ctx context.Context, entries []inventory.Entry) error {
	var group errgroup.Group
	group.SetLimit(DefaultConcurrency)
	failures := make([]error, len(entries))
	for i := range entries {
		if en := &entries[i]; !en.Applied() {
			group.Go(func() error {
				failures[i] = p.recoverRecord(ctx, en)
				return nil
			})
		}
	}
	_ = group.Wait() // They return no errors.
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for i := range entries {
		known := &entries[i]
		if it := p.set.items[known.ID()]; it != nil && known.Applied() && !it.entry.Applied() && it.entry.Taken == nil {
			it.entry.UID, it.entry.Created = known.UID, known.Created
			p.set.store.Touch(it.entry)
		}
	}
	return errors.Join(failures...)
}

// recoverRecord completes an entry whose process ended between the creation of
// the object and the write of its record. Otherwise an object that leaves the
// release before it is applied again would stay, as never applied.
func (p *pruner) recoverRecord(ctx context.Context, en *inventory.Entry) error {
	_, o, err := p.deleter.find(ctx, en)
	if o == nil || err != nil {
		return err
	}
	switch {
	case en.Taken != nil:
		if en.Taken.UID == o.UID {
			en.UID, en.Created = o.UID, en.Taken.Created
		}
	case managedfields.CreatedBy(o, p.set.manager):
		en.UID, en.Created = o.UID, true
	}
	return nil
}

// impossible reports whether the entry can't be that of an object: releases with
// such manifests were accepted by older versions.
func impossible(en *inventory.Entry, mapping *meta.RESTMapping) bool {
	return payload.CheckScope(en.ID(), discoveredScope(mapping, nil)) != nil
}

// forgetImpossible removes the entries of objects that can't exist from the
// inventory and from the list, and returns the rest.
func (p *pruner) forgetImpossible(entries []inventory.Entry) (rest []inventory.Entry) {
	for i := range entries {
		en := &entries[i]
		it := p.set.item(en.ID())
		mapping, err := p.live.Mapping(en.GVK())
		if it == nil || err != nil || !impossible(en, mapping) {
			rest = append(rest, *en)
			continue
		}
		p.log.Info("removing an object from the inventory that can't exist, since its namespace contradicts the scope of its kind", "object", en.ID().String())
		p.set.forget(it)
	}
	return rest
}
