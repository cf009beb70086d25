// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "context"

// V1Alpha2Controller runs the controllers of a host's resources.
type V1Alpha2Controller interface {
	// Run runs the controllers until ctx ends or the drainer drains.
	Run(ctx context.Context, drainer *Drainer) error
	// DependencyGraph returns the inputs and outputs of each controller.
	DependencyGraph() (DependencyGraph, error)
}

// V1Alpha2State holds a host's resources.
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
	// Put creates or replaces a resource and returns the stored one. Version
	// must be the stored version (0 to create) and Owner must be the owner.
	Put(ctx context.Context, r Resource) (Resource, error)
	// Delete removes a resource that belongs to owner.
	Delete(ctx context.Context, key ResourceKey, owner string) error
	// Watch calls f with the existing resources of a namespace and type, then
	// with each change, until ctx ends or f returns an error.
	Watch(ctx context.Context, namespace, kind string, f func(ResourceEvent) error) error
}

// ResourceKey identifies a resource; its three fields together are unique.
type ResourceKey struct {
	// Namespace is the resource's namespace.
	Namespace string
	// Type is the resource's type.
	Type string
	// Name is the resource's name.
	Name string
}

// Resource is a versioned value.
type Resource struct {
	ResourceKey
	// Version is the number of changes of the resource, from 1.
	Version uint64
	// Owner is the only controller that may change it; empty means any.
	Owner string
	// Spec is the value; it's immutable after Put.
	Spec any
}

// ResourceEvent is a change of a resource.
type ResourceEvent struct {
	// Resource is the resource after the change, or its last version before
	// deletion.
	Resource Resource
	// Deleted means that the resource was removed.
	Deleted bool
	// Synced marks the end of the resources that existed when the watch began;
	// Resource is empty.
	Synced bool
}

// DependencyGraph lists the resources that each controller reads and writes.
type DependencyGraph struct {
	// Edges are ordered by controller, direction and resource.
	Edges []DependencyEdge
}

// DependencyEdge is one input or output of a controller.
type DependencyEdge struct {
	// Controller is the controller's name.
	Controller string
	// Output means that the controller writes the type; else it reads it.
	Output bool
	// Namespace is the namespace of the type.
	Namespace string
	// Type is the resource type.
	Type string
}
