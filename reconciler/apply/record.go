// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// record stores the response of an apply as the state that the object is
// compared with.
func (s *set) record(r *request, ob *observation, out result) Change {
	o := live.Summarize(out.response)
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	en := r.it.entry
	before := en.Record
	action := actionOf(r, ob, out, o)
	if action == Repaired && r.decision.step == stepVerify && ownUnchanged(before, o, s.manager) && othersWrote(ob.view.Object, o) {
		action = Verified // The others' writes changed its version, not the apply.
	}
	switch {
	case action != Verified && action != Repaired:
	case r.decision.step == stepVerify:
		r.it.pace.verified(now)
	default:
		r.it.pace.repaired(now)
	}
	// An object that replaced ours is pre-existing.
	en.Created = out.created || ob.createdBy(s.manager) || en.Created && before.UID == o.UID ||
		en.Taken != nil && en.Taken.Created && en.Taken.UID == o.UID
	handedOver := en.Taken != nil
	en.Taken = nil
	if o.UID != before.UID || r.decision.changed {
		en.Finished, en.Failed = false, false
	}
	lost := en.Lost
	switch {
	case en.Created || ob.initial == nil && before.UID != o.UID:
		en.Lost = false
	case ob.initial != nil:
		en.Lost = lost && managedfields.OwnFields(ob.initial.ManagedFields, s.manager) != nil
	}
	en.Record = recordOf(o, s.manager, desiredOf(r.m), ob.view.Epoch)
	r.it.pace.accepted()
	r.it.inSync = nil
	r.it.retaken = nil
	delete(s.due, r.it.id)
	if r.m.ID.GroupKind() == kinds.CustomResourceDefinition {
		s.defined[definedKind(r.m)] = now
	}
	switch {
	case en.Record == before && en.Lost == lost && !handedOver:
	case !handedOver && action == Verified && r.it.pace.verifiedOften() && ownUnchanged(before, o, s.manager):
		// Another writer keeps changing the object, as the leader of an election does.
		// A restart costs one verification then.
	default:
		s.store.Touch(en)
	}
	ch := changeOf(r.it, action)
	if generation := ob.generation(); generation > 0 && o.Generation > generation {
		ch.Respecified = o
	}
	return ch
}

// ownUnchanged reports whether the manager's fields are as the record has them. An
// apply that changes the object renews the time of their entry.
func ownUnchanged(rec inventory.Record, o *live.Object, manager string) bool {
	own, _ := o.OwnFieldsOf(manager)
	return o.UID == rec.UID && own.Entry == rec.Entry && own.Values == rec.Values
}

// othersWrote reports whether other managers wrote the object between two states.
func othersWrote(before, after *live.Object) bool {
	return before != nil && (before.OtherManagers != after.OtherManagers || before.Status != after.Status)
}

// generation returns the object's generation before the apply, 0 if it is
// unknown or the object didn't exist.
func (o *observation) generation() int64 {
	switch {
	case o.initial != nil:
		return o.initial.Generation
	case o.object != nil:
		return o.object.Generation
	}
	return 0
}

// createdBy reports whether the set of manager, or one that gives the object,
// created the object of the initial read.
func (o *observation) createdBy(manager string) bool {
	if o.initial == nil {
		return false
	}
	return managedfields.CreatedBy(o.initial, manager) || slices.ContainsFunc(o.givers, func(owner string) bool {
		return managedfields.CreatedBy(o.initial, live.ManagerPrefix+owner)
	})
}

// actionOf returns what the apply did.
func actionOf(r *request, ob *observation, out result, o *live.Object) Action {
	wrote := ob.view.State != live.Present || ob.view.Object.ResourceVersion != o.ResourceVersion
	switch {
	case out.replaced:
		return Replaced
	case ob.preexisting(r.m):
		return Unchanged
	case r.decision.step == stepInitial || r.decision.changed:
		if out.created {
			return Created
		}
		return Updated
	case r.decision.step == stepVerify && (!wrote || ob.view.State == live.Unknown):
		return Verified
	default:
		return Repaired
	}
}

// changeOf returns the change of an object; set.mu is held.
func changeOf(it *item, action Action) Change {
	return Change{
		ID: it.id, Action: action, UID: string(it.entry.UID), ResourceVersion: it.entry.ResourceVersion,
		Adopted: it.entry.Applied() && !it.entry.Created,
	}
}

// unchanged returns the change of an apply that sent no request.
func (s *set) unchanged(it *item, d decision) Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := changeOf(it, Unchanged)
	ch.Finished = d.verdict == Done && !d.failed
	if d.failed {
		ch.Failed = permanent(it.id, ReasonJobFailed,
			"the Job failed and was removed by its TTL; it runs again when its manifest changes; remove ttlSecondsAfterFinished to keep its pods and logs")
	}
	if d.step == stepDefer {
		ch.Action = Deferred
		s.deferLocked(it.id, d.until)
	}
	return ch
}

// refused delays the next repair of an object after the server refused one.
func (s *set) refused(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.it.pace.refused(s.now())
	if !r.decision.changed {
		s.deferLocked(r.it.id, r.it.pace.repairAt())
	}
}

