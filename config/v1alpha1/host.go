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

// Host represents a machine and its agent. The reconciler creates one per Node;
// users may declare one for a machine without a Node. Its status is
// informational: rollouts read facts from the agent directly.
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

	// Spec declares the agent's address and identity. Without an address, that of
	// the Node is used; without an identity, the agent isn't contacted.
	Spec HostSpec `json:"spec,omitempty"`
	// Status reports the state of the agent, its operating systems and its
	// current operation.
	Status HostStatus `json:"status,omitempty"`
}

// HostSpec declares the agent's address and identity.
type HostSpec struct {
	// Address of the agent as host:port, such as 10.0.4.13:50700. Default: the
	// Node's InternalIP and port 50700.
	// +kubebuilder:validation:MaxLength=261
	// +optional
	Address string `json:"address,omitempty"`
	// Identity that the agent's certificate must contain. Enrollment sets it.
	// +optional
	Identity *HostIdentity `json:"identity,omitempty"`
}

// HostIdentity is the identity that the agent's certificate must contain.
type HostIdentity struct {
	// HostID is the host id that was assigned at enrollment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]+$`
	HostID string `json:"hostID"`
}

// HostStatus reports the state that the agent sent last and the host's place in
// a rollout.
type HostStatus struct {
	// ObservedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// NodeUID is the UID of the Node. Empty for a machine without a Node.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	NodeUID string `json:"nodeUID,omitempty"`
	// Agent reports the connection to the agent and what it supports.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`
	// OS reports the operating systems in the host's boot slots, as the agent
	// sent them last.
	// +optional
	OS *OSStatus `json:"os,omitempty"`
	// Operation is the sequence that is running on the host. Absent if none is.
	// +optional
	Operation *OperationStatus `json:"operation,omitempty"`
	// Rollout is the host's state in the rollout of its NodeOS. Absent if the
	// host isn't being updated.
	// +optional
	Rollout *HostRollout `json:"rollout,omitempty"`
	// LastResult is the outcome of the last finished sequence.
	// +optional
	LastResult *OperationResult `json:"lastResult,omitempty"`
	// Conditions hold the latest observations, one per type: Ready,
	// Reconciling, Stalled, AgentReachable, Confirmed, IdentityMismatch.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AgentStatus reports the connection to the agent and what it supports.
type AgentStatus struct {
	// Version of the agent.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Version string `json:"version,omitempty"`
	// Connected is true while the reconciler has a connection to the agent.
	Connected bool `json:"connected"`
	// LastSeen is when the agent last answered.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// BootID of the running kernel. It changes with each reboot.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	BootID string `json:"bootID,omitempty"`
	// Mode of the platform, such as metal, cloud or container.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Mode string `json:"mode,omitempty"`
	// Backend that manages the boot slots, such as sim.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Backend string `json:"backend,omitempty"`
	// Capabilities of the backend: atomic, bootOnce, autoRollback, verify.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Capabilities []string `json:"capabilities,omitempty"`
	// TrustVersion is the version of the trust policy that the agent enforces.
	// +optional
	TrustVersion int64 `json:"trustVersion,omitempty"`
	// CertificateExpires is when the agent's certificate expires.
	// +optional
	CertificateExpires *metav1.Time `json:"certificateExpires,omitempty"`
}

// OSStatus reports the operating systems in the host's boot slots.
type OSStatus struct {
	// Booted is the running operating system.
	// +optional
	Booted *SlotStatus `json:"booted,omitempty"`
	// Staged is the operating system that is written and ready to boot.
	// Absent if there is none.
	// +optional
	Staged *SlotStatus `json:"staged,omitempty"`
	// Previous is the operating system to which the host can roll back. Absent
	// if there is none.
	// +optional
	Previous *SlotStatus `json:"previous,omitempty"`
}

// SlotStatus describes the operating system in one boot slot.
type SlotStatus struct {
	// Version of the operating system.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Version string `json:"version,omitempty"`
	// Digest of its image, as sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	// +optional
	Digest string `json:"digest,omitempty"`
	// Slot is the name of the boot slot, such as A or B.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Slot string `json:"slot,omitempty"`
	// Confirmed is true once the OS was committed after its first boot. An
	// unconfirmed OS is rolled back automatically.
	// +optional
	Confirmed bool `json:"confirmed,omitempty"`
}

// OperationStatus describes the sequence that is running on the host.
type OperationStatus struct {
	// ID of the operation.
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// Sequence that is running, such as upgrade, stageUpgrade or rollback.
	// +kubebuilder:validation:MaxLength=32
	Sequence string `json:"sequence"`
	// Phase in progress, its position and the number of phases, such as stage
	// 2/6.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Phase string `json:"phase,omitempty"`
	// Task in progress within the phase.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Task string `json:"task,omitempty"`
	// StartedTime is when the operation started.
	// +optional
	StartedTime *metav1.Time `json:"startedTime,omitempty"`
	// Attempt is the id of the rollout attempt that the operation belongs to.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Attempt string `json:"attempt,omitempty"`
	// CommitDeadline is when the agent rolls back automatically unless the
	// booted OS is committed. Absent if no trial is open.
	// +optional
	CommitDeadline *metav1.Time `json:"commitDeadline,omitempty"`
}

// HostRollout is the host's state in the rollout of its NodeOS.
type HostRollout struct {
	// State of the host, such as Claimed, Draining, Rebooting, Verifying,
	// Quarantined or Lost.
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// Attempt is the id of the rollout attempt.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Attempt string `json:"attempt,omitempty"`
	// Deadline of the current state. Absent if it has none.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// OperationResult is the outcome of a finished sequence.
type OperationResult struct {
	// ID of the operation.
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// Sequence that ran, such as upgrade.
	// +kubebuilder:validation:MaxLength=32
	Sequence string `json:"sequence"`
	// State is the outcome, such as Succeeded or Failed.
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// Message with the details.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
	// FinishedTime is when the operation ended.
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
