// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Annotations are runtime brakes and requests: nobody declares them, they are
// in no apply set, and they are honoured alike for objects from Git and from
// payloads.
const (
	// AnnotationPaused holds everything about the object; its value says who,
	// when and why. Set by `lockstep pause`, removed by `lockstep resume`.
	AnnotationPaused = "lockstep.dev/paused"
	// AnnotationHold on a Host keeps rollouts away from it; its value says why.
	AnnotationHold = "lockstep.dev/hold"
	// AnnotationRerun on a NodeOS asks for its sequence once more on every
	// host; a new value is a new request.
	AnnotationRerun = "lockstep.dev/rerun-nonce"
	// AnnotationResume on a NodeOS releases a halted pool; its value names the
	// hosts whose failure is accepted, separated by commas, or "all".
	AnnotationResume = "lockstep.dev/resume"
	// AnnotationRequestedAt on a GitSource asks for a look at the remote now;
	// a new value is a new request.
	AnnotationRequestedAt = "lockstep.dev/requestedAt"
	// AnnotationAcceptRewind on a GitSource holds the full hash of one commit
	// that may be accepted once although it does not contain the accepted one.
	AnnotationAcceptRewind = "lockstep.dev/accept-rewind"
	// AnnotationPrune on a declared object of this group allows its deletion
	// when it leaves Git; the value is PruneEnabled.
	AnnotationPrune = "lockstep.dev/prune"
	// PruneEnabled is the value of AnnotationPrune that allows deletion.
	PruneEnabled = "enabled"
	// AnnotationUse and AnnotationHosts on a Secret bind it to one purpose and
	// to hosts; a Secret without them serves nothing.
	AnnotationUse   = "lockstep.dev/use"
	AnnotationHosts = "lockstep.dev/hosts"
	// UseGitRead, UseGitStatus and UseStatusSigning are values of AnnotationUse.
	UseGitRead       = "git-read"
	UseGitStatus     = "git-status"
	UseStatusSigning = "status-signing"
	// AnnotationCordonedBy on a Node names the attempt that cordoned it.
	AnnotationCordonedBy = "lockstep.dev/cordoned-by"
	// AnnotationWait on a NodeOS inside a payload says what its run level
	// waits for: complete, started or none.
	AnnotationWait = "lockstep.dev/wait"
	// AnnotationSource on a declared object names the GitSource that applied it.
	AnnotationSource = "lockstep.dev/source"
	// AnnotationRevision on a declared object names the revision it came from.
	AnnotationRevision = "lockstep.dev/revision"
)

// Condition types that all kinds carry, as kstatus reads them.
const (
	ConditionReady       = "Ready"
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
	// ConditionInsecure stands while a development door is open.
	ConditionInsecure = "Insecure"
)

// LocalRef names an object of a known kind in the same namespace.
type LocalRef struct {
	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
