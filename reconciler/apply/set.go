// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// definitionWait bounds the wait for a kind whose definition is in the set.
const definitionWait = 15 * time.Second

// Apply makes the object level with its manifest, by one request or none. Its
// errors are *Error, or that of ctx.
func (e *Engine) Apply(ctx context.Context, m *payload.Manifest, mode Mode) (Change, error) {
	began := e.cfg.Now()
	it, err := e.ensure(ctx, m)
	if err != nil {
		return Change{ID: m.ID}, err
	}
	it.busy.Lock()
	defer e.settle(it)
	ch, err := e.apply(ctx, it, m, mode)
	ch.ID = m.ID
	e.cfg.Metrics.took(e.cfg.Now().Sub(began))
	return ch, err
}

// settle ends an apply: what changed meanwhile is looked at again, now that
// the answer is recorded. An event often comes before the answer.
func (e *Engine) settle(it *item) {
	it.busy.Unlock()
	if it.again.Swap(false) {
		e.sub.Push(it.id)
	}
}

func (e *Engine) apply(ctx context.Context, it *item, m *payload.Manifest, mode Mode) (Change, error) {
	t, err := e.locate(ctx, m)
	if err != nil {
		return Change{}, err
	}
	view, err := e.view(ctx, m.ID)
	if err != nil {
		return Change{}, err
	}
	if m.Delete {
		return e.carryOutDelete(ctx, it, t, view)
	}
	if view.State == live.Present && view.Object.Deleting {
		if view, err = e.awaitGone(ctx, m.ID, t, view.Object); err != nil {
			return Change{}, err
		}
	}
	d := e.decide(it, m, view)
	switch d.step {
	case stepNone, stepDefer:
		return e.report(it, d), nil
	case stepFirst, stepApply, stepVerify:
	}
	return e.write(ctx, &job{it: it, m: m, mode: mode, t: t, view: view, decision: d})
}

// locate finds where the manifest's object lives.
func (e *Engine) locate(ctx context.Context, m *payload.Manifest) (target, error) {
	mapping, err := e.cfg.Live.Mapping(m.GVK)
	if err != nil && live.IsNoMatch(err) && e.defines(m) {
		wait, cancel := context.WithTimeout(ctx, definitionWait)
		defer cancel()
		mapping, err = e.cfg.Live.AwaitMapping(wait, m.GVK)
	}
	if m.Delete && err != nil && live.IsNoMatch(err) {
		served := m.GVK
		served.Version = "" // The manifest may be older than the version that's served now.
		if mapping, err = e.cfg.Live.Mapping(served); err != nil && live.IsNoMatch(err) {
			return target{}, nil // Nothing of a kind that isn't there has to go.
		}
	}
	if err != nil {
		return target{}, classify(m.ID, err)
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch {
	case namespaced && m.ID.Namespace == "":
		return target{}, permanent(m.ID, ReasonResourceInvalid, "the kind is namespaced, and the manifest has no namespace")
	case !namespaced && m.ID.Namespace != "":
		return target{}, permanent(m.ID, ReasonResourceInvalid, "the kind isn't namespaced, and the manifest has namespace %q; remove it", m.ID.Namespace)
	}
	return target{mapping: mapping, namespace: m.ID.Namespace, name: m.ID.Name}, nil
}

// defines reports whether the set holds a CustomResourceDefinition of the
// manifest's group.
func (e *Engine) defines(m *payload.Manifest) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for id := range e.items {
		if id.Kind == "CustomResourceDefinition" && len(id.Name) > len(m.GVK.Group) &&
			id.Name[len(id.Name)-len(m.GVK.Group)-1:] == "."+m.GVK.Group {
			return true
		}
	}
	return false
}

