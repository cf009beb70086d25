// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package build builds releases and OS images: it renders the components of a
// directory, packs plain manifests reproducibly, pushes them to a registry or an
// OCI layout, and creates signatures that Lockstep and cosign verify.
//
// Manifests are rendered only here, before signing. Clusters apply the signed
// manifests unchanged.
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
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// SourceFile is the file that describes a release in its source directory.
const SourceFile = "release.yaml"

// Limits of a source.
const (
	maxSource     = 1 << 20
	maxComponents = 512
	maxRunLevel   = 99
)

// Source is the content of release.yaml.
type Source struct {
	Product        string   `yaml:"product"`
	Version        string   `yaml:"version"`
	Channel        string   `yaml:"channel,omitempty"`
	Previous       []string `yaml:"previous,omitempty"`
	MinimumVersion string   `yaml:"minimumVersion,omitempty"`
	// MaxMinorHop is payload.Metadata.MaxMinorHop.
	MaxMinorHop *int        `yaml:"maxMinorHop,omitempty"`
	Components  []Component `yaml:"components"`
}

// Component is a directory with a kustomization or with plain manifests. All
// objects of a run level are in sync and ready before the next one starts.
type Component struct {
	Name     string `yaml:"name"`
	RunLevel int    `yaml:"runLevel"`
	// Path is the directory in the source; the default is the component's name.
	Path string `yaml:"path,omitempty"`
	// Namespace is added to manifests without a namespace whose kind is
	// namespaced. The default is to reject these.
	Namespace string `yaml:"namespace,omitempty"`
}

// Release is a rendered and packed release.
type Release struct {
	source  Source
	files   []file
	archive []byte
	// rendered are the objects of the files.
	rendered []rendered
	warnings []string
	ignored  []string
}

type file struct {
	name string
	data []byte
}

// Identity returns the identity in the release's manifest.
func (r *Release) Identity() Identity {
	return Identity{Product: r.source.Product, Version: r.source.Version, Channel: r.source.Channel}
}

// Files returns the sorted paths of the release's files.
func (r *Release) Files() []string {
	out := make([]string, 0, len(r.files))
	for _, f := range r.files {
		out = append(out, f.name)
	}
	return out
}

// Warnings returns what the build changed or may not work, each with file and
// line in the source.
func (r *Release) Warnings() []string { return slices.Clone(r.warnings) }

// Ignored returns the files of the components that contain no manifest, sorted
// within each component. Files that a kustomization doesn't refer to aren't listed.
func (r *Release) Ignored() []string { return slices.Clone(r.ignored) }

// payloadPosition matches a position in the release: file, line and document.
var payloadPosition = regexp.MustCompile(payload.ReleaseDir + `/[0-9a-z_.-]+(:\d+)?( \(document (\d+)\))?`)

// InSource replaces the positions in a message about the release's files by those
// in the source.
func (r *Release) InSource(message string) string {
	return payloadPosition.ReplaceAllStringFunc(message, func(at string) string {
		m := payloadPosition.FindStringSubmatch(at)
		name := at[:len(at)-len(m[1])-len(m[2])]
		for i := range r.rendered {
			if f := &r.rendered[i]; f.name == name {
				return f.position(m[1], m[2], m[3])
			}
		}
		return at
	})
}

// position returns the position in the source of a line or a document.
func (f *rendered) position(line, suffix, document string) string {
	n, err := strconv.Atoi(document)
	if document == "" && len(f.objects) == 1 {
		n, err = 1, nil
	}
	switch {
	case len(f.objects) == 0:
		return f.name + line + suffix
	case f.data != nil && f.whole:
		return f.objects[0].File + line + suffix // The lines are the same.
	case err != nil || n < 1 || n > len(f.objects):
		return f.objects[0].File
	}
	o := &f.objects[n-1]
	at := o.File
	if o.Line > 0 {
		at += ":" + strconv.Itoa(o.Line)
	}
	if o.Document > 0 {
		at += fmt.Sprintf(" (document %d)", o.Document)
	}
	return at
}

// Tree returns the release's files as a tree. Signatures of a payload path cover
// the tree's digest.
func (r *Release) Tree() (*tree.Tree, error) {
	b := tree.NewBuilder(tree.Limits{})
	for _, f := range r.files {
		if err := b.File(f.name, bytes.NewReader(f.data)); err != nil {
			return nil, err
		}
	}
	return b.Tree(), nil
}

