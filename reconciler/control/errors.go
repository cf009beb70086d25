// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// Error is an error with a condition reason.
type Error struct {
	reason    string
	retriable bool
	err       error
}

// NewError returns err with a condition reason. retriable means that the cause may
// resolve without a change of the spec.
func NewError(reason string, retriable bool, err error) *Error {
	return &Error{reason: reason, retriable: retriable, err: err}
}

// Error implements error.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the condition reason.
func (e *Error) Reason() string { return e.reason }

// Retriable reports whether the cause may resolve without a change of the spec.
func (e *Error) Retriable() bool { return e.retriable }

// ReasonOf returns the condition reason of an error, or fallback.
func ReasonOf(err error, fallback string) string {
	var r interface{ Reason() string }
	if errors.As(err, &r) && r.Reason() != "" {
		return r.Reason()
	}
	return fallback
}

// Retriable reports whether an error is transient; an error without that
// information is.
func Retriable(err error) bool {
	var r interface{ Retriable() bool }
	if errors.As(err, &r) {
		return r.Retriable()
	}
	return true
}

// conflictDelay is the time after which a conflict is retried.
const conflictDelay = 200 * time.Millisecond

// Guard wraps a reconciler: a write conflict is retried without an error, and a
// conflict of the Store ends the process, since its accepted state is outdated.
func (b *Base) Guard(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, req)
		if errors.Is(err, state.ErrConflict) {
			b.Fatal(err)
			return reconcile.Result{}, err
		}
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: conflictDelay}, nil
		}
		return result, err
	})
}
