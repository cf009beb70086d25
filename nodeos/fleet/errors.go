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

// UnreachableError means that there is no connection to a host.
type UnreachableError struct {
	// Host is the host's id.
	Host string
	// Address is the address tried last; empty without one.
	Address string
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *UnreachableError) Error() string {
	if e.Address == "" {
		return fmt.Sprintf("host %s is unreachable: %v", e.Host, e.Err)
	}
	return fmt.Sprintf("host %s is unreachable at %s: %v", e.Host, e.Address, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Reason is the condition reason: the cause's own, if it has one.
func (e *UnreachableError) Reason() string { return nodeos.ReasonOf(e.Err, "Unreachable") }

// Retriable reports that the call may succeed later.
func (e *UnreachableError) Retriable() bool { return true }

// RefusedError is an agent's refusal of a call.
type RefusedError struct {
	// Host is the host's id and Method the called method.
	Host, Method string
	// Cause is the reason that the agent sent.
	Cause string
	// Message is the agent's message, sanitized.
	Message string
	// Retry means that the same order may succeed later.
	Retry bool
	// OperationID is the operation that blocks the order, if any.
	OperationID string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("host %s refused %s: %s", e.Host, e.Method, e.Message)
}

// Reason is the condition reason.
func (e *RefusedError) Reason() string { return e.Cause }

// Retriable reports whether the same order may succeed later.
func (e *RefusedError) Retriable() bool { return e.Retry }

// FencedError is a refusal because of the order's fence. It wraps a
// *RefusedError. The leader raises its epoch in the cluster above the stored one
// and repeats the order; a fence of another cluster stays refused.
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

// Stored returns the fence that the agent stores.
func (e *FencedError) Stored() nodeos.Fence { return e.stored }

// VersionError means that an agent doesn't support a method or our version.
type VersionError struct {
	// Host is the host's id, Agent and Ours are versions.
	Host, Agent, Ours string
	// Method is the unsupported method; empty when the whole version is out of
	// range.
	Method string
}

// Error implements error.
func (e *VersionError) Error() string {
	if e.Method != "" {
		return fmt.Sprintf("agent %s of host %s does not offer method %s to version %s: upgrade the agent, or use a certificate with another role", e.Agent, e.Host, e.Method, e.Ours)
	}
	return fmt.Sprintf("agent %s of host %s is not supported by %s, which supports its own minor version and the two before: upgrade the older of the two", e.Agent, e.Host, e.Ours)
}

// Reason is the condition reason.
func (e *VersionError) Reason() string { return "AgentVersion" }

// callError converts the error of a call to an error of this package.
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
