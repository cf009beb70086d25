// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"encoding/json"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// beginning returns what writes down which release is applied, before its first
// write.
func (r *releases) beginning(name string) func(context.Context, worker.SyncWork) error {
	return func(ctx context.Context, work worker.SyncWork) error {
		chosen := chosenOf(work.Desired)
		if work.State != payload.Reconciling {
			chosen.State = work.State.String()
		}
		return r.store.BeginRelease(ctx, name, chosen)
	}
}

// chosenOf is what a new process needs to know of a release to go on with it.
func chosenOf(d worker.Desired) state.Accepted {
	c := state.Accepted{Identity: d.Identity, Selection: selectionText(d.Selection)}
	if c.Path != "" {
		c.Revision = d.Revision
	}
	return c
}

// selectionText is a selection as it is kept with what was chosen.
func selectionText(s payload.Selection) string {
	raw, err := json.Marshal(s)
	if err != nil {
		return "" // There is nothing in it that could fail.
	}
	return string(raw)
}

// selectionAs reads a kept selection; one that isn't there or can't be read is
// the one that the spec has now.
func selectionAs(text string, now payload.Selection) payload.Selection {
	var s payload.Selection
	if text == "" || json.Unmarshal([]byte(text), &s) != nil {
		return now
	}
	return s
}