// Build renders and packs the release whose source is in dir. A version that
// isn't empty replaces the one in release.yaml. The result is reproducible.
func Build(dir, version string) (*Release, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open release source: %w", err)
	}
	defer func() { _ = root.Close() }()
	in, err := tree.Copy(root.FS(), ".", tree.Limits{})
	if err != nil {
		return nil, fmt.Errorf("read release source %s: %w", dir, err)
	}
	return buildTree(in, version)
}

func buildTree(in *tree.Tree, version string) (*Release, error) {
	b, err := in.ReadFile(SourceFile)
	if err != nil {
		return nil, fmt.Errorf("read release source: %w", err)
	}
	src, err := parseSource(b, version)
	if err != nil {
		return nil, fmt.Errorf("read release source: %s: %w", SourceFile, err)
	}
	render := &renderer{in: in}
	for i := range src.Components {
		c := &src.Components[i]
		if err := render.render(c); err != nil {
			render.problems.Add(fmt.Errorf("render component %s: %w", c.Name, err))
		}
	}
	render.place()
	if err := render.problems.Err(); err != nil {
		return nil, err
	}
	r := &Release{source: src, rendered: render.files, warnings: render.warnings, ignored: render.ignored}
	for i := range render.files {
		b, err := render.files[i].encode()
		if err != nil {
			return nil, err
		}
		r.files = append(r.files, file{render.files[i].name, b})
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

// parseSource parses release.yaml and rejects unknown fields.
func parseSource(b []byte, version string) (Source, error) {
	var s Source
	if len(b) > maxSource {
		return s, fmt.Errorf("file has %d bytes, at most %d are allowed", len(b), maxSource)
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
	if err := payload.CheckMaxMinorHop(s.MaxMinorHop); err != nil {
		return s, err
	}
	for _, v := range append(slices.Clone(s.Previous), s.MinimumVersion) {
		if _, err := semver.Parse(v); err != nil && v != "" {
			return s, fmt.Errorf("invalid semantic version %q: %w", v, err)
		}
	}
	return s, s.checkComponents()
}

// componentName excludes "_", the separator in file names.
var componentName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (s *Source) checkComponents() error {
	if len(s.Components) == 0 || len(s.Components) > maxComponents {
		return fmt.Errorf("%d components, must be 1 to %d", len(s.Components), maxComponents)
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
			return fmt.Errorf("invalid component name %q: must be lower-case letters, digits and '-'", c.Name)
		case seen[c.Name]:
			return fmt.Errorf("duplicate component %q", c.Name)
		case c.RunLevel < 0 || c.RunLevel > maxRunLevel:
			return fmt.Errorf("component %s has run level %d, must be 0 to %d", c.Name, c.RunLevel, maxRunLevel)
		case c.Namespace != "" && len(validation.IsDNS1123Label(c.Namespace)) > 0:
			return fmt.Errorf("component %s has namespace %q, must be lower-case letters, digits and '-'", c.Name, c.Namespace)
		case !fs.ValidPath(c.Path) || c.Path == ".":
			return fmt.Errorf("component %s has path %q, must be a directory in the source", c.Name, c.Path)
		}
		seen[c.Name] = true
	}
	return nil
}

var productName = regexp.MustCompile(`^[a-zA-Z0-9][-._a-zA-Z0-9]{0,62}$`)

// check rejects identities that verification would reject.
func (i Identity) check() error {
	if !productName.MatchString(i.Product) {
		return fmt.Errorf("invalid product %q: must be letters, digits, '.', '_' and '-'", i.Product)
	}
	if _, err := semver.Parse(i.Version); err != nil {
		return fmt.Errorf("invalid semantic version %q: %w", i.Version, err)
	}
	return nil
}

// metadata returns the file release-metadata in CVO's format.
func (s *Source) metadata() (file, error) {
	m := payload.Metadata{
		Kind: payload.MetadataKind, Name: s.Product, Version: s.Version,
		Channel: s.Channel, Previous: s.Previous, MinimumVersion: s.MinimumVersion, MaxMinorHop: s.MaxMinorHop,
	}
	b, err := json.MarshalIndent(m, "", "  ")
	return file{path.Join(payload.ReleaseDir, payload.MetadataFile), append(b, '\n')}, err
}

// pack creates an archive that depends only on names and content.
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
		return nil, fmt.Errorf("release has %d bytes, at most %d are allowed", total, tree.DefaultBytes)
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func fileBlob(mediaType, name string) (blob, error) {
	return readerBlob(mediaType, func() (io.ReadCloser, error) { return os.Open(name) })
}

// TreeDigest returns the digest of the payload path dir without its signature
// file, for SignTree.
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
