// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/payload"
)

// maxListed bounds the fields that Altered and Retained list.
const maxListed = 10

// Field is a field of a manifest that another manager owns.
type Field struct {
	// Pointer is its JSON pointer in the manifest.
	Pointer string
	// Value is the manifest's value.
	Value any
	// Manager owns the field.
	Manager string
}

// Lost returns the fields of content that a picked entry owns and manager
// doesn't. Entries that can't be decoded are skipped.
func Lost(entries []metav1.ManagedFieldsEntry, manager string, content map[string]any, pick Pick) []Field {
	ours := OwnFields(entries, manager)
	if ours == nil {
		ours = fieldpath.NewSet()
	}
	var out []Field
	for i := range entries {
		e := &entries[i]
		if isApplier(e, manager) || !pick(e) {
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			continue
		}
		for path := range set.Leaves().Difference(ours).All() {
			pointer, val, ok := lookup(content, path)
			if ok && !within(pointer, []string{"/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"}) {
				out = append(out, Field{Pointer: pointer, Value: val, Manager: e.Manager})
			}
		}
	}
	return out
}

// Altered returns the JSON pointers of up to 10 labels and annotations of the
// manifest that are missing on the object or have another value.
func Altered(m *payload.Manifest, o *metav1.PartialObjectMetadata) []string {
	var out []string
	for prefix, maps := range map[string][2]map[string]string{
		"/metadata/labels/":      {m.Object.GetLabels(), o.Labels},
		"/metadata/annotations/": {m.Object.GetAnnotations(), o.Annotations},
	} {
		for key, want := range maps[0] {
			if have, ok := maps[1][key]; !ok || have != want {
				out = append(out, prefix+escape(key))
			}
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxListed)]
}

// Retained returns, by manager, up to 10 of the dropped fields that other
// managers still own. Entries that can't be decoded are skipped.
func Retained(dropped *fieldpath.Set, entries []metav1.ManagedFieldsEntry) map[string][]string {
	out := map[string][]string{}
	for i := range entries {
		e := &entries[i]
		if e.Subresource == "status" || e.Manager == InitialManager {
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			continue
		}
		for path := range set.Intersection(dropped).Leaves().All() {
			if len(out[e.Manager]) < maxListed {
				out[e.Manager] = append(out[e.Manager], path.String())
			}
		}
	}
	return out
}
