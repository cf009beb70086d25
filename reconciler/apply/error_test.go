// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

func statusError(code int32, message string, causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Message: message, Details: &metav1.StatusDetails{Name: "x", Causes: causes},
	}}
}

func TestErrorsAreClassifiedByTheirMeaning(t *testing.T) {
	id := payload.ObjectID{Kind: "ConfigMap", Namespace: "ns", Name: "x"}
	immutable := metav1.StatusCause{Type: "FieldValueInvalid", Field: "spec.selector", Message: `Invalid value: "x": field is immutable`}
	invalid := metav1.StatusCause{Type: "FieldValueRequired", Field: "spec.name", Message: "Required value"}
	for name, tc := range map[string]struct {
		err       error
		reason    string
		retriable bool
	}{
		"a schema error comes as 500 and is permanent": {statusError(500, `failed to create typed patch object (ns/x; /v1, Kind=ConfigMap): .spec.foo: field not declared in schema`), ReasonResourceInvalid, false},
		"another 500 is retriable":                     {statusError(500, "etcdserver: leader changed"), ReasonServerError, true},
		"a terminating namespace comes as 403":         {statusError(403, "forbidden", metav1.StatusCause{Type: "NamespaceTerminating"}), ReasonNamespaceTerminating, true},
		"a webhook that times out is retried":          {statusError(500, `Internal error occurred: failed calling webhook "x": context deadline exceeded`), ReasonWebhookFailed, true},
		"a denial isn't":                               {statusError(400, `admission webhook "x" denied the request: no`), ReasonWebhookDenied, false},
		"an immutable field":                           {statusError(422, "is invalid", immutable), ReasonFieldImmutable, false},
		"an immutable field with another error":        {statusError(422, "is invalid", immutable, invalid), ReasonResourceInvalid, false},
		"an invalid field":                             {statusError(422, "is invalid", invalid), ReasonResourceInvalid, false},
		"a 422 without causes is invalid":              {statusError(422, "field is immutable"), ReasonResourceInvalid, false},
		"no permission":                                {statusError(403, "cannot patch"), ReasonForbidden, false},
		"no quota":                                     {statusError(403, "exceeded quota: q"), ReasonQuotaExceeded, true},
		"conflict":                                     {statusError(409, "x"), ReasonConflict, true},
		"overload":                                     {statusError(429, "x"), ReasonServerOverloaded, true},
		"too large":                                    {statusError(413, "x"), ReasonResourceTooLarge, false},
		"a broken connection":                          {errors.New("connection refused"), ReasonServerUnreachable, true},
		"a missing namespace": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Code: http.StatusNotFound, Message: `namespaces "ns" not found`,
			Details: &metav1.StatusDetails{Kind: "namespaces", Name: "ns"},
		}}, ReasonNamespaceMissing, true},
	} {
		t.Run(name, func(t *testing.T) {
			var got *Error
			if err := classify(id, tc.err); !errors.As(err, &got) || got.Reason() != tc.reason || got.Retriable() != tc.retriable || got.ID != id {
				t.Errorf("classify = %+v, want %s retriable %t", err, tc.reason, tc.retriable)
			}
		})
	}
	if err := classify(id, context.Canceled); !errors.Is(err, context.Canceled) || errors.As(err, new(*Error)) {
		t.Errorf("a canceled context is classified as %v", err)
	}
}

func TestValuesOfSecretsAreNeverInErrors(t *testing.T) {
	id := payload.ObjectID{Kind: "Secret", Namespace: "ns", Name: "x"}
	err := classify(id, statusError(422, `Secret "x" is invalid: data[p]: Invalid value: "geheim": no`,
		metav1.StatusCause{Type: "FieldValueInvalid", Field: "data[p]", Message: `Invalid value: "geheim"`}))
	if strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "data[p]") {
		t.Errorf("err = %v, want the field without its value", err)
	}
}

func TestServerMessagesAreSanitized(t *testing.T) {
	err := classify(payload.ObjectID{Kind: "X", Name: "x"}, statusError(403, "no\n\x1b[31mReviewed-by: root"+strings.Repeat("x", 5000)))
	if strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > messageLimit+100 {
		t.Errorf("err isn't sanitized: %.80q (%d bytes)", err.Error(), len(err.Error()))
	}
}