// view looks into the cache; it waits for the kind's first list. A kind that
// can't be watched gives an Unknown view.
func (e *Engine) view(ctx context.Context, id payload.ObjectID) (live.View, error) {
	view := e.cfg.Live.Get(id)
	if view.State != live.Unknown {
		return view, nil
	}
	err := e.cfg.Live.WaitSynced(ctx, id.GroupKind())
	var unwatchable *live.UnwatchableError
	switch {
	case errors.As(err, &unwatchable):
		return view, nil
	case err != nil:
		return view, err
	}
	return e.cfg.Live.Get(id), nil
}

// report makes the change of an apply that cost nothing.
func (e *Engine) report(it *item, d decision) Change {
	e.mu.Lock()
	defer e.mu.Unlock()
	ch := e.changeLocked(it, Unchanged)
	ch.Finished = d.judgement == Done && !d.failed
	if d.failed {
		ch.Failed = permanent(it.id, ReasonJobFailed,
			"the Job failed, and its TTL removed it; it's run again when its manifest changes: look at the logs of its pods, and set no ttlSecondsAfterFinished to keep them")
	}
	if d.step == stepDefer {
		ch.Action, ch.RetryAt = Deferred, d.until
		e.due[it.id] = d.until
		e.sub.Wake() // Watch sets its clock by it.
	}
	return ch
}

func (e *Engine) changeLocked(it *item, action Action) Change {
	return Change{
		ID: it.id, Action: action, UID: string(it.entry.UID), ResourceVersion: it.entry.ResourceVersion,
		Adopted: it.entry.applied() && !it.entry.Created, Yielded: slices.Clone(it.entry.Yields),
	}
}

// job is one apply in work.
type job struct {
	it       *item
	m        *payload.Manifest
	mode     Mode
	t        target
	view     live.View
	decision decision

	// seen is the object that exists; nil if there is none, or if a kind that
	// isn't watched hides it and nothing hangs on it.
	seen *live.Object
	// before is what we held of an object that controllers write too; nil if
	// that doesn't matter.
	before   *fieldpath.Set
	exists   bool
	created  bool
	replaced bool
	// made tells that an earlier process created the object and could not
	// say so any more.
	made bool
	// spared is the object of a create-only manifest, which was there already
	// and is left as it is.
	spared *metav1.PartialObjectMetadata
}

// write applies the manifest and records the answer.
func (e *Engine) write(ctx context.Context, j *job) (Change, error) {
	if err := e.prepare(ctx, j); err != nil {
		return Change{}, err
	}
	if j.spared != nil {
		return e.record(j, j.spared), nil
	}
	answer, err := e.send(ctx, j)
	if err != nil {
		e.refuse(j)
		return Change{}, err
	}
	if o := live.Summarize(answer); o.Deleting {
		// An apply to a dying object succeeds without effect.
		if j.view, err = e.awaitGone(ctx, j.m.ID, j.t, o); err != nil {
			return Change{}, err
		}
		// What comes after it has nothing of it: no fields that others hold.
		j.seen, j.before, j.exists = nil, nil, false
		if err := e.prepare(ctx, j); err != nil {
			return Change{}, err
		}
		if j.spared != nil {
			return e.record(j, j.spared), nil
		}
		if answer, err = e.send(ctx, j); err != nil {
			return Change{}, err
		}
	}
	if j.created && j.exists {
		// It went after it was looked at, so that what was left out of the
		// patch is nobody's.
		j.exists = false
		e.reconsiderYields(j)
		if answer, err = e.send(ctx, j); err != nil {
			return Change{}, err
		}
	}
	if err := e.alone(j.m, live.Summarize(answer)); err != nil {
		return Change{}, err
	}
	if answer, err = e.giveUp(ctx, j, answer); err != nil {
		return Change{}, err
	}
	e.notice(j, answer)
	return e.record(j, answer), nil
}

// alone refuses an object that another set manages too, so that two sets
// never fight for it.
func (e *Engine) alone(m *payload.Manifest, o *live.Object) error {
	for _, own := range o.OwnFields {
		if other := own.Manager.Value(); other != e.manager && other != adoptFrom(m) {
			return ownedByOther(m.ID, strings.TrimPrefix(other, live.ManagerPrefix))
		}
	}
	return nil
}

