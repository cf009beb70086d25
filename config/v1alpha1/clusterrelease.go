// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a ClusterRelease besides the common ones; the first six
// are those of OpenShift's ClusterVersion.
const (
	ConditionAvailable        = "Available"
	ConditionProgressing      = "Progressing"
	ConditionFailing          = "Failing"
	ConditionReleaseAccepted  = "ReleaseAccepted"
	ConditionUpgradeable      = "Upgradeable"
	ConditionRetrievedUpdates = "RetrievedUpdates"
	ConditionInvalid          = "Invalid"
	ConditionReleaseVerified  = "ReleaseVerified"
	ConditionFieldYielded     = "FieldYielded"
)

// DeletionPolicy says what becomes of a set's objects when its owner goes.
//
// +kubebuilder:validation:Enum=Orphan;Prune
type DeletionPolicy string

// The deletion policies.
const (
	// DeletionOrphan leaves the objects in the cluster.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionPrune deletes them by the rules of pruning.
	DeletionPrune DeletionPolicy = "Prune"
)

// ClusterRelease declares the release that the cluster should run.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rel,categories=lockstep
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.applied.version`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress.summary`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Failing",type=string,JSONPath=`.status.conditions[?(@.type=="Failing")].status`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="Progressing")].lastTransitionTime`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type ClusterRelease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ClusterReleaseSpec   `json:"spec"`
	Status ClusterReleaseStatus `json:"status,omitempty"`
}

