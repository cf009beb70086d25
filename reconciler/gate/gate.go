// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package gate evaluates whether a host is healthy after it booted a new image.
//
// Evaluate is pure: its input is the Node, its pods and the agent's report, and
// its verdict names the first gate that fails. The soak time is counted by
// package rollout. All gates fail closed: missing information is a failure.
package gate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Names of the built-in gates, as Verdict.Gate contains them.
const (
	GateAgent   = "agent"
	GateBooted  = "booted"
	GateNode    = "node"
	GateBootID  = "bootID"
	GateKubelet = "kubelet"
	GatePods    = "pods"
)

// Input is the input of the gates.
type Input struct {
	// Digest is that of the expected OS image.
	Digest string
	// Facts is the agent's report; nil if the agent is unreachable.
	Facts *nodeos.HostFacts
	// Node is the Kubernetes object; nil if it can't be read.
	Node *corev1.Node
	// Pods are the pods on the node; PodsListed reports whether they were listed.
	Pods       []corev1.Pod
	PodsListed bool
	// Draining reports whether the rollout still cordons the node, so that only
	// DaemonSet and static pods can run on it.
	Draining bool
}

// Verdict is the result of the gates.
type Verdict struct {
	// OK reports whether all gates pass.
	OK bool
	// Gate is the name of the first gate that fails, Message the cause.
	Gate, Message string
}

// String returns the verdict in one line.
func (v Verdict) String() string {
	if v.OK {
		return "all gates pass"
	}
	return v.Gate + ": " + v.Message
}

// Evaluate runs the built-in gates, then the checks, and returns the first
// failure. It is safe for concurrent use.
func Evaluate(in Input, checks *Checks) Verdict {
	for _, gate := range []func(Input) Verdict{agent, booted, nodeReady, bootID, kubeletVersion, podsReady} {
		if v := gate(in); !v.OK {
			v.Message = sanitize.Line(v.Message)
			return v
		}
	}
	v := checks.evaluate(in.Node)
	v.Message = sanitize.Line(v.Message)
	return v
}

func failed(gate, format string, args ...any) Verdict {
	return Verdict{Gate: gate, Message: fmt.Sprintf(format, args...)}
}

// agent: the agent is reachable and its own checks are done.
func agent(in Input) Verdict {
	switch {
	case in.Facts == nil:
		return failed(GateAgent, "the agent is unreachable")
	case in.Facts.Operation != nil && in.Facts.Operation.State == nodeos.OperationRunning:
		return failed(GateAgent, "the agent is still running %s: %s", in.Facts.Operation.Sequence, in.Facts.Operation.Phase)
	case in.Facts.Operation != nil && in.Facts.Operation.State == nodeos.OperationPaused:
		return failed(GateAgent, "the agent's operation is paused: %s", in.Facts.Operation.Message)
	}
	return Verdict{OK: true}
}

// booted: the booted digest is the expected one.
func booted(in Input) Verdict {
	if in.Facts.Booted.Digest != in.Digest {
		return failed(GateBooted, "running %s, expected %s", in.Facts.Booted.Digest, in.Digest)
	}
	return Verdict{OK: true}
}

// nodeReady: the Node exists, is Ready and isn't being deleted.
func nodeReady(in Input) Verdict {
	if in.Node == nil {
		return failed(GateNode, "the Node can't be read")
	}
	if in.Node.DeletionTimestamp != nil {
		return failed(GateNode, "the Node is being deleted")
	}
	for _, c := range in.Node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return Verdict{OK: true}
		}
		return failed(GateNode, "Ready is %s: %s", c.Status, c.Message)
	}
	return failed(GateNode, "the Node has no Ready condition")
}

// bootID: the agent and the kubelet report the same boot, so that a Node status
// from before the reboot doesn't count.
func bootID(in Input) Verdict {
	if have := in.Node.Status.NodeInfo.BootID; have != in.Facts.BootID {
		return failed(GateBootID, "the Node reports boot %s, the agent reports boot %s", have, in.Facts.BootID)
	}
	return Verdict{OK: true}
}

// kubeletVersion: the running kubelet is the one that the image contains.
func kubeletVersion(in Input) Verdict {
	want := in.Facts.Booted.KubeletVersion
	if have := in.Node.Status.NodeInfo.KubeletVersion; want != "" && have != want {
		return failed(GateKubelet, "running %s, the image contains %s", have, want)
	}
	return Verdict{OK: true}
}

// podsReady: the node's DaemonSet and static pods are Ready; if nothing was
// drained, all its pods.
func podsReady(in Input) Verdict {
	if !in.PodsListed {
		return failed(GatePods, "the node's pods can't be listed")
	}
	waiting, first := 0, ""
	for i := range in.Pods {
		p := &in.Pods[i]
		if !mustBeReady(p, in.Draining) || podReady(p) {
			continue
		}
		if waiting++; first == "" {
			first = p.Namespace + "/" + p.Name
		}
	}
	if waiting > 0 {
		return failed(GatePods, "%d not Ready, for example %s", waiting, first)
	}
	return Verdict{OK: true}
}

// mustBeReady reports whether the pod must be Ready for the node to be healthy.
func mustBeReady(p *corev1.Pod, draining bool) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	if !draining {
		return true
	}
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || owner != nil && owner.Kind == "DaemonSet"
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
