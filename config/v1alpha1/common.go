// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Annotations that hold an object, send a request or bind a Secret. Users set
// most of them at run time: Lockstep's apply sets don't contain them, and they
// work alike on objects from Git and from payloads.
const (
	// AnnotationPaused stops all actions on the object; its value states who
	// paused it, when and why. Set by `lockstep pause`, removed by `lockstep resume`.
	AnnotationPaused = "lockstep.dev/paused"
	// AnnotationHold on a Host excludes it from rollouts; its value is the
	// reason.
	AnnotationHold = "lockstep.dev/hold"
	// AnnotationRerun on a NodeOS runs its sequence again on every host, on a
	// Host on that host; a new value is a new request.
	AnnotationRerun = "lockstep.dev/rerun-nonce"
	// AnnotationResume on a NodeOS resumes a halted rollout; its value lists the
	// hosts whose failure is accepted, separated by commas, or is "all".
	AnnotationResume = "lockstep.dev/resume"
	// AnnotationRequestedAt on a GitSource requests a fetch now; a new value is
	// a new request.
	AnnotationRequestedAt = "lockstep.dev/requestedAt"
	// AnnotationAcceptRewind on a GitSource is the full hash of one commit that
	// may be accepted once although it doesn't contain the accepted commit.
	AnnotationAcceptRewind = "lockstep.dev/accept-rewind"
	// AnnotationPrune on a declared object of this group allows its deletion
	// when it is removed from Git; the value is PruneEnabled.
	AnnotationPrune = "lockstep.dev/prune"
	// PruneEnabled is the value of AnnotationPrune that allows deletion.
	PruneEnabled = "enabled"
	// AnnotationUse and AnnotationHosts on a Secret bind it to one purpose and
	// to hosts; a Secret without them isn't used.
	AnnotationUse   = "lockstep.dev/use"
	AnnotationHosts = "lockstep.dev/hosts"
	// UseGitRead, UseGitStatus and UseStatusSigning are values of AnnotationUse.
	UseGitRead       = "git-read"
	UseGitStatus     = "git-status"
	UseStatusSigning = "status-signing"
	// AnnotationCordonedBy on a Node names the attempt that cordoned it.
	AnnotationCordonedBy = "lockstep.dev/cordoned-by"
	// AnnotationWait on a NodeOS inside a payload defines what its run level
	// waits for: complete, started or none.
	AnnotationWait = "lockstep.dev/wait"
	// AnnotationSource on a declared object names the GitSource that applied it.
	AnnotationSource = "lockstep.dev/source"
	// AnnotationRevision on a declared object names the Git revision that
	// declares it.
	AnnotationRevision = "lockstep.dev/revision"
)

// Condition types of all kinds, as kstatus reads them.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
	// ConditionInsecure is True while an insecure option is set.
	ConditionInsecure = "Insecure"
)

// LocalRef refers to an object of a fixed kind in the same namespace.
type LocalRef struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
