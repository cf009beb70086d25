// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Prunable returns the objects of the inventory that a prune may delete once
// they leave the set, in the order of their identities, and the size of the
// inventory. The rest of it would stay in the cluster.
func (e *Engine) Prunable() (ids []payload.ObjectID, total int) {
	all, total := e.leaving(nil)
	for _, en := range e.deletable(all) {
		ids = append(ids, en.id())
	}
	slices.SortFunc(ids, payload.ObjectID.Compare)
	return ids, total
}

// Made returns the objects of the inventory that the set made itself, in the
// order of their identities.
func (e *Engine) Made() []payload.ObjectID {
	all, _ := e.leaving(nil)
	var ids []payload.ObjectID
	for _, en := range all {
		if en.Created {
			ids = append(ids, en.id())
		}
	}
	slices.SortFunc(ids, payload.ObjectID.Compare)
	return ids
}

// deletable returns the entries that the inventory itself lets be deleted.
func (e *Engine) deletable(entries []entry) []entry {
	var out []entry
	for _, en := range entries {
		if e.keepsAnyway(en) == "" {
			out = append(out, en)
		}
	}
	return out
}

// InSync reports whether applying the manifest now would cost no request, since
// the object is as it wants it.
func (e *Engine) InSync(ctx context.Context, m *payload.Manifest) (bool, error) {
	return e.isLevel(ctx, m)
}

// recallAll completes the entries that have no record while their objects are
// still as the process left them that made them: what tells that it did is gone
// with the first change. What can't be found out now is asked again when the
// object is to go.
func (e *Engine) recallAll(ctx context.Context) {
	all, _ := e.leaving(nil)
	all = slices.DeleteFunc(all, func(en entry) bool {
		if en.applied() {
			return true
		}
		// To find out whether a kind is gone costs a discovery each: not now.
		_, err := e.cfg.Live.Mapping(en.gvk().GroupKind().WithVersion(""))
		return live.IsNoMatch(err)
	})
	if err := e.recallEach(ctx, all); err != nil {
		e.cfg.Log.Info("who made some objects can't be told yet", "problem", err.Error())
	}
}

// recallEach completes those entries that have no record, in place and in the
// inventory. It returns the joined errors of those it can't tell of.
func (e *Engine) recallEach(ctx context.Context, entries []entry) error {
	var group errgroup.Group
	group.SetLimit(DefaultConcurrency)
	failures := make([]error, len(entries))
	for i := range entries {
		if en := &entries[i]; !en.applied() {
			group.Go(func() error {
				*en, failures[i] = e.recall(ctx, *en)
				return nil
			})
		}
	}
	_ = group.Wait() // None of them returns an error.
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range entries {
		known := &entries[i]
		if it := e.items[known.id()]; it != nil && known.applied() && !it.entry.applied() {
			it.entry.UID, it.entry.Created = known.UID, known.Created
			e.store.touch(it)
		}
	}
	return errors.Join(failures...)
}

// recall completes an entry that has no record: the process that made the object
// ended before it wrote the record. An object that leaves the release before any
// other process has applied it would be left behind as never applied.
func (e *Engine) recall(ctx context.Context, en entry) (entry, error) {
	if en.applied() {
		return en, nil
	}
	_, o, err := e.track(ctx, en)
	if o == nil || err != nil {
		return en, err
	}
	if madeBy(o, e.manager) {
		en.UID, en.Created = o.UID, true
	}
	return en, nil
}

// madeBy reports whether the set made an object that its inventory names but
// has no record of: a process ended between the apply and the write of its
// record. What tells is that the entry of our manager is as old as the object;
// that of an object which was adopted is younger. Times have seconds, and the
// server takes two of them: if in doubt the object was found, and stays.
func madeBy(o *metav1.PartialObjectMetadata, manager string) bool {
	for i := range o.ManagedFields {
		en := &o.ManagedFields[i]
		if en.Manager != manager || en.Operation != metav1.ManagedFieldsOperationApply || en.Subresource != "" || en.Time == nil {
			continue
		}
		age := en.Time.Sub(o.CreationTimestamp.Time)
		return age >= 0 && age <= time.Second
	}
	return false
}

// Others returns the owners of those objects of the manifests that belong to
// another set of this process, but for what that set hands over. It asks
// nobody: what other tools have is found when an object is tried.
func (e *Engine) Others(manifests []payload.Manifest) map[payload.ObjectID]string {
	s := e.cfg.Shared
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[payload.ObjectID]string{}
	for i := range manifests {
		m := &manifests[i]
		if owner := s.owners[m.ID]; owner != "" && owner != e.cfg.Owner && adoptFrom(m) != live.ManagerPrefix+owner {
			out[m.ID] = owner
		}
	}
	return out
}

// Deleting returns the objects that are to go and aren't gone, as the watches
// show them: those that left the set, and those of delete manifests.
func (e *Engine) Deleting() []payload.ObjectID {
	e.mu.RLock()
	var going []payload.ObjectID
	for id, it := range e.items {
		if it.leaving || it.shard == noShard {
			going = append(going, id)
		}
	}
	e.mu.RUnlock() // The cache asks us what we have while it is locked.
	going = slices.DeleteFunc(going, func(id payload.ObjectID) bool { return e.cfg.Live.Get(id).State != live.Present })
	slices.SortFunc(going, payload.ObjectID.Compare)
	return going
}
