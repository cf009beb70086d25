// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package build makes releases and OS images: it renders the components of a
// folder, packs plain manifests reproducibly, pushes to a registry or an OCI
// layout, and signs so that both Lockstep and cosign verify.
//
// Everything is rendered here, on the desk or in the pipeline of who signs:
// what is signed is what is applied, and nothing is rendered in a cluster.
package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// SourceFile describes a release in its source folder.
const SourceFile = "release.yaml"

// The places in a release; the layout is CVO's.
const (
	releaseDir   = "release-manifests"
	metadataFile = releaseDir + "/release-metadata"
	metadataKind = "cincinnati-metadata-v0"
)

// The limits of a source.
const (
	maxSource     = 1 << 20
	maxComponents = 512
	maxRunLevel   = 99
)

// Source is the content of release.yaml.
type Source struct {
	Product        string      `yaml:"product"`
	Version        string      `yaml:"version"`
	Channel        string      `yaml:"channel,omitempty"`
	Previous       []string    `yaml:"previous,omitempty"`
	MinimumVersion string      `yaml:"minimumVersion,omitempty"`
	Components     []Component `yaml:"components"`
}

// Component is a folder with a kustomization or with plain manifests. What is
// in a lower run level is applied and level before the next one begins.
type Component struct {
	Name     string `yaml:"name"`
	RunLevel int    `yaml:"runLevel"`
	// Path is the folder below the source; empty: the component's name.
	Path string `yaml:"path,omitempty"`
}

// Release is a rendered and packed release.
type Release struct {
	source  Source
	files   []file
	archive []byte
}

// file is one file of a release.
type file struct {
	name string
	data []byte
}

// Identity returns what the release's manifest will say of it.
func (r *Release) Identity() Identity {
	return Identity{Product: r.source.Product, Version: r.source.Version, Channel: r.source.Channel}
}

// Files returns the names of the release's files in order.
func (r *Release) Files() []string {
	out := make([]string, 0, len(r.files))
	for _, f := range r.files {
		out = append(out, f.name)
	}
	return out
}

// Tree returns the release's files as a tree, whose digest is what a signature
// of a payload path covers.
func (r *Release) Tree() (*tree.Tree, error) {
	b := tree.NewBuilder(tree.Limits{})
	for _, f := range r.files {
		if err := b.File(f.name, bytes.NewReader(f.data)); err != nil {
			return nil, err
		}
	}
	return b.Tree(), nil
}

// Build renders and packs the release whose source is in dir. Version, if not
// empty, takes the place of the one in release.yaml. Building the same source
// twice gives the same bytes.
func Build(dir, version string) (*Release, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("release source: %w", err)
	}
	defer func() { _ = root.Close() }()
	in, err := tree.Copy(root.FS(), ".", tree.Limits{})
	if err != nil {
		return nil, fmt.Errorf("release source %s: %w", dir, err)
	}
	return buildTree(in, version)
}

func buildTree(in *tree.Tree, version string) (*Release, error) {
	b, err := in.ReadFile(SourceFile)
	if err != nil {
		return nil, fmt.Errorf("release source: %w", err)
	}
	src, err := parseSource(b, version)
	if err != nil {
		return nil, fmt.Errorf("release source: %s: %w", SourceFile, err)
	}
	r := &Release{source: src}
	for _, c := range src.Components {
		files, err := render(in, c)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
		r.files = append(r.files, files...)
	}
	meta, err := src.metadata()
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, meta)
	slices.SortFunc(r.files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	r.archive, err = pack(r.files)
	return r, err
}

// parseSource reads release.yaml strictly.
func parseSource(b []byte, version string) (Source, error) {
	var s Source
	if len(b) > maxSource {
		return s, fmt.Errorf("it has %d bytes, at most %d are allowed", len(b), maxSource)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&s); err != nil {
		return s, err
	}
	if version != "" {
		s.Version = version
	}
	id := Identity{Product: s.Product, Version: s.Version, Channel: s.Channel}
	if err := id.check(); err != nil {
		return s, err
	}
	for _, v := range append(slices.Clone(s.Previous), s.MinimumVersion) {
		if _, err := semver.Parse(v); err != nil && v != "" {
			return s, fmt.Errorf("version %q: %w", v, err)
		}
	}
	return s, s.checkComponents()
}

// componentName has no "_", which parts the names of files.
var componentName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (s *Source) checkComponents() error {
	if len(s.Components) == 0 || len(s.Components) > maxComponents {
		return fmt.Errorf("components has %d entries, 1 to %d are allowed", len(s.Components), maxComponents)
	}
	seen := map[string]bool{}
	for i := range s.Components {
		c := &s.Components[i]
		if c.Path == "" {
			c.Path = c.Name
		}
		c.Path = path.Clean(c.Path)
		switch {
		case !componentName.MatchString(c.Name):
			return fmt.Errorf("component name %q isn't lower-case letters, digits and '-'", c.Name)
		case seen[c.Name]:
			return fmt.Errorf("component %q is there twice", c.Name)
		case c.RunLevel < 0 || c.RunLevel > maxRunLevel:
			return fmt.Errorf("component %s has run level %d, 0 to %d are allowed", c.Name, c.RunLevel, maxRunLevel)
		case !fs.ValidPath(c.Path) || c.Path == ".":
			return fmt.Errorf("component %s has path %q, which isn't a folder below the source", c.Name, c.Path)
		}
		seen[c.Name] = true
	}
	return nil
}

var productName = regexp.MustCompile(`^[a-zA-Z0-9][-._a-zA-Z0-9]{0,62}$`)

// check refuses identities that no verifier would accept.
func (i Identity) check() error {
	if !productName.MatchString(i.Product) {
		return fmt.Errorf("product %q isn't a name of letters, digits, '.', '_' and '-'", i.Product)
	}
	if _, err := semver.Parse(i.Version); err != nil {
		return fmt.Errorf("version %q isn't a semantic version: %w", i.Version, err)
	}
	return nil
}

// metadata returns release-metadata as CVO reads it.
func (s *Source) metadata() (file, error) {
	m := struct {
		Kind           string   `json:"kind"`
		Name           string   `json:"name"`
		Version        string   `json:"version"`
		Channel        string   `json:"channel,omitempty"`
		Previous       []string `json:"previous,omitempty"`
		MinimumVersion string   `json:"minimumVersion,omitempty"`
	}{metadataKind, s.Product, s.Version, s.Channel, s.Previous, s.MinimumVersion}
	b, err := json.MarshalIndent(m, "", "  ")
	return file{metadataFile, append(b, '\n')}, err
}

// pack makes an archive that depends on names and content only.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	total := 0
	for _, f := range files {
		total += len(f.data)
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: 0o644, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.name, err)
		}
	}
	if total > tree.DefaultBytes {
		return nil, fmt.Errorf("the release has %d bytes, at most %d are allowed", total, tree.DefaultBytes)
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// fileBlob returns a blob that is read from a file.
func fileBlob(mediaType, name string) (blob, error) {
	return readerBlob(mediaType, func() (io.ReadCloser, error) { return os.Open(name) })
}

// TreeDigest returns the digest of the payload path dir without its signature
// file: what SignTree signs.
func TreeDigest(dir, signatureFile string) (trust.Digest, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	t, err := tree.Copy(root.FS(), ".", tree.Limits{})
	if err != nil {
		return "", err
	}
	return t.Without(signatureFile).Digest(), nil
}
