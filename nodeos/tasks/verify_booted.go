// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// verifyBooted checks that the requested OS runs and is healthy, then restores the
// try of this boot.
func verifyBooted(host interface {
	nodeos.Inspector
	nodeos.BootSwitch
},
) nodeos.TaskSetupFunc {
	return forImage(nodeos.TaskVerifyBooted, func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime, t target) error {
		inv, err := host.Inspect(ctx)
		if err != nil {
			return fmt.Errorf("inspect the host: %w", err)
		}
		if inv.Booted.Digest != t.ref.Digest {
			return nodeos.Refuse("WrongSystem", "running digest is %s, want %s", inv.Booted.Digest, t.ref.Digest)
		}
		if err := host.Health(ctx); err != nil {
			return fmt.Errorf("check the health of %s %s: %w", inv.Booted.Product, inv.Booted.Version, err)
		}
		if err := host.KeepTry(ctx); err != nil {
			return fmt.Errorf("restore the boot try: %w", err)
		}
		return nil
	})
}
