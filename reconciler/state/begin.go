// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import "context"

// BeginRelease records which release is going to be applied, before its first
// write: a process that is killed amid it must be followed by one that goes on
// with it, not by one that first takes its objects back to the release before.
// What Choose has recorded of the same release stays, unless that was level and
// isn't any more.
func (s *Store) BeginRelease(ctx context.Context, name string, chosen Accepted) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		c := r.Accepted
		same := c != nil && c.Identity.Equal(chosen.Identity) && c.Revision == chosen.Revision && c.Selection == chosen.Selection
		if same && (chosen.State == "" || c.State != "") {
			return false
		}
		r.Accepted = &chosen
		return true
	})
}
