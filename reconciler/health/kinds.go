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

// Evaluate evaluates a live object by the contract of its kind. It is pure. It
// ignores the manifest's health expression.
func Evaluate(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if m.Wait == payload.WaitNone || notApplicable(body) {
		return Verdict{Ready: true}
	}
	switch kinds.Of(m.GVK.GroupKind()).Health {
	case kinds.JobHealth:
		return evaluateJob(body)
	case kinds.CRDHealth:
		return evaluateCRD(body)
	case kinds.ServiceHealth:
		return evaluateService(m, body)
	case kinds.ClaimHealth:
		return evaluateClaim(body)
	case kinds.APIServiceHealth:
		return evaluateAPIService(body)
	case kinds.ClusterOperatorHealth:
		return evaluateClusterOperator(m, body)
	case kinds.NodeOSHealth:
		return evaluateNodeOS(m, body)
	case kinds.Kstatus:
	}
	return evaluateGeneric(m, body)
}

// evaluateGeneric evaluates by kstatus.
func evaluateGeneric(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if !observed(body) {
		return Verdict{Reason: ReasonInProgress, Message: "latest generation not observed by the object's controller yet"}
	}
	result, err := status.Compute(body)
	if err != nil {
		return Verdict{Reason: ReasonFailed, Message: "status can't be parsed: " + sanitize.Line(err.Error())}
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

// stalled returns the reason and message of a True Stalled or Failed condition.
func stalled(body *unstructured.Unstructured) (reason, message string) {
	for _, name := range []string{"Stalled", "Failed"} {
		if c := condition(body, name); c.status == "True" {
			return sanitize.Line(c.reason), sanitize.Line(c.message)
		}
	}
	return "", ""
}

// evaluateJob waits for completion; kstatus reports a running Job as current.
func evaluateJob(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "Complete"); c.status == "True" {
		return Verdict{Ready: true}
	}
	if c := condition(body, "Failed"); c.status == "True" {
		return Verdict{Failed: true, Reason: "JobFailed", Message: c.String()}
	}
	if c := condition(body, "Suspended"); c.status == "True" {
		return Verdict{Reason: "JobSuspended", Message: c.String()}
	}
	return Verdict{Reason: "JobRunning", Message: fmt.Sprintf("Job is running: %d active, %d succeeded, %d failed pods",
		number(body, "status", "active"), number(body, "status", "succeeded"), number(body, "status", "failed"))}
}

// evaluateService waits for the address of a load balancer, as Helm does; kstatus
// requires only a cluster IP.
func evaluateService(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	kind, _, _ := unstructured.NestedString(body.Object, "spec", "type")
	field, _, _ := unstructured.NestedFieldNoCopy(body.Object, "status", "loadBalancer", "ingress")
	if ingress, _ := field.([]any); kind == "LoadBalancer" && len(ingress) == 0 {
		return Verdict{Reason: "LoadBalancerPending", Message: "load balancer address not assigned yet"}
	}
	return evaluateGeneric(m, body)
}

func evaluateCRD(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "NamesAccepted"); c.status == "False" {
		return Verdict{Failed: true, Reason: "NamesNotAccepted", Message: c.String()}
	}
	if c := condition(body, "Established"); c.status != "True" {
		return Verdict{Reason: "NotEstablished", Message: "CRD not established yet: " + c.String()}
	}
	return Verdict{Ready: true}
}

// notApplicable reports whether the object doesn't apply to this cluster
// according to its controller: Ready or Available is False with the reason
// NotApplicable.
func notApplicable(body *unstructured.Unstructured) bool {
	for _, kind := range []string{"Ready", "Available"} {
		if c := condition(body, kind); c.status == "False" && c.reason == "NotApplicable" {
			return observed(body)
		}
	}
	return false
}

// evaluateAPIService requires that the API is served: otherwise discovery fails for
// all clients and namespaces can't be deleted.
func evaluateAPIService(body *unstructured.Unstructured) Verdict {
	if c := condition(body, "Available"); c.status != "True" {
		return Verdict{Reason: "APIServiceNotAvailable", Message: c.String()}
	}
	return Verdict{Ready: true}
}

// evaluateSteady evaluates a workload that isn't being rolled out. It needs only
// part of its replicas, because autoscaling and node drains regularly make some
// unavailable: a Deployment must be Available, a DaemonSet or StatefulSet must
// have half of its pods available.
func evaluateSteady(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	v := Evaluate(m, body)
	if v.Ready || v.Failed {
		return v
	}
	var healthy bool
	switch m.GVK.GroupKind() {
	case kinds.Deployment:
		healthy = condition(body, "Available").status == "True"
	case kinds.DaemonSet:
		healthy = 2*number(body, "status", "numberAvailable") >= number(body, "status", "desiredNumberScheduled")
	case kinds.StatefulSet:
		replicas, found, err := unstructured.NestedInt64(body.Object, "spec", "replicas")
		if !found || err != nil {
			replicas = 1
		}
		healthy = 2*number(body, "status", "availableReplicas") >= replicas
	}
	if healthy && observed(body) {
		return Verdict{Ready: true}
	}
	return v
}

