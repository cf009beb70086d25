// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package kinds contains the properties of kinds that Lockstep treats differently:
// the stage in which they are applied, how their readiness is evaluated, whether
// the API server counts their changes, and what a deletion affects.
package kinds

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The kinds used in other packages.
var (
	// Namespace is core/v1 Namespace.
	Namespace = schema.GroupKind{Kind: "Namespace"}
	// ServiceAccount is core/v1 ServiceAccount.
	ServiceAccount = schema.GroupKind{Kind: "ServiceAccount"}
	// ConfigMap is core/v1 ConfigMap.
	ConfigMap = schema.GroupKind{Kind: "ConfigMap"}
	// Secret is core/v1 Secret.
	Secret = schema.GroupKind{Kind: "Secret"}
	// Service is core/v1 Service.
	Service = schema.GroupKind{Kind: "Service"}
	// PersistentVolume is core/v1 PersistentVolume.
	PersistentVolume = schema.GroupKind{Kind: "PersistentVolume"}
	// PersistentVolumeClaim is core/v1 PersistentVolumeClaim.
	PersistentVolumeClaim = schema.GroupKind{Kind: "PersistentVolumeClaim"}
	// Pod is core/v1 Pod.
	Pod = schema.GroupKind{Kind: "Pod"}
	// Deployment is apps/v1 Deployment.
	Deployment = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	// DaemonSet is apps/v1 DaemonSet.
	DaemonSet = schema.GroupKind{Group: "apps", Kind: "DaemonSet"}
	// StatefulSet is apps/v1 StatefulSet.
	StatefulSet = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	// Job is batch/v1 Job.
	Job = schema.GroupKind{Group: "batch", Kind: "Job"}
	// CustomResourceDefinition is apiextensions.k8s.io/v1
	// CustomResourceDefinition.
	CustomResourceDefinition = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
	// ValidatingWebhookConfiguration and MutatingWebhookConfiguration are those of
	// admissionregistration.k8s.io/v1.
	ValidatingWebhookConfiguration = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}
	MutatingWebhookConfiguration   = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}
	// StorageClass is storage.k8s.io/v1 StorageClass.
	StorageClass = schema.GroupKind{Group: "storage.k8s.io", Kind: "StorageClass"}
	// PriorityClass is scheduling.k8s.io/v1 PriorityClass.
	PriorityClass = schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}
	// RuntimeClass is node.k8s.io/v1 RuntimeClass.
	RuntimeClass = schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"}
	// APIService is apiregistration.k8s.io/v1 APIService.
	APIService = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
	// ClusterOperator is OpenShift's config.openshift.io/v1 ClusterOperator.
	ClusterOperator = schema.GroupKind{Group: "config.openshift.io", Kind: "ClusterOperator"}
	// FeatureGate is OpenShift's config.openshift.io/v1 FeatureGate.
	FeatureGate = schema.GroupKind{Group: "config.openshift.io", Kind: "FeatureGate"}
	// NodeOS is lockstep.dev/v1alpha1 NodeOS.
	NodeOS = schema.GroupKind{Group: "lockstep.dev", Kind: "NodeOS"}
)

// Stage orders the objects of one component.
type Stage int

// The stages in their order.
const (
	// Foundations are required by other objects to exist: namespaces and CRDs.
	Foundations Stage = iota
	// Permissions are service accounts and RBAC. Token Secrets and workloads
	// need them.
	Permissions
	// Configuration is read by workloads when they start: ConfigMaps, Secrets,
	// claims, quotas and classes.
	Configuration
	// Workloads are the other built-in kinds.
	Workloads
	// Custom are custom resources. The workloads of their component process or
	// admit them.
	Custom
	// Admission are webhook configurations and aggregated APIs, which can block
	// other objects until their server runs.
	Admission
	// Stages is the number of stages.
	Stages
)

// Health is the contract by which the readiness of an object is evaluated.
type Health int

// The contracts. Package health implements them.
const (
	// Kstatus is the convention of Kubernetes' own kinds and of custom
	// resources (sigs.k8s.io/cli-utils).
	Kstatus Health = iota
	// JobHealth waits for completion.
	JobHealth
	// CRDHealth waits for a CRD to be established.
	CRDHealth
	// ServiceHealth waits for the address of a load balancer.
	ServiceHealth
	// ClaimHealth waits for a volume, unless the claim's storage class provides it
	// to the first pod that uses it.
	ClaimHealth
	// APIServiceHealth waits for an aggregated API to be available.
	APIServiceHealth
	// ClusterOperatorHealth is the cluster-version-operator's contract.
	ClusterOperatorHealth
	// NodeOSHealth waits for the hosts of a pool.
	NodeOSHealth
)

