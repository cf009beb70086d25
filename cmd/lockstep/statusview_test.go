// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
)

var updateGolden = flag.Bool("update", false, "write what is shown to testdata instead of comparing it")

var viewTime = time.Date(2026, 11, 29, 22, 14, 32, 0, time.UTC)

func ago(d time.Duration) *metav1.Time {
	t := metav1.NewTime(viewTime.Add(-d))
	return &t
}

func cond(typ string, ok bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: typ, Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: *ago(4 * time.Minute)}
	if ok {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func named(name string, annotations ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: v1alpha1.Namespace, Annotations: map[string]string{}}
	for i := 0; i < len(annotations); i += 2 {
		m.Annotations[annotations[i]] = annotations[i+1]
	}
	return m
}

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashA   = "main@sha1:9f2c1ab99f2c1ab99f2c1ab99f2c1ab99f2c1ab9"
	hashB   = "main@sha1:51d0e7e151d0e7e151d0e7e151d0e7e151d0e7e1"
)

func viewSource() v1alpha1.GitSource {
	s := v1alpha1.GitSource{ObjectMeta: named("fleet"), Spec: v1alpha1.GitSourceSpec{Cluster: "prod"}}
	s.Status.AcceptedRevision = &v1alpha1.Revision{
		Revision: hashA, Subject: "platform 1.4.2\x1b[2J, OS 2.1.0", Signer: "admin-1 (ssh SHA256:Xk3Q)", Time: *ago(4 * time.Minute),
	}
	s.Status.StatusCommit = &v1alpha1.StatusCommit{Revision: "lockstep-status/prod@sha1:51d0e7e151d0e7e151d0e7e151d0e7e151d0e7e1", Time: *ago(12 * time.Second)}
	s.Status.Conditions = []metav1.Condition{cond("Ready", true, "Applied", hashA+" is applied")}
	return s
}

func updatingRelease() v1alpha1.ClusterRelease {
	deadline := metav1.NewTime(viewTime.Add(18 * time.Minute))
	r := v1alpha1.ClusterRelease{ObjectMeta: named("platform")}
	r.Spec.Desired.Version = "1.4.2"
	expired, later := metav1.NewTime(viewTime.Add(-time.Hour)), metav1.NewTime(viewTime.Add(25*24*time.Hour))
	r.Spec.Overrides = []v1alpha1.Override{
		{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "old", Unmanaged: true, Reason: "hotfix", Expires: &expired},
		{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api", Unmanaged: true, Reason: "hotfix", Expires: &later},
		{Kind: "Namespace", Name: "web", Reason: "managed again"},
	}
	r.Status.Applied = &v1alpha1.ReleaseRef{Version: "1.4.1"}
	r.Status.Accepted = &v1alpha1.ReleaseRef{Version: "1.4.2", Verified: true, Evidence: []string{"release-2026", "ci"}}
	r.Status.Progress = &v1alpha1.ReleaseProgress{
		State: "Updating", Done: 312, Total: 862, RunLevel: 30, Summary: "312/862", LastProgress: ago(10 * time.Second),
		Blocking: []v1alpha1.Blocking{{Object: "apps Deployment web/api", Message: "2 of 3 updated\nStatus: forged", Since: ago(72 * time.Second), Deadline: &deadline}},
	}
	r.Status.Warnings = []string{"UnpinnedImage: images not pinned by digest: r.example/b:latest in apps Deployment web/api"}
	r.Status.Conditions = []metav1.Condition{cond("Ready", false, "Updating", "working towards 1.4.2: run level 30")}
	return r
}

func refusedRelease() v1alpha1.ClusterRelease {
	r := v1alpha1.ClusterRelease{ObjectMeta: named("site")}
	r.Spec.Desired.Version = "1.5.0"
	r.Status.Applied = &v1alpha1.ReleaseRef{Version: "1.4.2"}
	r.Status.Accepted = &v1alpha1.ReleaseRef{Version: "1.4.2"}
	r.Status.Progress = &v1alpha1.ReleaseProgress{State: "Reconciling", Done: 862, Total: 862, Summary: "862/862"}
	r.Status.Conditions = []metav1.Condition{
		cond("Ready", false, "ThresholdNotMet", "rejected 1.5.0; still running 1.4.2"),
		cond("ReleaseAccepted", false, "ThresholdNotMet", digestA+" has 1 of 2 required signatures (role release); retried automatically"),
	}
	r.Status.History = []v1alpha1.ReleaseHistory{{
		State: "Partial", Version: "1.4.1", Revision: hashB, StartedTime: *ago(time.Hour), RollbackReason: "1.4.7 loses data", AcceptedRisks: "GiantHop: a minor is left out",
	}}
	for i := range 7 {
		r.Status.History = append(r.Status.History, v1alpha1.ReleaseHistory{
			State: "Completed", Version: fmt.Sprintf("1.4.%d", 6-i), Revision: hashB, StartedTime: *ago(time.Duration(i+1) * 24 * time.Hour),
		})
	}
	return r
}

func haltedPool() v1alpha1.NodeOS {
	n := v1alpha1.NodeOS{ObjectMeta: named("workers")}
	n.Spec.OS.Version = "2.1.0"
	n.Status.Committed = &v1alpha1.OSImage{Version: "2.0.3"}
	n.Status.Counts = v1alpha1.HostCounts{Total: 40, Updated: 12, Staged: 28, InFlight: 2, Failed: 1, Held: 1}
	n.Status.InFlight = []v1alpha1.HostInFlight{
		{Host: "node-13", State: "Draining", Since: ago(3 * time.Minute), Blocking: "PodDisruptionBudget web/api allows 0 disruptions"},
		{Host: "node-14", State: "Verifying", Since: ago(40 * time.Second)},
	}
	n.Status.Denied = []v1alpha1.DeniedDigest{{Digest: digestA, Hosts: []string{"node-3"}, Scope: "host", Reason: "failed its health check"}}
	n.Status.Conditions = []metav1.Condition{
		cond("Ready", false, "Halted", "1 host failed"),
		cond("Halted", true, "Halted", "node-3 failed its health check on 2.1.0 and rolled back to 2.0.3; to retry, run lockstep resume nodeos/workers"),
	}
	return n
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", path, diff)
	}
}

