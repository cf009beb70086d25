// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Scope is whether the objects of a kind are in namespaces.
type Scope int

// The scopes.
const (
	// UnknownScope is that of kinds that only the API server has.
	UnknownScope Scope = iota
	// Namespaced objects have a namespace.
	Namespaced
	// ClusterScoped objects don't.
	ClusterScoped
)

// scoped are the kinds of one API group.
type scoped struct{ namespaced, cluster []string }

// scopes contains the kinds that can be applied, by group. The API server's
// discovery is compared with it in a test.
var scopes = map[string]scoped{
	"": {
		[]string{"ConfigMap", "Endpoints", "Event", "LimitRange", "PersistentVolumeClaim", "Pod", "PodTemplate", "ReplicationController", "ResourceQuota", "Secret", "Service", "ServiceAccount"},
		[]string{"Namespace", "Node", "PersistentVolume"},
	},
	"admissionregistration.k8s.io": {nil, []string{
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
	}},
	"apiextensions.k8s.io":         {nil, []string{"CustomResourceDefinition"}},
	"apiregistration.k8s.io":       {nil, []string{"APIService"}},
	"apps":                         {[]string{"ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}, nil},
	"autoscaling":                  {[]string{"HorizontalPodAutoscaler"}, nil},
	"batch":                        {[]string{"CronJob", "Job"}, nil},
	"certificates.k8s.io":          {nil, []string{"CertificateSigningRequest", "ClusterTrustBundle"}},
	"coordination.k8s.io":          {[]string{"Lease", "LeaseCandidate"}, nil},
	"discovery.k8s.io":             {[]string{"EndpointSlice"}, nil},
	"events.k8s.io":                {[]string{"Event"}, nil},
	"flowcontrol.apiserver.k8s.io": {nil, []string{"FlowSchema", "PriorityLevelConfiguration"}},
	"networking.k8s.io":            {[]string{"Ingress", "NetworkPolicy"}, []string{"IngressClass", "IPAddress", "ServiceCIDR"}},
	"node.k8s.io":                  {nil, []string{"RuntimeClass"}},
	"policy":                       {[]string{"PodDisruptionBudget"}, nil},
	"rbac.authorization.k8s.io":    {[]string{"Role", "RoleBinding"}, []string{"ClusterRole", "ClusterRoleBinding"}},
	"resource.k8s.io":              {[]string{"ResourceClaim", "ResourceClaimTemplate"}, []string{"DeviceClass", "DeviceTaintRule", "ResourceSlice"}},
	"scheduling.k8s.io":            {nil, []string{"PriorityClass"}},
	"storage.k8s.io":               {[]string{"CSIStorageCapacity"}, []string{"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"}},
	ClusterOperator.Group:          {nil, []string{ClusterOperator.Kind, FeatureGate.Kind}},
	NodeOS.Group:                   {[]string{NodeOS.Kind}, nil},
}

// ScopeOf returns the scope of a kind that every API server has, or UnknownScope.
func ScopeOf(gk schema.GroupKind) Scope {
	switch group := scopes[gk.Group]; {
	case slices.Contains(group.namespaced, gk.Kind):
		return Namespaced
	case slices.Contains(group.cluster, gk.Kind):
		return ClusterScoped
	default:
		return UnknownScope
	}
}

// InGroup returns the kinds of a built-in API group, or nil.
func InGroup(group string) []string {
	return slices.Concat(scopes[group].namespaced, scopes[group].cluster)
}