// prepare does what has to come before the patch: looks at an object that the
// set doesn't know, takes people's fields over, yields contested ones, and
// hands over what it won't send any more.
func (e *Engine) prepare(ctx context.Context, j *job) error {
	if j.decision.step == stepFirst || j.m.CreateOnly {
		return e.meet(ctx, j)
	}
	if err := e.find(ctx, j); err != nil {
		return err
	}
	if j.exists && !e.known(j) {
		err := e.meet(ctx, j)
		e.reconsiderYields(j)
		return err
	}
	e.reconsiderYields(j)
	if !j.exists {
		return nil
	}
	if err := e.alone(j.m, j.seen); err != nil {
		return err
	}
	// A manifest that is new takes its fields; one that was level already is
	// being kept so, also while others are being updated.
	kept := j.mode == Reconciling || !j.decision.changed
	if j.decision.judgement == Drifted && kept && !j.m.ForceFields {
		if err := e.yield(ctx, j); err != nil {
			return err
		}
	}
	if err := e.rearrange(ctx, j); err != nil {
		return err
	}
	e.noteFields(ctx, j)
	return nil
}

// meet looks at an object that the set never applied. One of a create-only
// manifest is asked for even if the watch, which may be late, doesn't show it:
// a patch would overwrite it.
func (e *Engine) meet(ctx context.Context, j *job) error {
	if j.view.State == live.Absent && !j.m.CreateOnly {
		return nil
	}
	o, err := e.firstSight(ctx, j.m, j.t)
	j.exists = o != nil
	j.made = o != nil && madeBy(o, e.manager)
	switch {
	case err != nil || o == nil:
	case o.DeletionTimestamp != nil:
		_, err = e.awaitGone(ctx, j.m.ID, j.t, live.Summarize(o))
		j.exists = false
	case j.m.CreateOnly:
		j.spared = o
	}
	return err
}

// known reports whether the object is the one that was recorded, not one that
// others made of its name.
func (e *Engine) known(j *job) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return j.seen.UID == j.it.entry.UID
}

// find tells whether the object exists. One of a kind that isn't watched is
// read if fields of it are others': what they hold must not be sent, and only
// the object says so.
func (e *Engine) find(ctx context.Context, j *job) error {
	switch j.view.State {
	case live.Absent:
		return nil
	case live.Present:
		j.seen, j.exists = j.view.Object, true
		return nil
	case live.Unknown:
	}
	if !e.delicate(j) {
		return nil
	}
	o, err := e.read(ctx, j.t)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(j.m.ID, err)
	}
	j.seen, j.exists = live.Summarize(o), true
	j.seen.Merged = true
	e.mu.RLock()
	defer e.mu.RUnlock()
	j.decision.judgement = Compare(j.it.entry.record(), j.m.ID.GroupKind(), e.manager,
		live.View{State: live.Present, Object: j.seen, AsOf: j.seen.ResourceVersion, Epoch: j.view.Epoch})
	return nil
}

// delicate reports whether the object must be known before it's written.
func (e *Engine) delicate(j *job) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return j.decision.changed || len(j.it.entry.Yields) > 0 || len(j.m.IgnoreFields) > 0 || kinds.Of(j.m.GVK.GroupKind()).Scalable
}

// body returns what is sent: the manifest with the label of a member and
// without the fields that are left to others.
func (e *Engine) body(j *job) ([]byte, error) {
	e.mu.RLock()
	var drop []string
	for _, y := range j.it.entry.Yields {
		drop = append(drop, y.Pointer)
	}
	e.mu.RUnlock()
	if j.exists {
		drop = append(drop, j.m.IgnoreFields...)
	}
	if len(drop) == 0 {
		return json.Marshal(member(j.m.Object.Object, e.store.id))
	}
	content := member(j.m.Object.DeepCopy().Object, e.store.id)
	// From the back, so that an index in one pointer isn't moved by another.
	slices.SortFunc(drop, func(a, b string) int { return -comparePointers(a, b) })
	for _, pointer := range drop {
		remove(content, pointer)
	}
	return json.Marshal(content)
}

