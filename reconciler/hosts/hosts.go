// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package hosts keeps a Host object for every Node that a pool selects, says
// where its agent is reached, and shows what the agent reports.
//
// Plan and Status are pure; Syncer does what they say. The identity of a host
// is pinned in its Host by whoever enrols it and is never changed here: a Node
// that comes back under the same name finds its Host, and an agent with
// another identity isn't even dialled. What a status shows of the OS is the
// agent's word, for people; no decision is taken from it.
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

// Port is where an agent listens unless its Host says otherwise.
const Port = 50700

// Labels and times of Hosts that this package makes.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "lockstep"
	// removeAfter is how long a Node must be away before its Host is removed: one
	// that is registered anew keeps its pinned identity.
	removeAfter = 10 * time.Minute
	// maxAddresses is how many addresses of a host are tried.
	maxAddresses = 4
)

// ReasonNodeGone is the reason of Ready while a Host's Node isn't there.
const ReasonNodeGone = "NodeGone"

// Changes is what must be done to the Host objects.
type Changes struct {
	// Create are the names of Hosts to make.
	Create []string
	// Delete are Hosts of ours whose Node is gone for good.
	Delete []v1alpha1.Host
}

// Plan compares the Nodes that pools select with the Hosts there are. gone says
// since when the Node of a Host has been missing, by name. It's pure.
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

// newHost returns the Host of a Node.
func newHost(namespace, name string) *v1alpha1.Host {
	return &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{labelManagedBy: managedBy},
	}}
}

// Addresses returns where the agent of a host is dialled, in order: the Host's
// own address alone, or else each internal address of the Node, in the Node's
// order, which is that of the cluster's address families.
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

// Targets returns whom the fleet keeps a connection to: the hosts with a
// pinned identity. Two Hosts that pin the same one are both left out: who is
// who can't be told.
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
