// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// Reasons of errors about Secrets.
const (
	ReasonSecretNotBound = "SecretNotBound"
	ReasonSecretNotFound = "SecretNotFound"
)

// BoundSecret reads a Secret for one purpose and host (trust boundary T4): the
// Secret's own annotations list the permitted use and hosts, so that a declared
// object can't send a credential elsewhere. An empty host isn't checked.
func BoundSecret(ctx context.Context, secrets typedcorev1.SecretInterface, name, use, host string) (map[string][]byte, error) {
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, NewError(ReasonSecretNotFound, true, fmt.Errorf("secret %s/%s not found", v1alpha1.Namespace, name))
	}
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	if got := secret.Annotations[v1alpha1.AnnotationUse]; got != use {
		return nil, notBound(name, fmt.Sprintf("is bound to use %q, not %q", got, use), use, host)
	}
	hosts := strings.FieldsFunc(secret.Annotations[v1alpha1.AnnotationHosts], func(r rune) bool { return r == ',' || r == ' ' })
	if host != "" && !slices.Contains(hosts, host) {
		return nil, notBound(name, fmt.Sprintf("is bound to hosts %q, not %q", hosts, host), use, host)
	}
	return secret.Data, nil
}

// notBound returns an error with the command that permits the use.
func notBound(name, found, use, host string) error {
	command := fmt.Sprintf("kubectl -n %s annotate --overwrite secret %s %s=%s", v1alpha1.Namespace, name, v1alpha1.AnnotationUse, use)
	if host != "" {
		command += fmt.Sprintf(" %s=%s", v1alpha1.AnnotationHosts, host)
	}
	return NewError(ReasonSecretNotBound, true, fmt.Errorf("secret %s %s; to allow it: %s", name, found, command))
}

// HostOf returns the host of a URL, with its port if it has one, as annotations of
// Secrets list it.
func HostOf(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" && u.Scheme != "file" {
		return "", NewError("InvalidSpec", false, errors.New("URL "+redactURL(raw)+" has no host"))
	}
	return u.Host, nil
}

// redactURL removes user information and query of a URL, which may hold a password.
func redactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}
