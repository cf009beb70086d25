// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// forReset sets up a task that requires the reset request of its operation.
func forReset(name string, run func(ctx context.Context, log *zap.Logger, call nodeos.TaskCall, r nodeos.ResetRequest) error) nodeos.TaskSetupFunc {
	return func(_ nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, log *zap.Logger, _ nodeos.Runtime) error {
			r, ok := call.Request.(nodeos.ResetRequest)
			if !ok {
				return fmt.Errorf("%w: operation %s is not a reset", nodeos.ErrInvalidSequenceData, call.OperationID)
			}
			return run(ctx, log, call, r)
		}, name
	}
}

// precheckReset refuses an order for another machine, installation, boot or time, or
// with an unknown target.
func precheckReset(host interface {
	nodeos.Inspector
	nodeos.Stager
},
) nodeos.TaskSetupFunc {
	return forReset(nodeos.TaskPrecheckReset, func(ctx context.Context, _ *zap.Logger, call nodeos.TaskCall, r nodeos.ResetRequest) error {
		inv, err := host.Inspect(ctx)
		if err != nil {
			return fmt.Errorf("inspect the host: %w", err)
		}
		for _, f := range []struct{ name, got, want string }{
			{"host id", r.HostID, call.Memory.HostID},
			{"installation id", r.InstallationID, call.Memory.InstallationID},
			{"boot id", r.BootID, inv.BootID},
		} {
			if f.got != f.want {
				return nodeos.Refuse("WrongTarget", "the reset is for %s %q, this host has %q", f.name, f.got, f.want)
			}
		}
		if !call.Now.Before(r.NotAfter) {
			return nodeos.Refuse("Expired", "the reset was valid until %s", r.NotAfter)
		}
		_, err = selectTargets(ctx, host, r)
		return err
	})
}

// selectTargets returns the targets of a reset.
func selectTargets(ctx context.Context, host nodeos.Stager, r nodeos.ResetOptions) ([]nodeos.PartitionTarget, error) {
	all, err := host.Wipers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the wipe targets: %w", err)
	}
	names := r.GetSystemDiskTargets()
	if len(names) == 0 {
		return all, nil
	}
	var out []nodeos.PartitionTarget
	for _, name := range names {
		i := slices.IndexFunc(all, func(t nodeos.PartitionTarget) bool { return t.String() == name })
		if i < 0 {
			return nil, nodeos.Refuse("UnknownTarget", "unknown wipe target %q; want one of %v", name, all)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// wipe wipes the targets of the request.
func wipe(host nodeos.Stager) nodeos.TaskSetupFunc {
	return forReset(nodeos.TaskWipe, func(ctx context.Context, log *zap.Logger, _ nodeos.TaskCall, r nodeos.ResetRequest) error {
		targets, err := selectTargets(ctx, host, r)
		if err != nil {
			return err
		}
		var errs []error
		for _, t := range targets {
			if err := ctx.Err(); err != nil {
				return err
			}
			log.Warn("wiping target", zap.String("target", t.String()))
			if err := t.Format(); err != nil {
				errs = append(errs, fmt.Errorf("wipe %s: %w", t, err))
			}
		}
		return errors.Join(errs...)
	})
}