// state returns what prepare decides by.
func (s *set) state(it *item) state {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return state{manager: s.manager, adopt: s.adopt, record: it.entry.Record, contested: it.pace.contested()}
}

// reconsiderYields ends the yields that the manifest, or a missing object, ends.
func (s *set) reconsiderYields(r *request, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := r.it.entry.DropYields(func(y inventory.Yield) bool {
		ends := endsYield(r.m, y, exists)
		if ends {
			r.it.retaken = append(r.it.retaken, y.Pointer)
		}
		return ends
	})
	if ended {
		s.store.Touch(r.it.entry)
	}
}

// addYields yields the fields, and returns those that weren't yielded yet. A field
// whose yield the manifest ended isn't yielded again before it was applied.
func (s *set) addYields(it *item, fields []managedfields.Field) (added []managedfields.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fields {
		if slices.Contains(it.retaken, f.Pointer) {
			continue
		}
		if it.entry.AddYield(inventory.Yield{Pointer: f.Pointer, Manager: f.Manager, Value: inventory.HashOf(f.Value)}) {
			added = append(added, f)
		}
	}
	if len(added) > 0 {
		s.store.Touch(it.entry)
	}
	return added
}

// yield yields the fields that the picked managers hold. It reads the object unless
// that was just read.
func (a *applier) yield(ctx context.Context, r *request, o *observation, pick managedfields.Pick) error {
	current := o.initial
	if current == nil {
		var err error
		if current, err = a.client.get(ctx, r.target); err != nil {
			return classify(r.m.ID, err)
		}
	}
	added := a.set.addYields(r.it, managedfields.Lost(current.ManagedFields, a.set.manager, r.m.Object.Object, pick))
	if len(added) == 0 {
		return nil
	}
	to := make([]string, 0, len(added))
	for _, f := range added {
		to = append(to, f.Pointer+" to "+f.Manager)
	}
	a.notify(Notice{ID: r.it.id, What: ReasonFieldYielded, Detail: strings.Join(to, ", ")})
	a.metrics.yielded(len(added))
	return nil
}

// settleFields adjusts the fields after the patch: relinquished fields that the
// manifest claims again are reclaimed, a yielded field that no manager owns is
// applied again, and ignored fields of a created object are relinquished.
func (a *applier) settleFields(ctx context.Context, r *request, o *observation, out *result) error {
	reclaim := func(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
		return managedfields.Reclaim(entries, a.set.manager, r.m, r.replicas)
	}
	reclaimed, err := reclaim(out.response.ManagedFields)
	if err != nil {
		return classify(r.m.ID, err)
	}
	if reclaimed != nil {
		if err := a.client.rewriteFields(ctx, r.m.ID, r.target, reclaim); err != nil {
			return err
		}
	}
	if a.dropUnowned(r, out.response) || reclaimed != nil {
		body, err := a.body(r, o.exists)
		if err != nil {
			return err
		}
		if err := a.patch(ctx, r, o.view, body, out); err != nil {
			return err
		}
	}
	if !out.created || len(r.m.IgnoreFields) == 0 {
		return nil
	}
	err = a.client.rewriteFields(ctx, r.m.ID, r.target, func(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
		return managedfields.Relinquish(entries, a.set.manager, r.m.Object.Object, r.m.IgnoreFields)
	})
	if err != nil {
		return err
	}
	out.response, err = a.client.get(ctx, r.target)
	return classify(r.m.ID, err)
}

// dropUnowned ends the yields of fields that no other manager owns, and reports
// whether there were any.
func (a *applier) dropUnowned(r *request, response *metav1.PartialObjectMetadata) bool {
	a.set.mu.Lock()
	defer a.set.mu.Unlock()
	if len(r.it.entry.Yields) == 0 {
		return false
	}
	owned := managedfields.Lost(response.ManagedFields, a.set.manager, r.m.Object.Object, managedfields.Any)
	return r.it.entry.DropYields(func(y inventory.Yield) bool {
		return !slices.ContainsFunc(owned, func(f managedfields.Field) bool { return f.Pointer == y.Pointer })
	})
}

// logFields logs, once per manifest, in what the object differs from it. before
// are the manager's fields before the apply; nil skips them.
func (a *applier) logFields(m *payload.Manifest, before *fieldpath.Set, response *metav1.PartialObjectMetadata) {
	log := a.log.WithValues("object", m.ID.String())
	if altered := managedfields.Altered(m, response); len(altered) > 0 {
		log.Info("admission changed the applied manifest; the result counts as in sync", "fields", altered)
	}
	now := managedfields.OwnFields(response.ManagedFields, a.set.manager)
	if now == nil {
		log.Info("managedFields has no entry of the set, perhaps because a webhook strips it; the object is never pruned, and fields that leave its manifest stay")
		return
	}
	if before == nil {
		return
	}
	for manager, fields := range managedfields.Retained(before.Difference(now), response.ManagedFields) {
		log.Info("fields left the manifest but stay, because another manager owns them", "manager", sanitize.Clip(manager, 100), "fields", fields)
	}
}
