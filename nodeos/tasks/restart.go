// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// restart takes the machine down. Success is a RebootError.
func restart(host nodeos.Power) nodeos.TaskSetupFunc {
	return func(_ nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, _ *zap.Logger, r nodeos.Runtime) error {
			cmd := nodeos.RebootRestart
			switch call.Params[nodeos.ParamCommand] {
			case nodeos.RebootPowerOff.String():
				cmd = nodeos.RebootPowerOff
			case nodeos.RebootKexec.String():
				cmd = nodeos.RebootKexec
			}
			if cmd == nodeos.RebootRestart && r.State().Machine().IsKexecPrepared() {
				cmd = nodeos.RebootKexec
			}
			err := host.Restart(ctx, cmd)
			if err == nil {
				return errors.New("restart: the host returned without going down")
			}
			return fmt.Errorf("%s: %w", cmd, err)
		}, nodeos.TaskRestart
	}
}
