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
	"github.com/lockstep-dev/lockstep/test/env"
)

type metav1Condition = metav1.Condition

func releaseObject(name string) *v1alpha1.ClusterRelease {
	return &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
}

// waitConfig waits until the release's ConfigMap has a version.
func waitConfig(t *testing.T, w *env.Env, namespace, version string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		var cm corev1.ConfigMap
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "settings"}, &cm); err != nil {
			return err
		}
		if cm.Data["version"] != version {
			return fmt.Errorf("settings says version %q, want %q", cm.Data["version"], version)
		}
		return nil
	}))
}

func TestACommitBecomesARunningRelease(t *testing.T) {
	w := newEnv(t, 0)
	ref := release(t, w, configRelease("platform", "1.0.0", nil))
	push(t, w, "platform 1.0.0", map[string]string{declarePath + "platform.yaml": declare("platform", "1.0.0", ref)})
	start(t, w)
	waitApplied(t, w, "platform", "1.0.0")
	waitConfig(t, w, "platform", "1.0.0")
}
