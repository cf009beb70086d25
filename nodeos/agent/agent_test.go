// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// methods returns the methods from the descriptors of the service.
func methods() []string {
	var names []string
	for _, m := range agentpb.Agent_ServiceDesc.Methods {
		names = append(names, "/"+agentpb.Agent_ServiceDesc.ServiceName+"/"+m.MethodName)
	}
	for _, s := range agentpb.Agent_ServiceDesc.Streams {
		names = append(names, "/"+agentpb.Agent_ServiceDesc.ServiceName+"/"+s.StreamName)
	}
	return names
}

func TestT5RoleTableListsExactlyTheExistingMethods(t *testing.T) {
	table := roleTable()
	for _, method := range methods() {
		if len(table[method]) == 0 {
			t.Errorf("%s has no roles in the table", method)
		}
		delete(table, method)
	}
	for method := range table {
		t.Errorf("the table has %s, which does not exist", method)
	}
}

// invoke calls a method with an empty request.
func invoke(ctx context.Context, conn *grpc.ClientConn, method string) error {
	streaming := slices.ContainsFunc(agentpb.Agent_ServiceDesc.Streams, func(s grpc.StreamDesc) bool { return strings.HasSuffix(method, "/"+s.StreamName) })
	if !streaming {
		return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.CloseSend()); err != nil {
		return err
	}
	return stream.RecvMsg(&emptypb.Empty{})
}

func TestT5EachRoleMayCallOnlyItsMethods(t *testing.T) {
	b := newEnv(t)
	// A copy of the table, so that each change must be made twice.
	want := map[mtls.Role][]string{
		mtls.RoleReader:     {"GetFacts", "GetOperation", "Hello", "Logs", "WatchEvents"},
		mtls.RoleReconciler: {"Abort", "Activate", "Commit", "DeliverTrust", "Extend", "GetFacts", "GetOperation", "Hello", "Logs", "Rollback", "Stage", "WatchEvents"},
		mtls.RoleOperator:   {"Abort", "GetFacts", "GetOperation", "Hello", "Logs", "Reboot", "Resume", "Shutdown", "WatchEvents"},
		mtls.RoleAdmin: {
			"Abort", "Activate", "Commit", "DeliverTrust", "Extend", "GetFacts", "GetOperation", "Hello", "Logs",
			"Reboot", "ResetFence", "Resume", "Rollback", "Shutdown", "Stage", "WatchEvents",
		},
	}
	for role, names := range want {
		t.Run(string(role), func(t *testing.T) {
			conn := b.conn("someone", role)
			for _, method := range methods() {
				err := invoke(t.Context(), conn, method)
				if got, may := status.Code(err) != codes.PermissionDenied, slices.Contains(names, shortName(method)); got != may {
					t.Errorf("%s is authorized: %v, want %v (%v)", method, got, may, err)
				}
			}
			hello, err := agentpb.NewAgentClient(conn).Hello(t.Context(), &agentpb.HelloRequest{Version: "1.0.0"})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(hello.GetCapabilities(), names) {
				t.Errorf("Hello returned capabilities %v, want %v", hello.GetCapabilities(), names)
			}
		})
	}
}

func TestT5MethodMissingFromTheTableIsDenied(t *testing.T) {
	b := newEnv(t)
	conn := b.conn("ada", mtls.RoleAdmin)
	for _, method := range []string{
		"/lockstep.agent.v1.Agent/Reset", "/grpc.health.v1.Health/Check",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/x/y",
	} {
		if err := invoke(t.Context(), conn, method); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s = %v, want PermissionDenied", method, err)
		}
	}
	// A method that exists but is missing in the table.
	g := guard{table: roleTable(), now: b.now}
	delete(g.table, agentpb.Agent_Hello_FullMethodName)
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: callerInfo{
		caller: mtls.Caller{ClusterUID: cluster, Name: "ada", Role: mtls.RoleAdmin}, notAfter: start.Add(time.Hour),
	}})
	if _, err := g.check(ctx, agentpb.Agent_Hello_FullMethodName); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method missing in the table = %v", err)
	}
	if _, err := g.check(ctx, agentpb.Agent_GetFacts_FullMethodName); err != nil {
		t.Errorf("a method in the table = %v", err)
	}
	if _, err := g.check(t.Context(), agentpb.Agent_GetFacts_FullMethodName); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call without a peer = %v", err)
	}
}

