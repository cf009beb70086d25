// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a GitSource besides the common ones.
const (
	ConditionSourceVerified = "SourceVerified"
	ConditionWriteBackReady = "WriteBackReady"
)

// GitSource declares the Git repository, ref and path that contain the desired
// state of the cluster. It is created with kubectl; the repository that it reads
// can't change it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gs,categories=lockstep
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.acceptedRevision.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GitSource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec declares where the desired state is read from and how it is
	// verified.
	Spec GitSourceSpec `json:"spec"`
	// Status reports the accepted and the newest fetched revision.
	Status GitSourceStatus `json:"status,omitempty"`
}

// GitSourceSpec declares where the desired state is read from and how it is
// verified.
type GitSourceSpec struct {
	// Cluster is the name of this cluster, a DNS label such as prod. It names
	// the status branch and binds plans and certificates to the cluster.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Cluster string `json:"cluster"`
	// URL of the repository, such as
	// ssh://git@git.example.com/platform/fleet.git. Schemes: ssh and https;
	// http and file need the reconciler flag --allow-insecure-sources. A
	// password in the URL is rejected; use secretRef.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(ssh|https|http|file)://`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-z]+://[^/@]*:[^/@]*@')",message="url must not contain a password; use secretRef"
	URL string `json:"url"`
	// Ref selects the revision to follow. Set exactly one of its fields.
	Ref GitRef `json:"ref"`
	// Path of a directory in the repository, such as clusters/prod, with a
	// kustomization.yaml or plain manifests. Default: the root. A missing or
	// empty path is an error and never deletes anything.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must stay inside the repository"
	// +optional
	Path string `json:"path,omitempty"`
	// Interval between two fetches, as a Go duration from 1s to 24h; default
	// 1m. A webhook, lockstep.dev/requestedAt or a file change triggers an
	// earlier fetch.
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="interval must be between 1s and 24h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`
	// Timeout of one fetch or push, as a Go duration from 1s to 1h; default
	// 60s.
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="timeout must be between 1s and 1h"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// MaxSize limits both the bytes of one fetch and the size of the local
	// mirror, such as 500Mi; default 1Gi.
	// +kubebuilder:default="1Gi"
	// +optional
	MaxSize *resource.Quantity `json:"maxSize,omitempty"`
	// SecretRef names the Secret with read credentials, annotated
	// lockstep.dev/use: git-read and lockstep.dev/hosts. Keys: identity and
	// known_hosts, or username and password, or bearerToken; optional ca.crt,
	// tls.crt, tls.key. Absent: anonymous access.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// Verify enables commit signature verification. Absent: commits aren't
	// verified, the condition Insecure is True, and releases by path are
	// rejected.
	// +optional
	Verify *GitVerify `json:"verify,omitempty"`
	// Rewind is the policy for a ref that no longer contains the accepted
	// commit. Deny, the only value, rejects it; the annotation
	// lockstep.dev/accept-rewind allows one commit once.
	// +kubebuilder:validation:Enum=Deny
	// +kubebuilder:default=Deny
	// +optional
	Rewind string `json:"rewind,omitempty"`
	// Prune deletes declared objects that were removed from Git, if their
	// annotation lockstep.dev/prune is enabled; default true. Other removed
	// objects are kept and listed in status.orphaned.
	// +kubebuilder:default=true
	// +optional
	Prune *bool `json:"prune,omitempty"`
	// Suspend stops fetching. The accepted revision is still reconciled.
	// Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// WriteBack configures status commits. Absent: no status is written to Git.
	// +optional
	WriteBack *WriteBack `json:"writeBack,omitempty"`
}

// GitRef selects the revision to follow by exactly one field.
//
// +kubebuilder:validation:XValidation:rule="[has(self.branch), has(self.tag), has(self.semver), has(self.commit), has(self.name)].filter(x, x).size() == 1",message="exactly one of branch, tag, semver, commit and name must be set"
type GitRef struct {
	// Branch by its short name, such as main. It resolves to
	// refs/heads/<branch> only.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Branch string `json:"branch,omitempty"`
	// Tag by its short name, such as v1.4.2. It resolves to refs/tags/<tag>
	// only.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Tag string `json:"tag,omitempty"`
	// Semver is a version range, such as ">=1.4.0 <2.0.0". The highest matching
	// tag is used.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Semver string `json:"semver,omitempty"`
	// Commit pins a full SHA-1, 40 lowercase hex digits.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +optional
	Commit string `json:"commit,omitempty"`
	// Name is a full ref name, such as refs/heads/main.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:Pattern=`^refs/`
	// +optional
	Name string `json:"name,omitempty"`
}

