// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
)

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func node(name string, l map[string]string, addresses ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: l, UID: "uid"}}
	n.Status.NodeInfo.BootID = "b1"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func host(name, id string) v1alpha1.Host {
	h := newHost("lockstep-system", name)
	if id != "" {
		h.Spec.Identity = &v1alpha1.HostIdentity{HostID: id}
	}
	return *h
}

func TestPlan(t *testing.T) {
	t.Parallel()
	workers := map[string]string{"pool": "workers"}
	pools := []labels.Selector{labels.SelectorFromSet(workers)}
	declared := host("declared", "")
	declared.Labels = nil
	existing := []v1alpha1.Host{host("b", "x"), host("gone", ""), host("just-gone", ""), declared}
	gone := map[string]time.Time{"gone": noon().Add(-removeAfter), "just-gone": noon().Add(-time.Minute), "declared": noon().Add(-time.Hour)}
	got := Plan([]corev1.Node{node("c", workers), node("b", workers), node("a", workers), node("other", nil)}, pools, existing, gone, noon())
	if diff := cmp.Diff([]string{"a", "c"}, got.Create); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	if len(got.Delete) != 1 || got.Delete[0].Name != "gone" {
		t.Errorf("deleted %v, want only the created Host whose Node is missing for long enough", got.Delete)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	n := node("a", nil, "10.0.0.1", "fd00::1", "not-an-ip")
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"})
	own := host("a", "")
	own.Spec.Address = "agent.example.com:4711"
	plain := host("a", "")
	for name, tc := range map[string]struct {
		host *v1alpha1.Host
		node *corev1.Node
		want []string
	}{
		"the Node's internal IPs, in order": {&plain, &n, []string{"10.0.0.1:50700", "[fd00::1]:50700"}},
		"only the Host's address":           {&own, &n, []string{"agent.example.com:4711"}},
		"none without a Node":               {&plain, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Addresses(tc.host, tc.node)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHostsWithTheSameIdentityAreNotDialed(t *testing.T) {
	t.Parallel()
	got := Targets([]v1alpha1.Host{host("a", "same"), host("b", "same"), host("c", "own"), host("d", "")}, []corev1.Node{node("c", nil, "10.0.0.3")})
	want := []fleet.Target{{HostID: "own", Addresses: []string{"10.0.0.3:50700"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func connected() *fleet.State {
	return &fleet.State{Connected: true, LastSeen: noon(), Facts: nodeos.HostFacts{NodeName: "a", Inventory: nodeos.Inventory{
		BootID: "b1", Backend: "sim", Booted: nodeos.Booted{Slot: "A", Version: "1.0.0", Digest: "sha256:1", Confirmed: true},
	}}}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	n := node("a", nil)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Host, *Facts)
		want   map[string]string
	}{
		"idle":         {func(*v1alpha1.Host, *Facts) {}, map[string]string{"Ready": "True Idle", "AgentReachable": "True Connected", "Confirmed": "True Committed", "IdentityMismatch": "False Agrees"}},
		"not enrolled": {func(h *v1alpha1.Host, f *Facts) { h.Spec.Identity, f.State = nil, nil }, map[string]string{"Ready": "False NotEnrolled", "AgentReachable": "False NotEnrolled"}},
		"unreachable": {func(_ *v1alpha1.Host, f *Facts) {
			f.State = &fleet.State{Err: &fleet.UnreachableError{Host: "x", Address: "10.0.0.1:50700", Err: errors.New("refused")}}
		}, map[string]string{"Ready": "False Unreachable", "AgentReachable": "False Unreachable"}},
		"another node's agent": {func(_ *v1alpha1.Host, f *Facts) { f.State.Facts.NodeName = "b" }, map[string]string{"Ready": "False NodeNameMismatch", "IdentityMismatch": "True NodeNameMismatch", "Stalled": "True NodeNameMismatch"}},
		"another boot":         {func(_ *v1alpha1.Host, f *Facts) { f.State.Facts.BootID = "b9" }, map[string]string{"Ready": "False FactMismatch", "IdentityMismatch": "True FactMismatch"}},
		"another boot while the Node is not Ready": {func(_ *v1alpha1.Host, f *Facts) {
			f.State.Facts.BootID = "b9"
			down := n
			down.Status.Conditions = nil
			f.Node = &down
		}, map[string]string{"IdentityMismatch": "False Agrees"}},
		"on trial":       {func(_ *v1alpha1.Host, f *Facts) { f.State.Facts.Booted.Confirmed = false }, map[string]string{"Confirmed": "False OnTrial"}},
		"in a rollout":   {func(_ *v1alpha1.Host, f *Facts) { f.Rollout = &v1alpha1.HostRollout{State: "Draining"} }, map[string]string{"Ready": "False Draining", "Reconciling": "True Draining", "Stalled": "False Idle"}},
		"quarantined":    {func(_ *v1alpha1.Host, f *Facts) { f.Rollout = &v1alpha1.HostRollout{State: "Quarantined"} }, map[string]string{"Ready": "False Quarantined", "Reconciling": "False Quarantined", "Stalled": "True Quarantined"}},
		"without a Node": {func(_ *v1alpha1.Host, f *Facts) { f.Node = nil }, map[string]string{"Ready": "False NodeGone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, f := host("a", "x"), Facts{Node: &n, State: connected()}
			tc.change(&h, &f)
			got := Status(&h, f, noon())
			for kind, want := range tc.want {
				c := meta.FindStatusCondition(got.Conditions, kind)
				if c == nil || string(c.Status)+" "+c.Reason != want {
					t.Errorf("%s is %+v, want %s", kind, c, want)
				}
			}
		})
	}
}

func TestAgentReportsAreSanitizedAndClipped(t *testing.T) {
	t.Parallel()
	h, n, s := host("a", "x"), node("a", nil), connected()
	long := "x\n\x1b[31m" + string(make([]byte, 5000))
	s.Facts.Booted.Version, s.About.Version, s.Facts.Backend = long, long, long
	s.Facts.Last = &nodeos.OperationStatus{ID: long, Message: long}
	got := Status(&h, Facts{Node: &n, State: s}, noon())
	for name, v := range map[string]string{
		"version": got.OS.Booted.Version, "agent": got.Agent.Version, "backend": got.Agent.Backend, "id": got.LastResult.ID, "message": got.LastResult.Message,
	} {
		if len(v) > maxMessage || v != "x [31m" {
			t.Errorf("%s is %q", name, v)
		}
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	h, n := host("a", "x"), node("a", nil)
	base := Status(&h, Facts{Node: &n, State: connected()}, noon())
	h.Status = base
	change := func(f func(*fleet.State)) v1alpha1.HostStatus {
		s := connected()
		f(s)
		return Status(&h, Facts{Node: &n, State: s}, noon().Add(time.Second))
	}
	for name, tc := range map[string]struct {
		next v1alpha1.HostStatus
		ago  time.Duration
		due  bool
		wait time.Duration
	}{
		"an unchanged status is not written":       {change(func(*fleet.State) {}), time.Hour, false, 0},
		"a new boot is written immediately":        {change(func(s *fleet.State) { s.Facts.BootID = "b2" }), 0, true, 0},
		"a lost connection is written immediately": {change(func(s *fleet.State) { s.Connected = false }), 0, true, 0},
		"a message waits for five seconds":         {change(func(s *fleet.State) { s.Facts.Last = &nodeos.OperationStatus{ID: "o", Message: "m"} }), 2 * time.Second, false, 3 * time.Second},
		"a message is written after five seconds":  {change(func(s *fleet.State) { s.Facts.Last = &nodeos.OperationStatus{ID: "o", Message: "m"} }), 5 * time.Second, true, 0},
		"lastSeen waits for five minutes":          {change(func(s *fleet.State) { s.LastSeen = noon().Add(time.Minute) }), time.Minute, false, 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			due, wait := Due(base, tc.next, noon().Add(-tc.ago), noon())
			if due != tc.due || wait != tc.wait {
				t.Errorf("due=%v wait=%s, want due=%v wait=%s", due, wait, tc.due, tc.wait)
			}
		})
	}
}
