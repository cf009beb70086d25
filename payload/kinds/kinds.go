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
	// Secret is core/v1 Secret.
	Secret = schema.GroupKind{Kind: "Secret"}
	// Service is core/v1 Service.
	Service = schema.GroupKind{Kind: "Service"}
	// PersistentVolumeClaim is core/v1 PersistentVolumeClaim.
	PersistentVolumeClaim = schema.GroupKind{Kind: "PersistentVolumeClaim"}
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
	// Permissions are read by workloads when they start: service accounts,
	// configuration, RBAC and classes.
	Permissions
	// Workloads are all other objects.
	Workloads
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
	{Kind: "ServiceAccount"}:        {Stage: Permissions},
	{Kind: "ConfigMap"}:             {Stage: Permissions},
	Secret:                          {Stage: Permissions},
	{Kind: "ResourceQuota"}:         {Stage: Permissions},
	{Kind: "LimitRange"}:            {Stage: Permissions},
	{Kind: "Pod"}:                   {Stage: Workloads, Body: true, Generations: true},
	{Kind: "ReplicationController"}: {Stage: Workloads, Body: true, Scalable: true},
	{Kind: "PersistentVolume"}:      {Stage: Workloads, Consent: true},
	PersistentVolumeClaim:           {Stage: Workloads, Health: ClaimHealth, Body: true, Consent: true},
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

	CustomResourceDefinition: {Stage: Foundations, Health: CRDHealth, Body: true, Generations: true, Contains: 1, Consent: true},
	APIService:               {Stage: Admission, Health: APIServiceHealth, Body: true},
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration"}: {Stage: Admission, Generations: true},

	ClusterOperator: {Stage: Workloads, Health: ClusterOperatorHealth, Body: true, Generations: true},
	NodeOS:          {Stage: Workloads, Health: NodeOSHealth, Body: true, Generations: true},
}

// groups contains the stages of groups.
var groups = map[string]Stage{
	"apiextensions.k8s.io":         Foundations,
	"rbac.authorization.k8s.io":    Permissions,
	"scheduling.k8s.io":            Permissions,
	"storage.k8s.io":               Permissions,
	"security.openshift.io":        Permissions,
	"flowcontrol.apiserver.k8s.io": Permissions,
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
	t := Traits{Stage: Workloads, Body: IsCustom(gk.Group), Generations: IsCustom(gk.Group)}
	if stage, ok := groups[gk.Group]; ok {
		t.Stage = stage
	}
	return t
}

// IsCustom reports whether a group isn't built into Kubernetes. Groups under k8s.io
// are reserved for Kubernetes (KEP-1111), except for those of add-ons under
// x-k8s.io.
func IsCustom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") || strings.HasSuffix(group, ".x-k8s.io")
}
