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

// roleTable returns the roles that may call each method. A method that isn't listed is
// denied to all roles, so that a new method is closed by default.
func roleTable() map[string][]mtls.Role {
	var (
		all     = mtls.Roles()
		rollout = []mtls.Role{mtls.RoleAdmin, mtls.RoleReconciler}
		users   = []mtls.Role{mtls.RoleAdmin, mtls.RoleOperator}
		admin   = []mtls.Role{mtls.RoleAdmin}
	)
	return map[string][]mtls.Role{
		agentpb.Agent_Hello_FullMethodName:        all,
		agentpb.Agent_GetFacts_FullMethodName:     all,
		agentpb.Agent_GetOperation_FullMethodName: all,
		agentpb.Agent_WatchEvents_FullMethodName:  all,
		agentpb.Agent_Logs_FullMethodName:         all,
		agentpb.Agent_Stage_FullMethodName:        rollout,
		agentpb.Agent_Activate_FullMethodName:     rollout,
		agentpb.Agent_Commit_FullMethodName:       rollout,
		agentpb.Agent_Rollback_FullMethodName:     rollout,
		agentpb.Agent_Extend_FullMethodName:       rollout,
		agentpb.Agent_Abort_FullMethodName:        {mtls.RoleAdmin, mtls.RoleOperator, mtls.RoleReconciler},
		agentpb.Agent_Resume_FullMethodName:       users,
		agentpb.Agent_DeliverTrust_FullMethodName: rollout,
		agentpb.Agent_Reboot_FullMethodName:       users,
		agentpb.Agent_Shutdown_FullMethodName:     users,
		agentpb.Agent_ResetFence_FullMethodName:   admin,
	}
}

// guard authorizes every call before its handler.
type guard struct {
	table map[string][]mtls.Role
	now   func() time.Time
}

// check returns the authenticated caller, or a status error.
func (g guard) check(ctx context.Context, method string) (mtls.Caller, error) {
	info, ok := peer.FromContext(ctx)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "no peer")
	}
	auth, ok := info.AuthInfo.(callerInfo)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "no caller certificate")
	}
	if end := auth.notAfter; g.now().After(end) {
		// The connection may have been opened before the certificate expired.
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "CertificateExpired"},
			"certificate of %s expired at %s: renew it with lockstep pki issue caller", auth.caller, end.UTC().Format(time.RFC3339))
	}
	roles, ok := g.table[method]
	if !ok {
		return mtls.Caller{}, refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "MethodRefused"}, "method %.200q is not in the role table", method)
	}
	if !slices.Contains(roles, auth.caller.Role) {
		return mtls.Caller{}, refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "RoleRefused"},
			"%s has role %s; %s requires one of %v", auth.caller, auth.caller.Role, method, roles)
	}
	return auth.caller, nil
}

// callerKey is the context key of the authorized caller.
type callerKey struct{}

// callerFrom returns the caller of a guarded call.
func callerFrom(ctx context.Context) (mtls.Caller, error) {
	caller, ok := ctx.Value(callerKey{}).(mtls.Caller)
	if !ok {
		return mtls.Caller{}, refuse(codes.Unauthenticated, &agentpb.Refusal{Reason: "NoCaller"}, "call was not authorized")
	}
	return caller, nil
}

// unary authorizes unary calls.
func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	caller, err := g.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			answer, err = nil, refuse(codes.Internal, &agentpb.Refusal{Reason: "Internal"}, "%s panicked: %s", info.FullMethod, clean(fmt.Sprint(r)))
		}
	}()
	return handler(context.WithValue(ctx, callerKey{}, caller), req)
}

// stream authorizes streaming calls and calls of unknown methods.
func (g guard) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	caller, err := g.check(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = refuse(codes.Internal, &agentpb.Refusal{Reason: "Internal"}, "%s panicked: %s", info.FullMethod, clean(fmt.Sprint(r)))
		}
	}()
	return handler(server, guardedStream{ServerStream: stream, ctx: context.WithValue(stream.Context(), callerKey{}, caller)})
}

// guardedStream has the caller in its context.
type guardedStream struct {
	grpc.ServerStream
	ctx context.Context // required by grpc.ServerStream
}

// Context implements grpc.ServerStream.
func (s guardedStream) Context() context.Context { return s.ctx }

// refuseUnknown rejects unknown methods.
func refuseUnknown(any, grpc.ServerStream) error {
	return refuse(codes.PermissionDenied, &agentpb.Refusal{Reason: "MethodRefused"}, "unknown method")
}
