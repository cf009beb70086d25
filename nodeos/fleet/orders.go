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

// Order is the header of every order. The same id with the same content is the
// same operation, so that an order without a received answer is simply repeated.
type Order struct {
	// OperationID is the operation's id: 1 to 63 lower-case letters, digits, hyphens.
	OperationID string
	// Attempt is the rollout attempt, in the same format; optional.
	Attempt string
	// Fence is the leader's fence.
	Fence nodeos.Fence
}

// Ack is an agent's response to an order.
type Ack struct {
	// Operation is the status of the operation.
	Operation nodeos.OperationStatus
	// Repeated means that the order was known; nothing new was started.
	Repeated bool
}

// Activation is the input of Activate.
type Activation struct {
	// Image is the image to boot; Ref, Product and Version are used.
	Image nodeos.Image
	// CommitDeadline is the time from activation to the latest commit; zero
	// means the agent's default.
	CommitDeadline time.Duration
	// OnDeadline is the action at the deadline; empty means rollback.
	OnDeadline nodeos.DeadlineAction
	// AutoCommit lets the host commit after its own checks pass.
	AutoCommit bool
}

func (o Order) proto() *agentpb.Order {
	return &agentpb.Order{OperationId: o.OperationID, Attempt: o.Attempt, Fence: wire.FenceToProto(&o.Fence)}
}

// call makes one call with a timeout to a host.
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

// Facts reads the current facts of a host over its connection and updates the
// fleet's State. Disruptive steps are decided by these facts.
func (f *Fleet) Facts(ctx context.Context, hostID string) (nodeos.HostFacts, wire.About, error) {
	answer, err := call(ctx, f, hostID, "GetFacts", agentpb.AgentClient.GetFacts, &agentpb.GetFactsRequest{})
	if err != nil {
		return nodeos.HostFacts{}, wire.About{}, err
	}
	facts, about := wire.FactsFromProto(answer)
	facts.HostID = hostID // from the certificate
	if h, err := f.host(hostID); err == nil {
		h.observed(facts, about)
	}
	return facts, about, nil
}

// Stage orders the host to verify and write an image, without disruption.
func (f *Fleet) Stage(ctx context.Context, hostID string, order Order, image nodeos.Image) (Ack, error) {
	return ack(call(ctx, f, hostID, "Stage", agentpb.AgentClient.Stage, &agentpb.StageRequest{Order: order.proto(), Image: wire.ImageToProto(image)}))
}

// Activate orders the host to boot an image on trial. The host reboots.
func (f *Fleet) Activate(ctx context.Context, hostID string, order Order, a Activation) (Ack, error) {
	request := &agentpb.ActivateRequest{
		Order: order.proto(), Image: wire.ImageToProto(a.Image), OnDeadline: wire.DeadlineToProto(a.OnDeadline), AutoCommit: a.AutoCommit,
	}
	if a.CommitDeadline != 0 {
		request.CommitDeadline = durationpb.New(a.CommitDeadline)
	}
	return ack(call(ctx, f, hostID, "Activate", agentpb.AgentClient.Activate, request))
}

// Commit commits the OS on trial. The order's id is the id of the operation that
// activated it.
func (f *Fleet) Commit(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Commit", agentpb.AgentClient.Commit, &agentpb.CommitRequest{Order: order.proto(), Digest: digest}))
}

// Rollback boots the previous OS: with the id of the operation on trial it ends
// the trial, with a new id it rolls back the committed OS. digest is the expected
// digest of the previous OS; empty accepts any.
func (f *Fleet) Rollback(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Rollback", agentpb.AgentClient.Rollback, &agentpb.RollbackRequest{Order: order.proto(), Digest: digest}))
}

// Extend moves the commit deadline of an operation on trial by its full window.
func (f *Fleet) Extend(ctx context.Context, hostID string, order Order, digest string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Extend", agentpb.AgentClient.Extend, &agentpb.ExtendRequest{Order: order.proto(), Digest: digest}))
}

// Abort ends a paused operation.
func (f *Fleet) Abort(ctx context.Context, hostID string, order Order, cause string) (Ack, error) {
	return ack(call(ctx, f, hostID, "Abort", agentpb.AgentClient.Abort, &agentpb.AbortRequest{Order: order.proto(), Cause: cause}))
}

// Operation returns an operation by id, after a reboot too.
func (f *Fleet) Operation(ctx context.Context, hostID, operationID string) (nodeos.OperationStatus, error) {
	answer, err := ack(call(ctx, f, hostID, "GetOperation", agentpb.AgentClient.GetOperation, &agentpb.GetOperationRequest{OperationId: operationID}))
	return answer.Operation, err
}

// DeliverTrust sends a signed trust document and returns the version that is
// active on the host afterwards.
func (f *Fleet) DeliverTrust(ctx context.Context, hostID string, envelope []byte) (int64, error) {
	answer, err := call(ctx, f, hostID, "DeliverTrust", agentpb.AgentClient.DeliverTrust, &agentpb.DeliverTrustRequest{Envelope: envelope})
	if err != nil {
		return 0, err
	}
	return int64(answer.GetVersion() & (1<<62 - 1)), nil
}

// ResetFence clears the fence of a host if it equals seen; administrators use it
// after a cluster was rebuilt or restored.
func (f *Fleet) ResetFence(ctx context.Context, hostID string, seen nodeos.Fence) error {
	_, err := call(ctx, f, hostID, "ResetFence", agentpb.AgentClient.ResetFence, &agentpb.ResetFenceRequest{Seen: wire.FenceToProto(&seen)})
	return err
}
