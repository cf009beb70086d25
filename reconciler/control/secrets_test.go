// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

const password = "hunter2"

func TestT4ASecretServesOnlyItsUseAndHosts(t *testing.T) {
	b := controlenv.New(t)
	secrets := b.Kube.CoreV1().Secrets(v1alpha1.Namespace)
	for name, annotations := range map[string]map[string]string{
		"t4-good":    {v1alpha1.AnnotationUse: v1alpha1.UseGitRead, v1alpha1.AnnotationHosts: "git.example.com, other.example.com"},
		"t4-purpose": {v1alpha1.AnnotationUse: v1alpha1.UseGitStatus, v1alpha1.AnnotationHosts: "git.example.com"},
		"t4-host":    {v1alpha1.AnnotationUse: v1alpha1.UseGitRead, v1alpha1.AnnotationHosts: "evil.git.example.com"},
		"t4-bare":    nil,
	} {
		b.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, StringData: map[string]string{"password": password},
		})
	}
	for name, want := range map[string]string{
		"t4-good": "", "t4-purpose": control.ReasonSecretNotBound, "t4-host": control.ReasonSecretNotBound, "t4-bare": control.ReasonSecretNotBound,
		"t4-missing": control.ReasonSecretNotFound,
	} {
		data, err := control.BoundSecret(t.Context(), secrets, name, v1alpha1.UseGitRead, "git.example.com")
		if got := control.ReasonOf(err, ""); got != want || (err == nil) != (len(data) > 0) {
			t.Errorf("%s: reason %q, want %q; data given: %v", name, got, want, len(data) > 0)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
		if err != nil && !control.Retriable(err) {
			t.Errorf("%s: not retriable, though an annotation resolves it", name)
		}
	}
	_, err := control.BoundSecret(t.Context(), secrets, "t4-bare", v1alpha1.UseGitRead, "git.example.com")
	want := "kubectl -n lockstep-system annotate --overwrite secret t4-bare lockstep.dev/use=git-read lockstep.dev/hosts=git.example.com"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want the command %q", err, want)
	}
}