// evaluateClusterOperator evaluates by the CVO contract: the operator must report
// the versions in the manifest's status, Available=True and Degraded=False. A
// missing condition counts as unhealthy. A Disabled operator is ready.
func evaluateClusterOperator(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if len(m.Versions) == 0 {
		return Verdict{
			Failed: true, Reason: "ClusterOperatorNoVersions",
			Message: "manifest has no status.versions; list at least the operator's version under the name operator",
		}
	}
	if c := condition(body, "Disabled"); c.status == "True" {
		return Verdict{Ready: true}
	}
	if c := condition(body, "Available"); c.status != "True" {
		return Verdict{Reason: "ClusterOperatorNotAvailable", Message: c.String()}
	}
	have := reportedVersions(body)
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
		return Verdict{Reason: "ClusterOperatorDegraded", Message: c.String()}
	}
	return Verdict{Ready: true}
}

// reportedVersions returns the versions that a live ClusterOperator reports, by
// operand.
func reportedVersions(obj *unstructured.Unstructured) map[string]string {
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

// evaluateNodeOS waits for a pool of hosts. If lockstep.dev/wait is started, one
// host must have begun the update, else all must have completed it, except for
// quarantined ones.
func evaluateNodeOS(m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if !observed(body) || number(body, "status", "observedGeneration") == 0 {
		return Verdict{Reason: ReasonNotObserved, Message: "NodeOS not observed by the rollout controller yet"}
	}
	if c := condition(body, "Stalled"); c.status == "True" {
		return Verdict{Failed: true, Reason: sanitize.Line(c.reason), Message: c.String()}
	}
	if c := condition(body, "Halted"); c.status == "True" {
		return Verdict{Failed: true, Reason: "Halted", Message: c.String()}
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
	v := Verdict{Reason: ReasonInProgress, Message: fmt.Sprintf("%d of %d hosts updated, %d in flight, %d failed, %d quarantined",
		updated, total, count("inFlight"), count("failed"), quarantined)}
	for _, c := range []conditionState{condition(body, "Paused"), condition(body, "Reconciling"), ready} {
		if c.status == "True" && c.kind == "Paused" || c.waiting() {
			v.Waiting, v.Reason, v.Message = true, sanitize.Line(c.reason), c.String()
			break
		}
	}
	return v
}

// observed reports whether the controller observed the object's latest
// generation. An object without an observedGeneration counts as observed.
func observed(body *unstructured.Unstructured) bool {
	generation, found := observedGeneration(body)
	return !found || generation >= body.GetGeneration()
}

// observedGeneration returns the generation that the status describes: its own
// observedGeneration, else that of the first summary condition which has one.
func observedGeneration(body *unstructured.Unstructured) (generation int64, found bool) {
	generation, found, err := unstructured.NestedInt64(body.Object, "status", "observedGeneration")
	if found || err != nil {
		return generation, err == nil
	}
	for _, name := range summaryConditions {
		if c := condition(body, name); c.generation > 0 {
			return c.generation, true
		}
	}
	return 0, false
}

// summaryConditions are the conditions by which kstatus and this package decide.
var summaryConditions = []string{"Ready", "Available", "Reconciling", "Stalled"}

// undated reports whether a status that makes the object ready doesn't show
// which generation it describes.
func undated(m *payload.Manifest, body *unstructured.Unstructured) bool {
	if _, dated := observedGeneration(body); dated {
		return false
	}
	if m.Health != "" {
		status, _, _ := unstructured.NestedFieldNoCopy(body.Object, "status")
		return status != nil
	}
	return kinds.Of(m.GVK.GroupKind()).Health == kinds.Kstatus &&
		slices.ContainsFunc(summaryConditions, func(name string) bool { return condition(body, name).status != "" })
}

// conditionState is one condition of an object. Only kind is set if the object
// doesn't have it.
type conditionState struct {
	kind, status, reason, message string
	// generation is the condition's observedGeneration, 0 without one.
	generation int64
}

// String returns the condition as sanitized text for a message.
func (c conditionState) String() string {
	if c.status == "" {
		return "condition " + c.kind + " not reported"
	}
	return sanitize.Line(fmt.Sprintf("%s=%s %s: %s", c.kind, c.status, c.reason, c.message))
}

// waiting reports whether a rollout waits for its maintenance window or for an
// operator, by the reason that package rollout sets. A window that is too short
// for an update is a misconfiguration and doesn't count.
func (c conditionState) waiting() bool {
	return c.reason == "OutsideWindow" || c.reason == "Paused"
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
		c.generation, _ = entry["observedGeneration"].(int64)
		return c
	}
	return conditionState{kind: kind}
}

func number(body *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(body.Object, path...)
	return n
}
