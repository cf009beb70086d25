// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// validateIn writes files, runs the command on path and returns its output
// and exit code.
func validateIn(t *testing.T, files map[string]string, path string, args ...string) (string, int) {
	t.Helper()
	root := t.TempDir()
	for name, data := range files {
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := newValidateCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append([]string{filepath.Join(root, path)}, args...))
	err := cmd.ExecuteContext(t.Context())
	var coded *exitError
	switch {
	case err == nil:
		return out.String(), 0
	case errors.As(err, &coded):
		return err.Error(), coded.code
	}
	return err.Error(), exitFailed
}

func TestValidateRejectsInvalidObjects(t *testing.T) {
	const release = `apiVersion: lockstep.dev/v1alpha1
kind: ClusterRelease
metadata: {name: platform}
spec:
  desired:
    version: 1.4.2
    image: registry.example.com/release@sha256:0000000000000000000000000000000000000000000000000000000000000000
`
	for name, tc := range map[string]struct {
		files   map[string]string
		path    string
		args    []string
		code    int
		message string
	}{
		"a valid directory":        {map[string]string{"a.yaml": release}, "", nil, 0, "valid: 1 objects\n  ClusterRelease/platform"},
		"one file":                 {map[string]string{"a.yaml": release}, "a.yaml", []string{"-o", "name"}, 0, "clusterrelease/platform\n"},
		"a base in the work tree":  {map[string]string{".git/HEAD": "", "base/kustomization.yaml": "resources: [a.yaml]", "base/a.yaml": release, "c/kustomization.yaml": "resources: [../base]"}, "c", []string{"-o", "json"}, 0, `"file": "base/a.yaml"`},
		"an unknown field":         {map[string]string{"a.yaml": strings.Replace(release, "version", "verson", 1)}, "", nil, exitInvalid, "a.yaml:6: ClusterRelease/platform: unknown field spec.desired.verson; did you mean version?"},
		"nothing":                  {map[string]string{"README.md": "x"}, "", nil, exitInvalid, "contains no documents"},
		"a path that isn't there":  {nil, "none", nil, exitFailed, "no such file"},
		"an output that isn't one": {map[string]string{"a.yaml": release}, "", []string{"-o", "xml"}, exitInvalid, "want json or name"},
	} {
		if out, code := validateIn(t, tc.files, tc.path, tc.args...); code != tc.code || !strings.Contains(out, tc.message) {
			t.Errorf("%s: exit %d, %q, want %d with %q", name, code, out, tc.code, tc.message)
		}
	}
}

func TestValidateReadsWhatACommitWouldHave(t *testing.T) {
	const release = `apiVersion: lockstep.dev/v1alpha1
kind: ClusterRelease
metadata: {name: platform}
spec:
  desired:
    version: 1.4.2
    image: registry.example.com/release@sha256:0000000000000000000000000000000000000000000000000000000000000000
`
	message, code := validateIn(t, map[string]string{
		".git/HEAD":                  "ref: refs/heads/main\n",
		".gitignore":                 "/bin/\n",
		"bin/program":                strings.Repeat("x", 65<<20), // more than a tree may have
		"clusters/prod/release.yaml": release,
	}, "clusters/prod")
	if code != 0 {
		t.Errorf("exit code %d: %s; ignored files aren't part of a commit", code, message)
	}
}
