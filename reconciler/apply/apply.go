// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// crdWait bounds the wait for a kind whose CRD is in the set.
const crdWait = 15 * time.Second

// applier applies single manifests: it observes the object, prepares its fields,
// patches it and records the response.
type applier struct {
	set     *set
	client  *client
	deleter *deleter
	pruner  *pruner
	live    *live.Cache
	now     func() time.Time
	metrics *Metrics
	notify  func(Notice)
	log     logr.Logger
}

func (a *applier) apply(ctx context.Context, m *payload.Manifest, mode Mode) (Change, error) {
	began := a.now()
	it, err := a.set.ensure(ctx, m)
	if err != nil {
		return Change{ID: m.ID}, err
	}
	it.busy.Lock()
	defer a.set.settle(it)
	ch, err := a.applyLocked(ctx, it, m, mode)
	ch.ID = m.ID
	a.metrics.took(a.now().Sub(began))
	return ch, err
}

// applyLocked applies the manifest; it.busy is held.
func (a *applier) applyLocked(ctx context.Context, it *item, m *payload.Manifest, mode Mode) (Change, error) {
	t, err := a.locate(ctx, m)
	if err != nil {
		return Change{}, err
	}
	view, err := a.set.view(ctx, m.ID)
	if err != nil {
		return Change{}, err
	}
	if m.Delete {
		return a.pruner.deleteNamed(ctx, it, t, view)
	}
	if view.State == live.Present && view.Object.Deleting {
		if view, err = a.deleter.awaitGone(ctx, m.ID, t, view.Object); err != nil {
			return Change{}, err
		}
	}
	d := a.set.decide(it, m, view)
	switch d.step {
	case stepNone, stepDefer:
		return a.set.unchanged(it, d), nil
	case stepInitial, stepApply, stepVerify:
	}
	return a.write(ctx, &request{it: it, m: m, mode: mode, target: t, decision: d}, view)
}