// ClusterReleaseSpec is the desired release and how it is applied.
type ClusterReleaseSpec struct {
	// Desired release.
	Desired DesiredRelease `json:"desired"`
	// Rollback allows going back to a version that isn't the preceding
	// completed one, or that is of another minor version; it is spent on
	// completion.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// DependsOn names ClusterReleases that must be level first.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	DependsOn []string `json:"dependsOn,omitempty"`
	// Profile is the include profile of the payload's annotations.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Profile string `json:"profile,omitempty"`
	// FeatureSet selects manifests by their feature-set annotation.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	FeatureSet string `json:"featureSet,omitempty"`
	// FeatureGates that are enabled. With none the manifests' feature-gate
	// annotations aren't evaluated: all of them are included.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	FeatureGates []string `json:"featureGates,omitempty"`
	// Capabilities that are enabled.
	// +optional
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	// Overrides each leave one object to people.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Overrides []Override `json:"overrides,omitempty"`
	// Adopt names tools whose objects may be taken over.
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=helm;flux;argo
	// +listType=set
	// +optional
	Adopt []string `json:"adopt,omitempty"`
	// Prune says whether objects that left the payload are deleted.
	// +optional
	Prune *PrunePolicy `json:"prune,omitempty"`
	// DeletionPolicy says what becomes of the objects when this one goes.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Components carry a policy of their own.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Components []ComponentPolicy `json:"components,omitempty"`
	// ServiceAccountName is impersonated to apply.
	// +kubebuilder:default=lockstep-applier
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Timeout is how long a component may take to become level.
	// +kubebuilder:default="60m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// Interval of the full safety pass; drift is repaired by watches.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="interval must be between 10s and 24h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`
	// Suspend stops applying.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// DesiredRelease names a release by version and digest, or by a path in the
// repository that declares it.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) != has(self.path)",message="exactly one of image and path must be set"
type DesiredRelease struct {
	// Version that the payload's metadata must state.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// Image as repository@sha256:<hex>; a tag is refused.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@\s]+@sha256:[0-9a-f]{64}$`
	// +optional
	Image string `json:"image,omitempty"`
	// Path of the payload in the declaring repository.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must stay inside the repository"
	// +optional
	Path string `json:"path,omitempty"`
	// Signatures are digests of signature material to fetch first.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	// +listType=set
	// +optional
	Signatures []string `json:"signatures,omitempty"`
}

// Rollback names the version that may be gone back to, and why.
type Rollback struct {
	// To is the version.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	To string `json:"to,omitempty"`
	// Reason goes into the history.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Reason string `json:"reason,omitempty"`
}

// Capabilities are optional parts of a payload. What was enabled once stays
// enabled: it can't be taken from a running cluster.
type Capabilities struct {
	// Baseline is All, None or one of OpenShift's sets of capabilities.
	// +kubebuilder:validation:Enum=All;None;vCurrent;v4.11;v4.12;v4.13;v4.14;v4.15;v4.16;v4.17;v4.18
	// +kubebuilder:default=All
	// +optional
	Baseline string `json:"baseline,omitempty"`
	// Additional capabilities by name.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Additional []string `json:"additional,omitempty"`
}

// Override leaves one object of the payload to people.
type Override struct {
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Unmanaged true leaves the object alone.
	Unmanaged bool `json:"unmanaged"`
	// Reason is shown with the override.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// Expires ends the override; it is shown before and after.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
}

// PrunePolicy says whether and how much may be pruned at once.
type PrunePolicy struct {
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// MaxPercent of the set in percent that one new version may prune.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxPercent *int32 `json:"maxPercent,omitempty"`
}

// ComponentPolicy says what an unhealthy component does to the rest.
type ComponentPolicy struct {
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// +kubebuilder:validation:Enum=block;warn
	// +kubebuilder:default=block
	// +optional
	OnUnhealthy string `json:"onUnhealthy,omitempty"`
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// ClusterReleaseStatus is what was asked for, what was verified, and what is
// level.
type ClusterReleaseStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Desired is what is asked for.
	// +optional
	Desired *ReleaseRef `json:"desired,omitempty"`
	// Accepted is what was verified, loaded and passed the preconditions.
	// +optional
	Accepted *ReleaseRef `json:"accepted,omitempty"`
	// Applied is what is level.
	// +optional
	Applied *ReleaseRef `json:"applied,omitempty"`
	// +optional
	Progress *ReleaseProgress `json:"progress,omitempty"`
	// VersionHash of the accepted payload's manifests.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	VersionHash string `json:"versionHash,omitempty"`
	// Payload says what was met when the accepted payload was loaded.
	// +optional
	Payload *PayloadStatus `json:"payload,omitempty"`
	// Capabilities of the accepted payload, absent where it has none.
	// +optional
	Capabilities *CapabilitiesStatus `json:"capabilities,omitempty"`
	// Warnings that preconditions gave for the accepted release; they hold
	// nothing back.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Warnings []string `json:"warnings,omitempty"`
	// History, newest first.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	History []ReleaseHistory `json:"history,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PayloadStatus says what was met at the load of a payload; lockstep release
// inspect lists it.
type PayloadStatus struct {
	// Warnings counts oddities that were accepted.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Excluded counts documents that the profile, the feature set, the feature
	// gates or the capabilities leave out.
	// +optional
	Excluded int32 `json:"excluded,omitempty"`
}

// CapabilitiesStatus says which capabilities are in force.
type CapabilitiesStatus struct {
	// Enabled are those in force.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Enabled []string `json:"enabled,omitempty"`
	// Implicit are those of them that the spec doesn't ask for: they were
	// enabled before, or hold objects that are managed, and so stay.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Implicit []string `json:"implicit,omitempty"`
}

// ReleaseRef names one release.
type ReleaseRef struct {
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`
	// Verified says that signatures satisfied the trust policy.
	// +optional
	Verified bool `json:"verified,omitempty"`
	// Evidence is who signed, bounded.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Evidence []string `json:"evidence,omitempty"`
}

// ReleaseProgress is how far the worker is.
type ReleaseProgress struct {
	// State of the sync worker: Initial, Updating, Reconciling, Error.
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// Step as the worker names it.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Step string `json:"step,omitempty"`
	// Summary is "done/total" for printing.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Summary string `json:"summary,omitempty"`
	Done    int32  `json:"done"`
	Total   int32  `json:"total"`
	// +optional
	Skipped int32 `json:"skipped,omitempty"`
	// +optional
	RunLevel int32 `json:"runLevel,omitempty"`
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// +optional
	LastProgress *metav1.Time `json:"lastProgress,omitempty"`
	// Blocking objects, the root cause first.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Blocking []Blocking `json:"blocking,omitempty"`
}

// Blocking is an object that keeps a release from being level.
type Blocking struct {
	// Object as "apps/v1 Deployment web/api".
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object"`
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// Retriable says that it may go away without anybody's doing.
	// +optional
	Retriable bool `json:"retriable"`
	// +optional
	RetryAt *metav1.Time `json:"retryAt,omitempty"`
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// ReleaseHistory is one release that was started here.
type ReleaseHistory struct {
	// State is Completed or Partial.
	// +kubebuilder:validation:Enum=Completed;Partial
	State string `json:"state"`
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`
	// Revision of the source that asked for it.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Revision string `json:"revision,omitempty"`
	Verified bool   `json:"verified"`
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Evidence []string `json:"evidence,omitempty"`
	// AcceptedRisks says which blocking preconditions were waived.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	AcceptedRisks string `json:"acceptedRisks,omitempty"`
	// RollbackReason is why it was gone back to, as spec.rollback.reason said.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	RollbackReason string       `json:"rollbackReason,omitempty"`
	StartedTime    metav1.Time  `json:"startedTime"`
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// ClusterReleaseList is a list of ClusterRelease.
//
// +kubebuilder:object:root=true
type ClusterReleaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterRelease `json:"items"`
}

// GetConditions returns the conditions of the object.
func (r *ClusterRelease) GetConditions() []metav1.Condition { return r.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (r *ClusterRelease) SetConditions(c []metav1.Condition) { r.Status.Conditions = c }
