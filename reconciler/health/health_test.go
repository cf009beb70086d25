// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

func decode(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return u
}

// manifestOf returns a manifest whose live object is body.
func manifestOf(t *testing.T, body *unstructured.Unstructured, wait payload.WaitPolicy) *payload.Manifest {
	t.Helper()
	gvk := body.GroupVersionKind()
	return &payload.Manifest{
		Object: body, GVK: gvk, Wait: wait,
		ID: payload.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Namespace: body.GetNamespace(), Name: body.GetName()},
	}
}

func TestEvaluateByContract(t *testing.T) {
	for name, tc := range map[string]struct {
		body    string
		wait    payload.WaitPolicy
		ready   bool
		failed  bool
		waiting bool
		reason  string
	}{
		"a rolled out Deployment": {body: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: x, generation: 2}
spec: {replicas: 1}
status: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True", reason: NewReplicaSetAvailable}]}`, ready: true},
		"a Deployment whose new generation isn't observed": {body: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: x, generation: 3}
spec: {replicas: 1}
status: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: "True"}]}`, reason: ReasonInProgress},
		"a Deployment that exceeded its progress deadline": {body: `
apiVersion: apps/v1
kind: Deployment
metadata: {name: x, generation: 1}
spec: {replicas: 1}
status: {observedGeneration: 1, conditions: [{type: Progressing, status: "False", reason: ProgressDeadlineExceeded}]}`, failed: true, reason: ReasonFailed},
		"a running Job": {body: `
apiVersion: batch/v1
kind: Job
metadata: {name: x}
status: {active: 1}`, reason: "JobRunning"},
		"a completed Job": {body: `
apiVersion: batch/v1
kind: Job
metadata: {name: x}
status: {succeeded: 1, conditions: [{type: Complete, status: "True"}]}`, ready: true},
		"a failed Job": {body: `
apiVersion: batch/v1
kind: Job
metadata: {name: x}
status: {failed: 1, conditions: [{type: Failed, status: "True", reason: BackoffLimitExceeded}]}`, failed: true, reason: "JobFailed"},
		"a CRD that isn't established": {body: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: x}`, reason: "NotEstablished"},
		"a CRD whose names conflict": {body: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: x}
status: {conditions: [{type: NamesAccepted, status: "False", reason: Conflict}]}`, failed: true, reason: "NamesNotAccepted"},
		"an established CRD": {body: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: x}
status: {conditions: [{type: Established, status: "True"}]}`, ready: true},
		"an available APIService": {body: `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.com}
status: {conditions: [{type: Available, status: "True"}]}`, ready: true},
		"an unavailable APIService": {body: `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.com}
status: {conditions: [{type: Available, status: "False", reason: FailedDiscoveryCheck, message: no endpoints}]}`, reason: "APIServiceNotAvailable"},
		"an unbound PersistentVolumeClaim": {body: `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: x}
status: {phase: Pending}`, reason: "ClaimPending"},
		"a bound PersistentVolumeClaim": {body: `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: x}
status: {phase: Bound}`, ready: true},
		"a PersistentVolumeClaim whose volume is lost": {body: `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: x}
status: {phase: Lost}`, failed: true, reason: "ClaimLost"},
		"a custom resource that is not applicable": {body: `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, conditions: [{type: Ready, status: "False", reason: NotApplicable, message: no such hardware}]}`, ready: true},
		"a not applicable custom resource of an older generation": {body: `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 2}
status: {observedGeneration: 1, conditions: [{type: Ready, status: "False", reason: NotApplicable, message: no such hardware}]}`, reason: ReasonInProgress},
		"a custom resource whose Ready condition describes an older generation": {body: `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 2}
status: {conditions: [{type: Ready, status: "True", observedGeneration: 1}]}`, reason: ReasonInProgress},
		"a custom resource whose Ready condition describes the generation": {body: `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 2}
status: {conditions: [{type: Ready, status: "True", observedGeneration: 2}]}`, ready: true},
		"an APIService that is not applicable": {body: `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.com}
status: {conditions: [{type: Available, status: "False", reason: NotApplicable}]}`, ready: true},
		"a NodeOS that isn't observed": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}`, reason: ReasonNotObserved},
		"a NodeOS being rolled out": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3, updated: 1, inFlight: 1}, conditions: [{type: Ready, status: "False", reason: Progressing}]}`, reason: ReasonInProgress},
		"a NodeOS being rolled out with wait: started": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3, updated: 1, inFlight: 1}, conditions: [{type: Ready, status: "False", reason: Progressing}]}`, wait: payload.WaitStarted, ready: true},
		"a NodeOS with wait: none": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}`, wait: payload.WaitNone, ready: true},
		"a NodeOS with all hosts updated except quarantined ones": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3, updated: 2, quarantined: 1}, conditions: [{type: Ready, status: "True", reason: Succeeded}]}`, ready: true},
		"a Ready NodeOS with hosts that aren't updated": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3, updated: 2}, conditions: [{type: Ready, status: "True", reason: Succeeded}]}`, reason: ReasonInProgress},
		"a NodeOS outside its maintenance window": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3}, conditions: [{type: Ready, status: "False", reason: OutsideWindow}]}`, waiting: true, reason: "OutsideWindow"},
		"a NodeOS whose maintenance windows are too short": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3}, conditions: [{type: Ready, status: "False", reason: WindowTooShort}]}`, reason: ReasonInProgress},
		"a paused NodeOS": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3}, conditions: [{type: Paused, status: "True", reason: PausedByAdmin}]}`, waiting: true, reason: "PausedByAdmin"},
		"a halted NodeOS": {body: `
apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, counts: {total: 3, failed: 1}, conditions: [{type: Halted, status: "True", reason: FailureThreshold}]}`, failed: true, reason: "Halted"},
		"a stalled custom resource with its own reason": {body: `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 1}
status: {observedGeneration: 1, conditions: [{type: Stalled, status: "True", reason: NoLicence, message: buy one}]}`, failed: true, reason: "NoLicence"},
		"a Service without a load balancer address": {body: `
apiVersion: v1
kind: Service
metadata: {name: x}
spec: {type: LoadBalancer, clusterIP: 10.0.0.1}`, reason: "LoadBalancerPending"},
	} {
		t.Run(name, func(t *testing.T) {
			body := decode(t, tc.body)
			got := Evaluate(manifestOf(t, body, tc.wait), body)
			if got.Ready != tc.ready || got.Failed != tc.failed || got.Waiting != tc.waiting || got.Reason != tc.reason {
				t.Errorf("Evaluate = %+v, want ready %t failed %t waiting %t reason %q", got, tc.ready, tc.failed, tc.waiting, tc.reason)
			}
			if !got.Ready && got.Message == "" {
				t.Error("the verdict has no message")
			}
		})
	}
}

// The manifest is created by package payload: its status isn't applied, but lists
// the expected versions.
func TestEvaluateClusterOperator(t *testing.T) {
	const good = `{type: Available, status: "True"}, {type: Degraded, status: "False"}`
	for name, tc := range map[string]struct {
		want, versions, conditions string
		ready, failed              bool
		reason, message            string
	}{
		"the manifest has no versions": {
			versions: "{name: operator, version: 2.0.0}", conditions: good, failed: true, reason: "ClusterOperatorNoVersions", message: "status.versions",
		},
		"no status":                 {want: "{name: operator, version: 2.0.0}", reason: "ClusterOperatorNotAvailable", message: "condition Available not reported"},
		"Available is False":        {want: "{name: operator, version: 2.0.0}", versions: "{name: operator, version: 2.0.0}", conditions: `{type: Available, status: "False", reason: Down, message: no pods}, {type: Degraded, status: "False"}`, reason: "ClusterOperatorNotAvailable", message: "no pods"},
		"Available is Unknown":      {want: "{name: operator, version: 2.0.0}", versions: "{name: operator, version: 2.0.0}", conditions: `{type: Available, status: Unknown}, {type: Degraded, status: "False"}`, reason: "ClusterOperatorNotAvailable"},
		"Degraded is missing":       {want: "{name: operator, version: 2.0.0}", versions: "{name: operator, version: 2.0.0}", conditions: `{type: Available, status: "True"}`, reason: "ClusterOperatorDegraded"},
		"Degraded is True":          {want: "{name: operator, version: 2.0.0}", versions: "{name: operator, version: 2.0.0}", conditions: `{type: Available, status: "True"}, {type: Degraded, status: "True", reason: Slow, message: one of three}`, reason: "ClusterOperatorDegraded", message: "one of three"},
		"the version is old":        {want: "{name: operator, version: 2.0.0}", versions: "{name: operator, version: 1.0.0}", conditions: good, reason: "ClusterOperatorUpdating", message: `operator is "1.0.0", want "2.0.0"`},
		"one operand of two is old": {want: "{name: operator, version: 2.0.0}, {name: server, version: 7.1.0}", versions: "{name: operator, version: 2.0.0}, {name: server, version: 7.0.0}", conditions: good, reason: "ClusterOperatorUpdating", message: `server is "7.0.0", want "7.1.0"`},
		"no version is reported":    {want: "{name: operator, version: 2.0.0}", conditions: good, reason: "ClusterOperatorUpdating", message: `operator is "", want "2.0.0"`},
		"available at the versions": {want: "{name: operator, version: 2.0.0}", versions: "{name: other, version: 3.0.0}, {name: operator, version: 2.0.0}", conditions: good, ready: true},
		"it isn't applicable":       {want: "{name: operator, version: 2.0.0}", conditions: `{type: Available, status: "False", reason: NotApplicable, message: no such cloud}`, ready: true},
		"Disabled is True":          {want: "{name: operator, version: 2.0.0}", conditions: `{type: Disabled, status: "True", reason: UnsupportedPlatform}`, ready: true},
	} {
		t.Run(name, func(t *testing.T) {
			state := func(versions, conditions string) *unstructured.Unstructured {
				return decode(t, "apiVersion: config.openshift.io/v1\nkind: ClusterOperator\nmetadata: {name: x}\nstatus: {versions: ["+versions+"], conditions: ["+conditions+"]}\n")
			}
			m, err := payload.NewManifest(state(tc.want, ""))
			if err != nil {
				t.Fatal(err)
			}
			got := Evaluate(&m, state(tc.versions, tc.conditions))
			if got.Ready != tc.ready || got.Failed != tc.failed || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("Evaluate = %+v, want ready %t failed %t reason %q message with %q", got, tc.ready, tc.failed, tc.reason, tc.message)
			}
		})
	}
}

// Outside a rollout, some unavailable pods don't make a workload unhealthy.
func TestSteadyWorkloadsNeedPartOfTheirReplicas(t *testing.T) {
	const head = "apiVersion: apps/v1\nkind: %s\nmetadata: {name: x, generation: 1}\nspec: {replicas: 4}\n"
	for name, tc := range map[string]struct {
		kind, status string
		ready        bool
	}{
		"an available Deployment":                      {"Deployment", `{observedGeneration: 1, replicas: 4, updatedReplicas: 4, availableReplicas: 3, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True", reason: ReplicaSetUpdated}]}`, true},
		"an unavailable Deployment":                    {"Deployment", `{observedGeneration: 1, replicas: 4, updatedReplicas: 4, availableReplicas: 1, conditions: [{type: Available, status: "False"}, {type: Progressing, status: "True", reason: ReplicaSetUpdated}]}`, false},
		"a Deployment with a failed rollout":           {"Deployment", `{observedGeneration: 1, replicas: 4, availableReplicas: 4, conditions: [{type: Available, status: "True"}, {type: Progressing, status: "False", reason: ProgressDeadlineExceeded}]}`, false},
		"a Deployment whose generation isn't observed": {"Deployment", `{observedGeneration: 0, replicas: 4, availableReplicas: 4, conditions: [{type: Available, status: "True"}]}`, false},
		"a DaemonSet with half of its pods available":  {"DaemonSet", `{observedGeneration: 1, desiredNumberScheduled: 4, currentNumberScheduled: 4, updatedNumberScheduled: 4, numberAvailable: 2, numberReady: 2}`, true},
		"a DaemonSet with less than half available":    {"DaemonSet", `{observedGeneration: 1, desiredNumberScheduled: 4, currentNumberScheduled: 4, updatedNumberScheduled: 4, numberAvailable: 1, numberReady: 1}`, false},
		"a StatefulSet with one pod unavailable":       {"StatefulSet", `{observedGeneration: 1, replicas: 4, readyReplicas: 3, availableReplicas: 3, currentReplicas: 4, updatedReplicas: 4}`, true},
		"a StatefulSet with most pods unavailable":     {"StatefulSet", `{observedGeneration: 1, replicas: 4, readyReplicas: 1, availableReplicas: 1, currentReplicas: 4, updatedReplicas: 4}`, false},
	} {
		body := decode(t, fmt.Sprintf(head, tc.kind)+"status: "+tc.status)
		m := manifestOf(t, body, "")
		if got := evaluateSteady(m, body); got.Ready != tc.ready {
			t.Errorf("%s: %+v, want ready %t", name, got, tc.ready)
		}
		if got := Evaluate(m, body); got.Ready {
			t.Errorf("%s: ready during a rollout", name)
		}
	}
}

