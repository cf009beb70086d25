// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/sources/desired"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

func TestClaimsAreKnownOnceThePayloadIsLoaded(t *testing.T) {
	const image = "registry.example.com/site@sha256:aa"
	at := func(version string) worker.Desired {
		return worker.Desired{Identity: payload.Identity{Version: version, Image: image}}
	}
	failed := func(step worker.Step, retriable bool) worker.LoadStatus {
		return worker.LoadStatus{Desired: at("1.1.0"), Step: step, Failure: &worker.UpdateError{Code: "X", Retry: retriable, Nested: errors.New("x")}}
	}
	for name, tc := range map[string]struct {
		load   worker.LoadStatus
		actual string
		none   bool
		want   bool
	}{
		"no worker yet":                    {none: true},
		"the release before":               {actual: "1.0.0"},
		"being loaded":                     {actual: "1.0.0", load: worker.LoadStatus{Desired: at("1.1.0"), Step: worker.StepRetrievePayload}},
		"being applied":                    {actual: "1.1.0", load: worker.LoadStatus{Desired: at("1.1.0")}, want: true},
		"the registry doesn't answer":      {actual: "1.0.0", load: failed(worker.StepRetrievePayload, true)},
		"rejected for good":                {actual: "1.0.0", load: failed(worker.StepVerifyPayload, false), want: true},
		"a precondition blocks it":         {actual: "1.0.0", load: failed(worker.StepPreconditionChecks, true), want: true},
		"the dry run refuses it":           {actual: "1.0.0", load: failed(worker.StepDryRun, true), want: true},
		"the failure of an earlier desire": {actual: "1.0.0", load: worker.LoadStatus{Desired: at("1.0.5"), Step: worker.StepDryRun, Failure: &worker.UpdateError{}}},
	} {
		spec := &v1alpha1.ClusterReleaseSpec{Desired: v1alpha1.DesiredRelease{Version: "1.1.0", Image: image}}
		w := &worker.SyncWorkerStatus{Load: tc.load}
		w.Actual.Desired = at(tc.actual)
		if tc.none {
			w = nil
		}
		if got := claimsKnown(spec, w); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// declaredRelease creates a release that Git declares, and returns its object.
func declaredRelease(t *testing.T, b *controlenv.Env, name string, change func(*v1alpha1.ClusterReleaseSpec)) *v1alpha1.ClusterRelease {
	t.Helper()
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	obj.Spec.Desired = v1alpha1.DesiredRelease{Version: "1.0.0", Image: "registry.example.com/site@sha256:" + strings.Repeat("a", 64)}
	obj.Spec.Timeout, obj.Spec.Interval = metav1.Duration{Duration: time.Hour}, metav1.Duration{Duration: 10 * time.Minute}
	change(&obj.Spec)
	b.Create(obj)
	hash, err := desired.SpecHash(obj.Spec)
	must(t, err)
	must(t, b.Store.SetSource(t.Context(), name, controlenv.AcceptedSource(map[string]string{"ClusterRelease/" + name: hash})))
	return obj
}

// A release that is renamed in one commit is deleted before its successor has
// applied anything.
func TestADeletedReleaseKeepsItsObjectsForItsSuccessor(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	obj := applied(t, b, "oldname")
	must(t, b.Store.SetDeletion(t.Context(), "oldname", string(v1alpha1.DeletionPrune), serviceAccountOf("")))
	must(t, b.Store.SetAccepted(t.Context(), "oldname", state.Accepted{Identity: payload.Identity{Version: "1.0.0"}}, []string{"console"}))
	successor := declaredRelease(t, b, "newname", func(s *v1alpha1.ClusterReleaseSpec) { s.Adopt = []string{"clusterrelease/oldname"} })
	r := newController(t, b)
	result, err := r.Reconcile(t.Context(), control.Request("oldname"))
	if err != nil || result.RequeueAfter == 0 || !b.Exists(obj) {
		t.Errorf("requeued after %s, %v, the object exists: %t; want it kept for the successor", result.RequeueAfter, err, b.Exists(obj))
	}
	if !r.runtimes.exists("clusterrelease/oldname") {
		t.Error("the successor could take the objects without their inventory")
	}
	must(t, r.runtimes.inherit(t.Context(), successor))
	if got := b.Store.Release("newname").Capabilities; len(got) != 1 || got[0] != "console" {
		t.Errorf("capabilities of the successor: %q, want those of the old release", got)
	}
	// The successor left Git, too: the deletion policy applies.
	record, _ := b.Store.Source("newname")
	record.Removed = []string{"ClusterRelease/newname"}
	must(t, b.Store.SetSource(t.Context(), "newname", record))
	result, err = r.Reconcile(t.Context(), control.Request("oldname"))
	if err != nil || result.RequeueAfter != 0 || b.Exists(obj) || r.runtimes.exists("clusterrelease/oldname") {
		t.Errorf("requeued after %s, %v, the object exists: %t", result.RequeueAfter, err, b.Exists(obj))
	}
}

func TestARejectedReleaseGivesItsClaimsBack(t *testing.T) {
	b := controlenv.New(t)
	r := newController(t, b).runtimes
	giver, taker := runtimeOf(t, r, "claims-giver"), runtimeOf(t, r, "claims-taker")
	t.Cleanup(giver.close)
	t.Cleanup(taker.close)
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "claimed", "namespace": "default"},
	}})
	must(t, err)
	target := &payload.Payload{Manifests: []payload.Manifest{m}}
	must(t, giver.engine.Begin(t.Context(), target.Manifests, nil))
	must(t, giver.engine.Begin(t.Context(), nil, nil))
	want := func(when string, held bool) {
		t.Helper()
		result, err := giver.engine.Prune(t.Context(), nil, apply.PruneOptions{All: true})
		if err != nil || (len(result.Held) == 1) != held {
			t.Errorf("%s: %+v, %v, want it held: %t", when, result, err, held)
		}
	}
	c := &checks{name: "claims-taker", engine: taker.engine}
	first, next := worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "x"}}, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "y"}}
	c.propose(first, target)
	c.withdraw(first)
	want("while the release is desired", true)
	c.withdraw(next)
	want("once another one is", false)
}

// A release that left Git repairs what it accepted, and nothing else.
func TestAReleaseThatLeftGitStartsNoNewTarget(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	obj := declaredRelease(t, b, "leftgit", func(s *v1alpha1.ClusterReleaseSpec) { s.Desired.Version = "1.1.0" })
	record, _ := b.Store.Source("leftgit")
	record.Removed = []string{"ClusterRelease/leftgit"}
	must(t, b.Store.SetSource(t.Context(), "leftgit", record))
	must(t, b.Store.SetAccepted(t.Context(), "leftgit", state.Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "registry.example.com/site@sha256:bb"}}, nil))
	r := newController(t, b)
	rt := runtimeOf(t, r.runtimes, "leftgit")
	rt.serviceAccount, rt.retriever = serviceAccountOf(""), &retriever{}
	rt.checks = &checks{name: "leftgit"}
	r.runtimes.byName["leftgit"] = rt
	t.Cleanup(rt.close)
	var facts status.ReleaseFacts
	if _, err := r.act(t.Context(), obj, &facts); err != nil {
		t.Fatal(err)
	}
	if facts.Held.Reason != status.ReasonRemovedFromGit || rt.worker.Desired().Version != "1.0.0" || rt.builder.current().prune {
		t.Errorf("held by %+v, desired %s, prune %t; want the accepted release and no prune", facts.Held, rt.worker.Desired().Version, rt.builder.current().prune)
	}
}
