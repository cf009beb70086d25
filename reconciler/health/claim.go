// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

const (
	reasonClaimPending        = "ClaimPending"
	reasonStorageClassMissing = "StorageClassMissing"
)

var storageClass = schema.GroupVersionKind{Group: "storage.k8s.io", Version: "v1", Kind: "StorageClass"}

// evaluateClaim waits until a claim is bound; kstatus does too. pendingClaim
// decides whether an unbound claim is a fault.
func evaluateClaim(body *unstructured.Unstructured) Verdict {
	switch phase, _, _ := unstructured.NestedString(body.Object, "status", "phase"); phase {
	case "Bound":
		return Verdict{Ready: true}
	case "Lost":
		return Verdict{Failed: true, Reason: "ClaimLost", Message: "volume of the claim no longer exists; restore it or delete the claim"}
	default:
		return Verdict{Reason: reasonClaimPending, Message: "no volume bound yet"}
	}
}

// classOf returns the storage class that a live claim names; its name is empty
// if it names none. Admission fills in the default class.
func classOf(claim *unstructured.Unstructured) payload.ObjectID {
	name, _, _ := unstructured.NestedString(claim.Object, "spec", "storageClassName")
	return payload.ObjectID{Group: storageClass.Group, Kind: storageClass.Kind, Name: name}
}

// pendingClaim returns the verdict of an unbound claim by the cached state of
// its storage class. A claim that waits for its first consumer is ready: the pods
// that use it wait for its volume, and those may come later in the release.
func pendingClaim(pending Verdict, claim *unstructured.Unstructured, class live.View) Verdict {
	name := classOf(claim).Name
	volume, _, _ := unstructured.NestedString(claim.Object, "spec", "volumeName")
	switch {
	case volume != "":
		pending.Message = fmt.Sprintf("PersistentVolume %s not bound to the claim yet", sanitize.Line(volume))
	case name == "":
		pending.Message = "claim names no storage class, the cluster had no default class, and no PersistentVolume matches"
	case class.State == live.Absent:
		return Verdict{
			Reason:  reasonStorageClassMissing,
			Message: fmt.Sprintf("StorageClass %s not found, and no PersistentVolume matches; create it or recreate the claim with another class", sanitize.Line(name)),
		}
	case class.State == live.Unknown || class.Object.Body == nil:
		return Verdict{Reason: ReasonNotObserved, Message: fmt.Sprintf("StorageClass %s not in the watch cache yet", sanitize.Line(name))}
	default:
		if mode, _, _ := unstructured.NestedString(class.Object.Body.Object, "volumeBindingMode"); mode == "WaitForFirstConsumer" {
			return Verdict{Ready: true}
		}
		pending.Message = fmt.Sprintf("no volume provisioned by StorageClass %s yet", sanitize.Line(name))
	}
	return pending
}

// classWatch tracks the storage class of one claim that isn't ready. The zero
// value with a cache tracks none.
type classWatch struct {
	cache   *live.Cache
	class   live.Interest
	changes <-chan struct{}
	cancel  func()
}

// follow tracks the storage class that the live claim names, and returns the
// channel of its changes. It returns nil for other kinds.
func (w *classWatch) follow(claim payload.ObjectID) <-chan struct{} {
	if claim.GroupKind() != kinds.PersistentVolumeClaim {
		return nil
	}
	view := w.cache.Get(claim)
	if view.State != live.Present || view.Object.Body == nil {
		return w.changes
	}
	id := classOf(view.Object.Body)
	if id == w.class.ID {
		return w.changes
	}
	w.stop()
	if id.Name != "" {
		w.class = live.Interest{ID: id, GVK: storageClass, Body: true}
		w.changes, w.cancel = w.cache.Changes(id)
		w.cache.Track(w.class)
	}
	return w.changes
}

// stop untracks the class.
func (w *classWatch) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cache.Untrack(w.class)
	*w = classWatch{cache: w.cache}
}
