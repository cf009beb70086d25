// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Verdict is the result of the sync decision
// (docs/architecture.md#the-sync-decision).
type Verdict int

// The verdicts.
const (
	// InSync requires no request.
	InSync Verdict = iota
	// Done is a Job that ended and was removed; it isn't run again.
	Done
	// Unclear requires one verifying apply: the object changed outside our
	// managed fields entry.
	Unclear
	// Drifted requires an apply: another writer changed or took our fields.
	Drifted
	// Missing requires an apply: the object was deleted or replaced.
	Missing
	// Terminating is being deleted: the apply follows the deletion.
	Terminating
	// Unwatched requires a request, because the kind isn't watched.
	Unwatched
)

// String returns the verdict's name.
func (v Verdict) String() string {
	return [...]string{"InSync", "Done", "Unclear", "Drifted", "Missing", "Terminating", "Unwatched"}[v]
}

// recordOf returns the record of an apply's response.
func recordOf(response *live.Object, manager string, desired live.Hash, epoch int) inventory.Record {
	own, _ := response.OwnFieldsOf(manager)
	return inventory.Record{
		UID: response.UID, ResourceVersion: response.ResourceVersion, Generation: response.Generation,
		Desired: desired, Entry: own.Entry, Values: own.Values,
		Status: response.Status, Others: response.OtherManagers, Epoch: epoch,
	}
}

// desiredOf returns the manifest's hash as records keep it.
func desiredOf(m *payload.Manifest) live.Hash { return live.Hash(m.Hash[:live.HashSize]) }

// CompareHeld compares the live object, nil if it doesn't exist, with the record
// in the inventory. meta must be as the server sent it: if managedFields are
// reordered, everything has drifted.
func CompareHeld(h *inventory.Held, meta metav1.Object) Verdict {
	view := live.View{State: live.Absent, Finished: h.Finished, Failed: h.Failed}
	if meta != nil {
		view = live.View{State: live.Present, Object: live.Summarize(meta)}
	}
	return Compare(h.Record, h.GVK().GroupKind(), h.Manager(), view)
}

// Compare makes the sync decision: whether the object in view is still as the
// recorded apply of manager left it. The record is compared with the live object
// and never with the manifest, because admission may change what was sent.
// Compare is pure.
func Compare(rec inventory.Record, gk schema.GroupKind, manager string, view live.View) Verdict {
	switch view.State {
	case live.Unknown:
		return Unwatched
	case live.Absent:
		return compareAbsent(rec, view)
	case live.Present:
	}
	o := view.Object
	if o.UID == rec.UID {
		if o.ResourceVersion == rec.ResourceVersion {
			return InSync
		}
		if older(o.ResourceVersion, rec.ResourceVersion) {
			if rec.Epoch == view.Epoch && !o.Merged {
				return InSync // An event from before the apply.
			}
			return Unclear // A restore of etcd lowered the resource versions.
		}
	} else if rec.Epoch == view.Epoch && !o.Merged && older(o.ResourceVersion, rec.ResourceVersion) {
		return InSync // An event of the object's predecessor.
	}
	return compareNewer(rec, gk, manager, o)
}

func compareAbsent(rec inventory.Record, view live.View) Verdict {
	switch {
	case rec.Epoch == view.Epoch && older(view.AsOf, rec.ResourceVersion):
		return InSync // The event of the apply is pending.
	case (view.Finished || view.Failed) && view.Ended == rec.UID:
		return Done
	default:
		return Missing
	}
}

func compareNewer(rec inventory.Record, gk schema.GroupKind, manager string, o *live.Object) Verdict {
	own, _ := o.OwnFieldsOf(manager)
	switch {
	case o.Deleting:
		return Terminating
	case o.UID != rec.UID:
		return Missing
	case own.Entry != rec.Entry || own.Values != rec.Values:
		return Drifted
	case kinds.Of(gk).Generations:
		if o.Generation == rec.Generation {
			return InSync
		}
		return Unclear
	case !o.Merged && o.Status != rec.Status && o.OtherManagers == rec.Others:
		return InSync // Only the status was written.
	default:
		return Unclear
	}
}

// statusWritten returns the record of an object that is in sync after writes to
// its status: the next change is compared with the state after them. Otherwise
// one status write would hide all later changes that managedFields don't show. The
// inventory isn't written for it.
func statusWritten(rec inventory.Record, view live.View) inventory.Record {
	o := view.Object
	if o == nil || o.UID != rec.UID || o.OtherManagers != rec.Others || !older(rec.ResourceVersion, o.ResourceVersion) {
		return rec
	}
	rec.ResourceVersion, rec.Status, rec.Epoch = o.ResourceVersion, o.Status, view.Epoch
	return rec
}

// onlyStatusDiffers reports whether o is before with another status. managedFields
// can't show that of two status writes within one second. The bodies of both must
// be cached.
func onlyStatusDiffers(before, o *live.Object) bool {
	if before == nil || before.Body == nil || o.Body == nil || before.UID != o.UID || before.OtherManagers != o.OtherManagers {
		return false
	}
	content := func(o *live.Object) map[string]any {
		content := maps.Clone(o.Body.Object)
		delete(content, "status")
		delete(content, "metadata") // Its digests were compared.
		return content
	}
	return equality.Semantic.DeepEqual(content(before), content(o))
}

// older reports whether resource version a precedes b. Versions that don't
// compare aren't older, so that a request decides.
func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}
