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

// world is everything that status shows, read once.
type world struct {
	sources  []v1alpha1.GitSource
	releases []v1alpha1.ClusterRelease
	pools    []v1alpha1.NodeOS
	hosts    []v1alpha1.Host
	trust    []v1alpha1.TrustPolicy
}

// readWorld lists our kinds; a cluster without our CRDs is an error that says
// how to install them.
func readWorld(ctx context.Context, c client.Client) (world, error) {
	var (
		w        world
		sources  v1alpha1.GitSourceList
		releases v1alpha1.ClusterReleaseList
		pools    v1alpha1.NodeOSList
		hosts    v1alpha1.HostList
		trust    v1alpha1.TrustPolicyList
	)
	for _, list := range []client.ObjectList{&sources, &releases, &pools, &hosts, &trust} {
		err := c.List(ctx, list, client.InNamespace(v1alpha1.Namespace))
		if meta.IsNoMatchError(err) {
			return w, fmt.Errorf("the cluster doesn't know %T: install Lockstep first, with kubectl apply --server-side -k config/default: %w", list, err)
		}
		if err != nil {
			return w, fmt.Errorf("list %T: %w", list, err)
		}
	}
	w.sources, w.releases, w.pools, w.hosts, w.trust = sources.Items, releases.Items, pools.Items, hosts.Items, trust.Items
	return w, nil
}

// objects returns what the arguments name, or all.
func (w *world) objects() []client.Object {
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

// find returns the object that was read with the same kind and name as want.
func (w *world) find(want client.Object) (client.Object, bool) {
	for _, obj := range w.objects() {
		if objectArg(obj) == objectArg(want) {
			return obj, true
		}
	}
	return nil, false
}
