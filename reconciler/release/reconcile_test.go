// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

func TestProgressIsWrittenOncePerSecond(t *testing.T) {
	rt := &runtime{}
	before := &v1alpha1.ClusterRelease{}
	before.Status.Progress = &v1alpha1.ReleaseProgress{State: "Updating", Done: 1}
	before.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Message: "run level 10"}}
	more := before.DeepCopy()
	more.Status.Progress.Done, more.Status.Conditions[0].Message = 2, "run level 20"
	if wait := rt.statusDelay(before, more, epoch); wait != 0 {
		t.Errorf("the first write waits %s", wait)
	}
	if wait := rt.statusDelay(before, more, epoch.Add(300*time.Millisecond)); wait != 700*time.Millisecond {
		t.Errorf("the second write waits %s, want 700ms", wait)
	}
	done := more.DeepCopy()
	done.Status.Conditions[0].Status = "True"
	if wait := rt.statusDelay(before, done, epoch.Add(300*time.Millisecond)); wait != 0 {
		t.Errorf("a change of a condition waits %s", wait)
	}
}

func TestARestartKeepsTheStatusUntilTheReleaseIsLoaded(t *testing.T) {
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	obj.Status.Accepted = &v1alpha1.ReleaseRef{Version: "1.0.0"}
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True", ObservedGeneration: 3}}
	facts := func() *status.ReleaseFacts { return &status.ReleaseFacts{Worker: &worker.SyncWorkerStatus{}} }
	kept := func(f *status.ReleaseFacts) bool { return keepStatus(obj, f.Worker, f) }
	if !kept(facts()) {
		t.Error("a worker without information would overwrite the status")
	}
	known := facts()
	known.Worker.Actual.Version = "1.0.0"
	rejected := facts()
	rejected.Worker.Load.Failure = &worker.UpdateError{}
	held := facts()
	held.Held.Reason = status.ReasonPaused
	for name, f := range map[string]*status.ReleaseFacts{"loaded": known, "rejected": rejected, "held": held} {
		if kept(f) {
			t.Errorf("%s: the status isn't written", name)
		}
	}
	obj.Generation = 4
	if kept(facts()) {
		t.Error("the status of another generation isn't written")
	}
}

func TestAReleaseWaitsForItsDependencies(t *testing.T) {
	release := func(name string, ready bool, on ...string) *v1alpha1.ClusterRelease {
		r := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
		r.Spec.DependsOn = on
		if ready {
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True", ObservedGeneration: 2}}
		}
		return r
	}
	all := map[string]*v1alpha1.ClusterRelease{
		"ready": release("ready", true), "busy": release("busy", false), "stale": release("stale", true),
		"a": release("a", true, "b"), "b": release("b", true, "c"), "c": release("c", true, "a"),
	}
	all["stale"].Generation = 3
	for _, c := range []struct {
		on   []string
		want string
	}{
		{nil, ""},
		{[]string{"ready"}, ""},
		{[]string{"ready", "busy"}, "waiting for ClusterRelease/busy to be ready"},
		{[]string{"stale"}, "waiting for ClusterRelease/stale to be ready"},
		{[]string{"none"}, "ClusterRelease/none in spec.dependsOn doesn't exist; declare it or remove it from spec.dependsOn"},
		{[]string{"me"}, "spec.dependsOn is a cycle: me → me; remove one of them"},
		{[]string{"a"}, ""},
	} {
		if got := waitsFor(release("me", false, c.on...), all); got != c.want {
			t.Errorf("dependsOn %v: %q, want %q", c.on, got, c.want)
		}
	}
	if got, want := waitsFor(all["a"], all), "spec.dependsOn is a cycle: a → b → c → a; remove one of them"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestARetrieverReportsAChangedOrigin(t *testing.T) {
	var r retriever
	if !r.setOrigin(control.Origin{URL: "a"}) || r.setOrigin(control.Origin{URL: "a"}) || !r.setOrigin(control.Origin{URL: "a", Serial: 2}) {
		t.Error("a changed origin isn't reported once")
	}
}