func TestStatusShowsTheStateThenWhatBlocks(t *testing.T) {
	view := &statusView{now: viewTime}
	paused := haltedPool()
	paused.ObjectMeta = named("infra", v1alpha1.AnnotationPaused, "network maintenance (ann@desk, 2026-11-29T21:00:00Z)")
	paused.Status = v1alpha1.NodeOSStatus{
		Counts:     v1alpha1.HostCounts{Total: 3, Updated: 3},
		Conditions: []metav1.Condition{cond("Ready", false, "Paused", "network maintenance"), cond("Stalled", true, "Paused", "network maintenance")},
	}
	suspended := v1alpha1.ClusterRelease{ObjectMeta: named("edge")}
	suspended.Spec.Desired.Version = "0.9.0"
	suspended.Status.Conditions = []metav1.Condition{cond("Ready", false, "Suspended", "spec.suspend is set"), cond("Stalled", true, "Suspended", "spec.suspend is set")}
	held := v1alpha1.Host{ObjectMeta: named("node-31", v1alpha1.AnnotationHold, "disk being replaced")}
	var b strings.Builder
	for _, c := range []struct {
		title string
		w     objects
	}{
		{"nothing declared", objects{}},
		{"nothing accepted yet", objects{sources: []v1alpha1.GitSource{{ObjectMeta: named("fleet"), Spec: v1alpha1.GitSourceSpec{Cluster: "prod"}}}}},
		{"an update that something blocks", objects{sources: []v1alpha1.GitSource{viewSource()}, releases: []v1alpha1.ClusterRelease{updatingRelease()}}},
		{"a rejected release", objects{releases: []v1alpha1.ClusterRelease{refusedRelease()}}},
		{"a halted pool with a denied digest, and a host that is held", objects{pools: []v1alpha1.NodeOS{haltedPool(), paused}, hosts: []v1alpha1.Host{held, {ObjectMeta: named("node-1")}}}},
		{"pauses are not failures", objects{releases: []v1alpha1.ClusterRelease{suspended}, pools: []v1alpha1.NodeOS{paused}}},
	} {
		fmt.Fprintf(&b, "=== %s\n%s\n", c.title, view.all(&c.w))
	}
	golden(t, "status.txt", b.String())
}

