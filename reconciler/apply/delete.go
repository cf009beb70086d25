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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// unwatchedPause is the interval at which the deletion of an object of an
// unwatched kind is checked.
const unwatchedPause = 250 * time.Millisecond

// deleter deletes objects and waits for the end of deletions.
type deleter struct {
	client *client
	live   *live.Cache
	now    func() time.Time
	// wait bounds a wait.
	wait time.Duration
}

// find reads an object of the inventory, in another version if that of its last
// apply isn't served any more. It returns nil if the object doesn't exist.
func (d *deleter) find(ctx context.Context, en *inventory.Entry) (target, *metav1.PartialObjectMetadata, error) {
	t := target{namespace: en.Namespace, name: en.Name}
	var o *metav1.PartialObjectMetadata
	var err error
	if t.mapping, err = d.live.Mapping(en.GVK()); err == nil {
		if impossible(en, t.mapping) {
			return t, nil, nil
		}
		o, err = d.client.get(ctx, t)
	}
	if live.IsNoMatch(err) || missingResource(err) {
		if t.mapping, err = d.live.Served(ctx, en.GVK().GroupKind()); err != nil {
			return t, nil, &Error{
				ID: en.ID(), reason: ReasonTypeMissing, retriable: true, err: err,
				message: "the object stays in the inventory, since its kind can't be found: " + sanitize.Clip(err.Error(), messageLimit),
			}
		}
		if t.mapping == nil {
			return t, nil, nil // The kind was deleted with its objects.
		}
		o, err = d.client.get(ctx, t)
	}
	if notFound(err) {
		return t, nil, nil
	}
	return t, o, classify(en.ID(), err)
}

// replace deletes an object whose immutable field changed, after a dry run
// accepted the new one, and waits until it is gone.
func (d *deleter) replace(ctx context.Context, id payload.ObjectID, t target, body []byte) error {
	if err := d.client.dryRunCreate(ctx, t, body); err != nil && !apierrors.IsAlreadyExists(err) {
		return classify(id, err)
	}
	o, err := d.client.get(ctx, t)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(id, err)
	}
	if err := d.client.delete(ctx, t, o.UID); err != nil && !apierrors.IsNotFound(err) {
		return classify(id, err)
	}
	_, err = d.awaitGone(ctx, id, t, live.Summarize(o))
	return err
}

