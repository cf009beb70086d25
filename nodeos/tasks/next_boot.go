// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// setNextBoot lets the firmware try the staged image, with boot counting.
func setNextBoot(host nodeos.BootSwitch) nodeos.TaskSetupFunc {
	return forImage(nodeos.TaskSetNextBoot, func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime, t target) error {
		if t.call.Memory.Trial == nil {
			return fmt.Errorf("set the next boot: the dead-man timer of operation %s is not armed", t.call.OperationID)
		}
		if err := host.SetNextBoot(ctx, t.ref.Digest); err != nil {
			return fmt.Errorf("set the next boot: %w", err)
		}
		return nil
	})
}

// clearNextBoot undoes setNextBoot.
func clearNextBoot(host nodeos.BootSwitch) nodeos.TaskSetupFunc {
	return plain(nodeos.TaskClearNextBoot, func(ctx context.Context, _ nodeos.Runtime) error {
		if err := host.ClearNextBoot(ctx); err != nil {
			return fmt.Errorf("clear the next boot: %w", err)
		}
		return nil
	})
}