func TestT5ExpiredCertificateClosesAnOpenConnection(t *testing.T) {
	b := newEnv(t)
	client := b.client("ada", mtls.RoleAdmin)
	if _, err := client.GetFacts(t.Context(), &agentpb.GetFactsRequest{}); err != nil {
		t.Fatal(err)
	}
	b.advance(mtls.AdminLife + time.Minute)
	_, err := client.GetFacts(t.Context(), &agentpb.GetFactsRequest{})
	if st, refusal := refusalOf(t, err); st.Code() != codes.Unauthenticated || refusal.GetReason() != "CertificateExpired" {
		t.Errorf("GetFacts after the certificate expired = %v", err)
	}
}

func TestT5OperationIDIsBoundToCallerMethodAndRequest(t *testing.T) {
	b := newEnv(t)
	reconciler, admin := b.client("reconciler", mtls.RoleReconciler), b.client("ada", mtls.RoleAdmin)
	first, err := reconciler.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 1), Image: osImage("a", "2.0.0")})
	if err != nil {
		t.Fatal(err)
	}
	again, err := reconciler.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 2), Image: osImage("a", "2.0.0")})
	if err != nil || !again.GetRepeated() || again.GetOperation().GetRequestHash() != first.GetOperation().GetRequestHash() {
		t.Errorf("the same order under a newer fence = %v, %v; want the same operation", again, err)
	}
	for name, err := range map[string]error{
		"another request": second(reconciler.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 2), Image: osImage("b", "2.0.0")})),
		"another method":  second(reconciler.Activate(t.Context(), &agentpb.ActivateRequest{Order: order("op-1", 2), Image: osImage("a", "2.0.0")})),
		"another caller": second(admin.Stage(t.Context(), &agentpb.StageRequest{
			Order: &agentpb.Order{OperationId: "op-1", Attempt: "a1"}, Image: osImage("a", "2.0.0"),
		})),
	} {
		st, refusal := refusalOf(t, err)
		if st.Code() != codes.AlreadyExists || refusal.GetReason() != "OperationConflict" || !strings.Contains(st.Message(), first.GetOperation().GetRequestHash()) {
			t.Errorf("%s under the id = %v, want AlreadyExists with both hashes", name, err)
		}
	}
}

func second[A any](_ A, err error) error { return err }

func TestT5RefusalReturnsTheStoredFence(t *testing.T) {
	b := newEnv(t)
	client := b.client("reconciler", mtls.RoleReconciler)
	if _, err := client.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 40), Image: osImage("a", "2.0.0")}); err != nil {
		t.Fatal(err)
	}
	stage := func(id string, fence *agentpb.Fence) error {
		return second(client.Stage(t.Context(), &agentpb.StageRequest{
			Order: &agentpb.Order{OperationId: id, Attempt: "a1", Fence: fence}, Image: osImage("a", "2.0.0"),
		}))
	}
	for name, fence := range map[string]*agentpb.Fence{
		"an older leader":     {ClusterUid: cluster, Epoch: 39},
		"a jump":              {ClusterUid: cluster, Epoch: 1 << 31},
		"another cluster":     {ClusterUid: "uid-2", Epoch: 41},
		"an older leader's 0": {ClusterUid: cluster},
	} {
		st, refusal := refusalOf(t, stage("op-1", fence))
		if st.Code() != codes.FailedPrecondition || refusal.GetReason() != "Fenced" || refusal.GetStoredFence().GetEpoch() != 40 {
			t.Errorf("%s = %v with %v, want the stored fence 40", name, st, refusal)
		}
	}
	if err := stage("op-1", &agentpb.Fence{ClusterUid: cluster, Epoch: 41}); err != nil {
		t.Errorf("the leader with a raised epoch = %v", err)
	}
}

