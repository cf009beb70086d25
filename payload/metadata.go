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

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// The layout of a payload, as in cluster-version-operator, whose own manifests
// are in ManifestsDir.
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
	Kind           string   `json:"kind"`
	Name           string   `json:"name,omitempty"`
	Version        string   `json:"version"`
	Channel        string   `json:"channel,omitempty"`
	Previous       []string `json:"previous,omitempty"`
	Next           []string `json:"next,omitempty"`
	MinimumVersion string   `json:"minimumVersion,omitempty"`
	// MaxMinorHop is the number of minor versions that one update to this release
	// may advance, 0 to MaxMinorHopLimit; 0 allows patches only. Nil: 1 in
	// cluster-version-operator mode, otherwise no limit.
	MaxMinorHop *int              `json:"maxMinorHop,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// readMetadata reads and validates the metadata; raw is its content.
func readMetadata(tree fs.FS) (m Metadata, raw []byte, err error) {
	file := path.Join(ReleaseDir, MetadataFile)
	raw, err = readBounded(tree, file, maxMetadataSize)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "file not found: not a release payload"}
	}
	if err != nil {
		return m, nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if err := decoder.Decode(&m); err != nil {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "invalid JSON: " + sanitize.Line(err.Error())}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: "unexpected content after the JSON document"}
	}
	if err := m.check(); err != nil {
		return m, nil, &LoadError{Kind: ReasonInvalid, File: file, Message: err.Error()}
	}
	return m, raw, nil
}

// productName matches valid names of products.
var productName = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$`)

func (m Metadata) check() error {
	if m.Kind != MetadataKind {
		return fmt.Errorf("kind is %q, must be %s", sanitize.Line(m.Kind), MetadataKind)
	}
	if m.Name != "" && (len(m.Name) > maxNameLength || !productName.MatchString(m.Name)) {
		return fmt.Errorf("invalid name %q: must be at most %d letters, digits, dots, dashes and underscores", sanitize.Line(m.Name), maxNameLength)
	}
	if len(m.Channel) > maxNameLength {
		return fmt.Errorf("channel has %d bytes, at most %d are allowed", len(m.Channel), maxNameLength)
	}
	if len(m.Previous) > maxPrevious {
		return fmt.Errorf("previous lists %d versions, at most %d are allowed", len(m.Previous), maxPrevious)
	}
	if err := CheckMaxMinorHop(m.MaxMinorHop); err != nil {
		return err
	}
	versions := append([]string{m.Version}, m.Previous...)
	if m.MinimumVersion != "" {
		versions = append(versions, m.MinimumVersion)
	}
	for _, v := range versions {
		if len(v) > maxNameLength {
			return fmt.Errorf("version has %d bytes, at most %d are allowed", len(v), maxNameLength)
		}
		if _, err := semver.Parse(v); err != nil {
			return fmt.Errorf("invalid semantic version %q: %w", sanitize.Line(v), err)
		}
	}
	return nil
}

// MaxMinorHopLimit is the highest maxMinorHop.
const MaxMinorHopLimit = 1000

// CheckMaxMinorHop rejects a maxMinorHop outside 0 to MaxMinorHopLimit. Nil is
// valid.
func CheckMaxMinorHop(n *int) error {
	if n != nil && (*n < 0 || *n > MaxMinorHopLimit) {
		return fmt.Errorf("maxMinorHop is %d, must be 0 to %d; omit it for no limit", *n, MaxMinorHopLimit)
	}
	return nil
}

// imageReferences are the fields of the ImageStream in use.
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

// annotationVersions on a tag of image-references lists the versions of the
// image's content as name=version, separated by commas.
const annotationVersions = "io.openshift.build.versions"

// kubernetes returns the Kubernetes version that the images declare; "" if none
// does or if they differ.
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

// readReferences returns the images by name, nil without the file, and their
// Kubernetes version. The file must have the given version of the metadata.
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
		return nil, "", &LoadError{Kind: ReasonInvalid, File: file, Message: "invalid ImageStream: " + sanitize.Line(err.Error())}
	}
	if refs.Kind != "ImageStream" || refs.Metadata.Name != version {
		return nil, "", &LoadError{
			Kind: ReasonMismatch, File: file,
			Message: fmt.Sprintf("found %s %q, must be ImageStream %q to match %s", sanitize.Line(refs.Kind), sanitize.Line(refs.Metadata.Name), version, MetadataFile),
		}
	}
	images = make(map[string]string, len(refs.Spec.Tags))
	for _, tag := range refs.Spec.Tags {
		images[tag.Name] = tag.From.Name
	}
	return images, refs.kubernetes(), nil
}

// readBounded reads a file of at most limit bytes. Larger files are a *LoadError
// with ReasonLimit; errors about missing files wrap fs.ErrNotExist.
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
		return nil, &LoadError{Kind: ReasonInvalid, File: name, Message: fmt.Sprintf("file type is %s, must be a regular file", info.Mode().Type())}
	}
	if info.Size() > limit {
		return nil, &LoadError{Kind: ReasonLimit, File: name, Message: fmt.Sprintf("file has %d bytes, at most %d remain of the limit", info.Size(), limit)}
	}
	// The reported size may be wrong, so the read is bounded as well.
	data, err := files.ReadAll(f, limit, name)
	if limited := (*files.LimitError)(nil); errors.As(err, &limited) {
		return nil, &LoadError{Kind: ReasonLimit, File: name, Message: fmt.Sprintf("more than %d bytes", limit)}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
