// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/blang/semver/v4"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// The layout of a payload: cluster-version-operator's, whose own manifests
// stand in ManifestsDir.
const (
	ManifestsDir    = "manifests"
	ReleaseDir      = "release-manifests"
	MetadataFile    = "release-metadata"
	ReferencesFile  = "image-references"
	MetadataKind    = "cincinnati-metadata-v0"
	maxMetadataSize = 1 << 20
	maxPrevious     = 4096
	maxNameLength   = 128
)

// Metadata is the document release-manifests/release-metadata.
type Metadata struct {
	Kind           string            `json:"kind"`
	Name           string            `json:"name,omitempty"`
	Version        string            `json:"version"`
	Channel        string            `json:"channel,omitempty"`
	Previous       []string          `json:"previous,omitempty"`
	Next           []string          `json:"next,omitempty"`
	MinimumVersion string            `json:"minimumVersion,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
}

// readMetadata reads and checks the metadata; raw are its bytes.
func readMetadata(tree fs.FS) (m Metadata, raw []byte, err error) {
	file := path.Join(ReleaseDir, MetadataFile)
	raw, err = readBounded(tree, file, maxMetadataSize)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "the file is missing: this isn't a release payload"}
	}
	if err != nil {
		return m, nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if err := decoder.Decode(&m); err != nil {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "not JSON of the expected form: " + sanitize.Line(err.Error())}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "something follows the JSON document"}
	}
	if err := m.check(); err != nil {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: err.Error()}
	}
	return m, raw, nil
}

// productName is what a product may be called.
var productName = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$`)

func (m Metadata) check() error {
	if m.Kind != MetadataKind {
		return fmt.Errorf("kind is %q, want %s", sanitize.Line(m.Kind), MetadataKind)
	}
	if m.Name != "" && (len(m.Name) > maxNameLength || !productName.MatchString(m.Name)) {
		return fmt.Errorf("name %q isn't letters, digits, dots, dashes and underscores of at most %d bytes", sanitize.Line(m.Name), maxNameLength)
	}
	if len(m.Channel) > maxNameLength {
		return fmt.Errorf("channel has %d bytes, at most %d are allowed", len(m.Channel), maxNameLength)
	}
	if len(m.Previous) > maxPrevious {
		return fmt.Errorf("previous lists %d versions, at most %d are allowed", len(m.Previous), maxPrevious)
	}
	versions := append([]string{m.Version}, m.Previous...)
	if m.MinimumVersion != "" {
		versions = append(versions, m.MinimumVersion)
	}
	for _, v := range versions {
		if len(v) > maxNameLength {
			return fmt.Errorf("a version has %d bytes, at most %d are allowed", len(v), maxNameLength)
		}
		if _, err := semver.Parse(v); err != nil {
			return fmt.Errorf("version %q isn't semantic (semver.org): %w", sanitize.Line(v), err)
		}
	}
	return nil
}

// imageReferences is the part of the ImageStream that is read.
type imageReferences struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Tags []struct {
			Name        string            `json:"name"`
			Annotations map[string]string `json:"annotations"`
			From        struct {
				Name string `json:"name"`
			} `json:"from"`
		} `json:"tags"`
	} `json:"spec"`
}

// annotationVersions on a tag of image-references lists the versions of what
// the image carries, as name=version with commas between.
const annotationVersions = "io.openshift.build.versions"

// kubernetes returns the version of Kubernetes that the images say they carry;
// "" if none says so or if they contradict one another.
func (r *imageReferences) kubernetes() string {
	found := ""
	for _, tag := range r.Spec.Tags {
		for pair := range strings.SplitSeq(tag.Annotations[annotationVersions], ",") {
			name, version, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if _, err := semver.Parse(version); name != "kubernetes" || err != nil {
				continue
			}
			if found != "" && found != version {
				return ""
			}
			found = version
		}
	}
	return found
}

// readReferences returns the images by name, nil without the file, and the
// version of Kubernetes that they carry. version is that of the metadata; the
// two must agree.
func readReferences(tree fs.FS, version string) (images map[string]string, kubernetes string, err error) {
	file := path.Join(ReleaseDir, ReferencesFile)
	raw, err := readBounded(tree, file, maxMetadataSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	var refs imageReferences
	if err := json.Unmarshal(raw, &refs); err != nil {
		return nil, "", &LoadError{Kind: ReasonInvalid, File: file, Message: "not an ImageStream in JSON: " + sanitize.Line(err.Error())}
	}
	if refs.Kind != "ImageStream" || refs.Metadata.Name != version {
		return nil, "", &LoadError{
			Kind: ReasonMismatch, File: file,
			Message: fmt.Sprintf("%s %q, want ImageStream %q as %s says", sanitize.Line(refs.Kind), sanitize.Line(refs.Metadata.Name), version, MetadataFile),
		}
	}
	images = make(map[string]string, len(refs.Spec.Tags))
	for _, tag := range refs.Spec.Tags {
		images[tag.Name] = tag.From.Name
	}
	return images, refs.kubernetes(), nil
}

// readBounded reads a file of at most limit bytes. A larger one is an error
// of ReasonLimit; a missing one wraps fs.ErrNotExist.
func readBounded(tree fs.FS, name string, limit int64) ([]byte, error) {
	f, err := tree.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &LoadError{Kind: ReasonInvalid, File: name, Message: fmt.Sprintf("is a %s, want a regular file", info.Mode().Type())}
	}
	if info.Size() > limit {
		return nil, &LoadError{Kind: ReasonLimit, File: name, Message: fmt.Sprintf("%d bytes, at most %d are left for it", info.Size(), limit)}
	}
	// The size is a promise that the tree may not keep: the read is bounded
	// all the same.
	buf := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(buf.Len()) > limit {
		return nil, &LoadError{Kind: ReasonLimit, File: name, Message: fmt.Sprintf("more than %d bytes", limit)}
	}
	return buf.Bytes(), nil
}
