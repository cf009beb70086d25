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

// healthy returns the input of a host for which all gates pass.
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
		"all pass":             {func(*Input) {}, "all gates pass"},
		"an unreachable agent": {func(in *Input) { in.Facts = nil }, "agent: the agent is unreachable"},
		"an agent that runs its own checks": {func(in *Input) {
			in.Facts.Operation.State = nodeos.OperationRunning
			in.Facts.Operation.Phase = "verify"
		}, "agent: the agent is still running boot: verify"},
		"a paused operation": {func(in *Input) {
			in.Facts.Operation.State = nodeos.OperationPaused
			in.Facts.Operation.Message = "no disk"
		}, "agent: the agent's operation is paused: no disk"},
		"another image":                {func(in *Input) { in.Facts.Booted.Digest = "sha256:1" }, "booted: running sha256:1, expected sha256:2"},
		"a Node that can't be read":    {func(in *Input) { in.Node = nil }, "node: the Node can't be read"},
		"a Node that is being deleted": {func(in *Input) { now := metav1.Now(); in.Node.DeletionTimestamp = &now }, "node: the Node is being deleted"},
		"a Node without conditions":    {func(in *Input) { in.Node.Status.Conditions = nil }, "node: the Node has no Ready condition"},
		"a Node that isn't Ready": {func(in *Input) {
			in.Node.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped\nposting"}
		}, "node: Ready is Unknown: Kubelet stopped posting"},
		"a Node of an earlier boot":             {func(in *Input) { in.Node.Status.NodeInfo.BootID = "b1" }, "bootID: the Node reports boot b1, the agent reports boot b2"},
		"a Node that reports no boot":           {func(in *Input) { in.Node.Status.NodeInfo.BootID = "" }, "bootID: the Node reports boot , the agent reports boot b2"},
		"another kubelet":                       {func(in *Input) { in.Node.Status.NodeInfo.KubeletVersion = "v1.35.0" }, "kubelet: running v1.35.0, the image contains v1.36.3"},
		"pods that can't be listed":             {func(in *Input) { in.PodsListed = false }, "pods: the node's pods can't be listed"},
		"a DaemonSet pod that isn't Ready":      {func(in *Input) { in.Pods[0].Status = corev1.PodStatus{} }, "pods: 1 not Ready, for example kube-system/cni"},
		"other pods while the node is cordoned": {func(in *Input) { in.Pods = append(in.Pods, corev1.Pod{}) }, "all gates pass"},
		"other pods if nothing was drained": {func(in *Input) {
			in.Draining = false
			in.Pods = append(in.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "api"}})
		}, "pods: 1 not Ready, for example web/api"},
		"a finished pod": {func(in *Input) { in.Draining = false; in.Pods[0].Status = corev1.PodStatus{Phase: corev1.PodSucceeded} }, "all gates pass"},
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
		"pass":                  {"node.status.nodeInfo.kubeletVersion.startsWith('v1.36.')", "all gates pass"},
		"fail":                  {"node.metadata.labels['zone'] == 'b'", "mine: node.metadata.labels['zone'] == 'b' is false"},
		"read a missing key":    {"node.metadata.labels['rack'] == 'b'", "mine: no such key: rack"},
		"return another type":   {"node.metadata.name", "mine: result is not a bool"},
		"exceed the cost limit": {"node.status.conditions.all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, b+c+d+e+f > 0))))))", "mine: operation cancelled: actual cost limit exceeded"},
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
		"a syntax error":    "node.status.",
		"another type":      "1 + 1",
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