// GitVerify configures commit signature verification.
type GitVerify struct {
	// Mode of verification. head, the only value and the default, requires a
	// signature of the trust policy's git role on the commit that the ref
	// points to.
	// +kubebuilder:validation:Enum=head
	// +kubebuilder:default=head
	// +optional
	Mode string `json:"mode,omitempty"`
	// InitialCommit is a full SHA-1. The first accepted commit must be this
	// commit or a descendant. Absent: any signed commit is accepted first.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +optional
	InitialCommit string `json:"initialCommit,omitempty"`
}

// WriteBack declares where status commits are pushed and how they are signed.
type WriteBack struct {
	// SecretRef names the Secret with push credentials, annotated
	// lockstep.dev/use: git-status and lockstep.dev/hosts; keys as in
	// spec.secretRef. Absent: anonymous access.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// SigningKeyRef names the Secret whose key identity contains an SSH private
	// key, annotated lockstep.dev/use: status-signing. Absent: status commits
	// aren't signed.
	// +optional
	SigningKeyRef *LocalRef `json:"signingKeyRef,omitempty"`
	// URL of another repository for status commits. Default: spec.url.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	URL string `json:"url,omitempty"`
	// MinInterval between two status commits, as a Go duration; default 60s.
	// +kubebuilder:default="60s"
	// +optional
	MinInterval metav1.Duration `json:"minInterval,omitempty"`
	// Keep is the maximum number of lines in history.jsonl, 1 to 100000;
	// default 1000. The oldest lines are removed first.
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Keep int32 `json:"keep,omitempty"`
}

// GitSourceStatus reports the accepted and the newest fetched revision.
type GitSourceStatus struct {
	// ObservedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// AcceptedRevision is the newest revision that was verified, valid and
	// applied. It is the one that is reconciled.
	// +optional
	AcceptedRevision *Revision `json:"acceptedRevision,omitempty"`
	// AttemptedRevision is the newest fetched revision. It differs from
	// acceptedRevision while it is processed or after it was rejected.
	// +optional
	AttemptedRevision *Revision `json:"attemptedRevision,omitempty"`
	// StatusCommit is the last pushed status commit.
	// +optional
	StatusCommit *StatusCommit `json:"statusCommit,omitempty"`
	// Orphaned lists declared objects that were removed from Git but kept in
	// the cluster, as Kind/name, such as NodeOS/workers. At most 100.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Orphaned []string `json:"orphaned,omitempty"`
	// LastHandledRequest is the last handled value of the annotation
	// lockstep.dev/requestedAt.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	LastHandledRequest string `json:"lastHandledRequest,omitempty"`
	// Conditions hold the latest observations, one per type: Ready,
	// Reconciling, Stalled, SourceVerified, WriteBackReady, Insecure.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Revision describes one fetched Git revision.
type Revision struct {
	// Revision is the ref and its commit, such as main@sha1:<hex>.
	// +kubebuilder:validation:MaxLength=512
	Revision string `json:"revision"`
	// Tree is the SHA-256 of the canonical tree, as sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Tree string `json:"tree,omitempty"`
	// Subject is the sanitized first line of the commit message.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Subject string `json:"subject,omitempty"`
	// Signer is the verified signer, by key name and fingerprint. Empty if the
	// commit isn't verified; never the commit's author.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Signer string `json:"signer,omitempty"`
	// Time of the first fetch of this revision.
	// +optional
	Time metav1.Time `json:"time,omitempty"`
}

// StatusCommit describes a commit on the status branch.
type StatusCommit struct {
	// Revision is the status branch and the commit, such as
	// lockstep-status/prod@sha1:<hex>.
	// +kubebuilder:validation:MaxLength=512
	Revision string `json:"revision"`
	// Time of the push.
	Time metav1.Time `json:"time"`
}

// GitSourceList is a list of GitSource.
//
// +kubebuilder:object:root=true
type GitSourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GitSource `json:"items"`
}

// GetConditions returns the conditions of the object.
func (s *GitSource) GetConditions() []metav1.Condition { return s.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (s *GitSource) SetConditions(c []metav1.Condition) { s.Status.Conditions = c }