// locate returns the location of the manifest's object. It has no mapping for
// the object of a delete manifest whose kind doesn't exist.
func (a *applier) locate(ctx context.Context, m *payload.Manifest) (target, error) {
	mapping, err := a.live.Mapping(m.GVK)
	if err != nil && live.IsNoMatch(err) && a.set.definesGroup(m.GVK.Group) {
		wait, cancel := context.WithTimeout(ctx, crdWait)
		defer cancel()
		mapping, err = a.live.AwaitMapping(wait, m.GVK)
	}
	if m.Delete && err != nil && live.IsNoMatch(err) {
		served := m.GVK
		served.Version = "" // The manifest's version may not be served any more.
		if mapping, err = a.live.Mapping(served); err != nil && live.IsNoMatch(err) {
			return target{}, nil
		}
	}
	if err != nil {
		return target{}, classify(m.ID, err)
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch {
	case namespaced && m.ID.Namespace == "":
		return target{}, permanent(m.ID, ReasonResourceInvalid, "the manifest of a namespaced kind has no namespace")
	case !namespaced && m.ID.Namespace != "":
		return target{}, permanent(m.ID, ReasonResourceInvalid, "the manifest of a cluster-scoped kind has namespace %q; remove it", m.ID.Namespace)
	}
	return target{mapping: mapping, namespace: m.ID.Namespace, name: m.ID.Name}, nil
}

// result is that of the patches of one apply.
type result struct {
	response          *metav1.PartialObjectMetadata
	created, replaced bool
}

// write applies the manifest and records the response.
func (a *applier) write(ctx context.Context, r *request, view live.View) (Change, error) {
	o, before, err := a.prepare(ctx, r, view)
	if err != nil {
		return Change{}, err
	}
	if o.preexisting(r.m) {
		return a.record(r, &o, result{response: o.initial}), nil
	}
	var out result
	if err := a.send(ctx, r, &o, &out); err != nil {
		a.set.refused(r)
		return Change{}, err
	}
	if terminating := live.Summarize(out.response); terminating.Deleting {
		// An apply to a terminating object succeeds without effect.
		if view, err = a.deleter.awaitGone(ctx, r.m.ID, r.target, terminating); err != nil {
			return Change{}, err
		}
		if o, before, err = a.prepare(ctx, r, view); err != nil {
			return Change{}, err
		}
		if o.preexisting(r.m) {
			out.response = o.initial
			return a.record(r, &o, out), nil
		}
		if err := a.send(ctx, r, &o, &out); err != nil {
			return Change{}, err
		}
	}
	if out.created && o.exists {
		// It was deleted after it was observed, so that no manager has the
		// fields that the patch omitted.
		o.exists = false
		a.set.reconsiderYields(r, false)
		if err := a.send(ctx, r, &o, &out); err != nil {
			return Change{}, err
		}
	}
	if err := checkOwner(r.m, a.set.manager, live.Summarize(out.response)); err != nil {
		return Change{}, err
	}
	if err := a.settleFields(ctx, r, &o, &out); err != nil {
		return Change{}, err
	}
	if r.decision.changed {
		a.logFields(r.m, before, out.response)
	}
	if o.initial != nil {
		a.reportAdoption(r, &o, &out)
	}
	return a.record(r, &o, out), nil
}

// maxDetail bounds the detail of a notice, in bytes.
const maxDetail = 400

// reportAdoption reports the fields of other managers on an adopted object. Once it
// is adopted, nobody would see what they left on it.
func (a *applier) reportAdoption(r *request, o *observation, out *result) {
	pick := managedfields.Adoptable(a.set.state(r.it).adopt, adoptFrom(r.m))
	adoption := managedfields.AdoptionOf(o.initial.ManagedFields, out.response.ManagedFields, a.set.manager, pick)
	if text := adoption.String(); text != "" {
		a.notify(Notice{ID: r.it.id, What: ReasonAdoptedFields, Detail: sanitize.Clip(text, maxDetail)})
	}
}

// record stores the response and reports a repair.
func (a *applier) record(r *request, o *observation, out result) Change {
	ch := a.set.record(r, o, out)
	if ch.Action == Repaired {
		a.metrics.repaired()
		a.notify(Notice{ID: r.it.id, What: ReasonDriftRepaired})
	}
	return ch
}

// prepare observes the object and sends the requests that must precede the
// patch. It also returns the manager's fields, if they are to be compared with
// those after the patch.
func (a *applier) prepare(ctx context.Context, r *request, view live.View) (observation, *fieldpath.Set, error) {
	o, err := a.observe(ctx, r, view)
	if err != nil {
		return o, nil, err
	}
	if o.exists {
		r.replicas = a.replicas(r)
	}
	p, err := prepare(r, &o, a.set.state(r.it))
	if err != nil {
		return o, nil, err
	}
	if p.yield != nil {
		if err := a.yield(ctx, r, &o, p.yield); err != nil {
			return o, nil, err
		}
	}
	if p.takeOver != nil {
		err := a.client.rewriteFields(ctx, r.m.ID, r.target, func(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
			return managedfields.Rearrange(entries, a.set.manager, p.takeOver, r.m, r.replicas)
		})
		if err != nil {
			return o, nil, err
		}
	}
	if p.compare {
		if current, err := a.client.get(ctx, r.target); err == nil {
			return o, managedfields.OwnFields(current.ManagedFields, a.set.manager), nil
		}
	}
	return o, nil, nil
}

// replicas returns the JSON pointer of the field that the scale subresource of the
// object's kind sets; "" without one.
func (a *applier) replicas(r *request) string {
	gk := r.m.GVK.GroupKind()
	switch {
	case kinds.Of(gk).Scalable:
		return "/spec/replicas"
	case scheme.Scheme.IsGroupRegistered(gk.Group):
		return "" // A built-in kind.
	default:
		return a.live.Replicas(r.target.mapping)
	}
}

// observe returns the state of the object. It reads an object that the set never
// applied, and one of an unwatched kind whose fields matter.
func (a *applier) observe(ctx context.Context, r *request, view live.View) (observation, error) {
	if r.initialRead() {
		return a.readInitial(ctx, r, view)
	}
	o := observation{view: view, verdict: r.decision.verdict}
	en := a.set.entry(r.it)
	switch {
	case view.State == live.Present:
		o.object = view.Object
	case view.State == live.Unknown && mustRead(r, len(en.Yields)):
		current, err := a.client.get(ctx, r.target)
		if err != nil && !apierrors.IsNotFound(err) {
			return o, classify(r.m.ID, err)
		}
		if err == nil {
			o.object = live.Summarize(current)
			o.object.Merged = true
			o.verdict = Compare(en.Record, r.m.ID.GroupKind(), a.set.manager,
				live.View{State: live.Present, Object: o.object, AsOf: o.object.ResourceVersion, Epoch: view.Epoch})
		}
	}
	o.exists = o.object != nil
	if o.exists && o.object.UID != en.UID {
		var err error
		o, err = a.readInitial(ctx, r, view)
		a.set.reconsiderYields(r, o.exists)
		return o, err
	}
	a.set.reconsiderYields(r, o.exists)
	return o, nil
}

// readInitial reads an object that the set never applied, and refuses one that
// it may not adopt. It reads a create-only object even if the watch, which may
// be late, doesn't show it: a patch would overwrite it.
func (a *applier) readInitial(ctx context.Context, r *request, view live.View) (observation, error) {
	o := observation{view: view, verdict: r.decision.verdict}
	if view.State == live.Absent && !r.m.CreateOnly {
		return o, nil
	}
	current, err := a.client.get(ctx, r.target)
	switch {
	case apierrors.IsNotFound(err):
		return o, nil
	case err != nil:
		return o, classify(r.m.ID, err)
	case current.DeletionTimestamp != nil:
		_, err := a.deleter.awaitGone(ctx, r.m.ID, r.target, live.Summarize(current))
		return o, err
	}
	if o.givers, err = a.set.mayAdopt(r.m, current); err != nil {
		return o, err
	}
	o.initial, o.exists = current, true
	return o, nil
}

// body returns what is sent: the manifest with the member label and without the
// fields that other managers own.
func (a *applier) body(r *request, exists bool) ([]byte, error) {
	var omit []string
	for _, y := range a.set.entry(r.it).Yields {
		omit = append(omit, y.Pointer)
	}
	if exists {
		omit = append(omit, r.m.IgnoreFields...)
	}
	object := r.m.Object
	if len(omit) > 0 {
		object = object.DeepCopy()
	}
	content := a.set.store.Label(object.Object)
	managedfields.Remove(content, omit)
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest of %s: %w", r.m.ID, err)
	}
	return body, nil
}

