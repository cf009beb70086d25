// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a ClusterRelease besides the common ones; the first six
// are those of OpenShift's ClusterVersion.
const (
	ConditionAvailable       = "Available"
	ConditionProgressing     = "Progressing"
	ConditionFailing         = "Failing"
	ConditionReleaseAccepted = "ReleaseAccepted"
	ConditionUpgradeable     = "Upgradeable"
	ConditionInvalid         = "Invalid"
	ConditionReleaseVerified = "ReleaseVerified"
	ConditionFieldYielded    = "FieldYielded"
	// ConditionPruneComplete is False while objects of earlier releases are still
	// being deleted, which doesn't delay the release.
	ConditionPruneComplete = "PruneComplete"
	// ConditionInventoryIncomplete is set only while it is true.
	ConditionInventoryIncomplete = "InventoryIncomplete"
)

// DeletionPolicy defines what happens to the applied objects when their
// ClusterRelease is deleted.
//
// +kubebuilder:validation:Enum=Orphan;Prune
type DeletionPolicy string

// The deletion policies.
const (
	// DeletionOrphan keeps the objects in the cluster.
	DeletionOrphan DeletionPolicy = "Orphan"
	// DeletionPrune deletes the objects, by the rules of pruning.
	DeletionPrune DeletionPolicy = "Prune"
)

// ClusterRelease declares the signed release that the cluster runs and how it
// is applied.
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

	// Spec declares the desired release and how it is applied.
	Spec ClusterReleaseSpec `json:"spec"`
	// Status reports the desired, accepted and applied release, the progress
	// and the history.
	Status ClusterReleaseStatus `json:"status,omitempty"`
}