// Traits are the properties of one kind.
type Traits struct {
	// Stage in which a component's objects of the kind are applied.
	Stage Stage
	// Health is the contract for its readiness.
	Health Health
	// Body is true if readiness requires more than metadata, so that the live
	// cache must contain the whole object.
	Body bool
	// Generations is true if every change of the content is known to increase
	// metadata.generation. Objects of other kinds are checked with a request.
	Generations bool
	// Scalable is true if the API server resets spec.replicas to 1 when its
	// only field manager drops the field.
	Scalable bool
	// Contains is the rank of kinds whose deletion deletes other objects; 0 for
	// other kinds. Higher ranks are pruned later.
	Contains int
	// Consent is true if a release must confirm that an object is pruned,
	// since data or other objects would be deleted with it.
	Consent bool
}

// table contains the kinds that differ from their group.
var table = map[schema.GroupKind]Traits{
	Namespace:                       {Stage: Foundations, Contains: 2, Consent: true},
	ServiceAccount:                  {Stage: Permissions},
	ConfigMap:                       {Stage: Configuration},
	Secret:                          {Stage: Configuration},
	{Kind: "ResourceQuota"}:         {Stage: Configuration},
	{Kind: "LimitRange"}:            {Stage: Configuration},
	Pod:                             {Stage: Workloads, Body: true, Generations: true},
	{Kind: "ReplicationController"}: {Stage: Workloads, Body: true, Scalable: true},
	PersistentVolume:                {Stage: Configuration, Consent: true},
	PersistentVolumeClaim:           {Stage: Configuration, Health: ClaimHealth, Body: true, Consent: true},
	Service:                         {Stage: Workloads, Health: ServiceHealth}, // load balancers also need the body: NeedsBody

	Deployment:                          {Stage: Workloads, Body: true, Generations: true, Scalable: true},
	DaemonSet:                           {Stage: Workloads, Body: true, Generations: true},
	StatefulSet:                         {Stage: Workloads, Body: true, Generations: true, Scalable: true},
	{Group: "apps", Kind: "ReplicaSet"}: {Stage: Workloads, Body: true, Scalable: true},
	Job:                                 {Stage: Workloads, Health: JobHealth, Body: true, Generations: true},
	{Group: "batch", Kind: "CronJob"}:   {Stage: Workloads, Generations: true},
	{Group: "policy", Kind: "PodDisruptionBudget"}: {Stage: Workloads, Body: true, Generations: true},

	{Group: "networking.k8s.io", Kind: "Ingress"}:       {Stage: Workloads, Generations: true},
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: {Stage: Workloads, Generations: true},

	CustomResourceDefinition:       {Stage: Foundations, Health: CRDHealth, Body: true, Generations: true, Contains: 1, Consent: true},
	APIService:                     {Stage: Admission, Health: APIServiceHealth, Body: true},
	ValidatingWebhookConfiguration: {Stage: Admission, Generations: true},

	ClusterOperator: {Stage: Custom, Health: ClusterOperatorHealth, Body: true, Generations: true},
	NodeOS:          {Stage: Custom, Health: NodeOSHealth, Body: true, Generations: true},
}

// groups contains the stages of groups.
var groups = map[string]Stage{
	"apiextensions.k8s.io":         Foundations,
	"rbac.authorization.k8s.io":    Permissions,
	"security.openshift.io":        Permissions,
	"scheduling.k8s.io":            Configuration,
	"storage.k8s.io":               Configuration,
	"node.k8s.io":                  Configuration,
	"resource.k8s.io":              Configuration,
	"flowcontrol.apiserver.k8s.io": Configuration,
	"admissionregistration.k8s.io": Admission,
	"apiregistration.k8s.io":       Admission,
}

// Of returns the traits of a kind. Kinds without an entry have those of their
// group: custom resources have a status and generations, other kinds of
// Kubernetes have neither.
func Of(gk schema.GroupKind) Traits {
	if t, ok := table[gk]; ok {
		return t
	}
	t := Traits{Stage: stageOf(gk.Group), Body: IsCustom(gk.Group), Generations: IsCustom(gk.Group)}
	return t
}

// stageOf returns the stage of a group's kinds.
func stageOf(group string) Stage {
	if stage, ok := groups[group]; ok {
		return stage
	}
	if IsCustom(group) {
		return Custom
	}
	return Workloads
}

// IsCustom reports whether a group isn't built into Kubernetes. Groups under k8s.io
// are reserved for Kubernetes (KEP-1111), except for those of add-ons under
// x-k8s.io.
func IsCustom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") || strings.HasSuffix(group, ".x-k8s.io")
}
