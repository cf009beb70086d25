// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package wire converts the types of a host to protobuf messages and back, in one
// place for the agent and the reconciler's client.
//
// Input is untrusted: all strings are sanitized and all lists are truncated, so that
// a malicious host can't exhaust memory or forge lines in a status. Digests and ids
// are validated by their users.
package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
)

// Limits of lists that a host reports. Longer ones are truncated to the newest.
const (
	MaxSlots   = 8
	MaxDenied  = 32
	MaxTasks   = 16
	MaxMarks   = 32
	maxMessage = 1024
)

// About is what an agent reports besides the facts of its host.
type About struct {
	// Version is the agent's semantic version.
	Version string
	// TrustVersion is the version of the active trust document; zero without one.
	TrustVersion int64
	// TrustDigest is the digest of the active trust document.
	TrustDigest string
	// CertificateExpires is the end of the host certificate's validity.
	CertificateExpires time.Time
}

// deadlines maps deadline actions.
func deadlines() map[nodeos.DeadlineAction]agentpb.OnDeadline {
	return map[nodeos.DeadlineAction]agentpb.OnDeadline{
		"":                      agentpb.OnDeadline_ON_DEADLINE_UNSPECIFIED,
		nodeos.DeadlineRollback: agentpb.OnDeadline_ON_DEADLINE_ROLLBACK,
		nodeos.DeadlineCommit:   agentpb.OnDeadline_ON_DEADLINE_COMMIT,
		nodeos.DeadlineHold:     agentpb.OnDeadline_ON_DEADLINE_HOLD,
	}
}

// DeadlineToProto converts a deadline action.
func DeadlineToProto(d nodeos.DeadlineAction) agentpb.OnDeadline { return deadlines()[d] }

// DeadlineFromProto converts a deadline action. An unknown one is returned as is, so
// that validation rejects it.
func DeadlineFromProto(d agentpb.OnDeadline) nodeos.DeadlineAction {
	for word, number := range deadlines() {
		if number == d {
			return word
		}
	}
	return nodeos.DeadlineAction(d.String())
}

// states maps operation states.
func states() map[nodeos.OperationState]agentpb.OperationState {
	return map[nodeos.OperationState]agentpb.OperationState{
		"":                         agentpb.OperationState_OPERATION_STATE_UNSPECIFIED,
		nodeos.OperationWaiting:    agentpb.OperationState_OPERATION_STATE_WAITING,
		nodeos.OperationRunning:    agentpb.OperationState_OPERATION_STATE_RUNNING,
		nodeos.OperationRebooting:  agentpb.OperationState_OPERATION_STATE_REBOOTING,
		nodeos.OperationOnTrial:    agentpb.OperationState_OPERATION_STATE_ON_TRIAL,
		nodeos.OperationUndoing:    agentpb.OperationState_OPERATION_STATE_UNDOING,
		nodeos.OperationPaused:     agentpb.OperationState_OPERATION_STATE_PAUSED,
		nodeos.OperationSucceeded:  agentpb.OperationState_OPERATION_STATE_SUCCEEDED,
		nodeos.OperationFailed:     agentpb.OperationState_OPERATION_STATE_FAILED,
		nodeos.OperationRolledBack: agentpb.OperationState_OPERATION_STATE_ROLLED_BACK,
		nodeos.OperationCanceled:   agentpb.OperationState_OPERATION_STATE_CANCELED,
	}
}

// StateToProto converts an operation's state.
func StateToProto(s nodeos.OperationState) agentpb.OperationState { return states()[s] }

// StateFromProto converts an operation's state; an unknown one is Running, which
// triggers no decision.
func StateFromProto(s agentpb.OperationState) nodeos.OperationState {
	for word, number := range states() {
		if number == s {
			return word
		}
	}
	return nodeos.OperationRunning
}

