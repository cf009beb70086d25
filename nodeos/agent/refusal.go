// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/runner"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// maxMessage limits the message of a refusal, in bytes.
const maxMessage = 1024

// clean sanitizes and shortens an error message for the wire.
func clean(s string) string { return sanitize.Clip(s, maxMessage) }

// refuse returns a status error with machine-readable details.
func refuse(code codes.Code, detail *agentpb.Refusal, format string, args ...any) error {
	st := status.New(code, clean(fmt.Sprintf(format, args...)))
	with, err := st.WithDetails(detail)
	if err != nil {
		return st.Err() // the status without details
	}
	return with.Err()
}

// statusOf converts an error of the host to a gRPC status.
func (s *service) statusOf(err error) error {
	detail := &agentpb.Refusal{Reason: nodeos.ReasonOf(err, "")}
	if _, ok := status.FromError(err); ok {
		return err // already a status
	}
	var (
		locked   *nodeos.LockedError
		fenced   *runner.FenceError
		conflict *runner.ConflictError
		limited  *runner.RestartLimitError
	)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.As(err, &locked):
		detail.Retriable, detail.OperationId = true, locked.By
		return refuse(codes.Aborted, detail, "%v", err)
	case errors.As(err, &fenced):
		detail.StoredFence = wire.FenceToProto(&fenced.Stored)
		return refuse(codes.FailedPrecondition, detail, "%v", err)
	case errors.As(err, &conflict):
		detail.OperationId = conflict.ID
		return refuse(codes.AlreadyExists, detail, "%v", err)
	case errors.As(err, &limited):
		detail.Retriable = true
		return refuse(codes.ResourceExhausted, detail, "%v", err)
	case errors.Is(err, nodeos.ErrInvalidSequenceData):
		detail.Reason = "InvalidRequest"
		return refuse(codes.InvalidArgument, detail, "%v", err)
	case nodeos.ReasonOf(err, "") == "":
		// Not a refusal of the order: a disk error, or the host is going down.
		detail.Reason, detail.Retriable = "NotReady", true
		return refuse(codes.Unavailable, detail, "%v", err)
	default:
		var retriable interface{ Retriable() bool }
		detail.Retriable = errors.As(err, &retriable) && retriable.Retriable()
		return refuse(codes.FailedPrecondition, detail, "%v", err)
	}
}
