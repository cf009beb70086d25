// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package gate says whether a host that booted a new system is well enough to
// keep it.
//
// Evaluate is pure: it's given the Node, its pods and what the agent reports,
// and returns a verdict that names the first thing that isn't level. Whether
// the verdict has held for long enough is the rollout's to count. All gates
// fail closed: what isn't known isn't well.
package gate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Names of the built-in gates, as they stand before a verdict's message.
const (
	GateAgent  = "agent"
	GateBooted = "booted"
	GateNode   = "node"
	GateBootID = "bootID"
	GateOS     = "kubelet"
	GatePods   = "pods"
)

// Input is what the gates look at.
type Input struct {
	// Digest is the OS image that must run.
	Digest string
	// Facts are the agent's, nil while it can't be reached.
	Facts *nodeos.HostFacts
	// Node is the Kubernetes object; nil if it can't be read.
	Node *corev1.Node
	// Pods are those on the node; PodsKnown says that they could be listed.
	Pods       []corev1.Pod
	PodsListed bool
	// Draining says that the node is still cordoned by us, so that no pods
	// but its own come back before it's released.
	Draining bool
}

// Verdict says whether all gates hold.
type Verdict struct {
	// OK says that they do.
	OK bool
	// Gate is the first that doesn't, Message what it found, for people.
	Gate, Message string
}

// String is the verdict in a line.
func (v Verdict) String() string {
	if v.OK {
		return "all gates hold"
	}
	return v.Gate + ": " + v.Message
}

// Evaluate runs the built-in gates, then the checks, and returns the first
// failure.
func Evaluate(in Input, checks *Checks) Verdict {
	for _, gate := range []func(Input) Verdict{agent, booted, nodeReady, bootID, osVersion, podsReady} {
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

// agent: the host itself must say that it's well.
func agent(in Input) Verdict {
	switch {
	case in.Facts == nil:
		return failed(GateAgent, "the agent can't be reached")
	case in.Facts.Operation != nil && in.Facts.Operation.State == nodeos.OperationRunning:
		return failed(GateAgent, "the agent is still at %s: %s", in.Facts.Operation.Sequence, in.Facts.Operation.Phase)
	case in.Facts.Operation != nil && in.Facts.Operation.State == nodeos.OperationPaused:
		return failed(GateAgent, "the agent paused: %s", in.Facts.Operation.Message)
	}
	return Verdict{OK: true}
}

// booted: what runs is what was wanted, by digest.
func booted(in Input) Verdict {
	if in.Facts.Booted.Digest != in.Digest {
		return failed(GateBooted, "%s runs, %s is wanted", in.Facts.Booted.Digest, in.Digest)
	}
	return Verdict{OK: true}
}

// nodeReady: Kubernetes sees the node, Ready and not going away.
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

// bootID: agent and kubelet speak of the same boot, so that an old Node status
// isn't taken for the health of the new system.
func bootID(in Input) Verdict {
	if have := in.Node.Status.NodeInfo.BootID; have != in.Facts.BootID {
		return failed(GateBootID, "the Node reports boot %s, the agent boot %s", have, in.Facts.BootID)
	}
	return Verdict{OK: true}
}

// osVersion: the kubelet is the one that the image carries.
func osVersion(in Input) Verdict {
	want := in.Facts.Booted.KubeletVersion
	if have := in.Node.Status.NodeInfo.KubeletVersion; want != "" && have != want {
		return failed(GateOS, "kubelet %s runs, the image carries %s", have, want)
	}
	return Verdict{OK: true}
}

// podsReady: the node's own pods (DaemonSets, static pods, and, where nothing
// was drained, all) are Ready again.
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
		return failed(GatePods, "%d pods aren't Ready, such as %s", waiting, first)
	}
	return Verdict{OK: true}
}

// expected says whether the pod must be Ready for the node to be well.
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
