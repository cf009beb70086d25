// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Condition types of a NodeOS besides the common ones.
const (
	ConditionPaused     = "Paused"
	ConditionHalted     = "Halted"
	ConditionOSVerified = "OSVerified"
)

// NodeOS declares the operating system of a pool of nodes and how hosts are
// brought to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodeoses,singular=nodeos,shortName=nos,categories=lockstep
// +kubebuilder:printcolumn:name="OS",type=string,JSONPath=`.spec.os.version`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.counts.updated`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.counts.total`
// +kubebuilder:printcolumn:name="In-Flight",type=integer,JSONPath=`.status.counts.inFlight`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type NodeOS struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeOSSpec   `json:"spec"`
	Status NodeOSStatus `json:"status,omitempty"`
}

// NodeOSSpec is the wanted OS of a pool and the strategy of getting there.
//
// +kubebuilder:validation:XValidation:rule="has(self.nodeSelector) != (has(self.all) && self.all)",message="exactly one of nodeSelector and all: true must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.gates) || !has(self.commitDeadline) || duration(self.commitDeadline) > duration(has(self.gates.timeout) ? self.gates.timeout : '0s') + duration(has(self.gates.soak) ? self.gates.soak : '0s')",message="commitDeadline must be longer than gates.timeout plus gates.soak"
type NodeOSSpec struct {
	// NodeSelector picks the pool; an empty one is invalid.
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="nodeSelector must not be empty; write all: true for every node"
	// +optional
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
	// All picks every node of the cluster.
	// +optional
	All bool `json:"all,omitempty"`
	// OS that the hosts should run.
	OS OSImage `json:"os"`
	// Sequence that brings a host there.
	// +kubebuilder:validation:Enum=upgrade;stageUpgrade;reboot
	// +kubebuilder:default=upgrade
	// +optional
	Sequence string `json:"sequence,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Strategy RolloutStrategy `json:"strategy,omitempty"`
	// ControlPlane marks a pool of control-plane nodes: one at a time
	// whatever the strategy says, and only with a quorum.
	// +optional
	ControlPlane *ControlPlane `json:"controlPlane,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Drain DrainPolicy `json:"drain,omitempty"`
	// Windows in which disruption may start; none: always.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Windows []Window `json:"windows,omitempty"`
	// +kubebuilder:default={}
	// +optional
	Gates Gates `json:"gates,omitempty"`
	// OnFailure says what becomes of a host that fails its gates.
	// +kubebuilder:validation:Enum=Rollback;Halt
	// +kubebuilder:default=Rollback
	// +optional
	OnFailure string `json:"onFailure,omitempty"`
	// BootDeadline is how long a reboot may take.
	// +kubebuilder:default="10m"
	// +optional
	BootDeadline metav1.Duration `json:"bootDeadline,omitempty"`
	// CommitDeadline is when a host that wasn't told to commit goes back by
	// itself; it must be longer than gates.timeout plus gates.soak.
	// +kubebuilder:default="30m"
	// +optional
	CommitDeadline metav1.Duration `json:"commitDeadline,omitempty"`
	// Suspend starts nothing new; hosts in flight finish.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// NodeSelector picks nodes by their labels.
type NodeSelector struct {
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelector returns s as the API's own selector.
func (s *NodeSelector) LabelSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: s.MatchLabels, MatchExpressions: s.MatchExpressions}
}

// OSImage names an operating system by version and digest.
type OSImage struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._~+-]*$`
	Version string `json:"version"`
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@\s]+@sha256:[0-9a-f]{64}$`
	Image string `json:"image"`
}

// RolloutStrategy bounds how many hosts are disrupted and in which order.
type RolloutStrategy struct {
	// MaxUnavailable hosts of the pool, a number or a percentage; 0 holds.
	// Unready nodes and nodes that others cordoned count.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Canary steps that are taken before the rest.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Canary []CanaryStep `json:"canary,omitempty"`
	// OrderBy label keys, and "age".
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=atomic
	// +optional
	OrderBy []string `json:"orderBy,omitempty"`
	// MaxParallelStaging hosts fetch the image at once.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxParallelStaging int32 `json:"maxParallelStaging,omitempty"`
	// FailureThreshold failed hosts halt the pool.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// MaxQuarantined hosts that may be left behind.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxQuarantined int32 `json:"maxQuarantined,omitempty"`
}

// CanaryStep is a number of hosts that must have soaked before more start.
type CanaryStep struct {
	// Hosts, a number or a percentage of the pool, counted from the start.
	// +kubebuilder:validation:XIntOrString
	Hosts intstr.IntOrString `json:"hosts"`
	// +optional
	Soak metav1.Duration `json:"soak,omitempty"`
}

