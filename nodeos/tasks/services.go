// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// plain sets up a task without inputs.
func plain(name string, run func(ctx context.Context, r nodeos.Runtime) error) nodeos.TaskSetupFunc {
	return func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, _ *zap.Logger, r nodeos.Runtime) error { return run(ctx, r) }, name
	}
}

// stopServices stops the services that must be down during an upgrade.
func stopServices(host nodeos.ServiceManager) nodeos.TaskSetupFunc {
	return plain(nodeos.TaskStopServices, func(ctx context.Context, r nodeos.Runtime) error {
		return service(r, "stopped", host.StopServices(ctx))
	})
}

// startServices starts the services.
func startServices(host nodeos.ServiceManager) nodeos.TaskSetupFunc {
	return plain(nodeos.TaskStartServices, func(ctx context.Context, r nodeos.Runtime) error {
		return service(r, "started", host.StartServices(ctx))
	})
}

// service publishes the result.
func service(r nodeos.Runtime, state string, err error) error {
	event := nodeos.EventServiceState{Service: "services", State: state}
	if err != nil {
		err = fmt.Errorf("services could not be %s: %w", state, err)
		event.State, event.Message = "failed", err.Error()
	}
	r.Events().Publish("", event)
	return err
}
