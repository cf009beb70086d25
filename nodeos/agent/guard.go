// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// allowed is the whole of authorisation: which roles may call which method.
// A method that isn't here is refused for everybody, an administrator too, so
// that a new method is closed until somebody decides who may call it.
func allowed() map[string][]mtls.Role {
	var (
		everybody = mtls.Roles()
		rollout   = []mtls.Role{mtls.RoleAdmin, mtls.RoleReconciler}
		people    = []mtls.Role{mtls.RoleAdmin, mtls.RoleOperator}
		admin     = []mtls.Role{mtls.RoleAdmin}
	)
	return map[string][]mtls.Role{
		agentpb.Agent_Hello_FullMethodName:        everybody,
		agentpb.Agent_GetFacts_FullMethodName:     everybody,
		agentpb.Agent_GetOperation_FullMethodName: everybody,
		agentpb.Agent_WatchEvents_FullMethodName:  everybody,
		agentpb.Agent_Logs_FullMethodName:         everybody,
		agentpb.Agent_Stage_FullMethodName:        rollout,
		agentpb.Agent_Activate_FullMethodName:     rollout,
		agentpb.Agent_Commit_FullMethodName:       rollout,
		agentpb.Agent_Rollback_FullMethodName:     rollout,
		agentpb.Agent_Extend_FullMethodName:       rollout,
		agentpb.Agent_Abort_FullMethodName:        {mtls.RoleAdmin, mtls.RoleOperator, mtls.RoleReconciler},
		agentpb.Agent_Resume_FullMethodName:       people,
		agentpb.Agent_DeliverTrust_FullMethodName: rollout,
		agentpb.Agent_Reboot_FullMethodName:       people,
		agentpb.Agent_Shutdown_FullMethodName:     people,
		agentpb.Agent_ResetFence_FullMethodName:   admin,
	}
}

// guard decides about every call before its handler sees it.
type guard struct {
	table map[string][]mtls.Role
	now   func() time.Time
}

// check returns who calls, or a status error that refuses.
func (g guard) check(ctx context.Context, method string) (mtls.Caller, error) {
	info, ok := peer.FromContext(ctx)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "no peer")
	}
	auth, ok := info.AuthInfo.(callerInfo)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "no caller's certificate")
	}
	if end := auth.notAfter; g.now().After(end) {
		// A connection may outlive the certificate that it was opened with.
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "CertificateExpired"},
			"certificate of %s ended at %s: renew it with lockstep pki issue caller", auth.caller, end.UTC().Format(time.RFC3339))
	}
	roles, ok := g.table[method]
	if !ok {
		return mtls.Caller{}, refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "MethodRefused"}, "method %.200q is open to nobody", method)
	}
	if !slices.Contains(roles, auth.caller.Role) {
		return mtls.Caller{}, refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "RoleRefused"},
			"%s has role %s, and %s wants one of %v", auth.caller, auth.caller.Role, method, roles)
	}
	return auth.caller, nil
}

// callerKey is the context key of the caller that the guard let pass.
type callerKey struct{}

// callerFrom returns the caller of a guarded call.
func callerFrom(ctx context.Context) (mtls.Caller, error) {
	caller, ok := ctx.Value(callerKey{}).(mtls.Caller)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "call passed no guard")
	}
	return caller, nil
}

// unary guards calls with one answer.
func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	caller, err := g.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			answer, err = nil, refuse(codes.Internal, &agentpb.Refusal{Reason: "Internal"}, "%s broke: %s", info.FullMethod, clean(fmt.Sprint(r)))
		}
	}()
	return handler(context.WithValue(ctx, callerKey{}, caller), req)
}

// stream guards calls with a stream of answers, and calls of unknown methods.
func (g guard) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	caller, err := g.check(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = refuse(codes.Internal, &agentpb.Refusal{Reason: "Internal"}, "%s broke: %s", info.FullMethod, clean(fmt.Sprint(r)))
		}
	}()
	return handler(server, guardedStream{ServerStream: stream, ctx: context.WithValue(stream.Context(), callerKey{}, caller)})
}

// guardedStream carries the caller in its context.
type guardedStream struct {
	grpc.ServerStream
	ctx context.Context // The interface of gRPC asks for it.
}

// Context implements grpc.ServerStream.
func (s guardedStream) Context() context.Context { return s.ctx }

// refuseUnknown answers methods that no service has.
func refuseUnknown(any, grpc.ServerStream) error {
	return refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "MethodRefused"}, "no such method")
}