func TestSpentBudgetCountsButLeavesAMinimum(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	busy := Verdict{Reason: ReasonInProgress, Message: "1 of 2"}
	w := newWaiter(&payload.Manifest{}, Budget{Total: time.Minute, Spent: 50 * time.Second}, now, nil)
	if err := w.step(busy, now.Add(9*time.Second)); err != nil {
		t.Errorf("failed before the timeout: %v", err)
	}
	if err := w.step(busy, now.Add(10*time.Second)); err == nil {
		t.Error("no error after the timeout")
	}
	w = newWaiter(&payload.Manifest{}, Budget{Total: time.Minute, Spent: time.Hour}, now, nil)
	if err := w.step(busy, now.Add(minWait-time.Second)); err != nil {
		t.Errorf("failed before the minimum wait: %v", err)
	}
	if err := w.step(busy, now.Add(minWait)); err == nil {
		t.Error("no error after the minimum wait with a spent budget")
	}
}

func TestEvaluateExpressions(t *testing.T) {
	body := decode(t, `
apiVersion: example.com/v1
kind: Widget
metadata: {name: x, generation: 2}
spec: {size: 3}
status: {observedGeneration: 2, ready: 3, phase: Running}`)
	r, err := newRules()
	if err != nil {
		t.Fatal(err)
	}
	for expression, want := range map[string]Verdict{
		`status.ready == spec.size`:                                {Ready: true},
		`self.status.phase == "Running" && has(self.status.ready)`: {Ready: true},
		`status.ready > 3`:                                         {Reason: ReasonInProgress},
		`status.conditions.exists(c, c.type == "Ready")`:           {Reason: ReasonInProgress},
		`has(status.conditions) && status.conditions.size() > 0`:   {Reason: ReasonInProgress},
		`status.phase`:   {Reason: ReasonInProgress},
		`status.ready +`: {Failed: true, Reason: ReasonInvalidRule},
		`1 + 1`:          {Failed: true, Reason: ReasonInvalidRule},
		`unknown.field`:  {Failed: true, Reason: ReasonInvalidRule},
		`"` + strings.Repeat("x", maxExpression) + `" == ""`: {Failed: true, Reason: ReasonInvalidRule},
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0 && status.ready > 0))))))`: {Reason: ReasonInProgress},
	} {
		m := manifestOf(t, body, "")
		m.Health = expression
		got := r.evaluate(t.Context(), m, body)
		got.Message = ""
		if got != want {
			t.Errorf("%.60s: %+v, want %+v", expression, got, want)
		}
	}
	body.SetGeneration(3)
	m := manifestOf(t, body, "")
	m.Health = "true"
	if got := r.evaluate(t.Context(), m, body); got.Ready {
		t.Error("ready although the generation isn't observed")
	}
}

func TestExpressionsCannotReadSecrets(t *testing.T) {
	body := decode(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {p: Z2VoZWlt}")
	r, err := newRules()
	if err != nil {
		t.Fatal(err)
	}
	m := manifestOf(t, body, "")
	m.Health = `self.data.p == "Z2VoZWlt"`
	if got := r.evaluate(t.Context(), m, body); !got.Failed || got.Reason != ReasonInvalidRule {
		t.Errorf("%+v, want an invalid rule", got)
	}
}

func TestExpressionIsCompiledOnce(t *testing.T) {
	r, err := newRules()
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.program("status.x == 1")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := r.program("status.x == 1"); a != b {
		t.Error("compiled twice")
	}
	for i := range maxPrograms + 10 {
		if _, err := r.program(strings.Repeat(" ", i%100+1) + "status.x == " + strings.Repeat("1", i/100+1)); err != nil && i < 1500 {
			t.Fatal(err)
		}
	}
	if len(r.programs) > maxPrograms {
		t.Errorf("%d programs are cached", len(r.programs))
	}
}

func TestOlderStatesAreNotEvaluated(t *testing.T) {
	if v := evaluateAbsent(live.View{State: live.Absent, AsOf: "9"}, "10"); v.Reason != ReasonNotObserved {
		t.Errorf("absent as of an older version: %+v", v)
	}
	if v := evaluateAbsent(live.View{State: live.Absent, AsOf: "11"}, "10"); v.Reason != ReasonNotFound {
		t.Errorf("absent: %+v", v)
	}
	if v := evaluateAbsent(live.View{State: live.Absent, AsOf: "9", Finished: true}, "10"); v.Ready || v.Reason != ReasonNotObserved {
		t.Errorf("absent as of the end of the previous Job: %+v", v)
	}
	if v := evaluateAbsent(live.View{State: live.Absent, AsOf: "11", Finished: true}, "10"); !v.Ready {
		t.Errorf("a deleted finished Job: %+v", v)
	}
}

func TestWaitingDoesNotCountAgainstTheTimeout(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	w := newWaiter(&payload.Manifest{}, Budget{Total: time.Minute}, now, nil)
	busy, closed := Verdict{Reason: ReasonInProgress, Message: "1 of 2"}, Verdict{Waiting: true, Reason: "WindowClosed"}
	for _, step := range []struct {
		v     Verdict
		after time.Duration
	}{{busy, 0}, {closed, 30 * time.Second}, {closed, 5 * time.Hour}, {busy, 3 * time.Hour}, {busy, 29 * time.Second}} {
		now = now.Add(step.after)
		if err := w.step(step.v, now); err != nil {
			t.Fatalf("failed after %s: %v", step.after, err)
		}
	}
	var late *Error
	err := w.step(busy, now.Add(2*time.Second))
	if !errors.As(err, &late) || late.Reason() != ReasonDeadlineExceeded || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("err = %v, want the deadline with the object's own message", err)
	}
}

func TestFailureEndsTheWaitImmediately(t *testing.T) {
	w := newWaiter(&payload.Manifest{}, Budget{Total: time.Hour}, time.Time{}, nil)
	var failed *Error
	if err := w.step(Verdict{Failed: true, Reason: "JobFailed", Message: "x"}, time.Time{}); !errors.As(err, &failed) || failed.Reason() != "JobFailed" {
		t.Errorf("err = %v, want JobFailed", err)
	}
}

func TestAnUnboundClaimNamesWhatItWaitsFor(t *testing.T) {
	class := func(mode string) live.View {
		body := decode(t, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nvolumeBindingMode: "+mode)
		return live.View{State: live.Present, Object: &live.Object{Body: body}}
	}
	for name, tc := range map[string]struct {
		spec            string
		class           live.View
		ready           bool
		reason, message string
	}{
		"no class":                    {spec: "{}", class: live.View{State: live.Absent}, reason: reasonClaimPending, message: "names no storage class"},
		"a volume":                    {spec: "{volumeName: disk-1, storageClassName: fast}", class: class("Immediate"), reason: reasonClaimPending, message: "PersistentVolume disk-1"},
		"a missing class":             {spec: "{storageClassName: fast}", class: live.View{State: live.Absent}, reason: reasonStorageClassMissing, message: "StorageClass fast not found"},
		"an unwatched class":          {spec: "{storageClassName: fast}", class: live.View{}, reason: ReasonNotObserved, message: "fast"},
		"a provisioner":               {spec: "{storageClassName: fast}", class: class("Immediate"), reason: reasonClaimPending, message: "by StorageClass fast"},
		"the first pod that needs it": {spec: "{storageClassName: fast}", class: class("WaitForFirstConsumer"), ready: true},
	} {
		claim := decode(t, "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: x}\nspec: "+tc.spec)
		v := pendingClaim(evaluateClaim(claim), claim, tc.class)
		if v.Ready != tc.ready || v.Reason != tc.reason || !strings.Contains(v.Message, tc.message) {
			t.Errorf("waiting for %s: %+v, want ready %t, reason %q, message with %q", name, v, tc.ready, tc.reason, tc.message)
		}
	}
}

func TestOnlyAStatusWithoutAGenerationIsUndated(t *testing.T) {
	const head = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: x, generation: 2}\n"
	for name, tc := range map[string]struct {
		status, health string
		want           bool
	}{
		"no status":                            {"{}", "", false},
		"a condition that isn't a summary":     {`{conditions: [{type: Synced, status: "True"}]}`, "", false},
		"a Ready condition":                    {`{conditions: [{type: Ready, status: "True"}]}`, "", true},
		"a Ready condition with a generation":  {`{conditions: [{type: Ready, status: "True", observedGeneration: 2}]}`, "", false},
		"an observedGeneration":                {`{observedGeneration: 2, conditions: [{type: Ready, status: "True"}]}`, "", false},
		"a phase with a rule":                  {"{phase: Running}", "status.phase == 'Running'", true},
		"a phase with a rule and a generation": {"{phase: Running, observedGeneration: 2}", "status.phase == 'Running'", false},
	} {
		body := decode(t, head+"status: "+tc.status)
		m := manifestOf(t, body, "")
		m.Health = tc.health
		if got := undated(m, body); got != tc.want {
			t.Errorf("%s: undated is %t, want %t", name, got, tc.want)
		}
	}
}
