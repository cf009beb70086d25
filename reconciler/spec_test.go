// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/sources"
)

func at(t time.Time) *metav1.Time {
	out := metav1.NewTime(t)
	return &out
}

func TestOverridesEndByTheClock(t *testing.T) {
	spec := &v1alpha1.ClusterReleaseSpec{Overrides: []v1alpha1.Override{
		{Kind: "Deployment", Name: "late", Unmanaged: true, Expires: at(epoch.Add(2 * time.Hour))},
		{Kind: "Deployment", Name: "soon", Unmanaged: true, Expires: at(epoch.Add(time.Hour))},
		{Kind: "Deployment", Name: "managed", Expires: at(epoch.Add(time.Minute))},
		{Kind: "Deployment", Name: "forever", Unmanaged: true},
	}}
	for _, c := range []struct {
		after time.Duration
		names []string
		next  time.Duration
	}{
		{0, []string{"forever", "late", "soon"}, time.Hour},
		{time.Hour, []string{"forever", "late"}, time.Hour},
		{2 * time.Hour, []string{"forever"}, 0},
	} {
		now := epoch.Add(c.after)
		var names []string
		for _, o := range overridesOf(spec, now) {
			names = append(names, o.ID.Name)
		}
		if diff := cmp.Diff(c.names, names); diff != "" {
			t.Errorf("overrides after %s (-want +got):\n%s", c.after, diff)
		}
		if got := nextExpiry(spec, now); got != c.next {
			t.Errorf("next look after %s is in %s, want %s", c.after, got, c.next)
		}
	}
}

func TestHowAReleaseBegins(t *testing.T) {
	done := func(v, image string) state.Completed {
		return state.Completed{Identity: payload.Identity{Version: v, Image: image}}
	}
	for name, c := range map[string]struct {
		completed []state.Completed
		desired   worker.Desired
		want      payload.State
	}{
		"a cluster that never had one initializes": {nil, worker.Desired{Identity: payload.Identity{Version: "1.0.0"}}, payload.Initializing},
		"what is there is kept":                    {[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}, payload.Reconciling},
		"the same version of another digest is an update": {
			[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "b"}}, payload.Updating,
		},
		"a higher version is an update":       {[]state.Completed{done("1.9.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.10.0", Image: "b"}}, payload.Updating},
		"a lower version is a rollback":       {[]state.Completed{done("1.10.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.9.0", Image: "b"}}, payload.RollingBack},
		"what is no version is never a lower": {[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "blue", Image: "b"}}, payload.Updating},
	} {
		if got := stateOf(state.Release{Completed: c.completed}, c.desired); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A way back that isn't at its end isn't what was level before, though it's the
// same release.
func TestUnfinishedWorkGoesOn(t *testing.T) {
	record := state.Release{
		Accepted:  &state.Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "a"}, State: "RollingBack"},
		Completed: []state.Completed{{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}},
	}
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.RollingBack {
		t.Errorf("a way back goes on as %v", got)
	}
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}); got != payload.Updating {
		t.Errorf("another release begins as %v", got)
	}
	begun := state.Release{Accepted: &state.Accepted{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, State: "Updating"}, Completed: record.Completed}
	if got := stateOf(begun, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.RollingBack {
		t.Errorf("the way back from a release that was only begun begins as %v", got)
	}
	record.Accepted.Waits = []state.Wait{{Object: state.Object{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Spent: metav1.Duration{Duration: time.Minute}, Running: epoch}}
	got := restoreOf(record, &v1alpha1.ClusterReleaseSpec{})
	if !got.Unfinished || got.State != payload.RollingBack {
		t.Errorf("restored %+v, want an unfinished way back", got)
	}
	api := payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}
	if spent := got.Waits[api].At(epoch.Add(time.Minute)); spent != 2*time.Minute {
		t.Errorf("%s is spent on %s, want two minutes", spent, api)
	}
	record.Accepted.State = ""
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.Reconciling {
		t.Errorf("what is level goes on as %v", got)
	}
}

