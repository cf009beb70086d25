// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

func TestTheStateOfANewRelease(t *testing.T) {
	done := func(v, image string) state.Completed {
		return state.Completed{Identity: payload.Identity{Version: v, Image: image}}
	}
	for name, c := range map[string]struct {
		completed []state.Completed
		desired   worker.Desired
		want      payload.State
	}{
		"none completed yet: initializing":   {nil, worker.Desired{Identity: payload.Identity{Version: "1.0.0"}}, payload.Initializing},
		"the installed release: reconciling": {[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}, payload.Reconciling},
		"the same version with another digest: updating": {
			[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "b"}}, payload.Updating,
		},
		"a higher version: updating":                  {[]state.Completed{done("1.9.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.10.0", Image: "b"}}, payload.Updating},
		"a lower version: rolling back":               {[]state.Completed{done("1.10.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "1.9.0", Image: "b"}}, payload.RollingBack},
		"an invalid version is never lower: updating": {[]state.Completed{done("1.0.0", "a")}, worker.Desired{Identity: payload.Identity{Version: "blue", Image: "b"}}, payload.Updating},
	} {
		if got := stateOf(state.Release{Completed: c.completed}, c.desired); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// An incomplete rollback isn't complete, though the same release was before.
func TestAnIncompleteReleaseContinuesInItsState(t *testing.T) {
	record := state.Release{
		Accepted:  &state.Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "a"}, State: "RollingBack"},
		Completed: []state.Completed{{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}},
	}
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.RollingBack {
		t.Errorf("a rollback continues as %v", got)
	}
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}); got != payload.Updating {
		t.Errorf("another release starts as %v", got)
	}
	started := state.Release{Accepted: &state.Accepted{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, State: "Updating"}, Completed: record.Completed}
	if got := stateOf(started, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.RollingBack {
		t.Errorf("the rollback from a release that was only started starts as %v", got)
	}
	record.Accepted.Waits = []state.Wait{{Object: state.Object{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Spent: metav1.Duration{Duration: time.Minute}, Running: epoch}}
	got := restoreOf(record, &v1alpha1.ClusterReleaseSpec{})
	if !got.Unfinished || got.State != payload.RollingBack {
		t.Errorf("restored %+v, want an incomplete rollback", got)
	}
	api := payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}
	if spent := got.Waits[api].At(epoch.Add(time.Minute)); spent != 2*time.Minute {
		t.Errorf("%s used for %s, want two minutes", spent, api)
	}
	record.Accepted.State = ""
	if got := stateOf(record, worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}); got != payload.Reconciling {
		t.Errorf("a complete release continues as %v", got)
	}
}

// While a dependency isn't ready the next release waits; the accepted one is still
// repaired.
func TestTheAcceptedReleaseIsRepairedWhileADependencyIsNotReady(t *testing.T) {
	desired := worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, Revision: "main@sha1:2"}
	if _, ok := whileWaiting(nil, desired); ok {
		t.Error("a release without an accepted one doesn't wait")
	}
	kept, ok := whileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}, desired)
	if !ok || kept.Version != "1.0.0" || kept.Image != "a" {
		t.Errorf("continues with %+v, want the accepted release", kept)
	}
	if kept, ok := whileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}, desired); !ok || !kept.Equal(desired) {
		t.Errorf("continues with %+v, want the desired release, which is accepted", kept)
	}
	// The same version at another revision, or with another selection, waits too.
	path := worker.Desired{Identity: payload.Identity{Version: "1.0.0", Path: "site"}, Revision: "main@sha1:2"}
	if kept, ok := whileWaiting(&state.Accepted{Identity: payload.Identity{Version: "1.0.0", Path: "site"}, Revision: "main@sha1:1"}, path); !ok || kept.Revision != "main@sha1:1" {
		t.Errorf("continues with %+v, want the accepted revision", kept)
	}
	desired.Selection.Profile = "edge"
	accepted := acceptedOf(worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}, Selection: payload.Selection{Profile: "core"}})
	if kept, ok := whileWaiting(&accepted, desired); !ok || kept.Selection.Profile != "core" {
		t.Errorf("continues with %+v, want the accepted selection", kept)
	}
}

