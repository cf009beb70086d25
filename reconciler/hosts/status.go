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
	// writeEvery is the shortest time between two writes of a status that say
	// nothing new but times and messages.
	writeEvery = 5 * time.Second
	// lastSeenEvery is how old LastSeen may grow in a written status.
	lastSeenEvery = 5 * time.Minute
)

// Facts is what's known of a host.
type Facts struct {
	// Node is nil where there is none.
	Node *corev1.Node
	// State is what the fleet knows; nil where the host isn't a target.
	State *fleet.State
	// Rollout is where a rollout has the host; nil: nowhere.
	Rollout *v1alpha1.HostRollout
}

// Status returns the status of a host from what's known of it now, on top of
// the one it has: a condition's time changes only with its status. It's pure.
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

// reported shows the agent's own words. They're kept while it's away.
func setReported(out *v1alpha1.HostStatus, s *fleet.State) {
	f := &s.Facts
	a := v1alpha1.AgentStatus{Version: clip(s.About.Version), Connected: s.Connected, TrustVersion: s.About.TrustVersion}
	a.LastSeen, a.CertificateExpires = metaTime(s.LastSeen), metaTime(s.About.CertificateExpires)
	if f.BootID == "" { // nothing was ever read
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

// at returns a time as the API server keeps it, in whole seconds.
func metaTime(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.Truncate(time.Second)}
}

// conditions says how the host is.
func conditions(host *v1alpha1.Host, f Facts) []metav1.Condition {
	reachable := reachability(host, f)
	mismatch := identity(host, f)
	confirmed := metav1.Condition{Type: v1alpha1.ConditionConfirmed, Status: metav1.ConditionUnknown, Reason: "NotReported", Message: "the agent has reported nothing yet"}
	if f.State != nil && f.State.Facts.BootID != "" {
		confirmed.Status, confirmed.Reason, confirmed.Message = metav1.ConditionFalse, "OnTrial", "the host may still go back to its previous system"
		if f.State.Facts.Booted.Confirmed {
			confirmed.Status, confirmed.Reason, confirmed.Message = metav1.ConditionTrue, "Committed", "the running system was committed"
		}
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Idle", Message: "the agent is reachable and nothing is under way"}
	reconciling := metav1.Condition{Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionFalse, Reason: "Idle", Message: "nothing is under way"}
	stalled := metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "Idle", Message: "nothing needs a person"}
	not := func(reason, message string) {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, message
	}
	switch {
	case f.Node == nil:
		not(ReasonNodeGone, "no Node has this name")
	case mismatch.Status == metav1.ConditionTrue:
		not(mismatch.Reason, mismatch.Message)
		stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, mismatch.Reason, mismatch.Message
	case f.Rollout != nil:
		not(f.Rollout.State, "attempt "+f.Rollout.Attempt+" is under way")
		reconciling.Status, reconciling.Reason, reconciling.Message = metav1.ConditionTrue, f.Rollout.State, ready.Message
		if f.Rollout.State == "Quarantined" || f.Rollout.State == "Lost" {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, f.Rollout.State, ready.Message
			reconciling.Status = metav1.ConditionFalse
		}
	case reachable.Status != metav1.ConditionTrue:
		not(reachable.Reason, reachable.Message)
	}
	return []metav1.Condition{ready, reconciling, stalled, reachable, confirmed, mismatch}
}

func reachability(host *v1alpha1.Host, f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, Reason: "Unreachable"}
	switch {
	case host.Spec.Identity == nil:
		c.Reason, c.Message = "NotEnrolled", "no identity is pinned: enrol the host, then set spec.identity.hostID"
	case f.State == nil:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NotDialled", "the agent isn't dialled yet"
	case f.State.Connected:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "Connected", "the agent answers"
	case f.State.Err != nil:
		c.Reason, c.Message = nodeos.ReasonOf(f.State.Err, "Unreachable"), f.State.Err.Error()
	default:
		c.Message = "the agent doesn't answer"
	}
	return c
}

// identity says whether the agent's host is the Node's: by name, and by boot
// where the kubelet is up to report it.
func identity(_ *v1alpha1.Host, f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionIdentityMismatch, Status: metav1.ConditionFalse, Reason: "Agrees", Message: "nothing contradicts that agent and Node are one machine"}
	if f.Node == nil || f.State == nil || !f.State.Connected {
		return c
	}
	facts := &f.State.Facts
	switch have := f.Node.Status.NodeInfo.BootID; {
	case facts.NodeName != "" && facts.NodeName != f.Node.Name:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "NodeNameMismatch", fmt.Sprintf("the agent says that it's on node %s", facts.NodeName)
	case nodeReady(f.Node) && have != "" && facts.BootID != "" && have != facts.BootID:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, "FactMismatch", fmt.Sprintf("the Node reports boot %s, the agent boot %s", have, facts.BootID)
	}
	return c
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Due says whether a status must be written now, and if it's only too early,
// when: a change of state at once, anything else at most every five seconds,
// and the time at which the agent was last seen alone every five minutes.
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

// states is what of a status is a state: what automation waits for.
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

// unseen is the status without the time at which the agent was last seen.
func withoutLastSeen(s v1alpha1.HostStatus) v1alpha1.HostStatus {
	out := *s.DeepCopy()
	if out.Agent != nil {
		out.Agent.LastSeen = nil
	}
	return out
}
