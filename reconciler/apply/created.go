// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"

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
