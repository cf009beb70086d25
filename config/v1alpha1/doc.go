// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is what people declare and what Lockstep reports: the Go
// types of the API group lockstep.dev, version v1alpha1.
//
// All kinds are namespaced and live in one namespace, [Namespace]. GitSource,
// ClusterRelease, NodeOS and TrustPolicy are declared; Host is made by the
// reconciler, one a node. Every kind follows kstatus: the conditions Ready,
// Reconciling and Stalled, and status.observedGeneration, so that kubectl wait
// and other tools can tell how it stands.
//
// Every string and list has a maximum, so that the cost of its validation
// rules is bounded and the largest object still fits into etcd.
//
// +kubebuilder:object:generate=true
// +groupName=lockstep.dev
package v1alpha1
