// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/gate"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
)

// quorumReady is how long a voter must be Ready to count as healthy.
const quorumReady = 30 * time.Second

// maxVoters is the maximum number of voters.
const maxVoters = 100

// Cluster implements Facts with the Kubernetes API.
type Cluster struct {
	// Cached lists Nodes, Hosts and NodeOSes, possibly from a cache.
	Cached client.Reader
	// Live reads from the API server, never from a cache.
	Live client.Reader
	// Namespace is the namespace of Lockstep's objects.
	Namespace string
	// OwnNode is the node that this process runs on; empty if unknown.
	OwnNode string
	// Removed reports whether a pool left Git: it claims no hosts, so that no pool
	// conflicts with it. Nil: no pool did.
	Removed func(pool string) bool
	Now     func() time.Time
}

// Observe implements Facts.
func (c Cluster) Observe(ctx context.Context, n *v1alpha1.NodeOS, slots map[string]ledger.Slot) (Observation, error) {
	var (
		nodes corev1.NodeList
		hosts v1alpha1.HostList
		pools v1alpha1.NodeOSList
	)
	if err := c.Cached.List(ctx, &nodes); err != nil {
		return Observation{}, fmt.Errorf("list the nodes: %w", err)
	}
	if err := c.Cached.List(ctx, &hosts, client.InNamespace(c.Namespace)); err != nil {
		return Observation{}, fmt.Errorf("list the hosts: %w", err)
	}
	if err := c.Cached.List(ctx, &pools, client.InNamespace(c.Namespace)); err != nil {
		return Observation{}, fmt.Errorf("list the pools: %w", err)
	}
	selector, err := Selector(n)
	if err != nil {
		return Observation{}, err
	}
	acting := slices.DeleteFunc(slices.Clone(pools.Items), func(p v1alpha1.NodeOS) bool { return c.Removed != nil && c.Removed(p.Name) })
	others, err := otherPools(acting, n)
	if err != nil {
		return Observation{}, err
	}
	byName := make(map[string]*v1alpha1.Host, len(hosts.Items))
	for i := range hosts.Items {
		byName[hosts.Items[i].Name] = &hosts.Items[i]
	}
	missing, err := c.missingNodes(ctx, slots, nodes.Items)
	if err != nil {
		return Observation{}, err
	}
	out := Observation{HostIDs: map[string]string{}, KubeletDead: map[string]bool{}, Pools: map[string]bool{string(n.UID): true}, ClusterNodes: len(nodes.Items)}
	for i := range pools.Items {
		out.Pools[string(pools.Items[i].UID)] = true
	}
	all := append(nodes.Items, missing...)
	for i := range all {
		node := &all[i]
		_, holds := slots[string(node.UID)]
		selected := selector.Matches(labels.Set(node.Labels))
		if !selected && !holds {
			continue
		}
		m := memberOf(node, byName[node.Name], n)
		m.Selected, m.RunsReconciler = selected, node.Name == c.OwnNode
		m.Conflict = conflictingPool(others, node)
		out.Members = append(out.Members, m)
		if h := byName[node.Name]; h != nil && h.Spec.Identity != nil {
			out.HostIDs[m.Node.UID] = h.Spec.Identity.HostID
		}
		if readyStatus(node).Status == corev1.ConditionUnknown {
			out.KubeletDead[node.Name] = true
		}
	}
	out.Quorum = c.quorum(ctx, n, all)
	return out, nil
}

// missingNodes reads the nodes that have a slot but aren't in the list, because
// the cache may be outdated.
func (c Cluster) missingNodes(ctx context.Context, slots map[string]ledger.Slot, nodes []corev1.Node) ([]corev1.Node, error) {
	seen := map[string]bool{}
	for i := range nodes {
		seen[string(nodes[i].UID)] = true
	}
	var out []corev1.Node
	for _, uid := range slices.Sorted(maps.Keys(slots)) {
		if seen[uid] {
			continue
		}
		var node corev1.Node
		err := c.Live.Get(ctx, client.ObjectKey{Name: slots[uid].Node}, &node)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read node %s, which has a slot: %w", slots[uid].Node, err)
		}
		if err == nil && string(node.UID) == uid {
			out = append(out, node)
		}
	}
	return out, nil
}

// Node implements Facts.
func (c Cluster) Node(ctx context.Context, name string) (rollout.Node, error) {
	var node corev1.Node
	if err := c.Live.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return rollout.Node{}, fmt.Errorf("read node %s: %w", name, err)
	}
	return nodeOf(&node), nil
}

// Health implements Facts.
func (c Cluster) Health(ctx context.Context, slot ledger.Slot, facts *nodeos.HostFacts, checks *gate.Checks) rollout.Health {
	in := gate.Input{Digest: slot.Target.Digest, Facts: facts}
	var node corev1.Node
	switch err := c.Live.Get(ctx, client.ObjectKey{Name: slot.Node}, &node); {
	case err == nil:
		in.Node = &node
		in.Draining = node.Annotations[v1alpha1.AnnotationCordonedBy] == slot.Owner()
	case !apierrors.IsNotFound(err):
		return rollout.Health{Blocking: sanitize.Line(err.Error())}
	}
	var pods corev1.PodList
	err := c.Live.List(ctx, &pods, &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", slot.Node), Limit: 1000,
	})
	in.Pods, in.PodsListed = pods.Items, err == nil
	v := gate.Evaluate(in, checks)
	h := rollout.Health{Observed: true, OK: v.OK}
	if !v.OK {
		h.Blocking = v.String()
	}
	return h
}

