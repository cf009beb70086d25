// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package hosts manages a Host object for every Node that a pool selects,
// resolves the addresses of its agent, and reports the agent's state in its
// status.
//
// Plan and Status are pure; Syncer applies their results. The identity of a host
// is pinned in its Host at enrollment and never changed here: a recreated Node
// keeps its Host, and an agent with another identity is rejected. The OS in a
// status is reported by the agent, for display; no decision depends on it.
package hosts

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
)

// Port is the default port of agents.
const Port = 50700

// Labels and limits of Hosts that this package creates.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "lockstep"
	// removeAfter is how long a Node must be missing before its Host is deleted: a
	// recreated Node keeps the pinned identity.
	removeAfter = 10 * time.Minute
	// maxAddresses is the maximum number of addresses per host.
	maxAddresses = 4
)

// ReasonNodeGone is the reason of the condition Ready if a Host has no Node.
const ReasonNodeGone = "NodeGone"

// Changes are the changes of the Host objects.
type Changes struct {
	// Create are the names of the Hosts to create.
	Create []string
	// Delete are the Hosts created by Lockstep whose Node has been missing for
	// ten minutes.
	Delete []v1alpha1.Host
}

// Plan compares the selected Nodes with the existing Hosts. missingSince is since
// when a Host has had no Node, by name. It is pure.
func Plan(nodes []corev1.Node, pools []labels.Selector, existing []v1alpha1.Host, missingSince map[string]time.Time, now time.Time) Changes {
	var out Changes
	have := map[string]bool{}
	for i := range existing {
		have[existing[i].Name] = true
	}
	alive := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		alive[n.Name] = true
		selected := slices.ContainsFunc(pools, func(s labels.Selector) bool { return s.Matches(labels.Set(n.Labels)) })
		if selected && !have[n.Name] && n.DeletionTimestamp == nil {
			out.Create = append(out.Create, n.Name)
		}
	}
	for i := range existing {
		h := existing[i]
		since, missing := missingSince[h.Name]
		if !alive[h.Name] && h.Labels[labelManagedBy] == managedBy && h.DeletionTimestamp == nil && missing && now.Sub(since) >= removeAfter {
			out.Delete = append(out.Delete, h)
		}
	}
	slices.Sort(out.Create)
	slices.SortFunc(out.Delete, func(a, b v1alpha1.Host) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// newHost returns a new Host for the Node of that name.
func newHost(namespace, name string) *v1alpha1.Host {
	return &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{labelManagedBy: managedBy},
	}}
}

// Addresses returns the addresses of a host's agent, in order of preference: the
// Host's spec.address if set, else up to four internal IPs of the Node, in the
// Node's order.
func Addresses(host *v1alpha1.Host, node *corev1.Node) []string {
	if host.Spec.Address != "" {
		return []string{host.Spec.Address}
	}
	if node == nil {
		return nil
	}
	var out []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && len(out) < maxAddresses && net.ParseIP(a.Address) != nil {
			out = append(out, net.JoinHostPort(a.Address, strconv.Itoa(Port)))
		}
	}
	return out
}

// Targets returns the agents to connect to: those of the hosts with a pinned
// identity. Hosts that pin the same identity are excluded: they are ambiguous.
func Targets(hosts []v1alpha1.Host, nodes []corev1.Node) []fleet.Target {
	byName := map[string]*corev1.Node{}
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	count := map[string]int{}
	for i := range hosts {
		if id := hosts[i].Spec.Identity; id != nil {
			count[id.HostID]++
		}
	}
	var out []fleet.Target
	for i := range hosts {
		h := &hosts[i]
		if h.Spec.Identity == nil || count[h.Spec.Identity.HostID] != 1 || h.DeletionTimestamp != nil {
			continue
		}
		out = append(out, fleet.Target{HostID: h.Spec.Identity.HostID, Addresses: Addresses(h, byName[h.Name])})
	}
	return out
}
