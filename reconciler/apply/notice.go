// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "github.com/lockstep-dev/lockstep/payload"

// Event is what a Notice tells of.
type Event string

// What people may want to hear of; the names are reasons of events.
const (
	// ReasonDriftRepaired: others changed or removed the object, and it was made
	// level again.
	ReasonDriftRepaired Event = "DriftRepaired"
	// ReasonFieldYielded: fields of the object are left to another controller now.
	ReasonFieldYielded Event = "FieldYielded"
	// ReasonPruned: the object left the set and was deleted.
	ReasonPruned Event = "Pruned"
	// ReasonOrphaned: the object left the set and stays in the cluster.
	ReasonOrphaned Event = "Orphaned"
)

// Notice is something that happened to an object of the set.
type Notice struct {
	ID   payload.ObjectID
	What Event
	// Detail is whom fields were left to, or why the object stays; "" else.
	Detail string
}

// tell hands a notice on. It may be called with the engine locked.
func (e *Engine) tell(id payload.ObjectID, what Event, detail string) {
	if e.cfg.Notice != nil {
		e.cfg.Notice(Notice{ID: id, What: what, Detail: detail})
	}
}
