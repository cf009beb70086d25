// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// wantedDigest returns the digest to roll back to: of the OS before the trial, of the
// request, or "".
func wantedDigest(call nodeos.TaskCall) string {
	if t := call.Memory.Trial; t != nil {
		return t.From.Digest
	}
	if r, ok := call.Request.(nodeos.RollbackRequest); ok {
		return r.Digest
	}
	return ""
}

// precheckRollback refuses a rollback without a previous OS.
func precheckRollback(host nodeos.Inspector) nodeos.TaskSetupFunc {
	return func(_ nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error {
			inv, err := host.Inspect(ctx)
			if err != nil {
				return fmt.Errorf("inspect the host: %w", err)
			}
			previous, ok := inv.Previous()
			if !ok {
				return nodeos.Refuse("NoPrevious", "no slot except %s has a good OS", inv.Booted.Slot)
			}
			if want := wantedDigest(call); want != "" && previous.Image.Ref.Digest != want {
				return nodeos.Refuse("NoPrevious", "slot %s has %s, want %s", previous.Name, previous.Image.Ref.Digest, want)
			}
			return nil
		}, nodeos.TaskPrecheckRollback
	}
}

// restore selects the previous OS for the next boot.
func restore(host nodeos.BootSwitch) nodeos.TaskSetupFunc {
	return func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, log *zap.Logger, _ nodeos.Runtime) error {
			slot, err := host.Restore(ctx)
			if err != nil {
				return fmt.Errorf("restore: %w", err)
			}
			log.Info("previous OS selected for the next boot", zap.String("slot", slot.Name), zap.String("version", slot.Image.Version))
			return nil
		}, nodeos.TaskRestore
	}
}

// verifyRestored checks that the previous OS runs and is healthy.
func verifyRestored(host nodeos.Inspector) nodeos.TaskSetupFunc {
	return func(_ nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error {
			inv, err := host.Inspect(ctx)
			if err != nil {
				return fmt.Errorf("inspect the host: %w", err)
			}
			want := wantedDigest(call)
			if (want != "" && inv.Booted.Digest != want) || (want == "" && inv.Booted.Digest == call.From) {
				return nodeos.Refuse("WrongSystem", "%s %s is running after the rollback", inv.Booted.Product, inv.Booted.Version)
			}
			if err := host.Health(ctx); err != nil {
				return fmt.Errorf("check the health of %s %s: %w", inv.Booted.Product, inv.Booted.Version, err)
			}
			return nil
		}, nodeos.TaskVerifyRestored
	}
}
