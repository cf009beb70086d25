// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/test/env"
)

// pool is a NodeOS document for the environment's hosts.
func pool(version, image string) string {
	return fmt.Sprintf(`apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: workers}
spec:
  nodeSelector: {matchLabels: {node-restriction.kubernetes.io/pool: workers}}
  os: {version: %s, image: "%s"}
  gates: {timeout: 1m, soak: 1s}
  bootDeadline: 1m
  commitDeadline: 3m
`, version, image)
}

func poolObject() *v1alpha1.NodeOS {
	return &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "workers"}}
}

// system builds a signed OS image.
func system(t *testing.T, w *env.Env, doc sim.Document) string {
	t.Helper()
	doc.Product, doc.KubeletVersion, doc.OSImage, doc.BootSeconds = "platform-os", env.KubeletVersion, "Platform OS "+doc.Version, 1
	ref, err := w.BuildOS(t.Context(), doc)
	must(t, err)
	must(t, w.Sign(t.Context(), "os", ref))
	return ref
}

// waitBooted waits until all hosts run a version.
func waitBooted(t *testing.T, w *env.Env, version string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 4*time.Minute, func(ctx context.Context) error {
		for name := range w.Hosts {
			got, err := w.Booted(ctx, name)
			if err != nil {
				return err
			}
			if got != version {
				return fmt.Errorf("%s runs %s, want %s", name, got, version)
			}
		}
		return nil
	}))
}

func TestACommitUpgradesHosts(t *testing.T) {
	w := newEnv(t, 1)
	push(t, w, "hosts at 1.0.0", map[string]string{declarePath + "workers.yaml": pool("1.0.0", w.FirstOS())})
	start(t, w)
	waitCondition(t, w, poolObject(), v1alpha1.ConditionReady, "True", "")
	next := system(t, w, sim.Document{Version: "1.1.0"})
	push(t, w, "hosts to 1.1.0", map[string]string{declarePath + "workers.yaml": pool("1.1.0", next)})
	waitBooted(t, w, "1.1.0")
	waitCondition(t, w, poolObject(), v1alpha1.ConditionReady, "True", "")
	// The completed version becomes the high-water mark, stored apart from the
	// declared objects.
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		var cm corev1.ConfigMap
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: ledger.Name}, &cm); err != nil {
			return err
		}
		for _, raw := range cm.Data {
			doc, err := ledger.Decode([]byte(raw))
			if err != nil {
				return err
			}
			if got := doc.Marks["platform-os"].Version; got != "1.1.0" {
				return fmt.Errorf("the mark of platform-os is %q, want 1.1.0", got)
			}
		}
		return nil
	}))
}