// send patches, with a few tries for what goes away by itself, and replaces
// the object where the manifest allows that.
func (e *Engine) send(ctx context.Context, j *job) (*metav1.PartialObjectMetadata, error) {
	body, err := e.body(j)
	if err != nil {
		return nil, fmt.Errorf("%s: encoding: %w", j.m.ID, err)
	}
	answer, err := e.patch(ctx, j, body)
	var refused *Error
	if err == nil || !errors.As(err, &refused) || refused.Reason() != ReasonFieldImmutable {
		return answer, err
	}
	isJob := j.m.ID.IsJob()
	if !j.m.Replace && !isJob {
		refused.message += "; set the annotation " + payload.AnnotationReplace + ": \"true\" to have the object deleted and made anew"
		return nil, refused
	}
	if err := e.makeWay(ctx, j, body); err != nil {
		return nil, err
	}
	j.replaced, j.exists = true, false
	if body, err = e.body(j); err != nil {
		return nil, fmt.Errorf("%s: encoding: %w", j.m.ID, err)
	}
	return e.patch(ctx, j, body)
}

// patchTries bounds the attempts of one apply; its pauses grow from
// patchPause. What failed slowly isn't tried again here: its caller has other
// objects to see to, and comes back.
const (
	patchTries = 5
	patchPause = 60 * time.Millisecond
)

func (e *Engine) patch(ctx context.Context, j *job, body []byte) (*metav1.PartialObjectMetadata, error) {
	force := true
	opts := metav1.PatchOptions{FieldManager: e.manager, Force: &force}
	pause := patchPause
	for try := 1; ; try++ {
		began := e.cfg.Now()
		answer, created, err := e.wire.patch(ctx, j.t, types.ApplyPatchType, body, opts)
		if err == nil {
			e.cfg.Metrics.request("apply", appliedAs(created, answer, j))
			j.created = j.created || created
			return answer, nil
		}
		e.cfg.Metrics.request("apply", "error")
		classified := classify(j.m.ID, err)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if try == patchTries || e.cfg.Now().Sub(began) > slowAfter || !quickRetry(err, classified) && !e.schemaLags(j.m, classified) {
			return nil, classified
		}
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
		pause *= 3
	}
}

// schemaLag is how long the server may judge objects by a schema that isn't
// the newest: it takes a changed definition into use by and by.
const schemaLag = 5 * time.Second

// schemaLags reports whether the refusal may come from the old schema of a
// kind whose definition was written a moment ago.
func (e *Engine) schemaLags(m *payload.Manifest, classified error) bool {
	var refused *Error
	if !errors.As(classified, &refused) || refused.Reason() != ReasonResourceInvalid {
		return false
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	at, ok := e.defined[m.GVK.GroupKind()]
	return ok && e.cfg.Now().Sub(at) < schemaLag
}

// quickRetry reports whether a few more tries are worth it: a webhook that
// timed out, a server that restarts, a resource that isn't served yet.
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

func appliedAs(created bool, answer *metav1.PartialObjectMetadata, j *job) string {
	switch {
	case created:
		return "created"
	case j.view.State == live.Present && j.view.Object.ResourceVersion == answer.ResourceVersion:
		return "unchanged"
	default:
		return "configured"
	}
}

// sleep waits; it reports false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// makeWay deletes an object whose immutable field changed, after a dry run
// showed that the new one is valid.
func (e *Engine) makeWay(ctx context.Context, j *job, body []byte) error {
	err := e.wire.create(ctx, j.t, body, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: e.manager})
	e.cfg.Metrics.request("dry-run", outcome(err))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return classify(j.m.ID, err)
	}
	o, err := e.read(ctx, j.t)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(j.m.ID, err)
	}
	err = e.wire.delete(ctx, j.t, o.UID, metav1.DeletePropagationForeground)
	e.cfg.Metrics.request("delete", outcome(err))
	if err != nil && !apierrors.IsNotFound(err) {
		return classify(j.m.ID, err)
	}
	summary := live.Summarize(o)
	summary.Deleting = true
	_, err = e.awaitGone(ctx, j.m.ID, j.t, summary)
	return err
}

