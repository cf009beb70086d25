// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "context"

// V1Alpha2Controller runs the controllers of a host's resources. The name is
// the document's: the second generation of the runtime's state.
type V1Alpha2Controller interface {
	// Run runs the controllers until ctx ends or the drainer drains.
	Run(ctx context.Context, drainer *Drainer) error
	// DependencyGraph returns which controller reads and writes what.
	DependencyGraph() (DependencyGraph, error)
}

// V1Alpha2State is a host's resources.
type V1Alpha2State interface {
	// Resources returns the resources.
	Resources() Resources
	// Namespaces lists the known namespaces.
	Namespaces() []string
	// Types lists the known resource types.
	Types() []string
	// SetConfig publishes a machine configuration as a resource.
	SetConfig(p Provider) error
}

// Resources are a host's versioned resources.
type Resources interface {
	// Get returns a resource, or an error that matches ErrNoResource.
	Get(ctx context.Context, key ResourceKey) (Resource, error)
	// List returns the resources of a namespace and type, ordered by name.
	List(ctx context.Context, namespace, kind string) ([]Resource, error)
	// Put creates or replaces a resource. Its Version must be the stored one
	// (0 to create), its Owner the owner; the stored resource is returned.
	Put(ctx context.Context, r Resource) (Resource, error)
	// Delete removes a resource of that owner.
	Delete(ctx context.Context, key ResourceKey, owner string) error
	// Watch calls f with the resources of a namespace and type that there
	// are, then with each change, until ctx ends or f returns an error.
	Watch(ctx context.Context, namespace, kind string, f func(ResourceEvent) error) error
}

// ResourceKey names a resource.
type ResourceKey struct {
	// Namespace, Type and Name together are unique.
	Namespace string
	// Type is the resource's type.
	Type string
	// Name is the resource's name.
	Name string
}

// Resource is a versioned value.
type Resource struct {
	ResourceKey
	// Version counts the resource's changes from 1.
	Version uint64
	// Owner is the controller that alone may change it; empty means anyone.
	Owner string
	// Spec is the value; it's not changed after Put.
	Spec any
}

// ResourceEvent is a change of a resource.
type ResourceEvent struct {
	// Resource is the resource after the change, or the last one before its
	// deletion.
	Resource Resource
	// Deleted says that it was removed.
	Deleted bool
	// Synced says that all that there was when the watch began has been
	// delivered; Resource is empty then.
	Synced bool
}

// DependencyGraph says which controller reads and writes which resources.
type DependencyGraph struct {
	// Edges are ordered by controller, direction and resource.
	Edges []DependencyEdge
}

// DependencyEdge is a controller's relation to a type of resources.
type DependencyEdge struct {
	// Controller is the controller's name.
	Controller string
	// Output says that it writes; else it reads.
	Output bool
	// Namespace and Type are what it reads or writes.
	Namespace string
	// Type is the resource type.
	Type string
}