// A dependency that isn't ready holds back what comes next, not the repair of
// what runs.
func TestWhatRunsIsKeptWhileADependencyIsNotReady(t *testing.T) {
	desired := worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, Revision: "main@sha1:2"}
	if _, ok := keptWhileWaiting(nil, desired); ok {
		t.Error("a release that runs nothing yet doesn't wait")
	}
	kept, ok := keptWhileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}, desired)
	if !ok || kept.Version != "1.0.0" || kept.Image != "a" {
		t.Errorf("goes on with %+v, want what it runs", kept)
	}
	if kept, ok := keptWhileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}, desired); !ok || !kept.Equal(desired) {
		t.Errorf("goes on with %+v, want what is asked for: it runs already", kept)
	}
	// The same version of other files, or selected otherwise, comes next too.
	path := worker.Desired{Identity: payload.Identity{Version: "1.0.0", Path: "site"}, Revision: "main@sha1:2"}
	if kept, ok := keptWhileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.0.0", Path: "site"}, Revision: "main@sha1:1"}, path); !ok || kept.Revision != "main@sha1:1" {
		t.Errorf("goes on with %+v, want the revision that runs", kept)
	}
	desired.Selection.Profile = "edge"
	chosen := chosenOf(worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, Selection: payload.Selection{Profile: "core"}})
	if kept, ok := keptWhileWaiting(&chosen, desired); !ok || kept.Selection.Profile != "core" {
		t.Errorf("goes on with %+v, want what was selected when it came", kept)
	}
}

func TestAnObjectThatOnlySaysOtherWordsIsNoNews(t *testing.T) {
	at := func(spent time.Duration, running time.Time) []state.Wait {
		return []state.Wait{{Object: state.Object{Kind: "Pod", Name: "a"}, Spent: metav1.Duration{Duration: spent}, Running: running}}
	}
	for name, tc := range map[string]struct {
		a, b []state.Wait
		same bool
	}{
		"the clock went on":          {at(0, epoch.Add(-time.Minute)), at(time.Minute, epoch), true},
		"the clock was stopped":      {at(0, epoch.Add(-time.Minute)), at(time.Minute, time.Time{}), false},
		"the clock began anew":       {at(0, epoch.Add(-time.Minute)), at(0, epoch), false},
		"another object":             {at(time.Minute, epoch), []state.Wait{{Object: state.Object{Kind: "Pod", Name: "b"}, Spent: metav1.Duration{Duration: time.Minute}, Running: epoch}}, false},
		"nothing is waited for":      {at(time.Minute, epoch), nil, false},
		"nothing was and nothing is": {nil, nil, true},
	} {
		if got := alikeWaits(tc.a, tc.b, epoch); got != tc.same {
			t.Errorf("%s: %t, want %t", name, got, tc.same)
		}
	}
}

func TestOnlyLongWaitsAreRemembered(t *testing.T) {
	id := func(name string) payload.ObjectID { return payload.ObjectID{Kind: "Pod", Name: name} }
	clocks := map[payload.ObjectID]worker.WaitClock{
		id("short"):   {Running: epoch.Add(-10 * time.Second)},
		id("long"):    {Running: epoch.Add(-time.Minute)},
		id("longer"):  {Spent: time.Hour, Running: epoch.Add(-time.Second)},
		id("stopped"): {Spent: 20 * time.Second},
	}
	var names []string
	for _, w := range longWaits(clocks, epoch) {
		names = append(names, w.Name)
	}
	if diff := cmp.Diff([]string{"longer", "long"}, names); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	if got := nextLongWait(clocks, epoch); got != 20*time.Second {
		t.Errorf("the next long wait is in %s, want that of the short one in 20s", got)
	}
	for i := range 2 * state.MaxWaits {
		clocks[id(strconv.Itoa(i))] = worker.WaitClock{Spent: time.Hour}
	}
	if got := len(longWaits(clocks, epoch)); got != state.MaxWaits {
		t.Errorf("%d waits, want at most %d", got, state.MaxWaits)
	}
}

