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

// GitSource declares the repository that says what the cluster should be. It
// is installed by hand or by bootstrap and can't be changed from the
// repository that it reads.
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

	Spec   GitSourceSpec   `json:"spec"`
	Status GitSourceStatus `json:"status,omitempty"`
}

// GitSourceSpec says where the desired state is read and how it is trusted.
type GitSourceSpec struct {
	// Cluster names this cluster: the status branch, plans and certificates.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Cluster string `json:"cluster"`
	// URL of the repository: ssh or https; http and file only with the
	// process's flag for development.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^(ssh|https|http|file)://`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-z]+://[^/@]*:[^/@]*@')",message="url must not carry a password; use secretRef"
	URL string `json:"url"`
	// Ref is what is followed: exactly one of its fields.
	Ref GitRef `json:"ref"`
	// Path inside the repository: a kustomization or plain documents. Empty
	// or missing content is an error, never an empty state.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must stay inside the repository"
	// +optional
	Path string `json:"path,omitempty"`
	// Interval between looks at the remote; a webhook, an annotation or
	// a file event cuts it short. At least 1s.
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="interval must be between 1s and 24h"
	// +optional
	Interval metav1.Duration `json:"interval,omitempty"`
	// Timeout of one fetch or push.
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('1h')",message="timeout must be between 1s and 1h"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// MaxSize of what a fetch may transfer and the mirror may hold.
	// +kubebuilder:default="1Gi"
	// +optional
	MaxSize *resource.Quantity `json:"maxSize,omitempty"`
	// SecretRef names the credentials for reading: annotated
	// lockstep.dev/use: git-read and lockstep.dev/hosts. Keys: identity and
	// known_hosts, or username and password, or bearerToken; ca.crt, tls.crt
	// and tls.key besides.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// Verify says how commits are verified. Absent: unverified, a condition
	// says so, and no payload path is accepted.
	// +optional
	Verify *GitVerify `json:"verify,omitempty"`
	// Rewind says what happens when the ref no longer contains the accepted
	// commit. Only Deny exists as a standing policy; one use is allowed by
	// the annotation lockstep.dev/accept-rewind.
	// +kubebuilder:validation:Enum=Deny
	// +kubebuilder:default=Deny
	// +optional
	Rewind string `json:"rewind,omitempty"`
	// Prune declared objects that left Git; kinds of this group only where
	// they carry lockstep.dev/prune: enabled.
	// +kubebuilder:default=true
	// +optional
	Prune *bool `json:"prune,omitempty"`
	// Suspend stops reading; what was accepted goes on being reconciled.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// WriteBack says where status is written as commits; absent: nowhere.
	// +optional
	WriteBack *WriteBack `json:"writeBack,omitempty"`
}

// GitRef is what a source follows.
//
// +kubebuilder:validation:XValidation:rule="[has(self.branch), has(self.tag), has(self.semver), has(self.commit), has(self.name)].filter(x, x).size() == 1",message="exactly one of branch, tag, semver, commit and name must be set"
type GitRef struct {
	// Branch by its short name; exactly refs/heads/<branch>.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Branch string `json:"branch,omitempty"`
	// Tag by its short name; exactly refs/tags/<tag>.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Tag string `json:"tag,omitempty"`
	// Semver is a range; the highest tag in it is taken.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:MinLength=1
	// +optional
	Semver string `json:"semver,omitempty"`
	// Commit by its full SHA-1.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +optional
	Commit string `json:"commit,omitempty"`
	// Name is a full ref name such as refs/heads/main.
	// +kubebuilder:validation:MaxLength=250
	// +kubebuilder:validation:Pattern=`^refs/`
	// +optional
	Name string `json:"name,omitempty"`
}

// GitVerify says how revisions are verified against the git role.
type GitVerify struct {
	// Mode is head: the commit at the ref must be signed by the git role.
	// +kubebuilder:validation:Enum=head
	// +kubebuilder:default=head
	// +optional
	Mode string `json:"mode,omitempty"`
	// InitialCommit must be the first accepted commit or an ancestor of it.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +optional
	InitialCommit string `json:"initialCommit,omitempty"`
}

// WriteBack says where and how status commits are pushed.
type WriteBack struct {
	// SecretRef names the credentials for pushing: annotated
	// lockstep.dev/use: git-status.
	// +optional
	SecretRef *LocalRef `json:"secretRef,omitempty"`
	// SigningKeyRef names a Secret with key identity, an SSH private key:
	// annotated lockstep.dev/use: status-signing.
	// +optional
	SigningKeyRef *LocalRef `json:"signingKeyRef,omitempty"`
	// URL of another repository; empty: the source's own.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	URL string `json:"url,omitempty"`
	// MinInterval between two status commits.
	// +kubebuilder:default="60s"
	// +optional
	MinInterval metav1.Duration `json:"minInterval,omitempty"`
	// Keep is how many lines of history.jsonl are kept.
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	Keep int32 `json:"keep,omitempty"`
}

// GitSourceStatus is what the reconciler found at the source.
type GitSourceStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// AcceptedRevision is the newest that was valid, verified and applied.
	// +optional
	AcceptedRevision *Revision `json:"acceptedRevision,omitempty"`
	// AttemptedRevision is the newest seen.
	// +optional
	AttemptedRevision *Revision `json:"attemptedRevision,omitempty"`
	// StatusCommit is the last one pushed.
	// +optional
	StatusCommit *StatusCommit `json:"statusCommit,omitempty"`
	// Orphaned lists declared objects that left Git and were kept.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Orphaned []string `json:"orphaned,omitempty"`
	// LastHandledRequest is the value of lockstep.dev/requestedAt that was
	// last acted upon.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	LastHandledRequest string `json:"lastHandledRequest,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Revision is one Git revision as it was seen.
type Revision struct {
	// Revision as main@sha1:<hex>.
	// +kubebuilder:validation:MaxLength=512
	Revision string `json:"revision"`
	// Tree is the SHA-256 of the canonical tree, as sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Tree string `json:"tree,omitempty"`
	// Subject of the commit, cleaned.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Subject string `json:"subject,omitempty"`
	// Signer that was verified: name and key fingerprint. Never the author.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Signer string `json:"signer,omitempty"`
	// Time when it was first seen here.
	// +optional
	Time metav1.Time `json:"time,omitempty"`
}

// StatusCommit is a commit on the status branch.
type StatusCommit struct {
	// Revision as lockstep-status/prod@sha1:<hex>.
	// +kubebuilder:validation:MaxLength=512
	Revision string      `json:"revision"`
	Time     metav1.Time `json:"time"`
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
