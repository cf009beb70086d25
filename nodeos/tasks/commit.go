// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// commit marks the running OS as good and verifies the result.
func commit(host interface {
	nodeos.Inspector
	nodeos.BootSwitch
},
) nodeos.TaskSetupFunc {
	return forImage(nodeos.TaskCommit, func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime, t target) error {
		if err := host.Commit(ctx, t.ref.Digest); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		inv, err := host.Inspect(ctx)
		if err != nil {
			return fmt.Errorf("inspect the host: %w", err)
		}
		if !inv.Booted.Confirmed {
			return fmt.Errorf("slot %s is still not confirmed after the commit", inv.Booted.Slot)
		}
		return nil
	})
}
