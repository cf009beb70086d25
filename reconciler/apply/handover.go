// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// initialManager holds the fields that were ours and aren't sent any more, but
// keep their values: with no manager at all the server would remove them.
const initialManager = "lockstep-initial"

const replicasPointer = "/spec/replicas"

// othersFields returns the JSON pointers of what the manifest leaves to others:
// the fields that it ignores, and replicas that it doesn't name. Who removes
// them from a manifest means "whatever they are", never 1.
func othersFields(m *payload.Manifest) []string {
	if _, named := at(m.Object.Object, replicasPointer); named || !kinds.Of(m.GVK.GroupKind()).Scalable || within(replicasPointer, m.IgnoreFields) {
		return m.IgnoreFields
	}
	return append(slices.Clone(m.IgnoreFields), replicasPointer)
}

// rearrange changes who holds the object's fields, where the patch alone would
// leave a field of people's behind, or remove one that is others' now. It
// costs a read, and a write if there is something to change.
func (e *Engine) rearrange(ctx context.Context, j *job) error {
	_, hasEntry := j.seen.OwnFieldsOf(e.manager)
	take := hasMigratable(j.seen) && (j.decision.changed || !hasEntry)
	if !take && !e.mayHoldOthers(j) {
		return nil
	}
	pick := func(*metav1.ManagedFieldsEntry) bool { return false }
	if take {
		pick = mayMigrate(nil, "")
	}
	return e.rewriteFields(ctx, j.m.ID, j.t, func(o *metav1.PartialObjectMetadata) ([]metav1.ManagedFieldsEntry, error) {
		return rearranged(o.ManagedFields, e.manager, pick, j.m)
	})
}

// mayHoldOthers reports whether our entry may hold fields that the manifest
// leaves to others. An entry that is as our last apply of this manifest left
// it doesn't.
func (e *Engine) mayHoldOthers(j *job) bool {
	others := othersFields(j.m)
	if len(others) == 0 {
		return false
	}
	e.mu.RLock()
	rec := j.it.entry.record()
	e.mu.RUnlock()
	own, _ := j.seen.OwnFieldsOf(e.manager)
	switch {
	case older(j.seen.ResourceVersion, rec.ResourceVersion):
		return true // It doesn't show what our last apply took.
	case own.Entry == rec.Entry && !j.decision.changed:
		return false
	default:
		return len(j.m.IgnoreFields) > 0 || own.Replicas
	}
}

// rearranged makes the picked entries ours, and gives what the manifest leaves
// to others away. It returns nil if nothing changes.
func rearranged(entries []metav1.ManagedFieldsEntry, manager string, pick func(*metav1.ManagedFieldsEntry) bool, m *payload.Manifest) ([]metav1.ManagedFieldsEntry, error) {
	taken, err := migrate(entries, manager, pick)
	if err != nil {
		return nil, err
	}
	if taken != nil {
		entries = taken
	}
	given, err := handOver(entries, manager, m.Object.Object, othersFields(m))
	if err != nil || given != nil {
		return given, err
	}
	return taken, nil
}

// handOver moves the fields below roots from our entry to initialManager; the
// indices of lists in roots are those of content. It returns nil if we hold
// none of them.
func handOver(entries []metav1.ManagedFieldsEntry, manager string, content map[string]any, roots []string) ([]metav1.ManagedFieldsEntry, error) {
	given := fieldpath.NewSet()
	var from *metav1.ManagedFieldsEntry
	var out []metav1.ManagedFieldsEntry
	for i := range entries {
		e := entries[i].DeepCopy()
		ours := isManager(e, manager)
		if !ours && !isManager(e, initialManager) {
			out = append(out, *e)
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			return nil, err
		}
		if !ours {
			given = given.Union(set)
			continue
		}
		moved := below(set, content, roots)
		if moved.Empty() {
			return nil, nil
		}
		given = given.Union(moved)
		from = e.DeepCopy()
		if err := setFields(e, set.Difference(moved)); err != nil {
			return nil, err
		}
		out = append(out, *e)
	}
	if from == nil {
		return nil, nil
	}
	from.Manager = initialManager
	if err := setFields(from, given); err != nil {
		return nil, err
	}
	return append(out, *from), nil
}

// takeBack makes the fields ours that were handed over for an earlier manifest and
// that this one doesn't leave to others. It reports whether there were any: then
// another apply removes what isn't in the manifest.
func (e *Engine) takeBack(ctx context.Context, j *job, answer *metav1.PartialObjectMetadata) (bool, error) {
	change := func(o *metav1.PartialObjectMetadata) ([]metav1.ManagedFieldsEntry, error) {
		return reclaimed(o.ManagedFields, e.manager, j.m)
	}
	if entries, err := change(answer); err != nil || entries == nil {
		return false, classify(j.m.ID, err)
	}
	return true, e.rewriteFields(ctx, j.m.ID, j.t, change)
}

// reclaimed moves the fields that the manifest doesn't leave to others from
// initialManager to our entry. It returns nil if that holds none, or if we have no
// entry that they could be moved to.
func reclaimed(entries []metav1.ManagedFieldsEntry, manager string, m *payload.Manifest) ([]metav1.ManagedFieldsEntry, error) {
	ours, initial := -1, -1
	for i := range entries {
		switch {
		case isManager(&entries[i], manager):
			ours = i
		case isManager(&entries[i], initialManager):
			initial = i
		}
	}
	if ours < 0 || initial < 0 {
		return nil, nil
	}
	given, err := fieldsOf(&entries[initial])
	if err != nil {
		return nil, err
	}
	kept := below(given, m.Object.Object, othersFields(m))
	back := given.Difference(kept)
	if back.Empty() {
		return nil, nil
	}
	own, err := fieldsOf(&entries[ours])
	if err != nil {
		return nil, err
	}
	out := make([]metav1.ManagedFieldsEntry, 0, len(entries))
	for i := range entries {
		e := entries[i].DeepCopy()
		switch {
		case i == ours:
			err = setFields(e, own.Union(back))
		case i == initial && kept.Empty():
			continue
		case i == initial:
			err = setFields(e, kept)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, *e)
	}
	return out, nil
}

// below returns the paths of set that are at or below roots.
func below(set *fieldpath.Set, content map[string]any, roots []string) *fieldpath.Set {
	out := fieldpath.NewSet()
	for path := range set.All() {
		if pointer, ok := pointerOf(content, path); ok && within(pointer, roots) {
			out.Insert(path.Copy())
		}
	}
	return out
}

// pointerOf returns the JSON pointer of a path. From where content has no such
// field on, only names can be told, no indices.
func pointerOf(content map[string]any, path fieldpath.Path) (string, bool) {
	var here any = content
	var b strings.Builder
	for _, el := range path {
		key, index, child, ok := step(here, el)
		switch {
		case !ok && el.FieldName == nil:
			return "", false
		case !ok:
			key, index, child = *el.FieldName, -1, nil
		}
		b.WriteByte('/')
		if index >= 0 {
			b.WriteString(strconv.Itoa(index))
		} else {
			b.WriteString(escape(key))
		}
		here = child
	}
	return b.String(), true
}
