// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The reasons of errors, as reported in conditions.
const (
	ReasonResourceInvalid      = "ResourceInvalid"
	ReasonResourceTooLarge     = "ResourceTooLarge"
	ReasonFieldImmutable       = "FieldImmutable"
	ReasonForbidden            = "Forbidden"
	ReasonUnauthorized         = "Unauthorized"
	ReasonQuotaExceeded        = "QuotaExceeded"
	ReasonConflict             = "Conflict"
	ReasonTypeMissing          = "TypeMissing"
	ReasonNamespaceMissing     = "NamespaceMissing"
	ReasonNamespaceTerminating = "NamespaceTerminating"
	ReasonWebhookFailed        = "WebhookFailed"
	ReasonWebhookDenied        = "WebhookDenied"
	ReasonServerOverloaded     = "ServerOverloaded"
	ReasonServerUnreachable    = "ServerUnreachable"
	ReasonServerError          = "ServerError"
	ReasonTerminating          = "Terminating"
	ReasonOwnedByOther         = "OwnedByOther"
	ReasonProtected            = "Protected"
	ReasonPruneGuard           = "PruneGuard"
	ReasonJobFailed            = "JobFailed"
	ReasonInventoryFailed      = "InventoryFailed"
)

// messageLimit bounds a server's message in a condition, in bytes.
const messageLimit = 1024

// Error is the reason why a manifest isn't applied, or the set not pruned.
type Error struct {
	// finalizers and content are those that block a deletion.
	finalizers []string
	content    string

	// ID is the object; it is empty for errors of the whole set.
	ID        payload.ObjectID
	reason    string
	retriable bool
	message   string
	err       error
}

// Error returns the object, the problem and how to solve it.
func (e *Error) Error() string {
	if e.ID == (payload.ObjectID{}) {
		return e.message
	}
	return e.ID.String() + ": " + e.message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the condition's reason.
func (e *Error) Reason() string { return e.reason }

// Retriable reports whether the request may succeed later without a change of
// the manifest, the cluster's policies or its permissions.
func (e *Error) Retriable() bool { return e.retriable }

// permanent returns an error that requires a change.
func permanent(id payload.ObjectID, reason, format string, args ...any) *Error {
	return &Error{ID: id, reason: reason, message: fmt.Sprintf(format, args...)}
}

// transient returns an error that may resolve automatically.
func transient(id payload.ObjectID, reason, format string, args ...any) *Error {
	return &Error{ID: id, reason: reason, retriable: true, message: fmt.Sprintf(format, args...)}
}

// ownedByOther returns the error for an object of another set. It is retried, since
// the other set may give the object.
func ownedByOther(id payload.ObjectID, owner string) *Error {
	return transient(id, ReasonOwnedByOther,
		"the object is managed by %.100q; remove it from the payload of one of the two; "+
			"if %[1]q left Git, add it to spec.adopt", owner)
}

// inventoryError converts the error of the inventory to an *Error if it has a
// solution.
func inventoryError(err error) error {
	var stored *inventory.Error
	if !errors.As(err, &stored) {
		return err
	}
	return &Error{reason: ReasonInventoryFailed, retriable: stored.Retriable(), message: stored.Error(), err: err}
}

// failure is one rule of the classifier.
type failure struct {
	reason    string
	retriable bool
	matches   func(status metav1.Status, err error) bool
}

// failures returns the rules of the classifier; the first match decides. Messages
// and causes precede codes, because the server returns a permanent schema error
// as HTTP 500 and a terminating namespace as 403.
func failures() []failure {
	return []failure{
		{ReasonNamespaceTerminating, true, hasCause("NamespaceTerminating")},
		{ReasonWebhookFailed, true, hasMessage("failed calling webhook", "failed to call webhook", "conversion webhook for")},
		{ReasonWebhookFailed, true, hasMessage("does not support dry run")},
		{ReasonWebhookDenied, false, hasMessage("denied the request", "denied request", "ValidatingAdmissionPolicy")},
		{ReasonResourceInvalid, false, hasMessage("failed to create typed patch object", "field not declared in schema", "failed to create manager for existing fields")},
		{ReasonFieldImmutable, false, immutable},
		{ReasonQuotaExceeded, true, hasMessage("exceeded quota")},
		{ReasonResourceTooLarge, false, hasCode(http.StatusRequestEntityTooLarge)},
		{ReasonResourceTooLarge, false, hasMessage("request is too large", "etcdserver: request is too large", "must have at most 262144 bytes")},
		{ReasonResourceInvalid, false, hasCode(http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusUnsupportedMediaType)},
		{ReasonForbidden, false, hasCode(http.StatusForbidden)},
		{ReasonUnauthorized, true, hasCode(http.StatusUnauthorized)},
		{ReasonConflict, true, hasCode(http.StatusConflict)},
		{ReasonNamespaceMissing, true, missingNamespace},
		{ReasonTypeMissing, true, hasCode(http.StatusNotFound, http.StatusMethodNotAllowed)},
		{ReasonServerOverloaded, true, hasCode(http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout)},
		{ReasonServerError, true, func(status metav1.Status, _ error) bool { return status.Code >= http.StatusInternalServerError }},
	}
}

// classify converts the error of a request to an *Error, except a cancelation.
func classify(id payload.ObjectID, err error) error {
	var own *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case errors.Is(err, context.Canceled):
		return err
	case live.IsNoMatch(err):
		return &Error{
			ID: id, reason: ReasonTypeMissing, retriable: true, err: err,
			message: "the server doesn't serve the kind; check that its CustomResourceDefinition exists and is established",
		}
	}
	e := &Error{ID: id, err: err, reason: ReasonServerUnreachable, retriable: true}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		e.reason, e.retriable = ReasonServerError, true
		for _, f := range failures() {
			if f.matches(s, err) {
				e.reason, e.retriable = f.reason, f.retriable
				break
			}
		}
		e.message = messageOf(id, s)
		return e
	}
	e.message = sanitize.Clip(err.Error(), messageLimit)
	return e
}

