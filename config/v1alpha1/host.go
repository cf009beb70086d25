// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a Host besides the common ones.
const (
	ConditionAgentReachable   = "AgentReachable"
	ConditionConfirmed        = "Confirmed"
	ConditionIdentityMismatch = "IdentityMismatch"
)

// Host is a machine and the agent on it. It is made by the reconciler from a
// Node, or declared for a machine without one. What it says of the OS is
// shown, never decided upon.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=host,categories=lockstep
// +kubebuilder:printcolumn:name="OS",type=string,JSONPath=`.status.os.booted.version`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.rollout.state`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="Ready")].lastTransitionTime`
type Host struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   HostSpec   `json:"spec,omitempty"`
	Status HostStatus `json:"status,omitempty"`
}

// HostSpec says where the agent is and who it must be.
type HostSpec struct {
	// Address of the agent, host:port; empty: the Node's InternalIP and the
	// default port, 50700.
	// +kubebuilder:validation:MaxLength=261
	// +optional
	Address string `json:"address,omitempty"`
	// Identity is pinned at enrolment.
	// +optional
	Identity *HostIdentity `json:"identity,omitempty"`
}

// HostIdentity is what the agent's certificate must name.
type HostIdentity struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	HostID string `json:"hostID"`
}

// HostStatus is what the agent reported and what the ledger holds.
type HostStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	NodeUID string `json:"nodeUID,omitempty"`
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`
	// +optional
	OS *OSStatus `json:"os,omitempty"`
	// +optional
	Operation *OperationStatus `json:"operation,omitempty"`
	// Rollout is derived from the ledger.
	// +optional
	Rollout *HostRollout `json:"rollout,omitempty"`
	// +optional
	LastResult *OperationResult `json:"lastResult,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AgentStatus is what the agent says of itself.
type AgentStatus struct {
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Version   string `json:"version,omitempty"`
	Connected bool   `json:"connected"`
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	BootID string `json:"bootID,omitempty"`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Mode string `json:"mode,omitempty"`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Backend string `json:"backend,omitempty"`
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Capabilities []string `json:"capabilities,omitempty"`
	// +optional
	TrustVersion int64 `json:"trustVersion,omitempty"`
	// +optional
	CertificateExpires *metav1.Time `json:"certificateExpires,omitempty"`
}

// OSStatus is what the agent says of its slots.
type OSStatus struct {
	// +optional
	Booted *SlotStatus `json:"booted,omitempty"`
	// +optional
	Staged *SlotStatus `json:"staged,omitempty"`
	// +optional
	Previous *SlotStatus `json:"previous,omitempty"`
}

// SlotStatus is one OS on a host.
type SlotStatus struct {
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Version string `json:"version,omitempty"`
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Slot string `json:"slot,omitempty"`
	// +optional
	Confirmed bool `json:"confirmed,omitempty"`
}

// OperationStatus is the sequence that runs on the host.
type OperationStatus struct {
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// +kubebuilder:validation:MaxLength=32
	Sequence string `json:"sequence"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Phase string `json:"phase,omitempty"`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Task string `json:"task,omitempty"`
	// +optional
	StartedTime *metav1.Time `json:"startedTime,omitempty"`
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Attempt string `json:"attempt,omitempty"`
	// +optional
	CommitDeadline *metav1.Time `json:"commitDeadline,omitempty"`
}

// HostRollout is where a rollout has the host.
type HostRollout struct {
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Attempt string `json:"attempt,omitempty"`
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// OperationResult is how the last sequence ended.
type OperationResult struct {
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// +kubebuilder:validation:MaxLength=32
	Sequence string `json:"sequence"`
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	FinishedTime *metav1.Time `json:"finishedTime,omitempty"`
}

// HostList is a list of Host.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// GetConditions returns the conditions of the object.
func (h *Host) GetConditions() []metav1.Condition { return h.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (h *Host) SetConditions(c []metav1.Condition) { h.Status.Conditions = c }
