// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// fakeFleet records its targets and returns fixed states.
type fakeFleet struct {
	targets []fleet.Target
	states  map[string]fleet.State
}

func (r *fakeFleet) SetTargets(t []fleet.Target) { r.targets = t }

func (r *fakeFleet) State(id string) (fleet.State, bool) {
	s, ok := r.states[id]
	return s, ok
}

func realClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(controlplane.SharedWithKinds(t).Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAHostFollowsItsNode checks the life cycle of a Host on a real API server.
func TestAHostFollowsItsNode(t *testing.T) {
	t.Parallel()
	c, ctx := realClient(t), t.Context()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "hosts-"}}
	if err := c.Create(ctx, ns); err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"test": ns.Name}}}
	if err := c.Create(ctx, n); err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
	if err := c.Status().Update(ctx, n); err != nil {
		t.Fatal(err)
	}
	now := noon()
	agents := &fakeFleet{states: map[string]fleet.State{}}
	s := NewSyncer(Config{Client: c, Namespace: ns.Name, Fleet: agents, Now: func() time.Time { return now }})
	pools := []labels.Selector{labels.SelectorFromSet(labels.Set{"test": ns.Name})}
	sync := func() {
		t.Helper()
		if _, err := s.Sync(ctx, pools); err != nil {
			t.Fatal(err)
		}
	}
	var h v1alpha1.Host
	get := func() error { return c.Get(ctx, client.ObjectKey{Namespace: ns.Name, Name: n.Name}, &h) }

	sync()
	if err := get(); err != nil {
		t.Fatal(err)
	}
	if cond := meta.FindStatusCondition(h.Status.Conditions, "Ready"); cond == nil || cond.Reason != "NotEnrolled" {
		t.Errorf("Ready is %+v, want NotEnrolled", cond)
	}
	written := h.ResourceVersion
	sync()
	if err := get(); err != nil || h.ResourceVersion != written {
		t.Errorf("a second Sync without a change wrote the Host (%v)", err)
	}

	h.Spec.Identity = &v1alpha1.HostIdentity{HostID: "host-7"}
	if err := c.Update(ctx, &h); err != nil {
		t.Fatal(err)
	}
	state := connected()
	state.Facts.NodeName = n.Name
	agents.states["host-7"] = *state
	s.SetRollouts("pool", map[string]v1alpha1.HostRollout{n.Name: {State: "Draining", Attempt: "a"}})
	sync()
	if diff := cmp.Diff([]fleet.Target{{HostID: "host-7", Addresses: []string{"10.0.0.7:50700"}}}, agents.targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	if h.Status.OS == nil || h.Status.OS.Booted.Version != "1.0.0" || h.Status.Rollout == nil || h.Status.NodeUID != string(n.UID) {
		t.Errorf("status is %+v", h.Status)
	}

	if err := c.Delete(ctx, n); err != nil {
		t.Fatal(err)
	}
	sync()
	if err := get(); err != nil || h.Spec.Identity == nil {
		t.Fatalf("the Host was deleted with its Node: %v", err)
	}
	now = now.Add(removeAfter)
	sync()
	if err := client.IgnoreNotFound(get()); err != nil {
		t.Fatal(err)
	}
	if err := get(); err == nil {
		t.Error("the Host is kept although its Node is missing for long enough")
	}
}
