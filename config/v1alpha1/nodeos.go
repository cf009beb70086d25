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

// NodeOS declares the operating system of a pool of nodes and how it is rolled
// out.
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

	// Spec declares the nodes of the pool, their OS image and the rollout
	// strategy.
	Spec NodeOSSpec `json:"spec"`
	// Status reports the progress of the rollout.
	Status NodeOSStatus `json:"status,omitempty"`
}

// NodeOSSpec declares the nodes of a pool, their OS image and the rollout
// strategy.
//
// +kubebuilder:validation:XValidation:rule="has(self.nodeSelector) != (has(self.all) && self.all)",message="exactly one of nodeSelector and all: true must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.gates) || !has(self.commitDeadline) || duration(self.commitDeadline) > duration(has(self.gates.timeout) ? self.gates.timeout : '0s') + duration(has(self.gates.soak) ? self.gates.soak : '0s')",message="commitDeadline must be longer than gates.timeout plus gates.soak"
type NodeOSSpec struct {
	// NodeSelector selects the nodes of the pool by labels. It must not be
	// empty. Set either nodeSelector or all: true. A node must be in one pool
	// only.
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="nodeSelector must not be empty; write all: true for every node"
	// +optional
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
	// All true selects every node of the cluster. Default false.
	// +optional
	All bool `json:"all,omitempty"`
	// OS is the operating system image that the nodes run.
	OS OSImage `json:"os"`
	// Sequence to run on each host: upgrade (default) stages the image, drains
	// and reboots; stageUpgrade only stages it. reboot is reserved and rejected
	// by the reconciler.
	// +kubebuilder:validation:Enum=upgrade;stageUpgrade;reboot
	// +kubebuilder:default=upgrade
	// +optional
	Sequence string `json:"sequence,omitempty"`
	// Strategy limits how many hosts are disrupted at once and sets their
	// order.
	// +kubebuilder:default={}
	// +optional
	Strategy RolloutStrategy `json:"strategy,omitempty"`
	// ControlPlane marks a pool of control-plane nodes. They are updated one at
	// a time, regardless of the strategy, and only if quorum is kept without the
	// node. Required if the pool selects control-plane nodes.
	// +optional
	ControlPlane *ControlPlane `json:"controlPlane,omitempty"`
	// Drain configures how pods are evicted before a reboot.
	// +kubebuilder:default={}
	// +optional
	Drain DrainPolicy `json:"drain,omitempty"`
	// Windows are the maintenance windows in which a host's update may start.
	// The update must fit into the window. Empty: always.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Windows []Window `json:"windows,omitempty"`
	// Gates are the health checks that a host must pass before its new OS is
	// committed.
	// +kubebuilder:default={}
	// +optional
	Gates Gates `json:"gates,omitempty"`
	// OnFailure defines what happens to a host that fails its gates: Rollback
	// (default) boots the previous OS, Halt keeps the host cordoned for
	// investigation.
	// +kubebuilder:validation:Enum=Rollback;Halt
	// +kubebuilder:default=Rollback
	// +optional
	OnFailure string `json:"onFailure,omitempty"`
	// BootDeadline is how long a reboot may take, as a Go duration; default
	// 10m. Then the host counts as lost, or is rolled back if its agent answers.
	// +kubebuilder:default="10m"
	// +optional
	BootDeadline metav1.Duration `json:"bootDeadline,omitempty"`
	// CommitDeadline is how long the agent waits for the commit after booting a
	// new OS, as a Go duration; default 30m. Then it rolls back automatically,
	// unless onFailure is Halt. It must exceed gates.timeout plus gates.soak.
	// +kubebuilder:default="30m"
	// +optional
	CommitDeadline metav1.Duration `json:"commitDeadline,omitempty"`
	// Suspend starts no new updates; hosts in flight finish. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// NodeSelector selects nodes, or pods of a quorum, by labels. Both fields must
// match.
type NodeSelector struct {
	// MatchLabels requires each of these labels with exactly this value, such
	// as pool: workers.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// MatchExpressions are label selector requirements; all must match.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelector returns s as a metav1.LabelSelector.
func (s *NodeSelector) LabelSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: s.MatchLabels, MatchExpressions: s.MatchExpressions}
}

