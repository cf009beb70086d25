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
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// The reasons of errors, as they stand in conditions.
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

// messageLimit bounds what a server's message may add to a condition, in
// bytes.
const messageLimit = 1024

// Error says why an object isn't as the manifest wants it.
type Error struct {
	// ID is the object; it is empty for errors of the whole set.
	ID        payload.ObjectID
	reason    string
	retriable bool
	message   string
	err       error
}

// Error names the object, what was found, and how to fix it.
func (e *Error) Error() string {
	if e.ID == (payload.ObjectID{}) {
		return e.message
	}
	return e.ID.String() + ": " + e.message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Reason is the condition's reason.
func (e *Error) Reason() string { return e.reason }

// Retriable reports whether the same request may succeed without anybody
// changing the manifest, the cluster's policy or permissions.
func (e *Error) Retriable() bool { return e.retriable }

// Object returns the object that the error is about.
func (e *Error) Object() payload.ObjectID { return e.ID }

// permanent makes an error that needs somebody's decision.
func permanent(id payload.ObjectID, reason, format string, args ...any) *Error {
	return &Error{ID: id, reason: reason, message: fmt.Sprintf(format, args...)}
}

// transient makes an error that goes away by itself.
func transient(id payload.ObjectID, reason, format string, args ...any) *Error {
	return &Error{ID: id, reason: reason, retriable: true, message: fmt.Sprintf(format, args...)}
}

// kindOfFailure is one line of the classifier: the first that fits decides.
type kindOfFailure struct {
	reason    string
	retriable bool
	fits      func(status metav1.Status, err error) bool
}

// failures returns the classifier. The order matters: a permanent schema error
// comes back as HTTP 500 without a reason, a terminating namespace as 403, so
// messages and causes are looked at before codes.
func failures() []kindOfFailure {
	return []kindOfFailure{
		{ReasonNamespaceTerminating, true, hasCause("NamespaceTerminating")},
		{ReasonWebhookFailed, true, says("failed calling webhook", "failed to call webhook", "conversion webhook for")},
		{ReasonWebhookFailed, true, says("does not support dry run")},
		{ReasonWebhookDenied, false, says("denied the request", "denied request", "ValidatingAdmissionPolicy")},
		{ReasonResourceInvalid, false, says("failed to create typed patch object", "field not declared in schema", "failed to create manager for existing fields")},
		{ReasonFieldImmutable, false, immutable},
		{ReasonQuotaExceeded, true, says("exceeded quota")},
		{ReasonResourceTooLarge, false, hasCode(http.StatusRequestEntityTooLarge)},
		{ReasonResourceTooLarge, false, says("request is too large", "etcdserver: request is too large", "must have at most 262144 bytes")},
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

// classify turns what a request returned into an Error. It passes the end of
// ctx on as it is.
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
			message: "the server doesn't know this kind; its CustomResourceDefinition may be missing or not established yet",
		}
	}
	e := &Error{ID: id, err: err, reason: ReasonServerUnreachable, retriable: true}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		e.reason, e.retriable = ReasonServerError, true
		for _, f := range failures() {
			if f.fits(s, err) {
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

// messageOf returns the server's message. That of a Secret may quote its
// values, so only the places are told.
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
	msg := fmt.Sprintf("the server refused the Secret with code %d %s", s.Code, s.Reason)
	if len(fields) > 0 {
		msg += " at " + strings.Join(fields, ", ")
	}
	return sanitize.Clip(msg+"; its message may hold values and isn't shown", messageLimit)
}

func says(parts ...string) func(metav1.Status, error) bool {
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

// immutable is narrow on purpose: what it calls immutable may be deleted and
// made anew, where the manifest allows that. A mere typo must never be.
func immutable(s metav1.Status, _ error) bool {
	if s.Code != http.StatusUnprocessableEntity {
		return false
	}
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return false
	}
	for _, c := range s.Details.Causes {
		if !immutableMessage(c.Message) {
			return false // Something else is wrong too: making it anew wouldn't help.
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

// missingResource reports whether a path isn't served: a kind whose
// definition was established a moment ago.
func missingResource(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	return s.Code == http.StatusNotFound && (s.Details == nil || s.Details.Name == "" || strings.Contains(s.Message, "could not find the requested resource"))
}
