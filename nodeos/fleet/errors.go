// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// UnreachableError reports that there is no connection to a host.
type UnreachableError struct {
	// Host is the host's id.
	Host string
	// Address is what was tried last; empty if nothing was.
	Address string
	// Err is what came of it.
	Err error
}

// Error implements error.
func (e *UnreachableError) Error() string {
	if e.Address == "" {
		return fmt.Sprintf("host %s is unreachable: %v", e.Host, e.Err)
	}
	return fmt.Sprintf("host %s is unreachable at %s: %v", e.Host, e.Address, e.Err)
}

// Unwrap returns what came of the dial.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Reason is the condition reason: the cause's own, if it has one.
func (e *UnreachableError) Reason() string { return nodeos.ReasonOf(e.Err, "Unreachable") }

// Retriable reports that the same call may pass later.
func (e *UnreachableError) Retriable() bool { return true }

// RefusedError is an agent's refusal of a call.
type RefusedError struct {
	// Host is the host's id, Method what was called.
	Host, Method string
	// Cause is the agent's word for it.
	Cause string
	// Message is the agent's line for people, cleaned.
	Message string
	// Retry reports that the same order may pass later by itself.
	Retry bool
	// OperationID is the operation in the way, if one is.
	OperationID string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("host %s refused %s: %s", e.Host, e.Method, e.Message)
}

// Reason is the condition reason.
func (e *RefusedError) Reason() string { return e.Cause }

// Retriable reports whether the same order may pass later.
func (e *RefusedError) Retriable() bool { return e.Retry }

// FencedError is a refusal of an order for its leader's fence. It wraps a
// *RefusedError. The leader raises its epoch above the stored one, in the
// cluster first, and orders again; of another cluster it stays refused.
type FencedError struct {
	refused *RefusedError
	stored  nodeos.Fence
}

// Error implements error.
func (e *FencedError) Error() string { return e.refused.Error() }

// Unwrap returns the refusal.
func (e *FencedError) Unwrap() error { return e.refused }

// Reason is the condition reason.
func (e *FencedError) Reason() string { return e.refused.Cause }

// Stored returns the fence that the agent has.
func (e *FencedError) Stored() nodeos.Fence { return e.stored }

// VersionError reports that an agent can't be ordered what is wanted.
type VersionError struct {
	// Host is the host's id; Agent and Ours are versions.
	Host, Agent, Ours string
	// Method is what the agent doesn't offer; empty when its version as a
	// whole is out of range.
	Method string
}

// Error implements error.
func (e *VersionError) Error() string {
	if e.Method != "" {
		return fmt.Sprintf("agent %s of host %s doesn't offer %s to us (%s): upgrade the agent, or use a certificate of another role", e.Agent, e.Host, e.Method, e.Ours)
	}
	return fmt.Sprintf("agent %s of host %s is outside of what %s serves, its own minor version and the two before: upgrade the older of the two", e.Agent, e.Host, e.Ours)
}

// Reason is the condition reason.
func (e *VersionError) Reason() string { return "AgentVersion" }

// callError turns the error of a call into one of this package's.
func callError(host, address, method string, err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return &UnreachableError{Host: host, Address: address, Err: err}
	}
	for _, detail := range st.Details() {
		refusal, ok := detail.(*agentpb.Refusal)
		if !ok {
			continue
		}
		refused := &RefusedError{
			Host: host, Method: method, Cause: sanitize.Line(refusal.GetReason()), Message: sanitize.Clip(st.Message(), 1024),
			Retry: refusal.GetRetriable(), OperationID: sanitize.Line(refusal.GetOperationId()),
		}
		if stored := wire.FenceFromProto(refusal.GetStoredFence()); stored != nil {
			return &FencedError{refused: refused, stored: *stored}
		}
		return refused
	}
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return &UnreachableError{Host: host, Address: address, Err: fmt.Errorf("%s: %s", method, sanitize.Clip(st.Message(), 512))}
	default:
		return &RefusedError{
			Host: host, Method: method, Cause: st.Code().String(), Message: sanitize.Clip(st.Message(), 1024), Retry: st.Code() == codes.ResourceExhausted,
		}
	}
}