// OSImage identifies an operating system by version and image digest.
type OSImage struct {
	// Version of the operating system, such as 2.1.0. It must match the signed
	// image's version.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._~+-]*$`
	Version string `json:"version"`
	// Image with its digest, such as
	// registry.example.com/platform/os@sha256:<hex>. Tags are rejected.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[^@\s]+@sha256:[0-9a-f]{64}$`
	Image string `json:"image"`
}

// RolloutStrategy limits how many hosts are disrupted at once and sets their
// order.
type RolloutStrategy struct {
	// MaxUnavailable is how many hosts of the pool may be unavailable, as a
	// number or percentage such as 10%, rounded down but at least 1; default 1.
	// Unready and externally cordoned nodes count. 0 stops the rollout.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Canary steps are completed in order before the rest of the pool is updated.
	// Empty: no canaries.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Canary []CanaryStep `json:"canary,omitempty"`
	// OrderBy lists the node labels whose values order the hosts; age means
	// oldest first. Default: topology.kubernetes.io/zone, then age.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=atomic
	// +optional
	OrderBy []string `json:"orderBy,omitempty"`
	// MaxParallelStaging is how many hosts may download and stage the image at
	// once, 1 to 1000; default 10.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxParallelStaging int32 `json:"maxParallelStaging,omitempty"`
	// FailureThreshold is the number of failed hosts that halts the rollout;
	// default 1. The annotation lockstep.dev/resume resumes it.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// MaxQuarantined is how many hosts may be quarantined, lost or not Ready
	// for over an hour before the rollout halts; default 0.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxQuarantined int32 `json:"maxQuarantined,omitempty"`
}

// CanaryStep is a number of hosts that must be updated and healthy for some
// time before more hosts are updated.
type CanaryStep struct {
	// Hosts is the total number of updated hosts in this step, including those
	// of earlier steps, as a number or percentage of the pool such as 10%,
	// rounded up.
	// +kubebuilder:validation:XIntOrString
	Hosts intstr.IntOrString `json:"hosts"`
	// Soak is how long these hosts must stay healthy before the next step, as a
	// Go duration such as 30m; default 0s.
	// +optional
	Soak metav1.Duration `json:"soak,omitempty"`
}

// ControlPlane configures a pool of control-plane nodes.
type ControlPlane struct {
	// Quorum defines how the healthy voters of the control plane are counted.
	Quorum Quorum `json:"quorum"`
}

// Quorum counts the healthy voters of the control plane. Set exactly one of
// podSelector, nodes and none.
//
// +kubebuilder:validation:XValidation:rule="[has(self.podSelector), has(self.nodes) && self.nodes, has(self.none) && self.none].filter(x, x).size() == 1",message="exactly one of podSelector, nodes and none must be set"
type Quorum struct {
	// PodSelector selects the voters' pods in all namespaces, such as
	// component: etcd. A voter is healthy while its pod is Ready.
	// +optional
	PodSelector *NodeSelector `json:"podSelector,omitempty"`
	// Nodes true counts the Ready control-plane nodes of the cluster as healthy
	// voters.
	// +optional
	Nodes bool `json:"nodes,omitempty"`
	// None true disables the quorum check.
	// +optional
	None bool `json:"none,omitempty"`
}

// DrainPolicy configures how pods are evicted from a node.
type DrainPolicy struct {
	// Mode is Evict, which cordons the node and evicts its pods, or None, which
	// leaves both unchanged. Default: Evict, but None in a cluster of one node.
	// +kubebuilder:validation:Enum=Evict;None
	// +optional
	Mode string `json:"mode,omitempty"`
	// Timeout of the drain, as a Go duration; default 15m.
	// +kubebuilder:default="15m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// OnDeadline defines what happens if pods remain at the timeout: Abort
	// (default) uncordons the node and retries later, Quarantine leaves it
	// cordoned for an operator, Force deletes the remaining pods.
	// +kubebuilder:validation:Enum=Abort;Quarantine;Force
	// +kubebuilder:default=Abort
	// +optional
	OnDeadline string `json:"onDeadline,omitempty"`
	// Force also evicts pods without a controller, which nothing recreates.
	// Default false: such pods block the drain.
	// +optional
	Force bool `json:"force,omitempty"`
	// GracePeriodSeconds overrides the termination grace period of the pods, in
	// seconds. Default -1: the pod's own.
	// +kubebuilder:default=-1
	// +kubebuilder:validation:Minimum=-1
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
}

