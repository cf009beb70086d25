// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the Go types of the API group lockstep.dev, version
// v1alpha1.
//
// All kinds are namespaced and live in one namespace, [Namespace]. Users declare
// GitSource, ClusterRelease, NodeOS and TrustPolicy; the reconciler creates one
// Host per Node. Every kind follows kstatus: the conditions Ready, Reconciling
// and Stalled, and status.observedGeneration.
//
// Every string and list has a maximum, so that the cost of its validation
// rules is bounded and the largest object still fits into etcd.
//
// +kubebuilder:object:generate=true
// +groupName=lockstep.dev
package v1alpha1
