// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

func nodeOS() *v1alpha1.NodeOS {
	n := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers", UID: "pool", Annotations: map[string]string{}}}
	n.Spec.OS = v1alpha1.OSImage{Version: "2.0.0", Image: "registry.example.com/os@" + digests["2.0.0"]}
	return n
}

func TestPoolOfHasTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	p, err := PoolOf(nodeOS())
	if err != nil {
		t.Fatal(err)
	}
	if p.Limit(10) != 1 || p.MaxParallelStaging != 10 || p.FailureThreshold != 1 || p.MaxQuarantined != 0 ||
		p.DrainTimeout != 15*time.Minute || p.DrainDeadline != DeadlineAbort || p.CommitDeadline != 30*time.Minute || p.HaltOnFailure {
		t.Errorf("defaults are %+v", p)
	}
}

func TestInvalidPoolsAreRejected(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1alpha1.NodeOS)
		field  string
	}{
		"an image by tag": {func(n *v1alpha1.NodeOS) { n.Spec.OS.Image = "registry.example.com/os:2.0.0" }, "os.image"},
		"a plain reboot":  {func(n *v1alpha1.NodeOS) { n.Spec.Sequence = "reboot" }, "sequence"},
		"an unknown time zone": {func(n *v1alpha1.NodeOS) {
			n.Spec.Windows = []v1alpha1.Window{{Cron: "0 1 * * *", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Mars/Base"}}
		}, "windows[0]"},
		"an invalid canary": {func(n *v1alpha1.NodeOS) {
			n.Spec.Strategy.Canary = []v1alpha1.CanaryStep{{Hosts: intstr.FromString("some")}}
		}, "strategy.canary[0].hosts"},
		"a negative limit":                   {func(n *v1alpha1.NodeOS) { v := intstr.FromInt32(-1); n.Spec.Strategy.MaxUnavailable = &v }, "strategy.maxUnavailable"},
		"a commit deadline within the gates": {func(n *v1alpha1.NodeOS) { n.Spec.Gates.Soak.Duration = time.Hour }, "commitDeadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodeOS()
			tc.change(n)
			_, err := PoolOf(n)
			var spec *SpecError
			if !errors.As(err, &spec) || spec.Field != tc.field || spec.Reason() != "InvalidSpec" {
				t.Errorf("error %v, want one about %s", err, tc.field)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limit        string
		total        int
		controlPlane bool
		want         int
	}{
		{"0", 100, false, 0},
		{"0%", 100, false, 0},
		{"10%", 5, false, 1},
		{"25%", 10, false, 2},
		{"100%", 7, false, 7},
		{"3", 2, false, 3},
		{"3", 9, true, 1},
		{"0", 9, true, 0},
	} {
		p := Pool{MaxUnavailable: intstr.Parse(tc.limit), ControlPlane: tc.controlPlane}
		if got := p.Limit(tc.total); got != tc.want {
			t.Errorf("%s of %d (control plane %v) is %d, want %d", tc.limit, tc.total, tc.controlPlane, got, tc.want)
		}
	}
}

func TestAttemptChangesOnlyWithTheOrder(t *testing.T) {
	t.Parallel()
	base, err := PoolOf(nodeOS())
	if err != nil {
		t.Fatal(err)
	}
	same, other := base, base
	same.Generation, same.MaxUnavailable, same.Suspended = 9, intstr.FromInt32(3), true
	other.CommitDeadline = time.Hour
	if base.Attempt("") != same.Attempt("") {
		t.Error("a different maxUnavailable makes a new attempt")
	}
	if base.Attempt("") == other.Attempt("") || base.Attempt("") == base.Attempt("again") {
		t.Error("a different commit deadline or a rerun makes no new attempt")
	}
	if id := stageID(base.Attempt(""), 1000, &nodeos.HostFacts{}); len(id) > 63 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		t.Errorf("%q is not a valid operation ID", id)
	}
}

// TestPermitChecksCurrentFacts checks that a step is denied if the facts changed
// since the plan.
func TestPermitChecksCurrentFacts(t *testing.T) {
	t.Parallel()
	slot := ledger.Slot{Attempt: "lockstep-1", Epoch: 1, Target: ledger.Image{Digest: digests["2.0.0"]}, PrevBootID: "b1", TrialBootID: "b2"}
	ready := func() (Step, Node, *nodeos.HostFacts) {
		f := &nodeos.HostFacts{Inventory: nodeos.Inventory{BootID: "b1", Booted: nodeos.Booted{Slot: "A", Digest: digests["1.0.0"], Confirmed: true}, Slots: []nodeos.Slot{
			{Name: "A", State: nodeos.SlotGood}, {Name: "B", State: nodeos.SlotStaged, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digests["2.0.0"]}}},
		}}}
		return Step{Kind: StepActivate, Node: "n", NodeUID: "u", Slot: slot, Drain: true},
			Node{Name: "n", UID: "u", Ready: true, BootID: "b1", Unschedulable: true, CordonedBy: slot.Owner()}, f
	}
	for name, tc := range map[string]struct {
		change func(*Step, *Node, *nodeos.HostFacts)
		want   string
	}{
		"as planned":                   {func(*Step, *Node, *nodeos.HostFacts) {}, ""},
		"a recreated node":             {func(_ *Step, n *Node, _ *nodeos.HostFacts) { n.UID = "v" }, "was recreated"},
		"uncordoned":                   {func(_ *Step, n *Node, _ *nodeos.HostFacts) { n.Unschedulable = false }, "no longer cordoned"},
		"cordoned externally":          {func(_ *Step, n *Node, _ *nodeos.HostFacts) { n.CordonedBy = "" }, "no longer cordoned"},
		"cordoned by an earlier claim": {func(_ *Step, n *Node, _ *nodeos.HostFacts) { n.CordonedBy = "lockstep-1.0" }, "no longer cordoned"},
		"rebooted since":               {func(_ *Step, _ *Node, f *nodeos.HostFacts) { f.BootID = "b9" }, "is in boot b9"},
		"another machine's agent":      {func(_ *Step, n *Node, _ *nodeos.HostFacts) { n.BootID = "b9" }, "not the same machine"},
		"no longer staged":             {func(_ *Step, _ *Node, f *nodeos.HostFacts) { f.Slots[1].State = nodeos.SlotBad }, "has not verified"},
		"commit of the checked boot": {func(s *Step, _ *Node, f *nodeos.HostFacts) {
			s.Kind, f.BootID, f.Booted.Digest = StepCommit, "b2", digests["2.0.0"]
		}, ""},
		"commit of another boot": {func(s *Step, _ *Node, f *nodeos.HostFacts) {
			s.Kind, f.BootID, f.Booted.Digest = StepCommit, "b3", digests["2.0.0"]
		}, "the gates checked"},
		"commit of another image":       {func(s *Step, _ *Node, f *nodeos.HostFacts) { s.Kind, f.BootID = StepCommit, "b2" }, "the gates checked"},
		"rollback of a committed image": {func(s *Step, _ *Node, f *nodeos.HostFacts) { s.Kind, f.Booted.Digest = StepRollback, digests["2.0.0"] }, "has committed"},
		"eviction without the cordon":   {func(s *Step, n *Node, _ *nodeos.HostFacts) { s.Kind, n.Unschedulable = StepEvict, false }, "no longer cordoned"},
		"eviction with the cordon":      {func(s *Step, _ *Node, _ *nodeos.HostFacts) { s.Kind = StepEvict }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, n, f := ready()
			tc.change(&s, &n, f)
			err := Permit(s, n, f)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	s, n, _ := ready()
	if err := Permit(s, n, nil); err == nil {
		t.Error("a host with an unreachable agent is activated")
	}
}
