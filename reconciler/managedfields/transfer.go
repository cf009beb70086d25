// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/payload"
)

// InitialManager owns relinquished fields, so that they keep their values: the
// server removes a field that has no manager.
const InitialManager = "lockstep-initial"

// Relinquished returns the JSON pointers that the manifest leaves to other
// managers: its ignored fields, and replicas, the field of the kind's scale
// subresource ("" without one), if the manifest doesn't set it. The server would
// reset that field to its default once its only manager drops it.
func Relinquished(m *payload.Manifest, replicas string) []string {
	if _, set := At(m.Object.Object, replicas); set || replicas == "" || within(replicas, m.IgnoreFields) {
		return m.IgnoreFields
	}
	return append(slices.Clone(m.IgnoreFields), replicas)
}

// Rearrange returns the entries after manager took the picked ones over and
// relinquished the fields that the manifest leaves to others (see Relinquished);
// nil if nothing changes.
func Rearrange(entries []metav1.ManagedFieldsEntry, manager string, pick Pick, m *payload.Manifest, replicas string) ([]metav1.ManagedFieldsEntry, error) {
	taken, err := takeOver(entries, manager, pick)
	if err != nil {
		return nil, err
	}
	if taken != nil {
		entries = taken
	}
	given, err := Relinquish(entries, manager, m.Object.Object, Relinquished(m, replicas))
	if err != nil || given != nil {
		return given, err
	}
	return taken, nil
}

// takeOver moves the fields of the picked entries to the entry of manager; nil
// if none is picked. The result keeps the API version and time of the manager's
// entry. If there was none it has the first picked entry's version and no time,
// since that time would mark the object as created by manager (see CreatedBy).
func takeOver(entries []metav1.ManagedFieldsEntry, manager string, pick Pick) ([]metav1.ManagedFieldsEntry, error) {
	union := fieldpath.NewSet()
	var ours *metav1.ManagedFieldsEntry
	var rest []metav1.ManagedFieldsEntry
	picked := false
	for i := range entries {
		e := entries[i].DeepCopy()
		switch {
		case isApplier(e, manager):
			ours = e
		case pick(e):
			picked = true
			if ours == nil {
				ours = &metav1.ManagedFieldsEntry{
					Manager: manager, Operation: metav1.ManagedFieldsOperationApply,
					APIVersion: e.APIVersion, FieldsType: e.FieldsType,
				}
			}
		default:
			rest = append(rest, *e)
			continue
		}
		set, err := fieldsOf(&entries[i])
		if err != nil {
			return nil, err
		}
		union = union.Union(set)
	}
	if !picked {
		return nil, nil
	}
	if err := setFields(ours, union); err != nil {
		return nil, err
	}
	return append(rest, *ours), nil
}

// Relinquish moves the fields at or below roots from the entry of manager to
// InitialManager. List indices in roots refer to content. It returns nil if
// manager owns none of them.
func Relinquish(entries []metav1.ManagedFieldsEntry, manager string, content map[string]any, roots []string) ([]metav1.ManagedFieldsEntry, error) {
	given := fieldpath.NewSet()
	var from *metav1.ManagedFieldsEntry
	var out []metav1.ManagedFieldsEntry
	for i := range entries {
		e := entries[i].DeepCopy()
		ours := isApplier(e, manager)
		if !ours && !isApplier(e, InitialManager) {
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
	from.Manager = InitialManager
	if err := setFields(from, given); err != nil {
		return nil, err
	}
	return append(out, *from), nil
}

// Reclaim moves the fields that the manifest no longer leaves to others from
// InitialManager to the entry of manager. It returns nil if there are none, or
// if manager has no entry.
func Reclaim(entries []metav1.ManagedFieldsEntry, manager string, m *payload.Manifest, replicas string) ([]metav1.ManagedFieldsEntry, error) {
	ours, initial := -1, -1
	for i := range entries {
		switch {
		case isApplier(&entries[i], manager):
			ours = i
		case isApplier(&entries[i], InitialManager):
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
	stay := below(given, m.Object.Object, Relinquished(m, replicas))
	back := given.Difference(stay)
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
		case i == initial && stay.Empty():
			continue
		case i == initial:
			err = setFields(e, stay)
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