func TestStatusOfOneObjectShowsItsConditions(t *testing.T) {
	view := &statusView{now: viewTime}
	refused := refusedRelease()
	host := &v1alpha1.Host{ObjectMeta: named("node-13")}
	host.Status.OS = &v1alpha1.OSStatus{Booted: &v1alpha1.SlotStatus{Version: "2.0.3\x1b[31m", Slot: "A", Digest: digestA}, Staged: &v1alpha1.SlotStatus{Version: "2.1.0", Digest: digestA}}
	host.Status.Agent = &v1alpha1.AgentStatus{Version: "0.1.0", Connected: true}
	host.Status.Rollout = &v1alpha1.HostRollout{State: "Draining"}
	host.Status.LastResult = &v1alpha1.OperationResult{ID: "01JD", Sequence: "upgrade", State: "Failed", Message: "health\ncheck"}
	trust := &v1alpha1.TrustPolicy{ObjectMeta: named("root")}
	trust.Status.AcceptedVersion = 3
	source := viewSource()
	got := "=== release\n" + view.object(&refused) + "\n=== host\n" + view.object(host) + "\n=== trust\n" + view.object(trust) + "\n=== source\n" + view.object(&source)
	golden(t, "status-object.txt", got)
}

func TestWatchedLinesDifferOnlyWithTheObject(t *testing.T) {
	w := &objects{releases: []v1alpha1.ClusterRelease{updatingRelease()}, pools: []v1alpha1.NodeOS{haltedPool()}}
	first := (&statusView{now: viewTime}).lines(w)
	if second := (&statusView{now: viewTime.Add(time.Hour)}).lines(w); second != first {
		t.Errorf("lines changed with the time:\n%s\n%s", first, second)
	}
	w.releases[0].Status.Progress.Summary = "313/862"
	changed := newLines(first, (&statusView{now: viewTime}).lines(w), viewTime)
	if strings.Count(changed, "\n") != 1 || !strings.Contains(changed, "313/862") {
		t.Errorf("new lines %q", changed)
	}
}

func TestPauseAllKeepsTheReasonsOfOthers(t *testing.T) {
	w := &objects{
		releases: []v1alpha1.ClusterRelease{{ObjectMeta: named("platform", v1alpha1.AnnotationPaused, "maintenance")}, {ObjectMeta: named("site")}},
		pools:    []v1alpha1.NodeOS{{ObjectMeta: named("workers")}},
		hosts:    []v1alpha1.Host{{ObjectMeta: named("node-1")}},
	}
	for on, want := range map[bool][]string{true: {"clusterrelease/site", "nodeos/workers"}, false: {"clusterrelease/platform"}} {
		var got []string
		for _, obj := range pauseAll(w, on) {
			got = append(got, objectArg(obj))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pause %v (-want +got):\n%s", on, diff)
		}
	}
}

func TestStatusAndExplainShowImplicitCapabilities(t *testing.T) {
	for want, implicit := range map[string][]string{
		"capability Extra stays enabled: it can't be taken from a running cluster":                                {"Extra"},
		"capabilities a, b stay enabled: they can't be taken from a running cluster":                              {"a", "b"},
		"capabilities a, b, c, d, e, f, g, h and 2 more stay enabled: they can't be taken from a running cluster": {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"},
	} {
		r := updatingRelease()
		r.Status.Capabilities = &v1alpha1.CapabilitiesStatus{Enabled: implicit, Implicit: implicit}
		if got := (&statusView{now: viewTime}).all(&objects{releases: []v1alpha1.ClusterRelease{r}}); !strings.Contains(got, "  implicit  "+want+"\n") {
			t.Errorf("status lacks %q:\n%s", want, got)
		}
		id := payload.ObjectID{Group: v1alpha1.Group, Kind: v1alpha1.KindClusterRelease, Namespace: v1alpha1.Namespace, Name: r.Name}
		r.Namespace = v1alpha1.Namespace
		view := &explainView{now: viewTime, statusView: statusView{now: viewTime}}
		if got := view.render(&evidence{id: id, objects: objects{releases: []v1alpha1.ClusterRelease{r}}}); !strings.Contains(got, want) {
			t.Errorf("explain lacks %q:\n%s", want, got)
		}
	}
}
