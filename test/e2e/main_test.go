// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the whole program: the three binaries as processes with a
// real control plane, Git server and registry. See test/env.
package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// bin is the directory of the programs, built once by TestMain unless
// LOCKSTEP_E2E_BIN is set.
var bin string //nolint:gochecknoglobals // set once by TestMain

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	log.SetOutput(io.Discard) // the Git server logs each request there
	// LOCKSTEP_E2E_BIN is a directory with built programs.
	if bin = os.Getenv("LOCKSTEP_E2E_BIN"); bin != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lockstep-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	//nolint:noctx // the build ends with the tests
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/...", "./test/simnode/simnode")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: build the programs: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// newEnv starts an environment and shows its logs if the test fails.
func newEnv(t *testing.T, hosts int) *env.Env {
	t.Helper()
	return newEnvWith(t, env.Options{Hosts: hosts})
}

// newEnvWith starts an environment with options.
func newEnvWith(t *testing.T, o env.Options) *env.Env {
	t.Helper()
	o.Dir, o.Bin, o.Log = t.TempDir(), bin, t.Logf
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // Close needs what t.Context ends
	defer cancel()
	w, err := env.New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, w)
		}
		if err := w.Close(); err != nil {
			t.Errorf("stop the world: %v", err)
		}
	})
	return w
}

// showLogs prints the ends of the processes' logs and the status of the
// objects.
func showLogs(t *testing.T, w *env.Env) {
	t.Helper()
	if out, err := w.Lockstep(context.Background(), "status", "-o", "yaml"); err == nil { // after the test's end
		t.Logf("status:\n%s", out)
	}
	if w.Reconciler != nil {
		t.Logf("reconciler:\n%s", w.Reconciler.Tail(60))
	}
	for name, h := range w.Hosts {
		if h.Agent != nil {
			t.Logf("%s:\n%s", name, h.Agent.Tail(25))
		}
	}
}

// must fails the test at once.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// release builds, signs and returns the reference of a release.
func release(t *testing.T, w *env.Env, r env.Release) string {
	t.Helper()
	ref, err := w.BuildRelease(t.Context(), r)
	must(t, err)
	must(t, w.Sign(t.Context(), "release", ref))
	return ref
}

// configRelease is a release of one ConfigMap that contains its version.
func configRelease(product, version string, extra map[string]string) env.Release {
	files := map[string]string{
		"namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + product + "}\n",
		"config.yaml":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: " + product + "}\ndata: {version: \"" + version + "\"}\n",
	}
	maps.Copy(files, extra)
	return env.Release{Product: product, Version: version, Components: []env.Component{{Name: "base", RunLevel: 10, Files: files}}}
}

// declare is a ClusterRelease document.
func declare(name, version, image string) string {
	return fmt.Sprintf("apiVersion: lockstep.dev/v1alpha1\nkind: ClusterRelease\nmetadata: {name: %s}\nspec:\n  desired:\n    version: %s\n    image: %s\n", name, version, image)
}

// declarePath is the path that the environment's source reads.
const declarePath = "clusters/" + env.Cluster + "/"

// push commits signed by admin and pushes to main.
func push(t *testing.T, w *env.Env, message string, files map[string]string) string {
	t.Helper()
	return pushAs(t, w, w.Key("admin"), message, files)
}

func pushAs(t *testing.T, w *env.Env, key, message string, files map[string]string) string {
	t.Helper()
	hash, err := w.Git.Commit(t.Context(), key, message, files)
	must(t, err)
	must(t, w.Git.Push(t.Context(), "main"))
	return hash
}

// start creates the GitSource and starts the reconciler.
func start(t *testing.T, w *env.Env) {
	t.Helper()
	must(t, w.Client.Create(t.Context(), w.GitSource()))
	must(t, w.StartReconciler())
}

// getRelease reads a ClusterRelease.
func getRelease(ctx context.Context, w *env.Env, name string) (*v1alpha1.ClusterRelease, error) {
	var obj v1alpha1.ClusterRelease
	err := w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &obj)
	return &obj, err
}

// waitApplied waits until a release is complete at a version.
func waitApplied(t *testing.T, w *env.Env, name, version string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 90*time.Second, func(ctx context.Context) error {
		obj, err := getRelease(ctx, w, name)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if obj.Status.Applied == nil || obj.Status.Applied.Version != version || ready == nil || ready.Status != "True" {
			return fmt.Errorf("release %s: applied %+v, ready %+v", name, obj.Status.Applied, ready)
		}
		return nil
	}))
}

// waitCondition waits until a condition of an object has the status and reason;
// an empty reason is any. It returns the message.
func waitCondition(t *testing.T, w *env.Env, obj client.Object, kind, status, reason string) string {
	t.Helper()
	var message string
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		conditioned, ok := obj.(interface{ GetConditions() []metav1Condition })
		if !ok {
			return fmt.Errorf("%T has no conditions", obj)
		}
		c := meta.FindStatusCondition(conditioned.GetConditions(), kind)
		if c == nil || string(c.Status) != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("%s %s: condition %s is %+v, want %s %s", obj.GetName(), kind, kind, c, status, reason)
		}
		message = c.Message
		return nil
	}))
	return message
}

// contains fails unless the text has all parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
}