// Window is a recurring maintenance window.
type Window struct {
	// Cron is the start of the window, in five-field cron syntax, such as "0 22
	// * * 6".
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	Cron string `json:"cron"`
	// Duration of the window, as a Go duration such as 6h.
	Duration metav1.Duration `json:"duration"`
	// TimeZone of cron, an IANA name such as Europe/Berlin. Default: UTC.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// Gates are the health checks that a host must pass before its new OS is
// committed.
type Gates struct {
	// Timeout is how long the gates may take to pass after the host has booted,
	// as a Go duration; default 15m. The soak time is added to it.
	// +kubebuilder:default="15m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitempty"`
	// Soak is how long all gates must pass without interruption, as a Go
	// duration; default 2m.
	// +kubebuilder:default="2m"
	// +optional
	Soak metav1.Duration `json:"soak,omitempty"`
	// Checks are additional CEL expressions. Empty: only the built-in checks of
	// the Node and its agent.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	// +optional
	Checks []GateCheck `json:"checks,omitempty"`
}

// GateCheck is one CEL expression over the Node.
type GateCheck struct {
	// Name of the check, shown when it fails.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// CEL is an expression over the variable node, the Node object, that
	// returns true once the host is healthy. Example:
	// node.status.nodeInfo.kubeletVersion.startsWith('v1.36.').
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	CEL string `json:"cel"`
}

// NodeOSStatus reports the progress of the rollout.
type NodeOSStatus struct {
	// ObservedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Counts of the pool's hosts by state.
	// +optional
	Counts HostCounts `json:"counts,omitempty"`
	// InFlight lists the hosts that are being staged or updated. At most 50;
	// counts.inFlight has the number of hosts that are being updated.
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	// +optional
	InFlight []HostInFlight `json:"inFlight,omitempty"`
	// Denied lists the image digests that failed and aren't retried, the newest
	// 20.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Denied []DeniedDigest `json:"denied,omitempty"`
	// EstimatedEnd of the rollout, in whole minutes. Absent if it can't be
	// estimated.
	// +optional
	EstimatedEnd *metav1.Time `json:"estimatedEnd,omitempty"`
	// Committed is the OS that a host of the pool committed last.
	// +optional
	Committed *OSImage `json:"committed,omitempty"`
	// Conditions hold the latest observations, one per type: Ready,
	// Reconciling, Stalled, Paused, Halted, OSVerified.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HostCounts counts the hosts of a pool by state; a host may have several. All
// counts are written; none is required, so that a patch may contain only the
// changed ones.
type HostCounts struct {
	// Total is the number of hosts in the pool.
	// +optional
	Total int32 `json:"total"`
	// Updated is the number of hosts that run and have committed the desired
	// OS.
	// +optional
	Updated int32 `json:"updated"`
	// Staged is the number of other hosts that have downloaded and staged the
	// desired OS.
	// +optional
	Staged int32 `json:"staged"`
	// InFlight is the number of hosts that are being updated.
	// +optional
	InFlight int32 `json:"inFlight"`
	// Failed is the number of hosts on which the desired OS failed and is
	// denied.
	// +optional
	Failed int32 `json:"failed"`
	// Quarantined is the number of hosts that are quarantined, lost or not
	// Ready for over an hour.
	// +optional
	Quarantined int32 `json:"quarantined"`
	// Held is the number of hosts that the annotation lockstep.dev/hold or
	// lockstep.dev/paused excludes from updates.
	// +optional
	Held int32 `json:"held"`
}

// HostInFlight is a host that is being staged or updated.
type HostInFlight struct {
	// Host is the name of the Host object.
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
	// State of the host in the rollout, such as Staging, Draining, Rebooting or
	// Verifying.
	// +kubebuilder:validation:MaxLength=32
	State string `json:"state"`
	// Since is when the host entered this state.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Blocking is what the host waits for. Empty if nothing blocks it.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Blocking string `json:"blocking,omitempty"`
}

// DeniedDigest is an OS image that failed and must not be booted again.
type DeniedDigest struct {
	// Digest of the image, as sha256:<hex>.
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// Hosts on which the image failed. At most 50.
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	// +optional
	Hosts []string `json:"hosts,omitempty"`
	// Scope of the denial: host (only the listed hosts) or pool (all hosts).
	// +kubebuilder:validation:Enum=host;pool
	Scope string `json:"scope"`
	// Reason for the denial.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is the time of the first failure.
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
