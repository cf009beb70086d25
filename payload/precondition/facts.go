// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

// Facts are the input of the checks. Unknown facts have their zero value, and the
// checks that need them report no violation.
type Facts struct {
	// Target is the desired release.
	Target *payload.Payload
	// Current is the running version, "" before the first install.
	Current string
	// Applying is the version that is being applied, equal to Current once it is
	// complete; "" before the first install. A version that failed stays here until
	// another one is accepted.
	Applying string
	// Completed are the versions that completed, newest first. The first may be
	// Current.
	Completed []string
	// RollbackTo is the version that spec.rollback.to permits, or "".
	RollbackTo string
	// Floor is the lowest version that the trust policy accepts, or "".
	Floor string
	// Blockers are objects that report Upgradeable=False.
	Blockers []Blocker
	// Deleting describes the objects of earlier releases that are still being deleted,
	// "" if there are none.
	Deleting string
	// APIServer is the version of the oldest API server, such as v1.36.3, or "".
	APIServer string
	// Kubelets are the kubelet versions by node.
	Kubelets map[string]string
	// Serves reports whether the API server serves a kind; nil if unknown.
	Serves func(gvk schema.GroupVersionKind) bool
	// StoredVersions is status.storedVersions by name of the CRD.
	StoredVersions map[string][]string
	// Owners are the owners of objects of Target that belong to another existing
	// release or source.
	Owners map[payload.ObjectID]string
	// Order are the pairs of manifests whose order can't work in the cluster, one
	// line each.
	Order []string
	// Unmanaged are the objects that spec.overrides excludes from management.
	Unmanaged map[payload.ObjectID]bool
	// Managed is the size of the inventory. Prunable are the objects in it that
	// are deleted once a release no longer contains them.
	Managed  int
	Prunable []payload.ObjectID
	// Prune is true if removed objects are deleted. MaxPruned is the allowed part
	// of Managed, in percent.
	Prune     bool
	MaxPruned int
}

// Blocker is an object that reports Upgradeable=False.
type Blocker struct {
	// Name of the object; Reason and Message of its condition, sanitized.
	Name, Reason, Message string
}

// check finds one kind of violation.
type check func(f *Facts) []Violation

// checks returns all checks, in the order in which violations are reported.
func checks() []check {
	return []check{
		rollback,          // rolls back to the previous version or to spec.rollback.to only
		giantHop,          // skips no minor version and reaches the release's minimum
		upgradeable,       // no object reports Upgradeable=False
		recommendedUpdate, // the release supports an update from the current version
		versionFloor,      // the version reaches the floor of the trust policy
		hostSkew,          // no kubelet is newer than the API server, or too old
		apiRemoval,        // every kind is served or provided
		storedVersions,    // no CRD drops a stored version
		ownedByOther,      // no object belongs to another release or source
		pruneGuard,        // prune stays within its limit
		manifestOrder,     // the order of the manifests can work
		unpinnedImage,     // images are pinned by digest
	}
}

// Evaluate runs all checks and returns all violations. None is waived.
func Evaluate(f *Facts) []Violation {
	var out []Violation
	for _, c := range checks() {
		out = append(out, c(f)...)
	}
	return out
}
