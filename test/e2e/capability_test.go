// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// optional are ConfigMaps that each belong to a capability.
func optional(names ...string) map[string]string {
	files := map[string]string{}
	for _, name := range names {
		files[name+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: platform\n  annotations: {lockstep.dev/capability: " + name + "}\n"
	}
	return files
}

// uidOf returns the UID of a ConfigMap of the release; "" if it doesn't exist.
func uidOf(t *testing.T, w *env.Env, name string) types.UID {
	t.Helper()
	var cm corev1.ConfigMap
	err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: "platform", Name: name}, &cm)
	must(t, client.IgnoreNotFound(err))
	return cm.UID
}

// waitImplicit waits until the release is complete as declared, with these
// capabilities enabled implicitly.
func waitImplicit(t *testing.T, w *env.Env, asked []string, implicit ...string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 90*time.Second, func(ctx context.Context) error {
		obj, err := getRelease(ctx, w, "platform")
		if err != nil {
			return err
		}
		var wanted, got []string
		if c := obj.Spec.Capabilities; c != nil {
			wanted = c.Additional
		}
		if c := obj.Status.Capabilities; c != nil {
			got = c.Implicit
		}
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if !slices.Equal(wanted, asked) || !slices.Equal(got, implicit) || ready == nil || ready.Status != "True" || ready.ObservedGeneration != obj.Generation {
			return fmt.Errorf("asks for %v, implicit are %v, want %v and %v; ready %+v", wanted, got, asked, implicit, ready)
		}
		return nil
	}))
}

// An enabled capability stays enabled: whether the spec requests fewer, the
// process restarts or the version changes.
func TestACapabilityOutlivesTheSpecAndTheProcess(t *testing.T) {
	t.Parallel()
	w := newEnv(t, 0)
	declared := func(version, ref string, additional ...string) map[string]string {
		text := declare("platform", version, ref) + "  capabilities: {baseline: None, additional: [" + strings.Join(additional, ", ") + "]}\n"
		return map[string]string{declarePath + "platform.yaml": text}
	}
	first := release(t, w, configRelease("platform", "1.0.0", optional("console", "insights")))
	push(t, w, "platform 1.0.0 with its console", declared("1.0.0", first, "console"))
	start(t, w)
	waitApplied(t, w, "platform", "1.0.0")
	made := uidOf(t, w, "console")
	if made == "" || uidOf(t, w, "insights") != "" {
		t.Fatalf("console has UID %q, insights %q", made, uidOf(t, w, "insights"))
	}
	page, err := w.Lockstep(t.Context(), "explain", "configmap/platform/insights")
	must(t, err)
	contains(t, page, "not found: excluded by ClusterRelease/platform 1.0.0: Capability: capability insights isn't enabled")

	must(t, w.Reconciler.Kill())
	push(t, w, "ask for no console", declared("1.0.0", first))
	must(t, w.StartReconciler())
	waitImplicit(t, w, nil, "console")
	second := release(t, w, configRelease("platform", "1.1.0", optional("console", "insights")))
	push(t, w, "platform 1.1.0", declared("1.1.0", second))
	waitApplied(t, w, "platform", "1.1.0")
	waitImplicit(t, w, nil, "console")
	must(t, w.Reconciler.Kill())
	must(t, w.StartReconciler())
	push(t, w, "ask for insights", declared("1.1.0", second, "insights"))
	waitImplicit(t, w, []string{"insights"}, "console")
	if now := uidOf(t, w, "console"); now != made || uidOf(t, w, "insights") == "" {
		t.Errorf("console has UID %q, before %q; insights %q", now, made, uidOf(t, w, "insights"))
	}
	page, err = w.Lockstep(t.Context(), "status")
	must(t, err)
	contains(t, page, "capability console stays enabled: it can't be taken from a running cluster")
}
