// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// plain sets up a task that needs nothing of its run.
func plain(name string, run func(ctx context.Context, r nodeos.Runtime) error) nodeos.TaskSetupFunc {
	return func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, _ *zap.Logger, r nodeos.Runtime) error { return run(ctx, r) }, name
	}
}

// stopServices stops what an upgrade must not pull the ground from under.
func stopServices(host nodeos.ServiceManager) nodeos.TaskSetupFunc {
	return plain(nodeos.TaskStopServices, func(ctx context.Context, r nodeos.Runtime) error {
		return service(r, "stopped", host.StopServices(ctx))
	})
}

// startServices starts it again.
func startServices(host nodeos.ServiceManager) nodeos.TaskSetupFunc {
	return plain(nodeos.TaskStartServices, func(ctx context.Context, r nodeos.Runtime) error {
		return service(r, "started", host.StartServices(ctx))
	})
}

// service publishes what became of the services.
func service(r nodeos.Runtime, state string, err error) error {
	event := nodeos.EventServiceState{Service: "services", State: state}
	if err != nil {
		err = fmt.Errorf("services not %s: %w", state, err)
		event.State, event.Message = "failed", err.Error()
	}
	r.Events().Publish("", event)
	return err
}
