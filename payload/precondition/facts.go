// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

// Facts are what the checks look at. A fact that couldn't be had is left at
// its zero value, and the checks that need it find nothing.
type Facts struct {
	// Target is the release that is to be applied.
	Target *payload.Payload
	// Current is the version that runs, "" before the first.
	Current string
	// Applying is the version that is being applied, which is Current once it
	// is level; "" before the first.
	Applying string
	// Completed are the versions that were level once, newest first; the
	// current one may be the first of them.
	Completed []string
	// RollbackTo is the version that the release's owner allowed to go back
	// to, or "".
	RollbackTo string
	// Floor is the lowest version that the trust policy accepts, or "".
	Floor string
	// Blockers are parts of the cluster that say that they can't be upgraded.
	Blockers []Blocker
	// APIServer is the version of the oldest API server, such as v1.36.3.
	APIServer string
	// Kubelets are the versions by node.
	Kubelets map[string]string
	// Serves tells whether the API server serves a kind; nil if unknown.
	Serves func(gvk schema.GroupVersionKind) bool
	// StoredVersions are the versions in which objects are stored, by the
	// name of their definition (status.storedVersions).
	StoredVersions map[string][]string
	// Owners are the owners of those objects of Target that belong to another
	// live set.
	Owners map[payload.ObjectID]string
	// Unmanaged are the objects that overrides leave to people: the release
	// doesn't touch them, whatever it says of them.
	Unmanaged map[payload.ObjectID]bool
	// Managed is the size of the current inventory, and Prunable are those
	// objects of it that are deleted if they leave.
	Managed  int
	Prunable []payload.ObjectID
	// Prune says that what leaves the payload will be deleted, and
	// MaxPruned what part of Managed may be, in percent.
	Prune     bool
	MaxPruned int
}

// Blocker is a part of the cluster that says Upgradeable=False.
type Blocker struct {
	// Name is the object; Reason and Message are its own, cleaned.
	Name, Reason, Message string
}

// check looks for one kind of violation.
type check func(f *Facts) []Violation

// checks are all of them, in the order in which people see the violations.
func checks() []check {
	return []check{
		rollback,          // never back but to where one came from, or where one was told to go
		giantHop,          // one minor at a time, and from the release's minimum on
		upgradeable,       // nothing objects
		recommendedUpdate, // the release was made for an update from here
		versionFloor,      // not below what the policy accepts
		hostSkew,          // no kubelet will be newer than the API server, or too old
		apiRemoval,        // every kind is served or comes along
		storedVersions,    // no definition drops a version that is stored
		ownedByOther,      // no object is another set's
		pruneGuard,        // not too much would go
		unpinnedImage,     // images are named by digest
	}
}

// Evaluate runs every check and returns all violations. Blocking ones whose
// name is among the waivers are marked as waived and hold nothing back.
func Evaluate(f *Facts, waivers []string) []Violation {
	var out []Violation
	for _, c := range checks() {
		out = append(out, c(f)...)
	}
	for i := range out {
		out[i].Waived = out[i].Blocking && slices.Contains(waivers, out[i].Name)
	}
	return out
}