func TestARestartGoesOnWithWhatWasChosen(t *testing.T) {
	spec := &v1alpha1.ClusterReleaseSpec{Profile: "edge"}
	selection := selectionOf(spec)
	record := state.Release{
		Accepted:  &state.Accepted{Identity: payload.Identity{Version: "1.1.0", Path: "releases/1.1.0"}, Revision: "main@sha1:0123"},
		Completed: []state.Completed{{Identity: payload.Identity{Version: "1.1.0", Path: "releases/1.1.0"}}, {Identity: payload.Identity{Version: "1.0.0", Image: "a"}}},
	}
	want := worker.Desired{Identity: payload.Identity{Version: "1.1.0", Path: "releases/1.1.0"}, Revision: "main@sha1:0123", Selection: selection}
	if diff := cmp.Diff(worker.Restore{Accepted: want, Applied: want}, restoreOf(record, spec)); diff != "" {
		t.Errorf("same release (-want +got):\n%s", diff)
	}
	record.Completed = record.Completed[1:]
	got := restoreOf(record, spec)
	if diff := cmp.Diff(worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}, Selection: selection}, got.Applied); diff != "" {
		t.Errorf("an update was on its way (-want +got):\n%s", diff)
	}
	if got := restoreOf(state.Release{}, spec); !got.Accepted.Empty() || !got.Applied.Empty() {
		t.Errorf("a new release restores %+v", got)
	}
}

func TestOnlyTheLastTwoReleasesStand(t *testing.T) {
	record := state.Release{Completed: []state.Completed{{Identity: payload.Identity{Version: "3", Image: "c"}}, {Identity: payload.Identity{Version: "2", Image: "b"}}, {Identity: payload.Identity{Version: "1", Image: "a"}}}}
	for _, c := range []struct {
		d    worker.Desired
		want bool
	}{
		{worker.Desired{Identity: payload.Identity{Version: "3", Image: "c"}}, true},
		{worker.Desired{Identity: payload.Identity{Version: "2", Image: "b"}}, true},
		{worker.Desired{Identity: payload.Identity{Version: "1", Image: "a"}}, false},
		{worker.Desired{Identity: payload.Identity{Version: "3", Image: "x"}}, false},
	} {
		if got := standing(record, c.d); got != c.want {
			t.Errorf("standing(%s %s) = %v", c.d.Version, c.d.Image, got)
		}
	}
}

func TestSelectionSaysWhatTheSpecSays(t *testing.T) {
	spec := &v1alpha1.ClusterReleaseSpec{
		Profile: "edge", FeatureSet: "TechPreview", FeatureGates: []string{"A"},
		Capabilities: &v1alpha1.Capabilities{Baseline: "None", Additional: []string{"console"}},
	}
	want := payload.Selection{
		Profile: "edge", FeatureSet: "TechPreview", FeatureGates: []string{"A"}, EvaluateGates: true, Baseline: "None", Capabilities: []string{"console"},
	}
	if diff := cmp.Diff(want, selectionOf(spec)); diff != "" {
		t.Errorf("selection (-want +got):\n%s", diff)
	}
	if got := selectionOf(&v1alpha1.ClusterReleaseSpec{}); got.Baseline != payload.BaselineAll || got.EvaluateGates {
		t.Errorf("the default selection is %+v", got)
	}
}

func TestPolicyDefaultsToACarefulPrune(t *testing.T) {
	if p := policyOf(&v1alpha1.ClusterReleaseSpec{}); !p.prune || p.maxPercent != 20 {
		t.Errorf("default policy %+v", p)
	}
	off, all := false, int32(100)
	p := policyOf(&v1alpha1.ClusterReleaseSpec{Prune: &v1alpha1.PrunePolicy{Enabled: &off, MaxPercent: &all}})
	if p.prune || p.maxPercent != 100 {
		t.Errorf("policy %+v", p)
	}
}

