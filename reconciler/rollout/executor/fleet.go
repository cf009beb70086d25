// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
)

// noIdentity is the message for a host without a pinned identity.
const noIdentity = "no identity pinned; issue its certificate, then set spec.identity.hostID of its Host"

// Fleet implements Agents with the connections of a fleet.Fleet.
type Fleet struct{ Fleet *fleet.Fleet }

// Observed implements Agents.
func (f Fleet) Observed(hostID string) rollout.Agent {
	if hostID == "" {
		return rollout.Agent{Problem: noIdentity}
	}
	state, ok := f.Fleet.State(hostID)
	switch {
	case !ok:
		return rollout.Agent{Problem: "no connection to the agent attempted yet"}
	case !state.Connected:
		out := rollout.Agent{Problem: "the agent is unreachable", CertificateExpires: state.About.CertificateExpires}
		if state.Err != nil {
			out.Problem = sanitize.Line(state.Err.Error())
		}
		return out
	}
	return rollout.Agent{Facts: &state.Facts, CertificateExpires: state.About.CertificateExpires}
}

// Facts implements Agents.
func (f Fleet) Facts(ctx context.Context, hostID string) (nodeos.HostFacts, error) {
	if hostID == "" {
		return nodeos.HostFacts{}, errors.New(noIdentity)
	}
	facts, _, err := f.Fleet.Facts(ctx, hostID)
	return facts, err
}

// Order implements Agents.
func (f Fleet) Order(ctx context.Context, hostID string, o Order) error {
	order := fleet.Order{OperationID: o.OperationID, Attempt: o.Attempt, Fence: o.Fence}
	var err error
	switch o.Kind {
	case rollout.StepStage:
		_, err = f.Fleet.Stage(ctx, hostID, order, o.Image)
	case rollout.StepActivate:
		_, err = f.Fleet.Activate(ctx, hostID, order, fleet.Activation{
			Image: o.Image, CommitDeadline: o.CommitDeadline, OnDeadline: o.OnDeadline, AutoCommit: o.AutoCommit,
		})
	case rollout.StepCommit:
		_, err = f.Fleet.Commit(ctx, hostID, order, o.Digest)
	case rollout.StepRollback:
		_, err = f.Fleet.Rollback(ctx, hostID, order, o.Digest)
	default:
		return fmt.Errorf("%s is not an agent's order", o.Kind)
	}
	return err
}

// Fleet.Order returns a FencedError.
var _ FencedError = (*fleet.FencedError)(nil)