// Selector returns the node selector of a pool. An empty or invalid selector is
// a *rollout.SpecError.
func Selector(n *v1alpha1.NodeOS) (labels.Selector, error) {
	if n.Spec.All {
		return labels.Everything(), nil
	}
	if n.Spec.NodeSelector == nil {
		return nil, &rollout.SpecError{Field: "nodeSelector", Problem: "empty; set all: true to select every node"}
	}
	s := n.Spec.NodeSelector.LabelSelector()
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return nil, &rollout.SpecError{Field: "nodeSelector", Problem: "empty; set all: true to select every node"}
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, &rollout.SpecError{Field: "nodeSelector", Problem: err.Error()}
	}
	return selector, nil
}

// otherPool is the name and the node selector of another pool.
type otherPool struct {
	name     string
	selector labels.Selector
}

// otherPools returns the pools other than but. Pools that are being deleted or
// have an invalid selector are excluded.
func otherPools(all []v1alpha1.NodeOS, but *v1alpha1.NodeOS) ([]otherPool, error) {
	var out []otherPool
	for i := range all {
		if all[i].Name == but.Name || !all[i].DeletionTimestamp.IsZero() {
			continue
		}
		s, err := Selector(&all[i])
		var invalid *rollout.SpecError
		switch {
		case errors.As(err, &invalid):
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, otherPool{name: all[i].Name, selector: s})
	}
	return out, nil
}

func conflictingPool(others []otherPool, node *corev1.Node) string {
	for _, o := range others {
		if o.selector.Matches(labels.Set(node.Labels)) {
			return o.name
		}
	}
	return ""
}

// memberOf returns the part of a Member that the objects contain.
func memberOf(node *corev1.Node, host *v1alpha1.Host, n *v1alpha1.NodeOS) rollout.Member {
	m := rollout.Member{Node: nodeOf(node), Nonce: n.Annotations[v1alpha1.AnnotationRerun]}
	if host == nil {
		return m
	}
	for _, key := range []string{v1alpha1.AnnotationHold, v1alpha1.AnnotationPaused} {
		if reason, ok := host.Annotations[key]; ok && m.Hold == "" {
			m.Hold = sanitize.Line(reason)
			if m.Hold == "" {
				m.Hold = "no reason given"
			}
		}
	}
	if own := host.Annotations[v1alpha1.AnnotationRerun]; own != "" {
		m.Nonce += "/" + own
	}
	return m
}

func nodeOf(n *corev1.Node) rollout.Node {
	out := rollout.Node{
		Name: n.Name, UID: string(n.UID), Created: n.CreationTimestamp.Time, Labels: n.Labels,
		Unschedulable: n.Spec.Unschedulable, CordonedBy: n.Annotations[v1alpha1.AnnotationCordonedBy],
		BootID: n.Status.NodeInfo.BootID,
	}
	ready := readyStatus(n)
	out.Ready, out.ReadySince = ready.Status == corev1.ConditionTrue && n.DeletionTimestamp.IsZero(), ready.LastTransitionTime.Time
	for _, role := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, ok := n.Labels[role]; ok {
			out.ControlPlane = true
		}
	}
	return out
}

func readyStatus(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{Status: corev1.ConditionUnknown}
}

// quorum counts the voters of the control plane as spec.controlPlane.quorum
// defines them.
func (c Cluster) quorum(ctx context.Context, n *v1alpha1.NodeOS, nodes []corev1.Node) rollout.Quorum {
	if n.Spec.ControlPlane == nil {
		return rollout.Quorum{Problem: "spec.controlPlane.quorum is required for control-plane nodes"}
	}
	q := n.Spec.ControlPlane.Quorum
	switch {
	case q.None:
		return rollout.Quorum{None: true}
	case q.Nodes:
		return quorumOfNodes(nodes, c.Now())
	case q.PodSelector != nil:
		return c.quorumOfPods(ctx, q.PodSelector)
	default:
		return rollout.Quorum{Problem: "spec.controlPlane.quorum must set podSelector, nodes or none"}
	}
}

func quorumOfNodes(nodes []corev1.Node, now time.Time) rollout.Quorum {
	out := rollout.Quorum{Observed: true, HealthyOn: map[string]bool{}}
	for i := range nodes {
		n := nodeOf(&nodes[i])
		if !n.ControlPlane {
			continue
		}
		out.Voters++
		if n.Ready && now.Sub(n.ReadySince) >= quorumReady {
			out.Healthy++
			out.HealthyOn[n.Name] = true
		}
	}
	return out
}

func (c Cluster) quorumOfPods(ctx context.Context, s *v1alpha1.NodeSelector) rollout.Quorum {
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector())
	if err != nil {
		return rollout.Quorum{Problem: err.Error()}
	}
	var pods corev1.PodList
	if err := c.Live.List(ctx, &pods, &client.ListOptions{LabelSelector: selector, Limit: maxVoters}); err != nil {
		return rollout.Quorum{Problem: sanitize.Line(err.Error())}
	}
	if pods.Continue != "" {
		return rollout.Quorum{Problem: fmt.Sprintf("more than %d pods match spec.controlPlane.quorum.podSelector", maxVoters)}
	}
	now, out := c.Now(), rollout.Quorum{Observed: true, HealthyOn: map[string]bool{}}
	for i := range pods.Items {
		p := &pods.Items[i]
		out.Voters++
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue && now.Sub(cond.LastTransitionTime.Time) >= quorumReady && p.DeletionTimestamp == nil {
				out.Healthy++
				out.HealthyOn[p.Spec.NodeName] = true
			}
		}
	}
	if out.Voters == 0 {
		return rollout.Quorum{Problem: "no pod matches spec.controlPlane.quorum.podSelector"}
	}
	return out
}