func TestProgressIsToldOnceASecond(t *testing.T) {
	rt := &releaseRuntime{}
	before := &v1alpha1.ClusterRelease{}
	before.Status.Progress = &v1alpha1.ReleaseProgress{State: "Updating", Done: 1}
	before.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Message: "run level 10"}}
	more := before.DeepCopy()
	more.Status.Progress.Done, more.Status.Conditions[0].Message = 2, "run level 20"
	if wait := rt.early(before, more, epoch); wait != 0 {
		t.Errorf("the first write waits %s", wait)
	}
	if wait := rt.early(before, more, epoch.Add(300*time.Millisecond)); wait != 700*time.Millisecond {
		t.Errorf("the second write waits %s, want 700ms", wait)
	}
	done := more.DeepCopy()
	done.Status.Conditions[0].Status = "True"
	if wait := rt.early(before, done, epoch.Add(300*time.Millisecond)); wait != 0 {
		t.Errorf("a change of a condition waits %s", wait)
	}
}

func TestARestartDoesntTouchWhatItDoesntKnowYet(t *testing.T) {
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	obj.Status.Accepted = &v1alpha1.ReleaseRef{Version: "1.0.0"}
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "True", ObservedGeneration: 3}}
	facts := func() *status.ReleaseFacts { return &status.ReleaseFacts{Worker: &worker.SyncWorkerStatus{}} }
	unknown := func(f *status.ReleaseFacts) bool { return unknownYet(obj, f.Worker, f) }
	if !unknown(facts()) {
		t.Error("a worker that knows nothing yet would overwrite the status")
	}
	known := facts()
	known.Worker.Actual.Version = "1.0.0"
	refused := facts()
	refused.Worker.Load.Failure = &worker.UpdateError{}
	held := facts()
	held.Held.Reason = status.ReasonPaused
	for name, f := range map[string]*status.ReleaseFacts{"loaded": known, "refused": refused, "held": held} {
		if unknown(f) {
			t.Errorf("%s: nothing is told", name)
		}
	}
	obj.Generation = 4
	if unknown(facts()) {
		t.Error("another generation isn't told of")
	}
}

func TestTheBrakeOfAReleaseHoldsItsPools(t *testing.T) {
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	release := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "platform"}}
	if brakedBy(pool, release) != pool {
		t.Error("a release without a brake changes the plan")
	}
	release.Annotations = map[string]string{v1alpha1.AnnotationPaused: "incident"}
	got := brakedBy(pool, release)
	if want := "ClusterRelease/platform, which carries it, is paused: incident"; got.Annotations[v1alpha1.AnnotationPaused] != want {
		t.Errorf("brake = %q, want %q", got.Annotations[v1alpha1.AnnotationPaused], want)
	}
	if len(pool.Annotations) > 0 {
		t.Error("the object itself was changed: the next status write would differ for ever")
	}
	release.Annotations, release.Spec.Suspend = nil, true
	if !brakedBy(pool, release).Spec.Suspend || pool.Spec.Suspend {
		t.Error("a suspended release must suspend the plan, and nothing else")
	}
	own := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationPaused: "own"}}}
	release.Annotations = map[string]string{v1alpha1.AnnotationPaused: "incident"}
	if got := brakedBy(own, release).Annotations[v1alpha1.AnnotationPaused]; got != "own" {
		t.Errorf("the pool's own brake was replaced by %q", got)
	}
}

func TestHostsOfURLsAndWhatIsShownOfThem(t *testing.T) {
	for raw, want := range map[string]string{
		"ssh://git@git.example.com/fleet.git": "git.example.com", "https://git.example.com:8443/fleet.git": "git.example.com:8443",
		"file:///srv/fleet.git": "",
	} {
		if got, err := hostOf(raw); err != nil || got != want {
			t.Errorf("hostOf(%s) = %q, %v", raw, got, err)
		}
	}
	if _, err := hostOf("fleet.git"); err == nil {
		t.Error("a URL without a host is accepted")
	}
	if got := redactURL("https://me:hunter2@git.example.com/x?token=hunter2"); got != "https://git.example.com/x" {
		t.Errorf("redacted URL %q", got)
	}
}

