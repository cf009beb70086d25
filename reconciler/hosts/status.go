// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
)

// Limits of a Host's status.
const (
	maxShort   = 64
	maxDigest  = 71
	maxID      = 128
	maxMessage = 512
	// writeEvery is the minimum interval between writes of a status in which
	// only times or messages change.
	writeEvery = 5 * time.Second
	// lastSeenEvery is the minimum interval between writes of lastSeen alone.
	lastSeenEvery = 5 * time.Minute
)

// Facts is the observed state of a host.
type Facts struct {
	// Node is the host's Node; nil if there is none.
	Node *corev1.Node
	// State is that of the connection; nil if the host isn't a target.
	State *fleet.State
	// Rollout is the state of the host's slot; nil if it has none.
	Rollout *v1alpha1.HostRollout
}

// Status returns the new status of a host. A condition's transition time changes
// only with its status. It is pure.
func Status(host *v1alpha1.Host, f Facts, now time.Time) v1alpha1.HostStatus {
	out := *host.Status.DeepCopy()
	out.ObservedGeneration = host.Generation
	out.Rollout = f.Rollout
	out.NodeUID = ""
	if f.Node != nil {
		out.NodeUID = string(f.Node.UID)
	}
	if f.State != nil {
		setReported(&out, f.State)
	} else {
		out.Agent = &v1alpha1.AgentStatus{}
	}
	for _, c := range conditions(host, f) {
		c.ObservedGeneration, c.LastTransitionTime = host.Generation, metav1.Time{Time: now}
		c.Message = sanitize.Clip(c.Message, maxMessage)
		meta.SetStatusCondition(&out.Conditions, c)
	}
	return out
}

// setReported sets the fields that the agent reports. They are kept while the
// agent is unreachable.
func setReported(out *v1alpha1.HostStatus, s *fleet.State) {
	f := &s.Facts
	a := v1alpha1.AgentStatus{Version: clip(s.About.Version), Connected: s.Connected, TrustVersion: s.About.TrustVersion}
	a.LastSeen, a.CertificateExpires = metaTime(s.LastSeen), metaTime(s.About.CertificateExpires)
	if f.BootID == "" { // no report yet
		out.Agent = &a
		return
	}
	a.BootID, a.Mode, a.Backend = clip(f.BootID), clip(f.Mode.String()), clip(f.Backend)
	a.Capabilities = capabilities(f.Capabilities)
	out.Agent = &a
	out.OS = &v1alpha1.OSStatus{Booted: &v1alpha1.SlotStatus{
		Version: clip(f.Booted.Version), Digest: sanitize.Clip(f.Booted.Digest, maxDigest), Slot: sanitize.Clip(f.Booted.Slot, 32), Confirmed: f.Booted.Confirmed,
	}}
	if s, ok := f.Inventory.Staged(); ok {
		out.OS.Staged = slotStatus(s)
	}
	if s, ok := f.Inventory.Previous(); ok {
		out.OS.Previous = slotStatus(s)
	}
	out.Operation = nil
	if op := f.Operation; op != nil {
		out.Operation = operation(op, f.Trial)
	}
	if op := f.Last; op != nil {
		out.LastResult = &v1alpha1.OperationResult{
			ID: sanitize.Clip(op.ID, maxID), Sequence: sanitize.Clip(op.Sequence.String(), 32), State: sanitize.Clip(string(op.State), 32),
			Message: sanitize.Clip(op.Message, maxMessage), FinishedTime: metaTime(op.Ended),
		}
	}
}

func operation(op *nodeos.OperationStatus, trial *nodeos.Trial) *v1alpha1.OperationStatus {
	out := &v1alpha1.OperationStatus{
		ID: sanitize.Clip(op.ID, maxID), Sequence: sanitize.Clip(op.Sequence.String(), 32), StartedTime: metaTime(op.Started), Attempt: sanitize.Clip(op.Attempt, maxID),
	}
	if op.Phase != "" {
		out.Phase = clip(op.Phase + " " + strconv.Itoa(op.PhaseIndex) + "/" + strconv.Itoa(op.PhaseCount))
	}
	if len(op.Tasks) > 0 {
		out.Task = clip(op.Tasks[0])
	}
	if trial != nil && trial.OperationID == op.ID {
		out.CommitDeadline = metaTime(trial.Deadline)
	}
	return out
}

func slotStatus(s nodeos.Slot) *v1alpha1.SlotStatus {
	return &v1alpha1.SlotStatus{
		Version: clip(s.Image.Version), Digest: sanitize.Clip(s.Image.Ref.Digest, maxDigest), Slot: sanitize.Clip(s.Name, 32), Confirmed: s.State == nodeos.SlotGood,
	}
}

func capabilities(c nodeos.HostCapabilities) []string {
	var out []string
	for _, p := range []struct {
		name string
		has  bool
	}{{"atomic", c.Atomic}, {"bootOnce", c.BootOnce}, {"autoRollback", c.AutoRollback}, {"verify", c.Verify}} {
		if p.has {
			out = append(out, p.name)
		}
	}
	return out
}

func clip(s string) string { return sanitize.Clip(s, maxShort) }

// metaTime truncates a time to seconds, as the API server stores it; nil if zero.
func metaTime(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.Truncate(time.Second)}
}

