// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// Order is what every order carries. The same id with the same content is the
// same run, so that an order whose answer got lost is simply given again.
type Order struct {
	// OperationID names the run: 1 to 63 lower-case letters, digits, hyphens.
	OperationID string
	// Attempt names the rollout's try, in the same form; may be empty.
	Attempt string
	// Fence is the leader's.
	Fence nodeos.Fence
}

// Ack is an agent's answer to an order.
type Ack struct {
	// Operation is where the operation stands.
	Operation nodeos.OperationStatus
	// Repeated reports that the order was known: nothing new was started.
	Repeated bool
}

// Activation is what Activate orders beside the image.
type Activation struct {
	// Image is what to boot; Ref, Product and Version are read.
	Image nodeos.Image
	// CommitDeadline is how long after activation the image may stay on trial;
	// zero: the agent's default.
	CommitDeadline time.Duration
	// OnDeadline is what the host does then; empty: roll back.
	OnDeadline nodeos.DeadlineAction
	// AutoCommit lets the host commit by its own checks.
	AutoCommit bool
}

func (o Order) proto() *agentpb.Order {
	return &agentpb.Order{OperationId: o.OperationID, Attempt: o.Attempt, Fence: wire.FenceToProto(&o.Fence)}
}

// call makes one bounded call to a host.
func call[Q, A any](ctx context.Context, f *Fleet, hostID, method string, pick func(agentpb.AgentClient, context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	var none A
	h, err := f.host(hostID)
	if err != nil {
		return none, err
	}
	client, address, err := h.connection(method)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := pick(client, ctx, request)
	if err != nil {
		return none, callError(hostID, address, method, err)
	}
	return answer, nil
}

func ack(answer *agentpb.OperationResponse, err error) (Ack, error) {
	if err != nil {
		return Ack{}, err
	}
	out := Ack{Repeated: answer.GetRepeated()}
	if operation := wire.OperationFromProto(answer.GetOperation()); operation != nil {
		out.Operation = *operation
	}
	return out, nil
}

// Facts reads a host's facts now, over the connection: what a disruptive step
// is decided by. The fleet's own State is brought up to date by it.
func (f *Fleet) Facts(ctx context.Context, hostID string) (nodeos.HostFacts, wire.About, error) {
	answer, err := call(ctx, f, hostID, "GetFacts", agentpb.AgentClient.GetFacts, &agentpb.GetFactsRequest{})
	if err != nil {
		return nodeos.HostFacts{}, wire.About{}, err
	}
	facts, about := wire.FactsFromProto(answer)
	facts.HostID = hostID // the certificate's
	if h, err := f.host(hostID); err == nil {
		h.observed(facts, about)
	}
	return facts, about, nil
}

// Stage orders an image to be verified and written, without any disturbance.
func (f *Fleet) Stage(ctx context.Context, hostID string, order Order, image nodeos.Image) (Ack, error) {
	return ack(call(ctx, f, hostID, "Stage", agentpb.AgentClient.Stage, &agentpb.StageRequest{Order: order.proto(), Image: wire.ImageToProto(image)}))
}

// Activate orders an image to be booted on trial. The host reboots.
func (f *Fleet) Activate(ctx context.Context, hostID string, order Order, a Activation) (Ack, error) {
	request := &agentpb.ActivateRequest{
		Order: order.proto(), Image: wire.ImageToProto(a.Image), OnDeadline: wire.DeadlineToProto(a.OnDeadline), AutoCommit: a.AutoCommit,
	}
	if a.CommitDeadline != 0 {
		request.CommitDeadline = durationpb.New(a.CommitDeadline)
	}
	return ack(call(ctx, f, hostID, "Activate", agentpb.AgentClient.Activate, request))
}

// Commit ends the trial of an operation's image well. The order's id is the
// one that activated it.
func (f *Fleet) Commit(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Commit", agentpb.AgentClient.Commit, &agentpb.CommitRequest{Order: order.proto(), Digest: digest}))
}

// Rollback goes back to the previous image: with the id of the operation on
// trial it ends the trial, with a new id it starts a rollback of what was
// committed. A digest names the previous image that is meant; it may be empty.
func (f *Fleet) Rollback(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Rollback", agentpb.AgentClient.Rollback, &agentpb.RollbackRequest{Order: order.proto(), Digest: digest}))
}

// Extend moves the commit deadline of an operation on trial by its whole
// window.
func (f *Fleet) Extend(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Extend", agentpb.AgentClient.Extend, &agentpb.ExtendRequest{Order: order.proto(), Digest: digest}))
}

// Abort ends a paused operation.
func (f *Fleet) Abort(ctx context.Context, hostID string, order Order, cause string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Abort", agentpb.AgentClient.Abort, &agentpb.AbortRequest{Order: order.proto(), Cause: cause}))
}

// Operation returns an operation by its id, also after a reboot.
func (f *Fleet) Operation(ctx context.Context, hostID, operationID string) (nodeos.OperationStatus, error) {
	answer, err := ack(call(ctx, f, hostID, "GetOperation", agentpb.AgentClient.GetOperation, &agentpb.GetOperationRequest{OperationId: operationID}))
	return answer.Operation, err
}

// DeliverTrust hands a signed trust document over and returns the version that
// is in force on the host afterwards.
func (f *Fleet) DeliverTrust(ctx context.Context, hostID string, envelope []byte) (int64, error) {
	answer, err := call(ctx, f, hostID, "DeliverTrust", agentpb.AgentClient.DeliverTrust, &agentpb.DeliverTrustRequest{Envelope: envelope})
	if err != nil {
		return 0, err
	}
	return int64(answer.GetVersion() & (1<<62 - 1)), nil
}

// ResetFence makes a host forget the fence that was seen; for an administrator
// after a cluster was rebuilt or restored.
func (f *Fleet) ResetFence(ctx context.Context, hostID string, seen nodeos.Fence) error {
	_, err := call(ctx, f, hostID, "ResetFence", agentpb.AgentClient.ResetFence, &agentpb.ResetFenceRequest{Seen: wire.FenceToProto(&seen)})
	return err
}