// send patches the object and merges the result into out. An object whose
// immutable field changed is replaced, if its manifest permits that.
func (a *applier) send(ctx context.Context, r *request, o *observation, out *result) error {
	body, err := a.body(r, o.exists)
	if err != nil {
		return err
	}
	err = a.patch(ctx, r, o.view, body, out)
	var refused *Error
	if err == nil || !errors.As(err, &refused) || refused.Reason() != ReasonFieldImmutable {
		return err
	}
	if !r.m.Replace && !r.m.ID.IsJob() {
		refused.message += "; set the annotation " + payload.AnnotationReplace + ": \"true\" to delete and recreate the object"
		return refused
	}
	if err := a.deleter.replace(ctx, r.m.ID, r.target, body); err != nil {
		return err
	}
	out.replaced, o.exists = true, false
	if body, err = a.body(r, false); err != nil {
		return err
	}
	return a.patch(ctx, r, o.view, body, out)
}

// patchTries bounds the attempts of one patch; the pauses between them grow from
// patchPause. Failures after more than patchSlow aren't retried here, since the caller
// has other objects to apply.
const (
	patchTries = 5
	patchPause = 60 * time.Millisecond
	patchSlow  = 2 * time.Second
)

func (a *applier) patch(ctx context.Context, r *request, view live.View, body []byte, out *result) error {
	pause := patchPause
	for try := 1; ; try++ {
		began := a.now()
		response, created, err := a.client.apply(ctx, r.target, body, view)
		if err == nil {
			out.response, out.created = response, out.created || created
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		classified := classify(r.m.ID, err)
		if try == patchTries || a.now().Sub(began) > patchSlow || !quickRetry(err, classified) && !a.schemaLags(r.m, classified) {
			return classified
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		pause *= 3
	}
}

// schemaLag is how long the server may validate objects by the previous schema
// after a CRD changed.
const schemaLag = 5 * time.Second

// schemaLags reports whether the refusal may be due to the previous schema of a
// kind whose CRD was just written.
func (a *applier) schemaLags(m *payload.Manifest, classified error) bool {
	var refused *Error
	if !errors.As(classified, &refused) || refused.Reason() != ReasonResourceInvalid {
		return false
	}
	return a.set.definedSince(m.GVK.GroupKind(), a.now().Add(-schemaLag))
}

// quickRetry reports whether a failure may resolve within a few retries: a
// webhook that timed out, a restarting server, a resource that isn't served yet.
func quickRetry(err, classified error) bool {
	var e *Error
	if !errors.As(classified, &e) || !e.Retriable() {
		return false
	}
	switch e.Reason() {
	case ReasonConflict, ReasonServerError, ReasonServerUnreachable, ReasonWebhookFailed:
		return true
	case ReasonTypeMissing:
		return missingResource(err)
	default:
		return false
	}
}