// awaitGone waits until the object that dies is gone, and returns what the
// cache shows then.
func (e *Engine) awaitGone(ctx context.Context, id payload.ObjectID, t target, dying *live.Object) (live.View, error) {
	wait, cancel := context.WithTimeout(ctx, e.cfg.DeletionWait)
	defer cancel()
	var last live.View
	for again := true; again; {
		err := e.cfg.Live.Await(wait, id, func(v live.View) bool {
			last = v
			return v.State == live.Unknown || v.State == live.Present && v.Object.UID != dying.UID ||
				v.State == live.Absent && !older(v.AsOf, dying.ResourceVersion)
		})
		if ctx.Err() != nil {
			return last, ctx.Err()
		}
		if last.State != live.Unknown {
			if err == nil {
				return last, nil
			}
			break
		}
		// The kind isn't watched: ask.
		if _, err := e.read(ctx, t); apierrors.IsNotFound(err) {
			return live.View{State: live.Absent}, nil
		}
		again = sleep(wait, unwatchedPause)
	}
	finalizers := dying.Finalizers()
	if last.State == live.Present {
		finalizers = last.Object.Finalizers()
	}
	return last, transient(id, ReasonTerminating, "the object is being deleted; %s", heldBy(finalizers))
}

func heldBy(finalizers []string) string {
	if len(finalizers) == 0 {
		return "it has no finalizers, so the server removes it soon"
	}
	return fmt.Sprintf("it waits for the finalizers %.300q", finalizers)
}

// refuse paces an object whose repair the server refused.
func (e *Engine) refuse(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j.it.pace.refused(e.cfg.Now())
	if at := j.it.pace.repairAt(); !j.decision.changed {
		e.due[j.it.id] = at
		e.sub.Wake()
	}
}

// record keeps the answer: it is what the object is compared with from now
// on.
func (e *Engine) record(j *job, answer *metav1.PartialObjectMetadata) Change {
	o := live.Summarize(answer)
	e.mu.Lock()
	defer e.mu.Unlock()
	en, now := &j.it.entry, e.cfg.Now()
	action := e.actionLocked(j, o, now)
	before := en.record()
	// An object that others made in place of ours is theirs.
	en.Created = j.created || j.made || en.Created && before.UID == o.UID
	if o.UID != before.UID || j.decision.changed {
		en.Finished, en.Failed = false, false
	}
	en.setRecord(recordOf(o, e.manager, desiredOf(j.m), j.view.Epoch))
	j.it.pace.accepted()
	delete(e.due, j.it.id)
	if definition(j.m) {
		e.defined[definedBy(j.m)] = now
	}
	if en.record() != before {
		e.store.touch(j.it)
	}
	return e.changeLocked(j.it, action)
}

// actionLocked names what the apply did and paces the next; e.mu is held.
func (e *Engine) actionLocked(j *job, o *live.Object, now time.Time) Action {
	wrote := j.view.State != live.Present || j.view.Object.ResourceVersion != o.ResourceVersion
	switch {
	case j.replaced:
		return Replaced
	case j.spared != nil:
		return Unchanged
	case j.decision.step == stepFirst || j.decision.changed:
		if j.created {
			return Created
		}
		return Updated
	case j.decision.step == stepVerify:
		j.it.pace.verified(now)
		if !wrote || j.view.State == live.Unknown {
			return Verified
		}
	default:
		j.it.pace.contested(now)
	}
	e.cfg.Metrics.repaired()
	e.tell(j.it.id, ReasonDriftRepaired, "")
	return Repaired
}