// conditions returns the conditions of the host.
func conditions(host *v1alpha1.Host, f Facts) []metav1.Condition {
	reachable := reachability(host, f)
	mismatch := identityMismatch(f)
	confirmed := metav1.Condition{Type: v1alpha1.ConditionConfirmed, Status: metav1.ConditionUnknown, Reason: "NotReported", Message: "no report from the agent yet"}
	if f.State != nil && f.State.Facts.BootID != "" {
		confirmed.Status, confirmed.Reason, confirmed.Message = metav1.ConditionFalse, "OnTrial", "the running OS is on trial; the host may still roll back"
		if f.State.Facts.Booted.Confirmed {
			confirmed.Status, confirmed.Reason, confirmed.Message = metav1.ConditionTrue, "Committed", "the running OS is committed"
		}
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Idle", Message: "the agent is connected and idle"}
	reconciling := metav1.Condition{Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionFalse, Reason: "Idle", Message: "no rollout in progress"}
	stalled := metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "Idle", Message: "no action required"}
	notReady := func(reason, message string) {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	}
	switch {
	case f.Node == nil:
		notReady(ReasonNodeGone, "no Node has this name")
	case mismatch.Status == metav1.ConditionTrue:
		notReady(mismatch.Reason, mismatch.Message)
		stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, mismatch.Reason, mismatch.Message
	case f.Rollout != nil:
		notReady(f.Rollout.State, "attempt "+f.Rollout.Attempt+" in progress")
		reconciling.Status, reconciling.Reason, reconciling.Message = metav1.ConditionTrue, f.Rollout.State, ready.Message
		if f.Rollout.State == "Quarantined" || f.Rollout.State == "Lost" {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, f.Rollout.State, ready.Message
			reconciling.Status = metav1.ConditionFalse
		}
	case reachable.Status != metav1.ConditionTrue:
		notReady(reachable.Reason, reachable.Message)
	}
	return []metav1.Condition{ready, reconciling, stalled, reachable, confirmed, mismatch}
}

func reachability(host *v1alpha1.Host, f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, Reason: "Unreachable"}
	switch {
	case host.Spec.Identity == nil:
		c.Reason, c.Message = "NotEnrolled", "no identity pinned; issue its certificate, then set spec.identity.hostID"
	case f.State == nil:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NotDialled", "no connection to the agent attempted yet"
	case f.State.Connected:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Connected", "the agent is connected"
	case f.State.Err != nil:
		c.Reason, c.Message = nodeos.ReasonOf(f.State.Err, "Unreachable"), f.State.Err.Error()
	default:
		c.Message = "the agent is unreachable"
	}
	return c
}

// identityMismatch returns the condition IdentityMismatch. It compares the node
// name and, while the Node is Ready, the boot ID.
func identityMismatch(f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionIdentityMismatch, Status: metav1.ConditionFalse, Reason: "Agrees", Message: "no mismatch observed"}
	if f.Node == nil || f.State == nil || !f.State.Connected {
		return c
	}
	facts := &f.State.Facts
	switch have := f.Node.Status.NodeInfo.BootID; {
	case facts.NodeName != "" && facts.NodeName != f.Node.Name:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "NodeNameMismatch", fmt.Sprintf("the agent reports node %s", facts.NodeName)
	case nodeReady(f.Node) && have != "" && facts.BootID != "" && have != facts.BootID:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "FactMismatch", fmt.Sprintf("the Node reports boot %s, the agent reports boot %s", have, facts.BootID)
	}
	return c
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Due reports whether a changed status must be written now and, if not, after
// what delay: a change of state is written immediately, a change of lastSeen
// alone every five minutes, and any other change every five seconds.
func Due(old, next v1alpha1.HostStatus, lastWrite, now time.Time) (bool, time.Duration) {
	if equality.Semantic.DeepEqual(old, next) {
		return false, 0
	}
	if !equality.Semantic.DeepEqual(stateOf(old), stateOf(next)) {
		return true, 0
	}
	wait := writeEvery
	if equality.Semantic.DeepEqual(withoutLastSeen(old), withoutLastSeen(next)) {
		wait = lastSeenEvery
	}
	if left := wait - now.Sub(lastWrite); left > 0 {
		return false, left
	}
	return true, 0
}

// stateOf returns the part of a status whose changes are written immediately,
// because automation waits for it.
func stateOf(s v1alpha1.HostStatus) any {
	type state struct {
		node, boot, booted, rollout, operation string
		connected                              bool
		conditions                             []string
	}
	out := state{node: s.NodeUID}
	if s.Agent != nil {
		out.boot, out.connected = s.Agent.BootID, s.Agent.Connected
	}
	if s.OS != nil && s.OS.Booted != nil {
		out.booted = s.OS.Booted.Digest + strconv.FormatBool(s.OS.Booted.Confirmed)
	}
	if s.Rollout != nil {
		out.rollout = s.Rollout.State + s.Rollout.Attempt
	}
	if s.Operation != nil {
		out.operation = s.Operation.ID
	}
	for _, c := range s.Conditions {
		out.conditions = append(out.conditions, c.Type+string(c.Status))
	}
	return fmt.Sprintf("%+v", out)
}

// withoutLastSeen returns a copy of the status without lastSeen.
func withoutLastSeen(s v1alpha1.HostStatus) v1alpha1.HostStatus {
	out := *s.DeepCopy()
	if out.Agent != nil {
		out.Agent.LastSeen = nil
	}
	return out
}
