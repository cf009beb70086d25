// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
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
	return last, terminatingError(id, finalizers)
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
			return terminatingError(id, o.Finalizers)
		}
	}
}

func showsGone(v live.View, terminating *live.Object) bool {
	return v.State == live.Absent && !older(v.AsOf, terminating.ResourceVersion) ||
		v.State == live.Present && v.Object.UID != terminating.UID
}

// notFound reports whether a served resource has no such object.
func notFound(err error) bool { return apierrors.IsNotFound(err) && !missingResource(err) }

func terminatingError(id payload.ObjectID, finalizers []string) error {
	blocked := "the server removes it shortly"
	if len(finalizers) > 0 {
		blocked = fmt.Sprintf("blocked by the finalizers %.300q", finalizers)
	}
	return transient(id, ReasonTerminating, "the object is being deleted; %s", blocked)
}
