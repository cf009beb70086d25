// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/wire"
)

// service implements the RPC methods; every call is already authorized.
type service struct {
	agentpb.UnimplementedAgentServer
	cfg     Config
	host    mtls.Host
	streams *counter
	// stopping ends with the server; Serve sets it before the first call.
	stopping context.Context
}

// Hello implements agentpb.AgentServer.
func (s *service) Hello(ctx context.Context, req *agentpb.HelloRequest) (*agentpb.HelloResponse, error) {
	caller, err := callerFrom(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := s.cfg.Controller.Facts(ctx)
	if err != nil {
		return nil, s.statusOf(err)
	}
	s.cfg.Log.Debug("hello", zap.Stringer("caller", caller), zap.String("version", sanitize.Line(req.GetVersion())))
	return &agentpb.HelloResponse{
		Version: s.cfg.Version, Capabilities: methodsFor(caller.Role), HostId: s.host.HostID,
		ClusterUid: s.cfg.ClusterUID, BootId: facts.BootID,
	}, nil
}

// methodsFor returns the names of the methods that a role may call.
func methodsFor(role mtls.Role) []string {
	var names []string
	for method, roles := range roleTable() {
		if slices.Contains(roles, role) {
			names = append(names, shortName(method))
		}
	}
	slices.Sort(names)
	return names
}

// shortName returns the method name without its service.
func shortName(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// GetFacts implements agentpb.AgentServer.
func (s *service) GetFacts(ctx context.Context, _ *agentpb.GetFactsRequest) (*agentpb.Facts, error) {
	facts, err := s.cfg.Controller.Facts(ctx)
	if err != nil {
		return nil, s.statusOf(err)
	}
	about := wire.About{Version: s.cfg.Version, CertificateExpires: s.cfg.Identity.NotAfter()}
	if accepted, ok := s.cfg.Trust.Current(); ok {
		about.TrustVersion = accepted.Document.Version
		about.TrustDigest = accepted.Document.Digest().String()
	}
	facts.HostID = s.host.HostID // from the certificate, which the client has verified
	return wire.FactsToProto(facts, about), nil
}

// GetOperation implements agentpb.AgentServer.
func (s *service) GetOperation(_ context.Context, req *agentpb.GetOperationRequest) (*agentpb.OperationResponse, error) {
	id := req.GetOperationId()
	if !operationPattern.MatchString(id) {
		return nil, refuse(codes.InvalidArgument, &agentpb.Refusal{Reason: "InvalidRequest"}, "operation id %.80q is not 1 to 63 lower-case letters, digits and hyphens", id)
	}
	operation, ok := s.cfg.Controller.Operation(id)
	if !ok {
		return nil, refuse(codes.NotFound, &agentpb.Refusal{Reason: "UnknownOperation"}, "operation %s not found", id)
	}
	return &agentpb.OperationResponse{Operation: wire.OperationToProto(&operation), Repeated: true}, nil
}

// operationPattern is the format of operation ids and attempts.
var operationPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// order validates the header of an order and returns it with its caller. An
// order of a reconciler must contain its leader's fence; other roles must not
// send one.
func (s *service) order(ctx context.Context, method string, in *agentpb.Order) (nodeos.Order, error) {
	caller, err := callerFrom(ctx)
	if err != nil {
		return nodeos.Order{}, err
	}
	invalid := func(format string, args ...any) (nodeos.Order, error) {
		return nodeos.Order{}, refuse(codes.InvalidArgument, &agentpb.Refusal{Reason: "InvalidRequest"}, format, args...)
	}
	if id := in.GetOperationId(); !operationPattern.MatchString(id) {
		return invalid("operation id %.80q is not 1 to 63 lower-case letters, digits and hyphens", id)
	}
	if attempt := in.GetAttempt(); attempt != "" && !operationPattern.MatchString(attempt) {
		return invalid("attempt %.80q is not up to 63 lower-case letters, digits and hyphens", attempt)
	}
	fence := wire.FenceFromProto(in.GetFence())
	switch {
	case caller.Role == mtls.RoleReconciler && fence == nil:
		return invalid("the order has no fence: role reconciler requires the leader's fence")
	case caller.Role != mtls.RoleReconciler && fence != nil:
		return invalid("the order has a fence: role %s must not send one", caller.Role)
	}
	return nodeos.Order{
		OperationID: in.GetOperationId(), Caller: caller.String(), Method: method,
		Attempt: in.GetAttempt(), Fence: fence, Remote: true,
	}, nil
}

// Stage implements agentpb.AgentServer.
func (s *service) Stage(ctx context.Context, req *agentpb.StageRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Stage", req.GetOrder())
	if err != nil {
		return nil, err
	}
	image, err := imageOf(req.GetImage())
	if err != nil {
		return nil, err
	}
	return s.run(ctx, nodeos.SequenceStageUpgrade, nodeos.UpgradeRequest{
		Order: order, Image: image.Ref, Product: image.Product, Version: image.Version,
	})
}

// Activate implements agentpb.AgentServer.
func (s *service) Activate(ctx context.Context, req *agentpb.ActivateRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Activate", req.GetOrder())
	if err != nil {
		return nil, err
	}
	image, err := imageOf(req.GetImage())
	if err != nil {
		return nil, err
	}
	return s.run(ctx, nodeos.SequenceUpgrade, nodeos.UpgradeRequest{
		Order: order, Image: image.Ref, Product: image.Product, Version: image.Version,
		CommitDeadline: wire.DurationFromProto(req.GetCommitDeadline()),
		OnDeadline:     wire.DeadlineFromProto(req.GetOnDeadline()), AutoCommit: req.GetAutoCommit(),
	})
}

// imageOf returns the image of a request; product and version are required.
func imageOf(in *agentpb.Image) (nodeos.Image, error) {
	image, err := wire.ImageFromProto(in)
	if err == nil && (image.Product == "" || image.Version == "") {
		err = fmt.Errorf("image %s has no product or version", image.Ref)
	}
	if err != nil {
		return nodeos.Image{}, refuse(codes.InvalidArgument, &agentpb.Refusal{Reason: "InvalidRequest"}, "%v", err)
	}
	return image, nil
}

// Commit implements agentpb.AgentServer.
func (s *service) Commit(ctx context.Context, req *agentpb.CommitRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Commit", req.GetOrder())
	if err != nil {
		return nil, err
	}
	if err := s.checkDigest(order.OperationID, req.GetDigest()); err != nil {
		return nil, err
	}
	return s.decide(ctx, nodeos.Decision{Order: order, Verdict: nodeos.VerdictCommit})
}

// Rollback implements agentpb.AgentServer.
func (s *service) Rollback(ctx context.Context, req *agentpb.RollbackRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Rollback", req.GetOrder())
	if err != nil {
		return nil, err
	}
	if known, ok := s.cfg.Controller.Operation(order.OperationID); ok && known.Sequence != nodeos.SequenceRollback {
		return s.decide(ctx, nodeos.Decision{Order: order, Verdict: nodeos.VerdictRollback, Why: "ordered by " + order.Caller})
	}
	return s.run(ctx, nodeos.SequenceRollback, nodeos.RollbackRequest{Order: order, Digest: req.GetDigest()})
}

// Extend implements agentpb.AgentServer.
func (s *service) Extend(ctx context.Context, req *agentpb.ExtendRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Extend", req.GetOrder())
	if err != nil {
		return nil, err
	}
	if err := s.checkDigest(order.OperationID, req.GetDigest()); err != nil {
		return nil, err
	}
	_, err = s.cfg.Controller.Extend(ctx, nodeos.Extension{Order: order})
	return s.decided(order, err)
}

// Abort implements agentpb.AgentServer.
func (s *service) Abort(ctx context.Context, req *agentpb.AbortRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Abort", req.GetOrder())
	if err != nil {
		return nil, err
	}
	return s.decide(ctx, nodeos.Decision{Order: order, Verdict: nodeos.VerdictAbort, Why: sanitize.Line(req.GetCause())})
}

// Resume implements agentpb.AgentServer.
func (s *service) Resume(ctx context.Context, req *agentpb.ResumeRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Resume", req.GetOrder())
	if err != nil {
		return nil, err
	}
	return s.decide(ctx, nodeos.Decision{Order: order, Verdict: nodeos.VerdictResume})
}

// Reboot implements agentpb.AgentServer.
func (s *service) Reboot(ctx context.Context, req *agentpb.RebootRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Reboot", req.GetOrder())
	if err != nil {
		return nil, err
	}
	return s.run(ctx, nodeos.SequenceReboot, nodeos.PlainRequest{Order: order})
}

// Shutdown implements agentpb.AgentServer.
func (s *service) Shutdown(ctx context.Context, req *agentpb.ShutdownRequest) (*agentpb.OperationResponse, error) {
	order, err := s.order(ctx, "Shutdown", req.GetOrder())
	if err != nil {
		return nil, err
	}
	return s.run(ctx, nodeos.SequenceShutdown, nodeos.PlainRequest{Order: order})
}

// ResetFence implements agentpb.AgentServer.
func (s *service) ResetFence(ctx context.Context, req *agentpb.ResetFenceRequest) (*agentpb.ResetFenceResponse, error) {
	caller, err := callerFrom(ctx)
	if err != nil {
		return nil, err
	}
	was := s.cfg.Controller.Fence()
	if seen := wire.FenceFromProto(req.GetSeen()); seen == nil || *seen != was {
		return nil, refuse(codes.FailedPrecondition, &agentpb.Refusal{Reason: "FenceChanged", StoredFence: wire.FenceToProto(&was)},
			"the stored fence is epoch %d of cluster %q: send it to reset it", was.Epoch, was.ClusterUID)
	}
	if err := s.cfg.Controller.ResetFence(ctx); err != nil {
		return nil, s.statusOf(err)
	}
	s.cfg.Log.Warn("fence reset", zap.Stringer("caller", caller), zap.String("cluster", was.ClusterUID), zap.Uint64("epoch", was.Epoch))
	return &agentpb.ResetFenceResponse{Was: wire.FenceToProto(&was)}, nil
}

// DeliverTrust implements agentpb.AgentServer.
func (s *service) DeliverTrust(ctx context.Context, req *agentpb.DeliverTrustRequest) (*agentpb.DeliverTrustResponse, error) {
	caller, err := callerFrom(ctx)
	if err != nil {
		return nil, err
	}
	accepted, changed, err := s.cfg.Trust.Deliver(req.GetEnvelope())
	if err != nil {
		s.cfg.Log.Warn("refused trust policy", zap.Stringer("carrier", caller), zap.String("why", clean(err.Error())))
		return nil, s.statusOf(err)
	}
	if changed {
		s.cfg.Log.Info("accepted trust policy", zap.Stringer("carrier", caller), zap.Int64("version", accepted.Document.Version))
	}
	return &agentpb.DeliverTrustResponse{
		Version: uint64(max(accepted.Document.Version, 0)), Digest: accepted.Document.Digest().String(), Unchanged: !changed,
	}, nil
}

// checkDigest refuses an order for an image other than the operation's.
func (s *service) checkDigest(id, digest string) error {
	operation, ok := s.cfg.Controller.Operation(id)
	if !ok {
		return refuse(codes.NotFound, &agentpb.Refusal{Reason: "UnknownOperation"}, "operation %s not found", id)
	}
	if digest == "" || operation.Digest != digest {
		return refuse(codes.FailedPrecondition, &agentpb.Refusal{Reason: "WrongDigest", OperationId: id},
			"operation %s has image %s, the order has %.80q", id, operation.Digest, digest)
	}
	return nil
}

// run starts a sequence and returns the operation.
func (s *service) run(ctx context.Context, seq nodeos.Sequence, request nodeos.Request) (*agentpb.OperationResponse, error) {
	order := request.Header()
	ticket, err := s.cfg.Controller.Run(ctx, seq, request)
	if err != nil {
		return s.operation(order, nodeos.OperationStatus{}, false, err)
	}
	operation, ok := s.cfg.Controller.Operation(ticket.OperationID)
	if !ok { // it ended and was dropped in the meantime
		operation = nodeos.OperationStatus{
			ID: ticket.OperationID, Sequence: seq, Caller: order.Caller, Method: order.Method, RequestHash: ticket.RequestHash, State: ticket.State,
		}
	}
	return s.operation(order, operation, ticket.Known, nil)
}

// decide applies a verdict and returns the operation.
func (s *service) decide(ctx context.Context, d nodeos.Decision) (*agentpb.OperationResponse, error) {
	return s.decided(d.Order, s.cfg.Controller.Decide(ctx, d))
}

// decided returns the operation of an order, or the error.
func (s *service) decided(order nodeos.Order, err error) (*agentpb.OperationResponse, error) {
	operation, _ := s.cfg.Controller.Operation(order.OperationID)
	return s.operation(order, operation, false, err)
}

// operation logs the result of an order and returns the response.
func (s *service) operation(order nodeos.Order, operation nodeos.OperationStatus, repeated bool, err error) (*agentpb.OperationResponse, error) {
	log := s.cfg.Log.With(zap.String("operation", order.OperationID), zap.String("method", order.Method), zap.String("caller", order.Caller))
	if err != nil {
		log.Warn("refused order", zap.String("why", clean(err.Error())))
		return nil, s.statusOf(err)
	}
	log.Info("accepted order", zap.String("state", string(operation.State)), zap.Bool("repeated", repeated))
	return &agentpb.OperationResponse{Operation: wire.OperationToProto(&operation), Repeated: repeated}, nil
}
