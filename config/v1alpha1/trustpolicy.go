// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrustPolicyName is the only valid name of a TrustPolicy.
const TrustPolicyName = "root"

// TrustPolicy delivers the signed trust policy to the cluster. Only a valid
// successor of the accepted policy takes effect.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=trustpolicies,shortName=tp,categories=lockstep
// +kubebuilder:printcolumn:name="Version",type=integer,JSONPath=`.status.acceptedVersion`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'root'",message="the trust policy is named root"
type TrustPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec contains the signed trust policy.
	Spec TrustPolicySpec `json:"spec"`
	// Status reports the accepted trust policy.
	Status TrustPolicyStatus `json:"status,omitempty"`
}

// TrustPolicySpec contains the signed trust policy.
type TrustPolicySpec struct {
	// Envelope is the DSSE envelope of the trust policy, as JSON, at most 256
	// KiB. `lockstep trust sign` writes it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Envelope string `json:"envelope"`
}

// TrustPolicyStatus reports the accepted trust policy.
type TrustPolicyStatus struct {
	// ObservedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// AcceptedVersion is the version of the accepted policy.
	// +optional
	AcceptedVersion int64 `json:"acceptedVersion,omitempty"`
	// AcceptedDigest is the digest of the accepted policy's bytes, as
	// sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	AcceptedDigest string `json:"acceptedDigest,omitempty"`
	// Expires is when the accepted policy expires.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
	// Authorities lists the keys of the accepted policy and their roles. At
	// most 64.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Authorities []Authority `json:"authorities,omitempty"`
	// Conditions hold the latest observations, one per type: Ready,
	// Reconciling, Stalled.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Authority is one key of the trust policy.
type Authority struct {
	// Name of the key.
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// Roles that list the key, such as release, os or git.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	// +listType=set
	// +optional
	Roles []string `json:"roles,omitempty"`
	// Usable is true if the key's signatures count now: the key is valid at this
	// time, isn't revoked and has a role.
	Usable bool `json:"usable"`
	// Expires is when the key expires. Absent: never.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
}

// TrustPolicyList is a list of TrustPolicy.
//
// +kubebuilder:object:root=true
type TrustPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TrustPolicy `json:"items"`
}

// GetConditions returns the conditions of the object.
func (t *TrustPolicy) GetConditions() []metav1.Condition { return t.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (t *TrustPolicy) SetConditions(c []metav1.Condition) { t.Status.Conditions = c }
