// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// precheckImage refuses images that can't or must not be installed, before anything
// is changed.
func precheckImage(host nodeos.Inspector, images ImageSource) nodeos.TaskSetupFunc {
	return forImage(nodeos.TaskPrecheckImage, func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime, t target) error {
		if d, denied := t.call.Memory.DeniedBy(t.ref.Digest); denied {
			return nodeos.Refuse("DeniedDigest", "%s is denied on this host: %s", t.ref.Digest, d.Why)
		}
		v, err := verified(ctx, images, t)
		if err != nil {
			return err
		}
		if err := checkFloor(t.call.Memory, v.Image); err != nil {
			return err
		}
		inv, err := host.Inspect(ctx)
		if err != nil {
			return fmt.Errorf("inspect the host: %w", err)
		}
		return checkRoom(inv, t, v.Image)
	})
}

// checkFloor refuses versions below the highest committed one, except the OS committed
// directly before the newest one, which is a rollback.
func checkFloor(m nodeos.Memory, image nodeos.Image) error {
	high := m.HighWater[image.Product]
	if high == "" {
		return nil
	}
	c, err := nodeos.CompareVersions(image.Version, high)
	if err != nil {
		return fmt.Errorf("compare with the high-water mark: %w", err)
	}
	if c >= 0 {
		return nil
	}
	if n := len(m.Committed); n >= 2 && m.Committed[n-2].Digest == image.Ref.Digest {
		return nil
	}
	return nodeos.Refuse("BelowFloor", "%s %s is older than %s, which was committed on this host; only the previously committed version is allowed",
		image.Product, image.Version, high)
}

// checkRoom checks that the image fits and that nothing is on trial.
func checkRoom(inv nodeos.Inventory, t target, image nodeos.Image) error {
	if trial := t.call.Memory.Trial; trial != nil && trial.OperationID != t.call.OperationID {
		return nodeos.Refuse("Unconfirmed", "operation %s has %s on trial: commit it or roll it back first", trial.OperationID, trial.Image.Version)
	}
	if !inv.Booted.Confirmed && inv.Booted.Digest != t.ref.Digest {
		return nodeos.Refuse("Unconfirmed", "running OS %s %s is not committed: commit it or roll it back first", inv.Booted.Product, inv.Booted.Version)
	}
	if inv.Booted.Confirmed && inv.Booted.Digest == t.ref.Digest {
		return nodeos.Refuse("AlreadyBooted", "%s %s is already running", image.Product, image.Version)
	}
	if image.Size > inv.FreeBytes {
		return nodeos.Refuse("NoSpace", "%s has %d bytes, the slot has a capacity of %d", t.ref, image.Size, inv.FreeBytes)
	}
	return nil
}
