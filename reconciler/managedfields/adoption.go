// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Adoption describes the fields of other managers on an object that a set adopted.
type Adoption struct {
	// Taken are the fields that the adoption took from other managers, Kept those
	// that they still own and the manifest lacks; up to 10 paths per manager.
	Taken, Kept map[string][]string
}

// maxManagers bounds the managers that an Adoption names.
const maxManagers = 3

// AdoptionOf compares the entries before and after manager adopted an object.
// Entries of the picked managers, whose fields the set takes over anyway, of
// subresources and of Kubernetes' own controllers are ignored, as are entries that
// can't be decoded.
func AdoptionOf(before, after []metav1.ManagedFieldsEntry, manager string, pick Pick) Adoption {
	others := func(entries []metav1.ManagedFieldsEntry) map[string]*fieldpath.Set {
		out := map[string]*fieldpath.Set{}
		for i := range entries {
			e := &entries[i]
			if e.Subresource != "" || e.Manager == InitialManager || strings.HasPrefix(e.Manager, live.ManagerPrefix) || strings.HasPrefix(e.Manager, "kube-") || pick(e) {
				continue
			}
			set, err := fieldsOf(e)
			if err != nil {
				continue
			}
			if have := out[e.Manager]; have != nil {
				set = set.Union(have)
			}
			out[e.Manager] = set
		}
		return out
	}
	had, have := others(before), others(after)
	ours := OwnFields(after, manager)
	if ours == nil {
		ours = fieldpath.NewSet()
	}
	out := Adoption{Taken: map[string][]string{}, Kept: map[string][]string{}}
	for name, set := range had {
		lost := set.Intersection(ours)
		if still := have[name]; still != nil {
			lost = lost.Difference(still)
		}
		list(out.Taken, name, lost)
	}
	for name, set := range have {
		list(out.Kept, name, set.Difference(ours))
	}
	return out
}

// list adds up to maxListed leaves of the set.
func list(to map[string][]string, manager string, set *fieldpath.Set) {
	for path := range set.Leaves().All() {
		if len(to[manager]) < maxListed {
			to[manager] = append(to[manager], path.String())
		}
	}
}

// String describes the adoption, "" if no other manager was involved.
func (a Adoption) String() string {
	var parts []string
	describe := func(verb, preposition string, fields map[string][]string) {
		names := slices.Sorted(maps.Keys(fields))
		for _, name := range names[:min(len(names), maxManagers)] {
			parts = append(parts, verb+" "+strings.Join(fields[name], ", ")+" "+preposition+" "+name)
		}
	}
	describe("took", "from", a.Taken)
	describe("kept", "of", a.Kept)
	return strings.Join(parts, "; ")
}
