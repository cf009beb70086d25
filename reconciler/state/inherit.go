// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"maps"
	"slices"
)

// Inherit adds the enabled capabilities and the observed pools of one release to
// those of its successor. It does nothing if there are none.
func (s *Store) Inherit(ctx context.Context, successor, from string) error {
	old := s.Releases()[from]
	if len(old.Capabilities) == 0 && len(old.Pools) == 0 {
		return nil
	}
	return s.editRelease(ctx, successor, func(r *Release) bool {
		capabilities := slices.Concat(r.Capabilities, old.Capabilities)
		slices.Sort(capabilities)
		capabilities = slices.Compact(capabilities)
		pools := maps.Clone(old.Pools)
		if pools == nil {
			pools = map[string]string{}
		}
		maps.Copy(pools, r.Pools)
		if slices.Equal(capabilities, r.Capabilities) && len(pools) == len(r.Pools) {
			return false
		}
		r.Capabilities, r.Pools = capabilities, pools
		return true
	})
}
