// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// reasonError is an error with a condition reason that this package gives.
type reasonError struct {
	reason    string
	retriable bool
	err       error
}

func (e *reasonError) Error() string   { return e.err.Error() }
func (e *reasonError) Unwrap() error   { return e.err }
func (e *reasonError) Reason() string  { return e.reason }
func (e *reasonError) Retriable() bool { return e.retriable }

// Reasons of errors about Secrets.
const (
	reasonSecretNotBound = "SecretNotBound"
	reasonSecretNotFound = "SecretNotFound"
)

// boundSecret reads a Secret for one purpose and one host (wall 4): a Secret
// serves only what its own annotations say, so that a declared object can't
// send a credential elsewhere than its owner meant.
func boundSecret(ctx context.Context, secrets typedcorev1.SecretInterface, name, use, host string) (map[string][]byte, error) {
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, &reasonError{reasonSecretNotFound, true, fmt.Errorf("secret %s/%s doesn't exist", v1alpha1.Namespace, name)}
	}
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	if got := secret.Annotations[v1alpha1.AnnotationUse]; got != use {
		return nil, notBound(name, fmt.Sprintf("is for %q, wanted for %q", got, use), use, host)
	}
	hosts := strings.FieldsFunc(secret.Annotations[v1alpha1.AnnotationHosts], func(r rune) bool { return r == ',' || r == ' ' })
	if host != "" && !slices.Contains(hosts, host) {
		return nil, notBound(name, fmt.Sprintf("is for the hosts %q, wanted for %q", hosts, host), use, host)
	}
	return secret.Data, nil
}

// notBound says what is wrong and prints the command that a person who may
// decide it runs.
func notBound(name, found, use, host string) error {
	command := fmt.Sprintf("kubectl -n %s annotate --overwrite secret %s %s=%s", v1alpha1.Namespace, name, v1alpha1.AnnotationUse, use)
	if host != "" {
		command += fmt.Sprintf(" %s=%s", v1alpha1.AnnotationHosts, host)
	}
	return &reasonError{reasonSecretNotBound, true, fmt.Errorf("secret %s %s; if that is meant: %s", name, found, command)}
}

// hostOf returns host and port of a URL as Secrets name it: without the port
// where the URL has none.
func hostOf(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" && u.Scheme != "file" {
		return "", &reasonError{"InvalidSpec", false, fmt.Errorf("%q is not a URL with a host", redactURL(raw))}
	}
	return u.Host, nil
}

// redactURL drops the user information of a URL, which might hold a password.
func redactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}
