// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// loadConfig activates the platform's configuration, unless the host already has a
// configuration.
func loadConfig(from nodeos.PlatformData) nodeos.TaskSetupFunc {
	return func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, log *zap.Logger, r nodeos.Runtime) error {
			if r.Config() != nil {
				return nil
			}
			data, err := from.Configuration(ctx)
			if err != nil {
				return fmt.Errorf("get the configuration: %w", err)
			}
			if data == nil {
				log.Info("platform has no configuration")
				return nil
			}
			if err := r.SetConfig(data); err != nil {
				r.Events().Publish("", nodeos.EventConfigError{Error: err.Error()})
				return fmt.Errorf("load the configuration: %w", err)
			}
			return nil
		}, nodeos.TaskLoadConfig
	}
}