func TestT5OnlyReconcilersSendAFenceAndTheyMust(t *testing.T) {
	b := newEnv(t)
	without := &agentpb.StageRequest{Order: &agentpb.Order{OperationId: "op-1"}, Image: osImage("a", "2.0.0")}
	if err := second(b.client("reconciler", mtls.RoleReconciler).Stage(t.Context(), without)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a reconciler's order without a fence = %v", err)
	}
	admin := b.client("ada", mtls.RoleAdmin)
	if err := second(admin.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 7), Image: osImage("a", "2.0.0")})); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an administrator's order with a fence = %v", err)
	}
	if _, err := admin.Stage(t.Context(), without); err != nil {
		t.Errorf("an administrator's order without a fence = %v", err)
	}
}

func TestResetFenceRequiresTheCurrentFence(t *testing.T) {
	b := newEnv(t)
	reconciler, admin := b.client("reconciler", mtls.RoleReconciler), b.client("ada", mtls.RoleAdmin)
	if _, err := reconciler.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 5000), Image: osImage("a", "2.0.0")}); err != nil {
		t.Fatal(err)
	}
	_, err := admin.ResetFence(t.Context(), &agentpb.ResetFenceRequest{Seen: &agentpb.Fence{ClusterUid: cluster, Epoch: 4}})
	if _, refusal := refusalOf(t, err); refusal.GetStoredFence().GetEpoch() != 5000 {
		t.Errorf("reset of another fence = %v", err)
	}
	if _, err := admin.ResetFence(t.Context(), &agentpb.ResetFenceRequest{Seen: &agentpb.Fence{ClusterUid: cluster, Epoch: 5000}}); err != nil {
		t.Fatal(err)
	}
	if _, err := reconciler.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 3), Image: osImage("a", "2.0.0")}); err != nil {
		t.Errorf("the rebuilt cluster's leader after the reset = %v", err)
	}
}

func TestBusyHostReportsTheLockHolder(t *testing.T) {
	b := newEnv(t)
	client := b.client("reconciler", mtls.RoleReconciler)
	if _, err := client.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-1", 1), Image: osImage("a", "2.0.0")}); err != nil {
		t.Fatal(err)
	}
	st, refusal := refusalOf(t, second(client.Stage(t.Context(), &agentpb.StageRequest{Order: order("op-2", 1), Image: osImage("b", "2.1.0")})))
	if st.Code() != codes.Aborted || refusal.GetReason() != "Locked" || refusal.GetOperationId() != "op-1" || !refusal.GetRetriable() {
		t.Errorf("a second operation = %v with %v", st, refusal)
	}
}

func TestMalformedOrdersAreRejectedBeforeTheController(t *testing.T) {
	b := newEnv(t)
	client := b.client("reconciler", mtls.RoleReconciler)
	noVersion := osImage("a", "")
	tagged := &agentpb.Image{Reference: "registry.example.com/os:latest", Product: "p", Version: "1.0.0"}
	for name, req := range map[string]*agentpb.StageRequest{
		"no order":            {Image: osImage("a", "2.0.0")},
		"no id":               {Order: order("", 1), Image: osImage("a", "2.0.0")},
		"an id with a path":   {Order: order("../x", 1), Image: osImage("a", "2.0.0")},
		"an upper-case id":    {Order: order("OP", 1), Image: osImage("a", "2.0.0")},
		"an id of 64 letters": {Order: order(strings.Repeat("a", 64), 1), Image: osImage("a", "2.0.0")},
		"no image":            {Order: order("op-1", 1)},
		"an image by tag":     {Order: order("op-1", 1), Image: tagged},
		"no version":          {Order: order("op-1", 1), Image: noVersion},
		"an invalid version":  {Order: order("op-1", 1), Image: osImage("a", "newest")},
	} {
		if err := second(client.Stage(t.Context(), req)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s = %v, want InvalidArgument", name, err)
		}
	}
	if b.core.state.Op != nil {
		t.Errorf("operation %s was started", b.core.state.Op.ID)
	}
}

