// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

// CreatedObjects returns the objects of the inventory that this set made, which
// are those that a prune may delete, in the order of their identities.
func (e *Engine) CreatedObjects() []payload.ObjectID {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []payload.ObjectID
	for id, it := range e.items {
		if it.shard != noShard && it.entry.Created {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, payload.ObjectID.Compare)
	return out
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
