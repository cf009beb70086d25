// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// payloadFolder writes a payload of the given files below release-manifests.
func payloadFolder(t *testing.T, version string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	inside := filepath.Join(dir, "release-manifests")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	files["release-metadata"] = `{"kind":"cincinnati-metadata-v0","name":"platform","version":"` + version + `"}`
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(inside, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runCommand(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), args, &out, &errs)
	return out.String(), errs.String(), code
}

func TestReleaseGraphShowsTheOrder(t *testing.T) {
	dir := payloadFolder(t, "1.4.2", map[string]string{
		"0000_10_web_00.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: web}}\n",
		"0000_20_web_00.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: web}}\n",
	})
	out, errs, code := runCommand(t, "release", "graph", dir)
	want := `Updating: 2 manifests in 2 nodes, 2 deep, the largest has 1
step 1: 1 in parallel
  10/web                                      1  Namespace web
step 2: 1 in parallel
  20/web                                      1  ConfigMap web/c
`
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("code %d, %s (-want +got):\n%s", code, errs, diff)
	}
	out, _, code = runCommand(t, "release", "graph", dir, "-o", "dot", "--state", "Initializing")
	if !strings.HasPrefix(out, `digraph "Initializing"`) || code != 0 {
		t.Errorf("code %d, output %s", code, out)
	}
	for _, args := range [][]string{{dir, "-o", "x"}, {dir, "--state", "x"}, {"registry.example.com/r@sha256:" + strings.Repeat("0", 64)}} {
		if _, errs, code := runCommand(t, append([]string{"release", "graph"}, args...)...); code != exitInvalid {
			t.Errorf("%v: code %d, %s", args, code, errs)
		}
	}
}

func TestReleaseDiffMasksSecrets(t *testing.T) {
	before := payloadFolder(t, "1.4.1", map[string]string{
		"0000_10_web_00.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: hunter1}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: same}}\n",
	})
	after := payloadFolder(t, "1.4.2", map[string]string{
		"0000_10_web_00.yaml": "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: hunter2}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: same}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: new}}\n",
	})
	out, errs, code := runCommand(t, "release", "diff", before, after)
	want := `platform 1.4.1 → 1.4.2   + 1   ~ 1   - 0   = 1
+ ConfigMap new
~ Secret s
    data.password: (masked) → (masked)
`
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("code %d, %s (-want +got):\n%s", code, errs, diff)
	}
	out, _, code = runCommand(t, "release", "diff", before, after, "-o", "json")
	if !strings.Contains(out, `"kind": "added"`) || strings.Contains(out, "aHVudGVy") || code != 0 {
		t.Errorf("code %d, output %s", code, out)
	}
}