// ClusterReleaseSpec declares the desired release and how it is applied.
type ClusterReleaseSpec struct {
	// Desired is the release to run, by version and by image digest or path.
	Desired DesiredRelease `json:"desired"`
	// Rollback permits one rollback to a version that isn't the preceding
	// completed release, or across a Kubernetes minor version. The permission
	// is consumed once that version is complete.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// Waivers accept the risk of preconditions that block the desired release.
	// Each is signed by the waiver role of the trust policy for one cluster,
	// release and list of preconditions; `lockstep release waive` makes it.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Waivers []Waiver `json:"waivers,omitempty"`
	// DependsOn lists ClusterReleases, by name, that must be Ready before this
	// release is applied. Meanwhile the accepted release is still reconciled.
	// Cycles are reported and must be removed.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	DependsOn []string `json:"dependsOn,omitempty"`
	// Profile is the include profile of the cluster, such as
	// self-managed-high-availability. Manifests for other profiles are excluded.
	// Empty: all manifests with lockstep.dev/profile are excluded.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Profile string `json:"profile,omitempty"`
	// FeatureSet includes only the manifests whose feature-set annotation names
	// it, such as TechPreviewNoUpgrade. Default: Default. Manifests without the
	// annotation are always included.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	FeatureSet string `json:"featureSet,omitempty"`
	// FeatureGates lists the enabled feature gates; manifests are included by
	// their feature-gate annotation. Empty: the annotation isn't evaluated and
	// all manifests are included.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	FeatureGates []string `json:"featureGates,omitempty"`
	// Capabilities selects the optional parts of the payload. Absent: all are
	// enabled.
	// +optional
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	// Overrides exclude objects of the payload from management, one object each.
	// While one is active, Upgradeable is False.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Overrides []Override `json:"overrides,omitempty"`
	// Adopt lists whose objects may be taken over: the tools helm, flux and argo,
	// and, as clusterrelease/NAME, releases that were deleted or are no longer in
	// Git, such as the old name of this one. Objects of others are not applied
	// and are reported as OwnedByOther.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=80
	// +kubebuilder:validation:items:Pattern=`^(helm|flux|argo|clusterrelease/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`
	// +listType=set
	// +optional
	Adopt []string `json:"adopt,omitempty"`
	// Prune configures the deletion of objects that the new payload no longer
	// contains. Absent: enabled, with maxPercent 20.
	// +optional
	Prune *PrunePolicy `json:"prune,omitempty"`
	// DeletionPolicy defines what happens to the applied objects when this
	// ClusterRelease is deleted: Orphan (default) keeps them, Prune deletes
	// them.
	// +kubebuilder:default=Orphan
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Components sets the health policy of individual components. Others use
	// onUnhealthy block and spec.timeout.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	// +optional
	Components []ComponentPolicy `json:"components,omitempty"`
	// ServiceAccountName is the ServiceAccount in this namespace that is
	// impersonated to apply objects; default lockstep-applier.
	// +kubebuilder:default=lockstep-applier
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// Timeout is how long a component's objects may take to become ready, as a
	// Go duration; default 60m. components[].timeout overrides it.
	// +kubebuilder:default="60m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// Interval between two full syncs of a complete release, as a Go duration
	// from 10s to 24h; default 10m. Drift is detected by watches and repaired
	// earlier.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="interval must be between 10s and 24h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`
	// Suspend stops applying, drift repair and pruning. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// DesiredRelease identifies a release by its version and by either an image
// digest or a path in the declaring repository.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) != has(self.path)",message="exactly one of image and path must be set"
type DesiredRelease struct {
	// Version that the payload's metadata must declare, such as 1.4.2.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// Image with its digest, such as
	// registry.example.com/platform/release@sha256:<hex>. Tags are rejected.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@\s]+@sha256:[0-9a-f]{64}$`
	// +optional
	Image string `json:"image,omitempty"`
	// Path of the payload in the declaring repository, such as releases/1.4.2.
	// The source must set spec.verify.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must stay inside the repository"
	// +optional
	Path string `json:"path,omitempty"`
	// Signatures lists digests, as sha256:<hex>, of signature manifests to
	// fetch before any other. Optional; it helps if the registry has too many
	// referrers.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	// +listType=set
	// +optional
	Signatures []string `json:"signatures,omitempty"`
}

// ReleaseName returns what identifies the release.
func (d DesiredRelease) ReleaseName() (version, image, path string) {
	return d.Version, d.Image, d.Path
}

// Rollback permits one rollback.
type Rollback struct {
	// To is the version to roll back to, such as 1.3.9. It must equal
	// spec.desired.version.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	To string `json:"to,omitempty"`
	// Reason for the rollback; it is recorded in status.history.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Reason string `json:"reason,omitempty"`
}

// Waiver is a signed waiver.
type Waiver struct {
	// Envelope is the signed waiver, as `lockstep release waive` prints it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Envelope string `json:"envelope"`
}

// Capabilities selects the optional parts of a payload. Once enabled, a
// capability stays enabled.
type Capabilities struct {
	// Baseline is the initial set: All (default), None or a set of OpenShift,
	// such as v4.18 or vCurrent.
	// +kubebuilder:validation:Enum=All;None;vCurrent;v4.11;v4.12;v4.13;v4.14;v4.15;v4.16;v4.17;v4.18
	// +kubebuilder:default=All
	// +optional
	Baseline string `json:"baseline,omitempty"`
	// Additional lists capabilities, by name, that are enabled in addition to
	// the baseline.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Additional []string `json:"additional,omitempty"`
}

// Override excludes one object of the payload from management.
type Override struct {
	// Group of the object's API, such as apps. Empty: the core group.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`
	// Kind of the object, such as Deployment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Namespace of the object. Empty for cluster-scoped objects.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Unmanaged true stops managing the object: it is neither applied nor
	// pruned. False: the override has no effect.
	Unmanaged bool `json:"unmanaged"`
	// Reason for the override; it is shown in the status.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// Expires is the time at which the override ends, in RFC 3339. Absent:
	// never.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
}

// PrunePolicy configures the deletion of objects that the new payload no longer
// contains.
type PrunePolicy struct {
	// Enabled deletes such objects; default true. False: they stay in the
	// cluster.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// MaxPercent of the managed objects that one new version may delete, 0 to
	// 100; default 20. Up to 5 objects are allowed in any case, unless it is 0,
	// which allows no deletion. If more would be deleted, none is and an error is
	// reported.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	MaxPercent *int32 `json:"maxPercent,omitempty"`
}

// ComponentPolicy sets the health policy of one component of the payload.
type ComponentPolicy struct {
	// Name of the component, as in the payload.
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// OnUnhealthy is the effect of an unhealthy component: block (default)
	// stops the update, warn reports it and continues.
	// +kubebuilder:validation:Enum=block;warn
	// +kubebuilder:default=block
	// +optional
	OnUnhealthy string `json:"onUnhealthy,omitempty"`
	// Timeout is how long the component's objects may take to become ready, as
	// a Go duration. Default: spec.timeout, or 1m if onUnhealthy is warn; the
	// update continues then.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// ClusterReleaseStatus reports the desired, accepted and applied release.
type ClusterReleaseStatus struct {
	// ObservedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Desired is the release that the spec declares.
	// +optional
	Desired *ReleaseRef `json:"desired,omitempty"`
	// Accepted is the newest release that was verified and loaded and that
	// passed the preconditions. It is the one that is reconciled.
	// +optional
	Accepted *ReleaseRef `json:"accepted,omitempty"`
	// Applied is the last complete release: all of its objects were applied and
	// ready.
	// +optional
	Applied *ReleaseRef `json:"applied,omitempty"`
	// Progress of the current sync.
	// +optional
	Progress *ReleaseProgress `json:"progress,omitempty"`
	// VersionHash is the hash of the accepted payload's manifests, as
	// sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	VersionHash string `json:"versionHash,omitempty"`
	// Payload summarizes what was found when the accepted payload was loaded.
	// Absent if there is nothing to report.
	// +optional
	Payload *PayloadStatus `json:"payload,omitempty"`
	// Capabilities that are enabled. Absent if the payload has none.
	// +optional
	Capabilities *CapabilitiesStatus `json:"capabilities,omitempty"`
	// Warnings are failed preconditions of the accepted release that don't
	// block it.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	// +optional
	Warnings []string `json:"warnings,omitempty"`
	// History lists the releases that were started, newest first. At most 100.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	History []ReleaseHistory `json:"history,omitempty"`
	// Conditions hold the latest observations, one per type: Ready,
	// Reconciling, Stalled, Available, Progressing, Failing, ReleaseAccepted,
	// ReleaseVerified, Upgradeable, FieldYielded, PruneComplete, Insecure.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PayloadStatus summarizes a loaded payload; `lockstep release inspect` has the
// details.
type PayloadStatus struct {
	// Warnings is the number of accepted irregularities in the manifests.
	// +optional
	Warnings int32 `json:"warnings,omitempty"`
	// Excluded is the number of manifests that the profile, feature set,
	// feature gates or capabilities exclude.
	// +optional
	Excluded int32 `json:"excluded,omitempty"`
}

// CapabilitiesStatus lists the enabled capabilities.
type CapabilitiesStatus struct {
	// Enabled lists the enabled capabilities by name.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Enabled []string `json:"enabled,omitempty"`
	// Implicit lists the enabled capabilities that the spec doesn't request.
	// They were enabled before, or contain managed objects, and can't be
	// disabled.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Implicit []string `json:"implicit,omitempty"`
}

// ReleaseRef identifies one release.
type ReleaseRef struct {
	// Version of the release.
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// Image of the release, with its digest. Empty for a release by path.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`
	// Path of the release in the repository. Empty for a release by image.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`
	// Verified is true if the signatures satisfied the trust policy.
	// +optional
	Verified bool `json:"verified,omitempty"`
	// Evidence lists the verified signers. At most 16.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Evidence []string `json:"evidence,omitempty"`
}

// ReleaseName returns what identifies the release.
func (r ReleaseRef) ReleaseName() (version, image, path string) { return r.Version, r.Image, r.Path }

// ReleaseProgress reports the progress of the sync worker.
type ReleaseProgress struct {
	// State of the sync worker: Initial, Updating, Reconciling or Error.
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// Step in progress, such as VerifyPayload or ApplyManifests.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Step string `json:"step,omitempty"`
	// Summary is done/total, such as 312/862.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Summary string `json:"summary,omitempty"`
	// Done is the number of manifests that were applied and, where required,
	// are ready. It includes skipped.
	Done int32 `json:"done"`
	// Total is the number of manifests in the accepted payload, without the
	// excluded ones.
	Total int32 `json:"total"`
	// Skipped is the number of manifests that overrides exclude from
	// management.
	// +optional
	Skipped int32 `json:"skipped,omitempty"`
	// RunLevel that is being applied, or was applied last.
	// +optional
	RunLevel int32 `json:"runLevel,omitempty"`
	// Attempt is the number of the current sync attempt since the release was
	// last complete.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// LastProgress is the time at which the sync last advanced.
	// +optional
	LastProgress *metav1.Time `json:"lastProgress,omitempty"`
	// Blocking lists the objects that block the sync, the root cause first. At
	// most 20.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Blocking []Blocking `json:"blocking,omitempty"`
}

// Blocking is an object that prevents a release from being complete.
type Blocking struct {
	// Object as group/version, kind, namespace/name, such as apps/v1 Deployment
	// web/api.
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object"`
	// Since is when the object started to block.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Reason in CamelCase, such as InProgress. `lockstep explain REASON`
	// describes it.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message with the details.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
	// Retriable is true if the problem may resolve automatically.
	// +optional
	Retriable bool `json:"retriable"`
	// RetryAt is when the next attempt is due. Absent if none is scheduled.
	// +optional
	RetryAt *metav1.Time `json:"retryAt,omitempty"`
	// Deadline is when the object's timeout ends. Absent if it has none.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// ReleaseHistory records one started release.
type ReleaseHistory struct {
	// State is Completed once all objects were applied and ready, else Partial.
	// +kubebuilder:validation:Enum=Completed;Partial
	State string `json:"state"`
	// Version of the release.
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version"`
	// Image of the release, with its digest. Empty for a release by path.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`
	// Path of the release in the repository. Empty for a release by image.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Path string `json:"path,omitempty"`
	// Revision of the GitSource that declared the release, such as
	// main@sha1:<hex>.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Revision string `json:"revision,omitempty"`
	// Verified is true if the signatures satisfied the trust policy.
	Verified bool `json:"verified"`
	// Evidence lists the verified signers. At most 16.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +optional
	Evidence []string `json:"evidence,omitempty"`
	// AcceptedRisks lists the blocking preconditions that were waived.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	AcceptedRisks string `json:"acceptedRisks,omitempty"`
	// RollbackReason is spec.rollback.reason, if this release was a rollback.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	RollbackReason string `json:"rollbackReason,omitempty"`
	// StartedTime is when applying started.
	StartedTime metav1.Time `json:"startedTime"`
	// CompletionTime is when the release was complete, or when the next release
	// replaced a partial one. Absent while it is applied.
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// ReleaseName returns what identifies the release.
func (h ReleaseHistory) ReleaseName() (version, image, path string) {
	return h.Version, h.Image, h.Path
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