// messageOf returns the server's message. For a Secret it returns only the
// fields, because the message may contain values.
func messageOf(id payload.ObjectID, s metav1.Status) string {
	if id.GroupKind() != kinds.Secret {
		return sanitize.Clip(s.Message, messageLimit)
	}
	var fields []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Field != "" {
				fields = append(fields, c.Field+" ("+string(c.Type)+")")
			}
		}
	}
	msg := fmt.Sprintf("the server refused the Secret: %d %s", s.Code, s.Reason)
	if len(fields) > 0 {
		msg += " at " + strings.Join(fields, ", ")
	}
	return sanitize.Clip(msg+"; the message is omitted because it may contain values", messageLimit)
}

func hasMessage(parts ...string) func(metav1.Status, error) bool {
	return func(s metav1.Status, _ error) bool {
		for _, part := range parts {
			if strings.Contains(s.Message, part) {
				return true
			}
		}
		return false
	}
}

func hasCode(codes ...int32) func(metav1.Status, error) bool {
	return func(s metav1.Status, _ error) bool {
		return slices.Contains(codes, s.Code)
	}
}

func hasCause(cause metav1.CauseType) func(metav1.Status, error) bool {
	return func(_ metav1.Status, err error) bool { return apierrors.HasStatusCause(err, cause) }
}

// immutable matches only errors of immutable fields: they may replace the object,
// which an error of another kind, such as a typo, must not.
func immutable(s metav1.Status, _ error) bool {
	if s.Code != http.StatusUnprocessableEntity {
		return false
	}
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return false
	}
	for _, c := range s.Details.Causes {
		if !immutableMessage(c.Message) {
			return false // A new object would be refused too.
		}
	}
	return true
}

func immutableMessage(message string) bool {
	for _, part := range [...]string{
		"field is immutable",
		"updates to statefulset spec for fields other than",
		"updates to provisioner are forbidden",
		"updates to parameters are forbidden",
		"updates to reclaimPolicy are forbidden",
		"updates to volumeBindingMode are forbidden",
		"cannot change roleRef",
		"pod updates may not change fields other than",
		"may not be changed once set",
		"spec is immutable after creation except",
	} {
		if strings.Contains(message, part) {
			return true
		}
	}
	return false
}

func missingNamespace(s metav1.Status, _ error) bool {
	return s.Code == http.StatusNotFound && s.Details != nil && s.Details.Kind == "namespaces"
}

// missingResource reports whether the resource itself isn't served, as right
// after its CRD was established.
func missingResource(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	return s.Code == http.StatusNotFound && (s.Details == nil || s.Details.Name == "" || strings.Contains(s.Message, "could not find the requested resource"))
}
