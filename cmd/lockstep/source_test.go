// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestSourceCommandsAnnotateTheOnlySource(t *testing.T) {
	cluster := controlplane.SharedWithKinds(t)
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cluster.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	source := &v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet", Namespace: v1alpha1.Namespace},
		Spec:       v1alpha1.GitSourceSpec{Cluster: "prod", URL: "https://git.example.com/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"}},
	}
	run := func(args ...string) (string, error) {
		t.Helper()
		cmd := newRootCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append(args, "--kubeconfig", cluster.Kubeconfig()))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if _, err := run("reconcile", "source"); err == nil || !strings.Contains(err.Error(), "no GitSource") {
		t.Errorf("without a source: %v", err)
	}
	source.Spec.Interval.Duration, source.Spec.Timeout.Duration = 1e9, 1e9
	if err := c.Create(t.Context(), source); err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("1a", 20)
	if out, err := run("source", "accept-rewind", hash); err != nil || !strings.Contains(out, "gitsource/fleet annotated: it accepts commit "+hash+" once") {
		t.Errorf("accept-rewind: %q, %v", out, err)
	}
	if out, err := run("reconcile", "source", "fleet"); err != nil || !strings.Contains(out, "it is fetched now") {
		t.Errorf("reconcile source: %q, %v", out, err)
	}
	if _, err := run("source", "accept-rewind", "main"); err == nil || !strings.Contains(err.Error(), "40 lower-case") {
		t.Errorf("a name for a hash: %v", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(source), source); err != nil {
		t.Fatal(err)
	}
	if source.Annotations[v1alpha1.AnnotationAcceptRewind] != hash || source.Annotations[v1alpha1.AnnotationRequestedAt] == "" {
		t.Errorf("annotations %v", source.Annotations)
	}
}
