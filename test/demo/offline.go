// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/lockstep-dev/lockstep/test/env"
)

// offline demonstrates what needs no cluster: creating trust, building, signing
// and inspecting a release, and validating declared objects.
func offline(ctx context.Context, s *screen, bin, dir string) error {
	s.title("Without a cluster: trust, a release and its signatures")
	image := "registry.example.com/platform/os@sha256:" + strings.Repeat("0", 64)
	source := platform("1.0.0", "1.0.0", image, nil)
	if err := env.WriteRelease(filepath.Join(dir, "platform"), source); err != nil {
		return err
	}
	layout := "oci:" + filepath.Join(dir, "layout")
	if _, err := lockstep(ctx, s, bin, "trust", "init", "--profile", "solo", "--dir", filepath.Join(dir, "trust"), "--cluster", env.Cluster); err != nil {
		return err
	}
	out, err := lockstep(ctx, s, bin, "release", "build", filepath.Join(dir, "platform"), layout+":1.0.0")
	if err != nil {
		return err
	}
	ref := lastLine(out)
	for _, args := range [][]string{
		{"release", "sign", ref, "--key", filepath.Join(dir, "trust", "release.key")},
		{"release", "verify", ref, "--trust-policy", filepath.Join(dir, "trust", "root.json")},
		{"release", "graph", filepath.Join(dir, "payload")},
	} {
		if args[1] == "graph" {
			if _, err := lockstepQuiet(ctx, bin, "release", "build", filepath.Join(dir, "platform"), "path:"+args[2]); err != nil {
				return err
			}
		}
		if _, err := lockstep(ctx, s, bin, args...); err != nil {
			return err
		}
	}
	s.note("lockstep validate finds a typo before the commit is merged:")
	bad := filepath.Join(dir, "repository", "platform.yaml")
	if err := os.MkdirAll(filepath.Dir(bad), 0o700); err != nil {
		return fmt.Errorf("example: %w", err)
	}
	typo := strings.Replace(release("1.0.0", "registry.example.com/platform/release@sha256:"+strings.Repeat("0", 64)), "version:", "vesion:", 1)
	if err := os.WriteFile(bad, []byte(typo), 0o600); err != nil {
		return fmt.Errorf("example: %w", err)
	}
	text, err := lockstepQuiet(ctx, bin, "validate", filepath.Dir(bad))
	if err == nil {
		return fmt.Errorf("lockstep validate accepted a misspelled field:\n%s", text)
	}
	s.show("lockstep validate repository", strings.ReplaceAll(text, dir+"/", ""))
	return nil
}

// lockstep runs a command and shows it with its output.
func lockstep(ctx context.Context, s *screen, bin string, args ...string) (string, error) {
	out, err := lockstepQuiet(ctx, bin, args...)
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = shorten(a)
	}
	s.show("lockstep "+strings.Join(shown, " "), shorten(out))
	return out, err
}

// shorten cuts the demonstration's own directory out of paths.
func shorten(text string) string {
	return ownDirectory().ReplaceAllString(text, "")
}

// ownDirectory matches the demonstration's working directory and the part of
// it below: offline or environment.
func ownDirectory() *regexp.Regexp {
	return regexp.MustCompile(regexp.QuoteMeta(os.TempDir()) + `/lockstep-demo-[0-9]+/[a-z]+/`)
}

func lockstepQuiet(ctx context.Context, bin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "lockstep"), args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("lockstep %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
