// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// Evaluate judges a live object by its kind's contract. It is pure. Health
// expressions aren't looked at.
func Evaluate(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if m.Wait == payload.WaitNone {
		return Verdict{Ready: true}
	}
	switch kinds.Of(groupKind(m)).Health {
	case kinds.JobHealth:
		return judgeJob(body)
	case kinds.CRDHealth:
		return judgeDefinition(body)
	case kinds.ServiceHealth:
		return judgeService(m, body)
	case kinds.ClaimHealth:
		return judgeClaim(body)
	case kinds.APIServiceHealth:
		return judgeAPIService(body)
	case kinds.ClusterOperatorHealth:
		return judgeClusterOperator(m, body)
	case kinds.NodeOSHealth:
		return judgeNodeOS(m, body)
	case kinds.Kstatus:
	}
	return judgeGeneric(m, body)
}

// judgeGeneric is kstatus.
func judgeGeneric(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if notApplicable(body) {
		return Verdict{Ready: true}
	}
	result, err := status.Compute(body)
	if err != nil {
		return Verdict{Reason: ReasonFailed, Message: "the status can't be read: " + sanitize.Line(err.Error())}
	}
	switch result.Status {
	case status.CurrentStatus:
		return Verdict{Ready: true}
	case status.FailedStatus:
		reason, message := stalled(body)
		if reason == "" {
			reason, message = ReasonFailed, sanitize.Line(result.Message)
		}
		return Verdict{Failed: true, Reason: reason, Message: message}
	case status.InProgressStatus, status.TerminatingStatus, status.NotFoundStatus, status.UnknownStatus:
	}
	if m.Wait == payload.WaitStarted && observed(body) {
		return Verdict{Ready: true}
	}
	return Verdict{Reason: ReasonInProgress, Message: sanitize.Line(result.Message)}
}

// stalled returns the object's own words for having given up.
func stalled(body *unstructured.Unstructured) (reason, message string) {
	for _, name := range []string{"Stalled", "Failed"} {
		if c := condition(body, name); c.status == "True" {
			return sanitize.Line(c.reason), sanitize.Line(c.message)
		}
	}
	return "", ""
}

// judgeJob waits for completion, unlike kstatus, which is content with a Job
// that runs.
func judgeJob(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "Complete"); c.status == "True" {
		return Verdict{Ready: true}
	}
	if c := condition(body, "Failed"); c.status == "True" {
		return Verdict{Failed: true, Reason: "JobFailed", Message: c.words()}
	}
	if c := condition(body, "Suspended"); c.status == "True" {
		return Verdict{Reason: "JobSuspended", Message: c.words()}
	}
	return Verdict{Reason: "JobRunning", Message: fmt.Sprintf("%d active, %d succeeded, %d failed pods",
		number(body, "status", "active"), number(body, "status", "succeeded"), number(body, "status", "failed"))}
}

// judgeService waits for the address of a load balancer, as Helm does; kstatus
// is content with a cluster IP.
func judgeService(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	kind, _, _ := unstructured.NestedString(body.Object, "spec", "type")
	field, _, _ := unstructured.NestedFieldNoCopy(body.Object, "status", "loadBalancer", "ingress")
	if ingress, _ := field.([]any); kind == "LoadBalancer" && len(ingress) == 0 {
		return Verdict{Reason: "LoadBalancerPending", Message: "the Service has no load balancer address yet"}
	}
	return judgeGeneric(m, body)
}

func judgeDefinition(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "NamesAccepted"); c.status == "False" {
		return Verdict{Failed: true, Reason: "NamesNotAccepted", Message: c.words()}
	}
	if c := condition(body, "Established"); c.status != "True" {
		return Verdict{Reason: "NotEstablished", Message: "the definition isn't established yet; " + c.words()}
	}
	return Verdict{Ready: true}
}

// notApplicable reports whether the object's controller says that there is
// nothing for it to do on this cluster: Ready or Available is False with the
// reason NotApplicable.
func notApplicable(body *unstructured.Unstructured) bool {
	for _, kind := range []string{"Ready", "Available"} {
		if c := condition(body, kind); c.status == "False" && c.reason == "NotApplicable" {
			return observed(body)
		}
	}
	return false
}

// judgeAPIService wants the API to be served: while it isn't, discovery fails
// for everybody and no namespace can be deleted.
func judgeAPIService(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "Available"); c.status != "True" {
		return Verdict{Reason: "APIServiceNotAvailable", Message: c.words()}
	}
	return Verdict{Ready: true}
}

// judgeStanding judges a workload that nobody changes just now. A rollout is
// over when all of it is available; one that stands is well while enough of it
// is: an autoscaler may add pods all the time, and the nodes of a pool are
// drained one after the other for hours. A Deployment says itself what is
// enough; of a DaemonSet and a StatefulSet half is.
func judgeStanding(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	v := Evaluate(m, body)
	if v.Ready || v.Failed {
		return v
	}
	var well bool
	switch groupKind(m) {
	case kinds.Deployment:
		well = condition(body, "Available").status == "True"
	case kinds.DaemonSet:
		well = 2*number(body, "status", "numberAvailable") >= number(body, "status", "desiredNumberScheduled")
	case kinds.StatefulSet:
		wanted, found, err := unstructured.NestedInt64(body.Object, "spec", "replicas")
		if !found || err != nil {
			wanted = 1
		}
		well = 2*number(body, "status", "availableReplicas") >= wanted
	}
	if well && observed(body) {
		return Verdict{Ready: true}
	}
	return v
}

