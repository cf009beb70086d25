// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/test/env"
)

// TestTheAwkwardPartsOfRealProjectsAreInstalledUpdatedAndRolledBack uses the
// sources in payload/build/testdata/projects.
func TestTheAwkwardPartsOfRealProjectsAreInstalledUpdatedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := newEnvWith(t, env.Options{Pods: true})
	must(t, w.Control.AddNodes(t.Context(), 1, nil))
	projects := []string{"gateway", "certificates", "metrics"}
	refs := map[string]string{}
	for _, project := range projects {
		for _, version := range []string{"1.0.0", "1.0.1"} {
			source, err := filepath.Abs(filepath.Join("..", "..", "payload", "build", "testdata", "projects", project, version))
			must(t, err)
			out, err := w.Lockstep(t.Context(), "release", "build", source, w.Reg.Host+"/"+project+"/release:"+version)
			must(t, err)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			refs[project+version] = lines[len(lines)-1]
			must(t, w.Sign(t.Context(), "release", refs[project+version]))
		}
	}
	declared := func(version string, projects ...string) {
		t.Helper()
		files := map[string]string{}
		for _, project := range projects {
			files[declarePath+project+".yaml"] = declare(project, version, refs[project+version])
		}
		push(t, w, "projects "+version, files)
		if version == "1.0.0" && w.Reconciler == nil {
			start(t, w)
			address(t, w, client.ObjectKey{Namespace: "gateway", Name: "gateway"})
		}
		for _, project := range projects {
			waitApplied(t, w, project, version)
		}
	}
	declared("1.0.0", projects...)
	declared("1.0.1", projects...)
	var token corev1.Secret
	must(t, w.Client.Get(t.Context(), client.ObjectKey{Namespace: "gateway", Name: "token"}, &token))
	// certificates isn't rolled back: the foreground deletion of a custom resource
	// of a new kind waits for the garbage collector to discover the kind.
	declared("1.0.0", "gateway", "metrics")
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		err := w.Client.Get(ctx, client.ObjectKeyFromObject(&token), &token)
		if err == nil {
			return errors.New("the rollback didn't prune the Secret of the update")
		}
		return client.IgnoreNotFound(err)
	}))
}

// address gives a Service of type LoadBalancer an address, as a cloud does.
func address(t *testing.T, w *env.Env, key client.ObjectKey) {
	t.Helper()
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		var service corev1.Service
		if err := w.Client.Get(ctx, key, &service); err != nil {
			return err
		}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		return w.Client.Status().Update(ctx, &service)
	}))
}