func TestTheSignerIsReadBackAsItWasWritten(t *testing.T) {
	want := &sources.Signer{Name: "admin (second key)", Format: "ssh", Fingerprint: "SHA256:abc"}
	if diff := cmp.Diff(want, verifiedSigner(persistedSigner(want))); diff != "" {
		t.Errorf("signer (-want +got):\n%s", diff)
	}
	if got := verifiedSigner(persistedSigner(nil)); got != nil {
		t.Errorf("signer of an unverified revision = %+v", got)
	}
}

func TestAReleaseWaitsForWhatItDependsOn(t *testing.T) {
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
		{[]string{"none"}, "ClusterRelease/none, which spec.dependsOn names, doesn't exist: declare it, or drop it from dependsOn"},
		{[]string{"me"}, "spec.dependsOn is a circle, me → me: take one of them out"},
		{[]string{"a"}, ""},
	} {
		if got := waitsFor(release("me", false, c.on...), all); got != c.want {
			t.Errorf("dependsOn %v: %q, want %q", c.on, got, c.want)
		}
	}
	if got, want := waitsFor(all["a"], all), "spec.dependsOn is a circle, a → b → c → a: take one of them out"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestARefusedTrustDocumentIsNotOfferedAtEachTick(t *testing.T) {
	now := epoch
	h := &hostRuntime{opts: Options{Now: func() time.Time { return now }}, delivered: map[string]delivery{}}
	if !h.due("host-1", 3) {
		t.Error("a host that wasn't asked yet isn't due")
	}
	h.delivery("host-1", 3, 0, errNoHosts)
	if h.due("host-1", 3) {
		t.Error("it refused just now and is asked again")
	}
	if !h.due("host-1", 4) {
		t.Error("a newer document is offered at once")
	}
	now = now.Add(retryTrust)
	if !h.due("host-1", 3) {
		t.Error("it is never asked again")
	}
	h.delivery("host-1", 3, 3, nil)
	if h.due("host-1", 3) {
		t.Error("it has the document")
	}
}

func TestALostStoreEndsTheProcess(t *testing.T) {
	var o Operator
	controller := o.quiet(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, fmt.Errorf("write: %w", state.ErrConflict)
	}))
	var got error
	o.fail = func(err error) { got = err } // Run does, after the controllers were made
	_, err := controller.Reconcile(t.Context(), reconcile.Request{})
	if err == nil || !errors.Is(got, state.ErrConflict) {
		t.Errorf("the process goes on: %v, %v", got, err)
	}
}

func TestAPermissionToGoBackIsSpentOnce(t *testing.T) {
	b := newBench(t)
	spec := v1alpha1.ClusterReleaseSpec{Rollback: &v1alpha1.Rollback{To: "1.0.0", Reason: "data loss in 1.1"}}
	c := &checks{name: "spent", store: b.store, spec: spec}
	if got := c.rollbackTo(); got != "1.0.0" {
		t.Fatalf("rollbackTo = %q before its use", got)
	}
	must(t, b.store.SpendRollback(t.Context(), "spent", permission(&spec)))
	t.Cleanup(func() { must(t, b.store.DropRelease(context.WithoutCancel(t.Context()), "spent")) })
	if got := c.rollbackTo(); got != "" {
		t.Errorf("rollbackTo = %q after its use", got)
	}
	again := *spec.DeepCopy()
	again.Rollback.Reason = "and once more"
	c.setSpec(&again)
	if got := c.rollbackTo(); got != "1.0.0" {
		t.Errorf("rollbackTo = %q for another permission", got)
	}
}
