// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the declared kinds.
const Group = "lockstep.dev"

// Namespace is the namespace of Lockstep's own objects; the reconciler reads
// its kinds in no other.
const Namespace = "lockstep-system"

// GroupVersion returns the group and version of this package's types.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// Kind names, as in manifests.
const (
	KindGitSource      = "GitSource"
	KindClusterRelease = "ClusterRelease"
	KindNodeOS         = "NodeOS"
	KindHost           = "Host"
	KindTrustPolicy    = "TrustPolicy"
)

// AddToScheme registers the types of this package with a scheme. The error is
// always nil; scheme builders require the result.
func AddToScheme(s *runtime.Scheme) error {
	gv := GroupVersion()
	s.AddKnownTypes(gv,
		&GitSource{}, &GitSourceList{},
		&ClusterRelease{}, &ClusterReleaseList{},
		&NodeOS{}, &NodeOSList{},
		&Host{}, &HostList{},
		&TrustPolicy{}, &TrustPolicyList{},
	)
	metav1.AddToGroupVersion(s, gv)
	return nil
}