// ControlPlane says how the quorum of a control-plane pool is observed.
type ControlPlane struct {
	Quorum Quorum `json:"quorum"`
}

// Quorum is one way to count the healthy voters.
//
// +kubebuilder:validation:XValidation:rule="[has(self.podSelector), has(self.nodes) && self.nodes, has(self.none) && self.none].filter(x, x).size() == 1",message="exactly one of podSelector, nodes and none must be set"
type Quorum struct {
	// PodSelector picks the voters' pods, such as component=etcd.
	// +optional
	PodSelector *NodeSelector `json:"podSelector,omitempty"`
	// Nodes counts Ready nodes of the pool as voters.
	// +optional
	Nodes bool `json:"nodes,omitempty"`
	// None asks for no quorum.
	// +optional
	None bool `json:"none,omitempty"`
}

// DrainPolicy says how pods leave a node.
type DrainPolicy struct {
	// Mode is Evict, or None: pods stay. Absent: Evict, and None in a
	// one-node cluster.
	// +kubebuilder:validation:Enum=Evict;None
	// +optional
	Mode string `json:"mode,omitempty"`
	// +kubebuilder:default="15m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// OnDeadline says what follows when pods are left.
	// +kubebuilder:validation:Enum=Abort;Quarantine;Force
	// +kubebuilder:default=Abort
	// +optional
	OnDeadline string `json:"onDeadline,omitempty"`
	// Force evicts pods that nothing would make again.
	// +optional
	Force bool `json:"force,omitempty"`
	// GracePeriodSeconds of the pods; -1: their own.
	// +kubebuilder:default=-1
	// +kubebuilder:validation:Minimum=-1
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
}

// Window is a recurring span of time.
type Window struct {
	// Cron says when it opens: five fields.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	Cron string `json:"cron"`
	// Duration it stays open.
	Duration metav1.Duration `json:"duration"`
	// TimeZone is an IANA name; empty: UTC.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// Gates are what must hold before a host's new OS is committed.
type Gates struct {
	// +kubebuilder:default="15m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// Soak is how long all of them must hold.
	// +kubebuilder:default="2m"
	// +optional
	Soak metav1.Duration `json:"soak,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Checks []GateCheck `json:"checks,omitempty"`
}

// GateCheck is one CEL expression over the variable node.
type GateCheck struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	CEL string `json:"cel"`
}

// NodeOSStatus is where the hosts of a pool are.
type NodeOSStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Counts HostCounts `json:"counts,omitempty"`
	// InFlight hosts; counts says how many were cut.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	InFlight []HostInFlight `json:"inFlight,omitempty"`
	// Denied digests and where.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Denied []DeniedDigest `json:"denied,omitempty"`
	// EstimatedEnd of the rollout, where it can be told.
	// +optional
	EstimatedEnd *metav1.Time `json:"estimatedEnd,omitempty"`
	// Committed is the OS that all updated hosts have committed last.
	// +optional
	Committed *OSImage `json:"committed,omitempty"`
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostCounts counts the hosts of a pool by state. All are always written; none
// is required, so that a patch may carry those that changed.
type HostCounts struct {
	// +optional
	Total int32 `json:"total"`
	// +optional
	Updated int32 `json:"updated"`
	// +optional
	Staged int32 `json:"staged"`
	// +optional
	InFlight int32 `json:"inFlight"`
	// +optional
	Failed int32 `json:"failed"`
	// +optional
	Quarantined int32 `json:"quarantined"`
	// +optional
	Held int32 `json:"held"`
}

// HostInFlight is a host that holds a slot or is being staged.
type HostInFlight struct {
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Blocking string `json:"blocking,omitempty"`
}

// DeniedDigest is an image that must not boot on hosts or in the pool.
type DeniedDigest struct {
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	Hosts []string `json:"hosts,omitempty"`
	// Scope is host or pool.
	// +kubebuilder:validation:Enum=host;pool
	Scope string `json:"scope"`
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// NodeOSList is a list of NodeOS.
//
// +kubebuilder:object:root=true
type NodeOSList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeOS `json:"items"`
}

// GetConditions returns the conditions of the object.
func (n *NodeOS) GetConditions() []metav1.Condition { return n.Status.Conditions }

// SetConditions replaces the conditions of the object.
func (n *NodeOS) SetConditions(c []metav1.Condition) { n.Status.Conditions = c }
