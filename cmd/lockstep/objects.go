// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// world is the objects of all kinds of Lockstep in a cluster, read once.
type objects struct {
	sources  []v1alpha1.GitSource
	releases []v1alpha1.ClusterRelease
	pools    []v1alpha1.NodeOS
	hosts    []v1alpha1.Host
	trust    []v1alpha1.TrustPolicy
}

// readObjects lists them. A cluster without the CRDs is an error that explains how
// to install them.
func readObjects(ctx context.Context, c client.Client) (objects, error) {
	var (
		w        objects
		sources  v1alpha1.GitSourceList
		releases v1alpha1.ClusterReleaseList
		pools    v1alpha1.NodeOSList
		hosts    v1alpha1.HostList
		trust    v1alpha1.TrustPolicyList
	)
	for _, list := range []client.ObjectList{&sources, &releases, &pools, &hosts, &trust} {
		err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace))
		if meta.IsNoMatchError(err) {
			return w, fmt.Errorf("list %T: Lockstep isn't installed in this cluster; run kubectl apply --server-side -k config/default: %w", list, err)
		}
		if err != nil {
			return w, fmt.Errorf("list %T: %w", list, err)
		}
	}
	w.sources, w.releases, w.pools, w.hosts, w.trust = sources.Items, releases.Items, pools.Items, hosts.Items, trust.Items
	return w, nil
}

// list returns all of them: policies, sources, releases, pools, hosts.
func (w *objects) list() []client.Object {
	var out []client.Object
	for i := range w.trust {
		out = append(out, &w.trust[i])
	}
	for i := range w.sources {
		out = append(out, &w.sources[i])
	}
	for i := range w.releases {
		out = append(out, &w.releases[i])
	}
	for i := range w.pools {
		out = append(out, &w.pools[i])
	}
	for i := range w.hosts {
		out = append(out, &w.hosts[i])
	}
	return out
}

// find returns the object with the kind and name of want.
func (w *objects) find(want client.Object) (client.Object, bool) {
	for _, obj := range w.list() {
		if objectArg(obj) == objectArg(want) {
			return obj, true
		}
	}
	return nil, false
}
