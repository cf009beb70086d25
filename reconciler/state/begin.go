// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import "context"

// BeginRelease records a release before its first write, so that a process that
// starts during the apply continues with it instead of reverting to the previous
// release. An existing record of the same release is kept, unless it was complete
// and no longer is.
func (s *Store) BeginRelease(ctx context.Context, name string, accepted Accepted) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		a := r.Accepted
		same := a != nil && a.Identity.Equal(accepted.Identity) && a.Revision == accepted.Revision && a.Selection == accepted.Selection
		if same && (accepted.State == "" || a.State != "") {
			return false
		}
		r.Accepted = &accepted
		return true
	})
}
