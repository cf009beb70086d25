// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TrustPolicyName is the name of the one policy that counts.
const TrustPolicyName = "root"

// TrustPolicy carries the signed trust document. The object is a mere carrier:
// only a valid successor of the accepted document takes effect.
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

	Spec   TrustPolicySpec   `json:"spec"`
	Status TrustPolicyStatus `json:"status,omitempty"`
}

// TrustPolicySpec carries the envelope.
type TrustPolicySpec struct {
	// Envelope is DSSE over the trust document, as JSON.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	Envelope string `json:"envelope"`
}

// TrustPolicyStatus says what is trusted now.
type TrustPolicyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// AcceptedVersion of the document.
	// +optional
	AcceptedVersion int64 `json:"acceptedVersion,omitempty"`
	// AcceptedDigest of the document's bytes.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	AcceptedDigest string `json:"acceptedDigest,omitempty"`
	// Expires is when the accepted document ends.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`
	// Authorities and what they may sign.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Authorities []Authority `json:"authorities,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Authority is one key of the trust document.
type Authority struct {
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	// +listType=set
	// +optional
	Roles  []string `json:"roles,omitempty"`
	Usable bool     `json:"usable"`
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