// FenceToProto converts a fence; nil for none.
func FenceToProto(f *nodeos.Fence) *agentpb.Fence {
	if f == nil || *f == (nodeos.Fence{}) {
		return nil
	}
	return &agentpb.Fence{ClusterUid: f.ClusterUID, Epoch: f.Epoch}
}

// FenceFromProto converts a fence; nil for none.
func FenceFromProto(f *agentpb.Fence) *nodeos.Fence {
	if f == nil {
		return nil
	}
	return &nodeos.Fence{ClusterUID: line(f.GetClusterUid()), Epoch: f.GetEpoch()}
}

// ImageToProto converts an image; nil for none.
func ImageToProto(i nodeos.Image) *agentpb.Image {
	if i.Ref == (nodeos.ImageRef{}) {
		return nil
	}
	return &agentpb.Image{Reference: i.Ref.String(), Product: i.Product, Version: i.Version}
}

// ImageFromProto converts an image. The reference must have a digest; product and
// version are unverified.
func ImageFromProto(i *agentpb.Image) (nodeos.Image, error) {
	ref, err := nodeos.ParseImageRef(i.GetReference())
	if err != nil {
		return nodeos.Image{}, err
	}
	return nodeos.Image{Ref: ref, Product: line(i.GetProduct()), Version: line(i.GetVersion())}, nil
}

// OperationToProto converts an operation; nil for none.
func OperationToProto(o *nodeos.OperationStatus) *agentpb.Operation {
	if o == nil {
		return nil
	}
	return &agentpb.Operation{
		Id: o.ID, Sequence: o.Sequence.String(), Caller: o.Caller, Method: o.Method,
		Attempt: o.Attempt, RequestHash: o.RequestHash, Digest: o.Digest, State: StateToProto(o.State),
		Phase: o.Phase, PhaseIndex: count(o.PhaseIndex), PhaseCount: count(o.PhaseCount), Tasks: cut(o.Tasks, MaxTasks),
		Try: count(o.Try), Started: stamp(o.Started), Ended: stamp(o.Ended),
		Reason: o.Reason, Message: message(o.Message),
	}
}

// OperationFromProto converts an operation; nil for none. An unknown sequence is
// noop.
func OperationFromProto(o *agentpb.Operation) *nodeos.OperationStatus {
	if o == nil {
		return nil
	}
	sequence, err := nodeos.ParseSequence(o.GetSequence())
	if err != nil {
		sequence = nodeos.SequenceNoop
	}
	return &nodeos.OperationStatus{
		ID: line(o.GetId()), Sequence: sequence, Caller: line(o.GetCaller()), Method: line(o.GetMethod()),
		Attempt: line(o.GetAttempt()), RequestHash: line(o.GetRequestHash()), Digest: line(o.GetDigest()), State: StateFromProto(o.GetState()),
		Phase: line(o.GetPhase()), PhaseIndex: int(o.GetPhaseIndex()), PhaseCount: int(o.GetPhaseCount()), Tasks: lines(cut(o.GetTasks(), MaxTasks)),
		Try: int(o.GetTry()), Started: moment(o.GetStarted()), Ended: moment(o.GetEnded()),
		Reason: line(o.GetReason()), Message: message(o.GetMessage()),
	}
}

// DurationFromProto converts a duration; zero for none.
func DurationFromProto(d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.AsDuration()
}

// stamp converts a time; nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// moment converts a time to UTC; zero for none or an invalid one.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil || t.CheckValid() != nil {
		return time.Time{}
	}
	return t.AsTime()
}

func line(s string) string { return sanitize.Line(s) }

func lines(in []string) []string {
	var out []string
	for _, s := range in {
		out = append(out, line(s))
	}
	return out
}

// cut returns the last most elements.
func cut[T any](list []T, most int) []T { return list[max(0, len(list)-most):] }

// count converts a small number; negative ones are zero.
func count(n int) uint32 { return uint32(min(max(n, 0), 1<<30)) }
