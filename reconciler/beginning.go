// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/accepted"
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
func chosenOf(d worker.Desired) accepted.Chosen {
	c := accepted.Chosen{Version: d.Version, Image: d.Image, Path: d.Path}
	if c.Path != "" {
		c.Revision = d.Revision
	}
	return c
}
