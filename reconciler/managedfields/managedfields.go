// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package managedfields evaluates metadata.managedFields and computes the
// entries that transfer fields between field managers.
//
// All functions are pure: they return the new entries and leave their
// arguments unchanged. Reading and patching objects is left to package apply.
package managedfields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Pick selects managedFields entries.
type Pick func(*metav1.ManagedFieldsEntry) bool

// Any selects every entry.
func Any(*metav1.ManagedFieldsEntry) bool { return true }

// None selects no entry.
func None(*metav1.ManagedFieldsEntry) bool { return false }

// Owner returns the set whose field manager owns fields of the object, such as
// "clusterrelease/platform"; "" if there is none.
func Owner(meta metav1.Object) string {
	if own := live.Summarize(meta).OwnFields; len(own) > 0 {
		return strings.TrimPrefix(own[0].Manager.Value(), live.ManagerPrefix)
	}
	return ""
}

// OwnFields returns the fields that manager applied; nil if it has no readable
// entry.
func OwnFields(entries []metav1.ManagedFieldsEntry, manager string) *fieldpath.Set {
	for i := range entries {
		if isApplier(&entries[i], manager) {
			if set, err := fieldsOf(&entries[i]); err == nil {
				return set
			}
		}
	}
	return nil
}

// CreatedBy reports whether manager created the object: its entry is at most
// one second younger than the object. An entry that adopted the object is
// younger. Timestamps have a resolution of one second, and the server takes two
// of them; in doubt the object counts as pre-existing.
func CreatedBy(o *metav1.PartialObjectMetadata, manager string) bool {
	for i := range o.ManagedFields {
		e := &o.ManagedFields[i]
		if !isApplier(e, manager) || e.Time == nil {
			continue
		}
		age := e.Time.Sub(o.CreationTimestamp.Time)
		return age >= 0 && age <= time.Second
	}
	return false
}

// Patch returns a JSON patch that replaces the entries of an object that still
// has the given resource version.
func Patch(entries []metav1.ManagedFieldsEntry, resourceVersion string) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	return json.Marshal([]operation{
		{"replace", "/metadata/managedFields", entries},
		{"replace", "/metadata/resourceVersion", resourceVersion},
	})
}

// isApplier reports whether e is the server-side apply entry of manager.
func isApplier(e *metav1.ManagedFieldsEntry, manager string) bool {
	return e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}

func fieldsOf(e *metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := fieldpath.NewSet()
	if e.FieldsV1 == nil {
		return set, nil
	}
	if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
		return nil, fmt.Errorf("decode the fields of manager %.60q: %w", e.Manager, err)
	}
	return set, nil
}

func setFields(e *metav1.ManagedFieldsEntry, set *fieldpath.Set) error {
	raw, err := set.ToJSON()
	if err != nil {
		return fmt.Errorf("encode the fields of manager %.60q: %w", e.Manager, err)
	}
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes(raw)
	e.FieldsV1, e.FieldsType = fields, "FieldsV1"
	return nil
}
