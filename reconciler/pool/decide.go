// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// Facts are the facts about a NodeOS by which Decide permits a rollout.
type Facts struct {
	// NotFromSource is why no source's declaration permits a rollout; empty if one
	// does.
	NotFromSource status.HeldBy
	// Removed is why the object starts nothing new, since its declaration left
	// Git; empty if a source or a payload declares it.
	Removed status.HeldBy
	// DeclaredBySource reports whether a source declares the object.
	DeclaredBySource bool
	// Hash is the spec hash of the object.
	Hash string
	// Release is the release whose payload declares the object, "" if there is none.
	Release string
	// ManifestHash is the spec hash in the accepted payload of Release, "" if no
	// loaded payload declares the object; ObservedHash is the persisted one.
	ManifestHash, ObservedHash string
	// Invalid is set if a hash can't be computed.
	Invalid status.HeldBy
	// Loading reports whether accepted payloads are still being loaded.
	Loading bool
}

// Decision is what to do with a NodeOS.
type Decision struct {
	// Held is why the object isn't acted upon; empty if it is.
	Held status.HeldBy
	// Finish is why the object only finishes its hosts in flight; empty if it
	// starts others.
	Finish status.HeldBy
	// Observed reports that the spec hash is the one of the accepted payload, which
	// is to be persisted.
	Observed bool
}

// Decide enforces trust boundary T3 for a NodeOS that a source or a release
// declares. It is pure.
func Decide(f Facts) Decision {
	held, observed := permitted(f)
	return Decision{Held: held, Finish: f.Removed, Observed: observed}
}

// permitted returns why the object isn't acted upon, and whether its spec is the one
// of an accepted payload.
func permitted(f Facts) (held status.HeldBy, observed bool) {
	switch {
	case f.NotFromSource.Reason == "":
		return status.HeldBy{}, false
	case f.DeclaredBySource:
		return f.NotFromSource, false
	case f.Invalid.Reason != "":
		return f.Invalid, false
	case f.ManifestHash != "" && f.Hash == f.ManifestHash:
		return status.HeldBy{}, true
	// The payload isn't loaded yet, or the next one hasn't reached this object.
	case f.Hash == f.ObservedHash:
		return status.HeldBy{}, false
	case f.ManifestHash != "" || f.ObservedHash != "":
		return status.HeldBy{Reason: status.ReasonNotFromSource, Transient: true, Message: fmt.Sprintf(
			"spec differs from the payload of ClusterRelease/%s; being restored; change it in a new release", f.Release)}, false
	case f.Loading:
		return status.HeldBy{Reason: status.ReasonPending, Message: "a release that may declare it is being loaded"}, false
	default:
		return f.NotFromSource, false
	}
}

// finishing returns the pool that claims no more hosts.
func finishing(obj *v1alpha1.NodeOS) *v1alpha1.NodeOS {
	planned := obj.DeepCopy()
	planned.Spec.Suspend = true
	return planned
}

// withReleaseHold returns the pool with the pause and suspension of the release that
// declares it: a held release starts nothing on the hosts of its pools.
func withReleaseHold(obj *v1alpha1.NodeOS, release *v1alpha1.ClusterRelease) *v1alpha1.NodeOS {
	if release == nil {
		return obj
	}
	why, paused := release.Annotations[v1alpha1.AnnotationPaused]
	if !paused && !release.Spec.Suspend {
		return obj
	}
	planned := obj.DeepCopy()
	planned.Spec.Suspend = planned.Spec.Suspend || release.Spec.Suspend
	if _, own := planned.Annotations[v1alpha1.AnnotationPaused]; paused && !own {
		if planned.Annotations == nil {
			planned.Annotations = map[string]string{}
		}
		planned.Annotations[v1alpha1.AnnotationPaused] = fmt.Sprintf("ClusterRelease/%s, which contains it, is paused: %s", release.Name, sanitize.Line(why))
	}
	return planned
}
