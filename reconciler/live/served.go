// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// Served runs discovery again and returns the mapping of the kind in a served
// version. It returns nil without an error only if the kind and thus its objects
// no longer exist: discovery is complete and doesn't list it, and it has no
// CustomResourceDefinition. Call it only if Mapping finds nothing, since it costs
// a full discovery.
func (c *Cache) Served(ctx context.Context, gk schema.GroupKind) (*meta.RESTMapping, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.SyncTimeout)
	defer cancel()
	versions, err := servedVersions(ctx, c.mapper.client, gk.Group)
	if err != nil {
		return nil, fmt.Errorf("discover %s: %w", gk, err)
	}
	for _, version := range versions {
		resources, err := c.mapper.client.ServerResourcesForGroupVersionWithContext(ctx, schema.GroupVersion{Group: gk.Group, Version: version}.String())
		if err != nil {
			return nil, fmt.Errorf("discover %s in %s: %w", gk, version, err)
		}
		if mapping := mappingIn(resources, gk.WithVersion(version)); mapping != nil {
			return mapping, nil
		}
	}
	return nil, c.checkNoCRD(ctx, gk)
}

// servedVersions returns the versions of the group, the preferred one first.
func servedVersions(ctx context.Context, client *discovery.DiscoveryClient, group string) ([]string, error) {
	groups, _, failed, err := client.GroupsAndMaybeResourcesWithContext(ctx)
	if err != nil {
		return nil, err
	}
	for _, gv := range slices.SortedFunc(maps.Keys(failed), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) }) {
		if gv.Group == group {
			return nil, fmt.Errorf("%s: %w", gv, failed[gv])
		}
	}
	var out []string
	for i := range groups.Groups {
		g := &groups.Groups[i]
		if g.Name != group {
			continue
		}
		out = append(out, g.PreferredVersion.Version)
		for _, v := range g.Versions {
			if v.Version != g.PreferredVersion.Version {
				out = append(out, v.Version)
			}
		}
	}
	return out, nil
}

func mappingIn(resources *metav1.APIResourceList, gvk schema.GroupVersionKind) *meta.RESTMapping {
	for i := range resources.APIResources {
		r := &resources.APIResources[i]
		if r.Kind != gvk.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		mapping := &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeRoot}
		if r.Namespaced {
			mapping.Scope = meta.RESTScopeNamespace
		}
		return mapping
	}
	return nil
}

// checkNoCRD returns an error if the kind has a CustomResourceDefinition: even if
// no version is served, its objects still exist.
func (c *Cache) checkNoCRD(ctx context.Context, gk schema.GroupKind) error {
	crds := kinds.CustomResourceDefinition.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions")
	list, err := c.meta.Resource(crds).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("find CRD of %s: %w", gk, err)
	}
	for i := range list.Items {
		name := list.Items[i].Name
		if !strings.HasSuffix(name, "."+gk.Group) {
			continue
		}
		crd, err := c.dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find CRD of %s: %w", gk, err)
		}
		if kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind"); kind == gk.Kind {
			return fmt.Errorf("CustomResourceDefinition %s exists, but no version of %s is served", name, gk)
		}
	}
	return nil
}
