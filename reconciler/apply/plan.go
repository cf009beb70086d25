// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// step is what an object requires.
type step int

const (
	stepNone    step = iota // It is in sync.
	stepDefer               // It isn't, but its next request is delayed.
	stepInitial             // The set has never applied it.
	stepApply               // Its manifest changed, or it drifted.
	stepVerify              // A request must show whether it is in sync.
)

// decision is the result of decide.
type decision struct {
	step    step
	verdict Verdict
	changed bool // The manifest differs from the applied one.
	failed  bool // A Job that is Done failed.
	until   time.Time
}

// decide returns what an object requires, from its entry, its pace and the view
// of the cache. It is pure, except that the pace remembers an unclear view.
func decide(en *inventory.Entry, p *pace, m *payload.Manifest, manager string, view live.View, now time.Time) decision {
	if !en.Applied() {
		return decision{step: stepInitial, verdict: Missing, changed: true}
	}
	v := p.remember(Compare(en.Record, m.ID.GroupKind(), manager, view))
	if (en.Finished || en.Failed) && (v == Missing && view.State == live.Absent || v == Unwatched) {
		v = Done // Its TTL removes it, also while the watch is down.
	}
	d := decision{step: stepNone, verdict: v, failed: v == Done && (en.Failed || view.Failed && view.Ended == en.UID)}
	switch {
	case m.CreateOnly:
		if v == Missing && view.State == live.Absent {
			d.step = stepApply
		}
		return d
	case en.Desired != desiredOf(m):
		d.step, d.changed = stepApply, true
		return d
	case v == InSync || v == Done:
		return d
	case v == Unclear || v == Unwatched:
		d.step, d.until = stepVerify, p.verifyAt()
	default:
		d.step, d.until = stepApply, p.repairAt()
	}
	if now.Before(d.until) {
		d.step = stepDefer
	}
	return d
}

// request is one manifest to apply, and what was decided about it.
type request struct {
	it       *item
	m        *payload.Manifest
	mode     Mode
	target   target
	decision decision
	// replicas is the JSON pointer of the replicas that the scale subresource of an
	// existing object sets; "" if there is no such subresource.
	replicas string
}

// initialRead reports whether the object must be read before the set may write
// it: it was never applied, or a patch would overwrite a pre-existing object of a
// create-only manifest, which the watch may show late.
func (r *request) initialRead() bool { return r.decision.step == stepInitial || r.m.CreateOnly }

// observation is the state of an object before it is written.
type observation struct {
	view live.View
	// exists is false for an object of an unwatched kind that wasn't read.
	exists bool
	// object is nil if the object doesn't exist, and after an initial read.
	object  *live.Object
	verdict Verdict
	// initial is the response of the initial read: the object isn't the one
	// that the set applied.
	initial *metav1.PartialObjectMetadata
	// givers are the other sets that have a field manager on it and give it.
	givers []string
}

// preexisting reports whether the object of a create-only manifest exists. It is
// recorded and not written.
func (o *observation) preexisting(m *payload.Manifest) bool { return o.initial != nil && m.CreateOnly }

// preparation lists the requests before the patch, in their order.
type preparation struct {
	// yield selects the managers to which fields are yielded; nil skips the
	// read.
	yield managedfields.Pick
	// takeOver selects the managers whose fields are taken over when the
	// managed fields are rewritten; nil skips the rewrite.
	takeOver managedfields.Pick
	// compare reads the manager's fields, to report those that outlive the
	// manifest.
	compare bool
}

// state is what prepare decides by.
type state struct {
	manager   string
	adopt     []string
	record    inventory.Record
	contested bool
}

// prepare returns the requests that must precede the patch. It is pure.
func prepare(r *request, o *observation, s state) (preparation, error) {
	var p preparation
	if o.initial != nil && !o.preexisting(r.m) {
		p.takeOver = managedfields.Adoptable(s.adopt, o.givers...)
		if !r.m.ForceFields && managedfields.ScaledByControllers(live.Summarize(o.initial)) {
			p.yield = yieldTo(false)
		}
	}
	if o.object == nil {
		return p, nil
	}
	if err := checkOwner(r.m, s.manager, o.object); err != nil {
		return p, err
	}
	// A changed manifest takes its fields, except those of an autoscaler. One that was
	// in sync is only kept so, also while the rest of the release is updated.
	keep := r.mode == Reconciling || !r.decision.changed
	switch {
	case o.verdict != Drifted || r.m.ForceFields:
	case s.contested && keep:
		p.yield = yieldTo(true)
	case managedfields.ScaledByControllers(o.object):
		p.yield = yieldTo(false)
	}
	_, hasEntry := o.object.OwnFieldsOf(s.manager)
	switch {
	case managedfields.WrittenInteractively(o.object) && (r.decision.changed || !hasEntry):
		p.takeOver = managedfields.Adoptable(nil)
	case mayHoldRelinquished(r, o.object, s):
		p.takeOver = managedfields.None
	}
	p.compare = r.decision.changed && o.object.Shared && managedfields.WrittenByControllers(o.object)
	return p, nil
}

// yieldTo selects the managers to which a drifted object yields: controllers
// that use the scale subresource and, once the object is contested, all other
// controllers. Changes by users are drift.
func yieldTo(contested bool) managedfields.Pick {
	return func(e *metav1.ManagedFieldsEntry) bool {
		return !managedfields.Interactive(e.Manager) && (e.Subresource == "scale" || contested && e.Subresource == "")
	}
}

// mayHoldRelinquished reports whether the manager may own fields that the
// manifest leaves to others. An entry that is as the last apply of this manifest
// left it has none.
func mayHoldRelinquished(r *request, o *live.Object, s state) bool {
	if len(managedfields.Relinquished(r.m, r.replicas)) == 0 {
		return false
	}
	own, _ := o.OwnFieldsOf(s.manager)
	switch {
	case older(o.ResourceVersion, s.record.ResourceVersion):
		return true // It doesn't show the fields of the last apply.
	case own.Entry == s.record.Entry && !r.decision.changed:
		return false
	default:
		return len(r.m.IgnoreFields) > 0 || own.Replicas || !strings.HasSuffix(r.replicas, "/replicas")
	}
}

// checkOwner refuses an object that another set manages too.
func checkOwner(m *payload.Manifest, manager string, o *live.Object) error {
	for _, own := range o.OwnFields {
		if other := own.Manager.Value(); other != manager {
			return ownedByOther(m.ID, strings.TrimPrefix(other, live.ManagerPrefix))
		}
	}
	return nil
}

// mustRead reports whether an object of an unwatched kind must be read before it
// is written: the fields that other managers own must not be sent.
func mustRead(r *request, yields int) bool {
	return r.decision.changed || yields > 0 || len(r.m.IgnoreFields) > 0 || kinds.Of(r.m.GVK.GroupKind()).Scalable
}

// adoptFrom returns the manager whose set hands the object over, or "".
func adoptFrom(m *payload.Manifest) string {
	owner := m.Object.GetAnnotations()[payload.AnnotationAdoptFrom]
	if owner == "" {
		return ""
	}
	return live.ManagerPrefix + strings.TrimPrefix(owner, live.ManagerPrefix)
}

// endsYield reports whether the manifest ends a yield: it forces its fields,
// lacks the field, changes its value, or the object doesn't exist.
func endsYield(m *payload.Manifest, y inventory.Yield, exists bool) bool {
	val, set := managedfields.At(m.Object.Object, y.Pointer)
	return m.ForceFields || !set || inventory.HashOf(val) != y.Value || !exists
}
