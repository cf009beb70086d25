// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// Release is the source of a release: components with their manifests.
type Release struct {
	Product, Version string
	// MaxMinorHop is set in release.yaml if it isn't 0.
	MaxMinorHop int
	Components  []Component
}

// Component is one component of a release.
type Component struct {
	Name     string
	RunLevel int
	// Files are manifests by file name.
	Files map[string]string
}

// ReleaseOf makes the source of a generated release.
func ReleaseOf(product, version string, placed []workload.Placed) (Release, error) {
	r := Release{Product: product, Version: version}
	index := map[string]int{}
	for i, p := range placed {
		name := fmt.Sprintf("%s-%d", p.Component, p.Level)
		at, known := index[name]
		if !known {
			at = len(r.Components)
			index[name] = at
			r.Components = append(r.Components, Component{Name: name, RunLevel: p.Level, Files: map[string]string{}})
		}
		raw, err := yaml.Marshal(p.Content)
		if err != nil {
			return r, fmt.Errorf("generated release: %w", err)
		}
		r.Components[at].Files[fmt.Sprintf("%04d.yaml", i)] = string(raw)
	}
	return r, nil
}

// WriteRelease writes the source of a release to a directory.
func WriteRelease(dir string, r Release) error {
	var b strings.Builder
	fmt.Fprintf(&b, "product: %s\nversion: %s\n", r.Product, r.Version)
	if r.MaxMinorHop != 0 {
		fmt.Fprintf(&b, "maxMinorHop: %d\n", r.MaxMinorHop)
	}
	b.WriteString("components:\n")
	for _, c := range r.Components {
		fmt.Fprintf(&b, "- {name: %s, runLevel: %d}\n", c.Name, c.RunLevel)
		for name, content := range c.Files {
			if err := writeFile(filepath.Join(dir, c.Name, name), content); err != nil {
				return err
			}
		}
	}
	return writeFile(filepath.Join(dir, "release.yaml"), b.String())
}

func (w *Env) source(r Release) (dir, destination string) {
	return w.Path("releases", r.Product, r.Version), w.Reg.Host + "/" + r.Product + "/release:" + r.Version
}

// BuildRelease writes the release's source and builds and pushes it with the
// command line. It returns the reference by digest; unsigned.
func (w *Env) BuildRelease(ctx context.Context, r Release) (string, error) {
	dir, destination := w.source(r)
	if err := WriteRelease(dir, r); err != nil {
		return "", err
	}
	out, err := w.Lockstep(ctx, "release", "build", dir, destination)
	if err != nil {
		return "", err
	}
	return lastLine(out), nil
}

// PushUnchecked packs and pushes a release that the command line refuses to
// make, as somebody would who has their own tools.
func (w *Env) PushUnchecked(ctx context.Context, r Release) (string, error) {
	dir, destination := w.source(r)
	if err := WriteRelease(dir, r); err != nil {
		return "", err
	}
	packed, err := build.Build(dir, "")
	if err != nil {
		return "", err
	}
	client, err := registry.New(registry.Config{}, registry.Options{AllowLoopback: true, Now: time.Now})
	if err != nil {
		return "", err
	}
	defer client.Close()
	pushed, err := build.NewPublisher(client).PushRelease(ctx, destination, packed)
	if err != nil {
		return "", err
	}
	return pushed.Reference(), nil
}

// Sign signs a release or an OS image with the release key.
func (w *Env) Sign(ctx context.Context, kind, ref string, args ...string) error {
	_, err := w.Lockstep(ctx, append([]string{kind, "sign", ref, "--key", w.Key("release")}, args...)...)
	return err
}

// BuildOS makes the image of a simulated machine's system and pushes it. It
// returns the reference by digest; unsigned.
func (w *Env) BuildOS(ctx context.Context, doc sim.Document) (string, error) {
	raw, err := json.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("OS image: %w", err)
	}
	file := w.osFile(doc.Version)
	if err := writeFile(file, string(raw)); err != nil {
		return "", err
	}
	out, err := w.Lockstep(ctx, "os", "build", "--product", doc.Product, "--version", doc.Version, file, w.Reg.Host+"/platform/os:"+doc.Version)
	if err != nil {
		return "", err
	}
	return lastLine(out), nil
}

func (w *Env) osFile(version string) string { return w.Path("os", version+".json") }

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