func TestCommitRequiresTheImageOfItsOperation(t *testing.T) {
	b := newEnv(t)
	client := b.client("reconciler", mtls.RoleReconciler)
	if _, err := client.Activate(t.Context(), &agentpb.ActivateRequest{Order: order("op-1", 1), Image: osImage("a", "2.0.0")}); err != nil {
		t.Fatal(err)
	}
	commit := func(id, digest string) (*status.Status, *agentpb.Refusal) {
		return refusalOf(t, second(client.Commit(t.Context(), &agentpb.CommitRequest{Order: order(id, 1), Digest: digest})))
	}
	if st, refusal := commit("op-1", "sha256:"+strings.Repeat("b", 64)); refusal.GetReason() != "WrongDigest" {
		t.Errorf("Commit of another image = %v", st)
	}
	if st, refusal := commit("op-9", "sha256:"+strings.Repeat("a", 64)); refusal.GetReason() != "UnknownOperation" {
		t.Errorf("Commit of an unknown operation = %v", st)
	}
	// The right image, but it isn't booted yet.
	if st, refusal := commit("op-1", "sha256:"+strings.Repeat("a", 64)); st.Code() != codes.FailedPrecondition {
		t.Errorf("Commit before the boot = %v, %v", st, refusal)
	}
}

func TestLogIsReadByLineAndItsNameMustNotBeAPath(t *testing.T) {
	b := newEnv(t)
	client := b.client("reader", mtls.RoleReader)
	stream, err := client.Logs(t.Context(), &agentpb.LogsRequest{Service: "agent", TailLines: -1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		line, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line.GetLine())
	}
	if !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("lines = %q", got)
	}
	bad, err := client.Logs(t.Context(), &agentpb.LogsRequest{Service: "../../etc/passwd"})
	if err == nil {
		_, err = bad.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a path as a service = %v", err)
	}
}

func TestConnectionsPerPeerAreLimited(t *testing.T) {
	b := newEnv(t)
	hello := func(client agentpb.AgentClient) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return second(client.Hello(ctx, &agentpb.HelloRequest{}))
	}
	for i := range maxPerCaller {
		if err := hello(b.client("greedy", mtls.RoleReader)); err != nil {
			t.Fatalf("connection %d = %v", i+1, err)
		}
	}
	if err := hello(b.client("greedy", mtls.RoleReader)); status.Code(err) != codes.Unavailable {
		t.Errorf("connection %d = %v, want it closed", maxPerCaller+1, err)
	}
	if err := hello(b.client("modest", mtls.RoleReader)); err != nil {
		t.Errorf("another caller = %v", err)
	}
}

func TestOversizedRequestIsRejected(t *testing.T) {
	b := newEnv(t)
	err := second(b.client("ada", mtls.RoleAdmin).DeliverTrust(t.Context(), &agentpb.DeliverTrustRequest{Envelope: make([]byte, maxWireMessage)}))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("64 KiB and more = %v", err)
	}
}

func TestWatchRejectsTwoTailOptions(t *testing.T) {
	b := newEnv(t)
	stream, err := b.client("reader", mtls.RoleReader).WatchEvents(t.Context(), &agentpb.WatchEventsRequest{TailEvents: 5, TailId: "boot-1/7"})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("two tails = %v", err)
	}
}

func TestCounterReleasesEachSlotOnce(t *testing.T) {
	c := newCounter(2, 3)
	for i, want := range []bool{true, true, false} {
		if got := c.acquire("a"); got != want {
			t.Errorf("acquire %d of a = %v", i+1, got)
		}
	}
	if !c.acquire("b") || c.acquire("c") {
		t.Error("the total limit was exceeded")
	}
	c.release("a")
	if !c.acquire("c") {
		t.Error("a released slot can't be acquired")
	}
	c.release("a")
	c.release("b")
	c.release("c")
	if c.total != 0 || len(c.open) != 0 {
		t.Errorf("count is %d, keys %v", c.total, c.open)
	}
}