func TestOnlyAChangeOfWaitsIsPersisted(t *testing.T) {
	at := func(spent time.Duration, running time.Time) []state.Wait {
		return []state.Wait{{Object: state.Object{Kind: "Pod", Name: "a"}, Spent: metav1.Duration{Duration: spent}, Running: running}}
	}
	for name, tc := range map[string]struct {
		a, b []state.Wait
		same bool
	}{
		"the clock ran":            {at(0, epoch.Add(-time.Minute)), at(time.Minute, epoch), true},
		"the clock was stopped":    {at(0, epoch.Add(-time.Minute)), at(time.Minute, time.Time{}), false},
		"the clock started again":  {at(0, epoch.Add(-time.Minute)), at(0, epoch), false},
		"another object":           {at(time.Minute, epoch), []state.Wait{{Object: state.Object{Kind: "Pod", Name: "b"}, Spent: metav1.Duration{Duration: time.Minute}, Running: epoch}}, false},
		"no wait any more":         {at(time.Minute, epoch), nil, false},
		"no wait before and after": {nil, nil, true},
	} {
		if got := sameWaits(tc.a, tc.b, epoch); got != tc.same {
			t.Errorf("%s: %t, want %t", name, got, tc.same)
		}
	}
}

func TestOnlyLongWaitsArePersisted(t *testing.T) {
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

func TestARestartContinuesWithTheAcceptedRelease(t *testing.T) {
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
		t.Errorf("an update was in progress (-want +got):\n%s", diff)
	}
	if got := restoreOf(state.Release{}, spec); !got.Accepted.Empty() || !got.Applied.Empty() {
		t.Errorf("a new release restores %+v", got)
	}
}

func TestOnlyTheAcceptedAndTheLastTwoCompletedReleasesArePreviouslyAccepted(t *testing.T) {
	record := state.Release{Accepted: &state.Accepted{Identity: payload.Identity{Version: "4", Image: "d"}}, Completed: []state.Completed{{Identity: payload.Identity{Version: "3", Image: "c"}}, {Identity: payload.Identity{Version: "2", Image: "b"}}, {Identity: payload.Identity{Version: "1", Image: "a"}}}}
	for _, c := range []struct {
		d    worker.Desired
		want bool
	}{
		{worker.Desired{Identity: payload.Identity{Version: "4", Image: "d"}}, true}, // an update in progress continues after a restart
		{worker.Desired{Identity: payload.Identity{Version: "4", Image: "x"}}, false},
		{worker.Desired{Identity: payload.Identity{Version: "3", Image: "c"}}, true},
		{worker.Desired{Identity: payload.Identity{Version: "2", Image: "b"}}, true},
		{worker.Desired{Identity: payload.Identity{Version: "1", Image: "a"}}, false},
		{worker.Desired{Identity: payload.Identity{Version: "3", Image: "x"}}, false},
	} {
		if got := previouslyAccepted(record, c.d); got != c.want {
			t.Errorf("previouslyAccepted(%s %s) = %v", c.d.Version, c.d.Image, got)
		}
	}
}

func TestARollbackPermissionIsConsumedOnce(t *testing.T) {
	b := controlenv.New(t)
	spec := v1alpha1.ClusterReleaseSpec{Rollback: &v1alpha1.Rollback{To: "1.0.0", Reason: "data loss in 1.1"}}
	c := &checks{name: "consumed", store: b.Store, spec: spec}
	if got := c.rollbackTo(); got != "1.0.0" {
		t.Fatalf("rollbackTo = %q before its use", got)
	}
	must(t, b.Store.SpendRollback(t.Context(), "consumed", rollbackPermission(&spec)))
	t.Cleanup(func() { must(t, b.Store.DropRelease(context.WithoutCancel(t.Context()), "consumed")) })
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