// judgeClaim takes a claim that nothing consumes yet for level: with the binding
// mode WaitForFirstConsumer it is bound when its first pod is placed, and that
// pod may come after it in the release.
func judgeClaim(body *unstructured.Unstructured) Verdict {
	phase, _, _ := unstructured.NestedString(body.Object, "status", "phase")
	if phase == "Lost" {
		return Verdict{Failed: true, Reason: "ClaimLost", Message: "the volume that the claim was bound to doesn't exist any more"}
	}
	return Verdict{Ready: true}
}

// judgeClusterOperator is CVO's contract: the manifest says what versions have
// to be reported, the operator is available, at these versions and not
// degraded; a missing condition counts as bad. One that says that it has
// nothing to do on this cluster holds nothing up.
func judgeClusterOperator(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if len(m.Versions) == 0 {
		return Verdict{
			Failed: true, Reason: "ClusterOperatorNoVersions",
			Message: "the manifest lists no status.versions, so that nothing tells when the operator is up to date: list at least its version as operator",
		}
	}
	if c := condition(body, "Disabled"); c.status == "True" {
		return Verdict{Ready: true}
	}
	if c := condition(body, "Available"); c.status != "True" {
		return Verdict{Reason: "ClusterOperatorNotAvailable", Message: c.words()}
	}
	have := operands(body)
	var behind []string
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		if want := m.Versions[name]; have[name] != want {
			behind = append(behind, fmt.Sprintf("%s is %q, want %q", sanitize.Line(name), sanitize.Line(have[name]), sanitize.Line(want)))
		}
	}
	if len(behind) > 0 {
		return Verdict{Reason: "ClusterOperatorUpdating", Message: sanitize.Clip(strings.Join(behind, ", "), 1024)}
	}
	if c := condition(body, "Degraded"); c.status != "False" {
		return Verdict{Reason: "ClusterOperatorDegraded", Message: c.words()}
	}
	return Verdict{Ready: true}
}

// operands are the versions that a live ClusterOperator reports.
func operands(obj *unstructured.Unstructured) map[string]string {
	field, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "status", "versions")
	versions, _ := field.([]any)
	out := map[string]string{}
	for _, v := range versions {
		entry, _ := v.(map[string]any)
		name, _ := entry["name"].(string)
		version, _ := entry["version"].(string)
		if name != "" {
			out[name] = version
		}
	}
	return out
}

// judgeNodeOS waits for a pool of hosts as lockstep.dev/wait says: complete
// means all hosts but those in quarantine, started means that one began.
func judgeNodeOS(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if !observed(body) || number(body, "status", "observedGeneration") == 0 {
		return Verdict{Reason: ReasonNotObserved, Message: "the rollout hasn't seen this NodeOS yet"}
	}
	if c := condition(body, "Stalled"); c.status == "True" {
		return Verdict{Failed: true, Reason: sanitize.Line(c.reason), Message: c.words()}
	}
	if c := condition(body, "Halted"); c.status == "True" {
		return Verdict{Failed: true, Reason: "Halted", Message: c.words()}
	}
	count := func(name string) int64 { return number(body, "status", "counts", name) }
	total, updated, quarantined := count("total"), count("updated"), count("quarantined")
	ready := condition(body, "Ready")
	if ready.status == "True" && updated+quarantined >= total {
		return Verdict{Ready: true}
	}
	if m.Wait == payload.WaitStarted && updated+count("inFlight")+count("staged") > 0 {
		return Verdict{Ready: true}
	}
	v := Verdict{Reason: ReasonInProgress, Message: fmt.Sprintf("%d of %d hosts updated, %d in flight, %d failed, %d in quarantine",
		updated, total, count("inFlight"), count("failed"), quarantined)}
	for _, c := range []conditionState{condition(body, "Paused"), condition(body, "Reconciling"), ready} {
		if c.status == "True" && c.kind == "Paused" || c.waits() {
			v.Waiting, v.Reason, v.Message = true, sanitize.Line(c.reason), c.words()
			break
		}
	}
	return v
}

// observed reports whether the object's controller has seen its newest
// generation. Objects without an observedGeneration count as observed.
func observed(body *unstructured.Unstructured) bool {
	seen, found, err := unstructured.NestedInt64(body.Object, "status", "observedGeneration")
	return err != nil || !found || seen >= body.GetGeneration()
}

// conditionState is one condition of an object; all fields are empty if it
// has none of that kind.
type conditionState struct{ kind, status, reason, message string }

// words are what the condition says, made safe to show.
func (c conditionState) words() string {
	if c.status == "" {
		return "condition " + c.kind + " isn't reported"
	}
	return sanitize.Line(fmt.Sprintf("%s=%s %s: %s", c.kind, c.status, c.reason, c.message))
}

// waits reports whether the condition tells of a closed maintenance window or
// of people who hold the rollout: its reasons are those of the rollout. A
// window that is too short for an attempt is a mistake and doesn't count.
func (c conditionState) waits() bool {
	return c.reason == "OutsideWindow" || c.reason == "Paused" || c.reason == "Waiting"
}

func condition(body *unstructured.Unstructured, kind string) conditionState {
	field, _, _ := unstructured.NestedFieldNoCopy(body.Object, "status", "conditions")
	list, _ := field.([]any)
	for _, item := range list {
		entry, _ := item.(map[string]any)
		if entry["type"] != kind {
			continue
		}
		c := conditionState{kind: kind}
		c.status, _ = entry["status"].(string)
		c.reason, _ = entry["reason"].(string)
		c.message, _ = entry["message"].(string)
		return c
	}
	return conditionState{kind: kind}
}

func number(body *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(body.Object, path...)
	return n
}
