// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// well is a host at which all gates hold.
func healthy() Input {
	yes := true
	return Input{
		Digest: "sha256:2",
		Facts: &nodeos.HostFacts{Inventory: nodeos.Inventory{
			BootID: "b2", Booted: nodeos.Booted{Digest: "sha256:2", Version: "2.0.0", KubeletVersion: "v1.36.3"},
		}, Operation: &nodeos.OperationStatus{State: nodeos.OperationOnTrial}},
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				NodeInfo:   corev1.NodeSystemInfo{BootID: "b2", KubeletVersion: "v1.36.3"},
			},
		},
		PodsListed: true, Draining: true,
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cni", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Controller: &yes}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}},
	}
}

func TestGatesFailClosed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"all hold":                {func(*Input) {}, "all gates hold"},
		"an agent that is silent": {func(in *Input) { in.Facts = nil }, "agent: the agent can't be reached"},
		"an agent at its own checks": {func(in *Input) {
			in.Facts.Operation.State = nodeos.OperationRunning
			in.Facts.Operation.Phase = "verify"
		}, "agent: the agent is still at boot: verify"},
		"an agent that paused": {func(in *Input) {
			in.Facts.Operation.State = nodeos.OperationPaused
			in.Facts.Operation.Message = "no disk"
		}, "agent: the agent paused: no disk"},
		"another system":            {func(in *Input) { in.Facts.Booted.Digest = "sha256:1" }, "booted: sha256:1 runs, sha256:2 is wanted"},
		"a Node that can't be read": {func(in *Input) { in.Node = nil }, "node: the Node can't be read"},
		"a Node that is deleted":    {func(in *Input) { now := metav1.Now(); in.Node.DeletionTimestamp = &now }, "node: the Node is being deleted"},
		"a Node without conditions": {func(in *Input) { in.Node.Status.Conditions = nil }, "node: the Node has no Ready condition"},
		"a Node that isn't Ready": {func(in *Input) {
			in.Node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped\nposting"}
		}, "node: Ready is Unknown: Kubelet stopped posting"},
		"a Node of an older boot":     {func(in *Input) { in.Node.Status.NodeInfo.BootID = "b1" }, "bootID: the Node reports boot b1, the agent boot b2"},
		"a Node that reports no boot": {func(in *Input) { in.Node.Status.NodeInfo.BootID = "" }, "bootID: the Node reports boot , the agent boot b2"},
		"another kubelet":             {func(in *Input) { in.Node.Status.NodeInfo.KubeletVersion = "v1.35.0" }, "kubelet: kubelet v1.35.0 runs, the image carries v1.36.3"},
		"pods that can't be listed":   {func(in *Input) { in.PodsListed = false }, "pods: the node's pods can't be listed"},
		"a DaemonSet's pod not back":  {func(in *Input) { in.Pods[0].Status = corev1.PodStatus{} }, "pods: 1 pods aren't Ready, such as kube-system/cni"},
		"others while it's cordoned":  {func(in *Input) { in.Pods = append(in.Pods, corev1.Pod{}) }, "all gates hold"},
		"others where nothing was drained": {func(in *Input) {
			in.Draining = false
			in.Pods = append(in.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "api"}})
		}, "pods: 1 pods aren't Ready, such as web/api"},
		"a finished pod": {func(in *Input) { in.Draining = false; in.Pods[0].Status = corev1.PodStatus{Phase: corev1.PodSucceeded} }, "all gates hold"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := healthy()
			tc.change(&in)
			if got := Evaluate(in, nil).String(); got != tc.want {
				t.Errorf("verdict %q, want %q", got, tc.want)
			}
		})
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ cel, want string }{
		"hold":                  {"node.status.nodeInfo.kubeletVersion.startsWith('v1.36.')", "all gates hold"},
		"don't":                 {"node.metadata.labels['zone'] == 'b'", "mine: node.metadata.labels['zone'] == 'b' is false"},
		"read what isn't there": {"node.metadata.labels['rack'] == 'b'", "mine: no such key: rack"},
		"give another type":     {"node.metadata.name", "mine: it gives no bool"},
		"cost too much":         {"node.status.conditions.all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, b+c+d+e+f > 0))))))", "mine: operation cancelled: actual cost limit exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks, err := Compile([]v1alpha1.GateCheck{{Name: "mine", CEL: tc.cel}})
			if err != nil {
				t.Fatal(err)
			}
			if got := Evaluate(healthy(), checks).String(); got != tc.want {
				t.Errorf("verdict %q, want %q", got, tc.want)
			}
		})
	}
}

func TestInvalidChecksAreRejected(t *testing.T) {
	t.Parallel()
	for name, cel := range map[string]string{
		"no CEL":            "node.status.",
		"no bool":           "1 + 1",
		"an unknown name":   "pod.spec == node.spec",
		"a long expression": strings.Repeat("true && ", 500) + "true",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Compile([]v1alpha1.GateCheck{{Name: "mine", CEL: cel}})
			var check *CheckError
			if !errors.As(err, &check) || check.Name != "mine" || check.Reason() != "InvalidSpec" {
				t.Errorf("error %v, want a CheckError", err)
			}
		})
	}
}