// awaitGone waits until the watch shows that a terminating object is gone, and
// returns the view. Objects of unwatched kinds are read instead.
func (d *deleter) awaitGone(ctx context.Context, id payload.ObjectID, t target, terminating *live.Object) (live.View, error) {
	wait, cancel := context.WithTimeout(ctx, d.wait)
	defer cancel()
	var last live.View
	for again := true; again; {
		err := d.live.Await(wait, id, func(v live.View) bool {
			last = v
			return v.State == live.Unknown || showsGone(v, terminating)
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
		if _, err := d.client.get(ctx, t); apierrors.IsNotFound(err) {
			return live.View{State: live.Absent}, nil
		}
		again = sleep(wait, unwatchedPause)
	}
	finalizers := terminating.Finalizers()
	if last.State == live.Present {
		finalizers = last.Object.Finalizers()
	}
	return last, d.terminatingAs(ctx, id, t, finalizers)
}

// confirmGone waits until the watch shows that a terminating object is gone, at
// most until deadline, and reads the object to confirm it.
func (d *deleter) confirmGone(ctx context.Context, id payload.ObjectID, t target, terminating *live.Object, deadline time.Time) error {
	wait, cancel := context.WithTimeout(ctx, max(deadline.Sub(d.now()), time.Millisecond))
	defer cancel()
	for {
		watched := true
		_ = d.live.Await(wait, id, func(v live.View) bool { // The read below decides.
			watched = v.State != live.Unknown
			return !watched || showsGone(v, terminating)
		})
		o, err := d.client.get(ctx, t)
		switch {
		case notFound(err):
			return nil
		case err != nil:
			return classify(id, err)
		case o.UID != terminating.UID:
			return nil // Another object was created under its name.
		case watched || !sleep(wait, unwatchedPause):
			return d.terminatingAs(ctx, id, t, o.Finalizers)
		}
	}
}

func showsGone(v live.View, terminating *live.Object) bool {
	return v.State == live.Absent && !older(v.AsOf, terminating.ResourceVersion) ||
		v.State == live.Present && v.Object.UID != terminating.UID
}

// notFound reports whether a served resource has no such object.
func notFound(err error) bool { return apierrors.IsNotFound(err) && !missingResource(err) }

// terminatingError is the error of an object that is being deleted. content is what
// the server reports about the content of a namespace.
func terminatingError(id payload.ObjectID, finalizers []string, content string) error {
	blocked := "the server removes it shortly"
	switch {
	case len(finalizers) > 0:
		blocked = fmt.Sprintf("blocked by the finalizers %.300q", finalizers)
	case content != "":
		blocked = "blocked by its content: " + content
	}
	err := transient(id, ReasonTerminating, "the object is being deleted; %s", blocked)
	err.finalizers, err.content = finalizers, content
	return err
}

// Leaving is an object that left the set, or that a delete manifest names, and whose
// deletion hasn't ended.
type Leaving struct {
	ID payload.ObjectID
	// Since is when it was deleted.
	Since time.Time
	// Finalizers are those that remain. Content is what the API server reports about
	// the content of a namespace, or "".
	Finalizers []string
	Content    string
}

// deletion is a deletion whose end is awaited.
type deletion struct {
	uid        types.UID
	since      time.Time
	finalizers []string
	content    string
}

// terminatingAs returns the error of an object whose deletion didn't end in time. It
// reads the conditions of a namespace.
func (d *deleter) terminatingAs(ctx context.Context, id payload.ObjectID, t target, finalizers []string) error {
	content := ""
	if id.GroupKind() == kinds.Namespace {
		// Without it the error is less precise.
		content, _ = d.client.namespaceContent(ctx, t)
	}
	return terminatingError(id, finalizers, content)
}

// stillTerminating returns the error of an object whose deletion didn't end in time,
// nil for other errors.
func stillTerminating(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok && e.reason == ReasonTerminating {
		return e
	}
	return nil
}

// maxContent bounds the report about a namespace's content, in bytes.
const maxContent = 300

// namespaceContent returns what the API server reports about the content that keeps
// a terminating namespace: objects with finalizers, or APIs that it can't list.
func (c *client) namespaceContent(ctx context.Context, t target) (string, error) {
	place, err := c.wire.budget.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer place.release()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	raw, err := c.wire.client.Get().AbsPath(t.path(true)...).SetHeader("Accept", "application/json").Do(ctx).Raw()
	c.metrics.request("get", outcome(err))
	if err != nil {
		return "", err
	}
	return contentOf(raw)
}

// contentOf returns the messages of the conditions of a namespace that keep it, the
// most precise first.
func contentOf(raw []byte) (string, error) {
	var namespace corev1.Namespace
	if err := json.Unmarshal(raw, &namespace); err != nil {
		return "", err
	}
	var out []string
	for _, typ := range []corev1.NamespaceConditionType{
		corev1.NamespaceFinalizersRemaining, corev1.NamespaceContentRemaining, corev1.NamespaceDeletionContentFailure, corev1.NamespaceDeletionDiscoveryFailure,
	} {
		for _, c := range namespace.Status.Conditions {
			if c.Type == typ && c.Status == corev1.ConditionTrue && c.Message != "" {
				out = append(out, c.Message)
			}
		}
	}
	return sanitize.Clip(sanitize.Line(strings.Join(out, "; ")), maxContent), nil
}

// record keeps a deletion whose end wasn't confirmed in time. The watch reports it.
func (p *pruner) record(it *item, o *live.Object, since time.Time, err *Error) {
	d := &deletion{uid: o.UID, since: since, finalizers: err.finalizers, content: err.content}
	p.set.mu.Lock()
	known := it.deletion != nil
	it.deletion = d
	p.set.mu.Unlock()
	if !known {
		p.set.sub.Push(it.id) // The deletion may have ended since the last read.
	}
}

// recorded reports whether the end of an object's deletion was awaited before.
func (p *pruner) recorded(it *item, o *live.Object) bool {
	p.set.mu.RLock()
	defer p.set.mu.RUnlock()
	return it.deletion != nil && it.deletion.uid == o.UID
}

// pending reports whether the deletion of an object is known not to have ended: the
// watch still shows it. No request is sent for it.
func (p *pruner) pending(it *item) bool {
	p.set.mu.RLock()
	d := it.deletion
	p.set.mu.RUnlock()
	if d == nil || it.id.GroupKind() == kinds.Namespace {
		return false // The conditions of a namespace change while it is emptied.
	}
	return stillThere(d, p.live.Get(it.id))
}

// stillThere reports whether a watched object is being deleted.
func stillThere(d *deletion, view live.View) bool {
	return view.State == live.Present && view.Object.Deleting && view.Object.UID == d.uid
}

// leaving returns the objects whose deletion hasn't ended, ordered by identity. It
// sends no request and forgets the deletions of delete manifests that have ended.
func (p *pruner) leaving() []Leaving {
	p.set.mu.RLock()
	known := map[*item]deletion{}
	for _, it := range p.set.items {
		if it.deletion != nil {
			known[it] = *it.deletion
		}
	}
	p.set.mu.RUnlock()
	var out []Leaving
	var ended []*item
	for it, d := range known {
		view := p.live.Get(it.id) // The cache must not be read with the set locked.
		switch {
		case stillThere(&d, view):
			d.finalizers = view.Object.Finalizers()
		case view.State != live.Unknown:
			ended = append(ended, it)
			continue
		}
		out = append(out, Leaving{ID: it.id, Since: d.since, Finalizers: d.finalizers, Content: d.content})
	}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for _, it := range ended {
		if !it.leaving {
			it.deletion = nil
		}
	}
	slices.SortFunc(out, func(a, b Leaving) int { return a.ID.Compare(b.ID) })
	return out
}

// deletedAt returns when an object was deleted, else now.
func deletedAt(o *metav1.PartialObjectMetadata, now time.Time) time.Time {
	if o != nil && o.DeletionTimestamp != nil {
		grace := time.Duration(0)
		if s := o.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		return o.DeletionTimestamp.Add(-grace)
	}
	return now
}

// dying reports whether the deletion of an entry has started and not ended. It
// doesn't count as a deletion of the next prune.
func (p *pruner) dying(it *item) bool {
	p.set.mu.RLock()
	d := it.deletion
	p.set.mu.RUnlock()
	return d != nil && stillThere(d, p.live.Get(it.id))
}
