// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// The media types of manifests.
const (
	TypeOCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	TypeOCIIndex       = "application/vnd.oci.image.index.v1+json"
	TypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	TypeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// The media types of configs: one that is empty (image-spec 1.1) and that of an
// image.
const (
	TypeEmpty       = "application/vnd.oci.empty.v1+json"
	TypeImageConfig = "application/vnd.oci.image.config.v1+json"
)

// The media types of Lockstep's artifacts.
const (
	// TypeRelease is the artifact type of a release, TypeReleaseLayer the media
	// type of its only layer.
	TypeRelease      = "application/vnd.lockstep.release.v1"
	TypeReleaseLayer = "application/vnd.lockstep.release.content.v1.tar+gzip"
	// TypeOS is the artifact type of an OS image, TypeOSLayer the media type of
	// its only layer, which is written to a slot.
	TypeOS      = "application/vnd.lockstep.os.v1"
	TypeOSLayer = "application/vnd.lockstep.os.image.v1"
)

// Limits of manifests and indexes: bytes, and descriptors.
const (
	MaxManifest    = 1 << 20
	MaxIndex       = 4 << 20
	maxDescriptors = 4096
)

// Descriptor is an OCI descriptor: a reference to content by digest.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Digest       trust.Digest      `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Platform     *Platform         `json:"platform,omitempty"`
}

// Platform is the platform of a manifest in an index.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// Manifest is an image manifest or an index. Manifests is set only for an index.
type Manifest struct {
	// Digest of Bytes, the manifest as served.
	Digest trust.Digest `json:"-"`
	Bytes  []byte       `json:"-"`
	// Type is the media type, equal in the header and the body.
	Type string `json:"-"`

	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Config       *Descriptor       `json:"config"`
	Layers       []Descriptor      `json:"layers"`
	Manifests    []Descriptor      `json:"manifests"`
	Subject      *Descriptor       `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

// IsIndex reports whether the manifest is an index.
func (m Manifest) IsIndex() bool { return isIndexType(m.Type) }

func isIndexType(t string) bool { return t == TypeOCIIndex || t == TypeDockerList }

// parseManifest parses a manifest with the given Content-Type and rejects
// ambiguous ones.
func parseManifest(b []byte, served string) (Manifest, error) {
	m := Manifest{Digest: trust.DigestOf(b), Bytes: b}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("parse manifest %s: %w", m.Digest.Short(), err)
	}
	served, _, _ = strings.Cut(served, ";")
	served = strings.TrimSpace(served)
	m.Type = m.MediaType
	if m.Type == "" {
		m.Type = served
	}
	switch {
	case served != "" && served != m.Type && knownType(served):
		return m, ambiguous(m, fmt.Sprintf("Content-Type %s and mediaType %s", sanitize.Line(served), sanitize.Line(m.Type)))
	case !knownType(m.Type):
		return m, ambiguous(m, "media type "+sanitize.Line(m.Type))
	case m.Manifests != nil && (m.Layers != nil || m.Config != nil):
		return m, ambiguous(m, "both manifests and layers")
	case m.IsIndex() != (m.Manifests != nil):
		return m, ambiguous(m, "content that doesn't match media type "+m.Type)
	}
	all := append(append([]Descriptor{}, m.Layers...), m.Manifests...)
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	if len(all) > maxDescriptors {
		return m, fmt.Errorf("manifest %s has %d descriptors, at most %d are allowed", m.Digest.Short(), len(all), maxDescriptors)
	}
	for _, d := range all {
		if err := d.check(); err != nil {
			return m, fmt.Errorf("manifest %s: %w", m.Digest.Short(), err)
		}
	}
	return m, nil
}

// check rejects invalid descriptors and those of content outside the registry.
func (d Descriptor) check() error {
	if _, err := trust.ParseDigest(string(d.Digest)); err != nil {
		return fmt.Errorf("invalid descriptor: %w", err)
	}
	switch {
	case d.Size < 0:
		return fmt.Errorf("descriptor %s has size %d", d.Digest.Short(), d.Size)
	case len(d.URLs) > 0:
		return fmt.Errorf("descriptor %s has urls, which aren't supported", d.Digest.Short())
	case strings.Contains(d.MediaType, "foreign") || strings.Contains(d.MediaType, "nondistributable"):
		return fmt.Errorf("descriptor %s is a foreign layer (%s)", d.Digest.Short(), sanitize.Line(d.MediaType))
	}
	return nil
}

// Child returns the only child of an index for a platform.
func (m Manifest) Child(p Platform) (Descriptor, error) {
	var found []Descriptor
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.OS == p.OS && d.Platform.Architecture == p.Architecture {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 0:
		return Descriptor{}, fmt.Errorf("index %s has no child for %s/%s", m.Digest.Short(), p.OS, p.Architecture)
	case len(found) > 1:
		return Descriptor{}, ambiguous(m, fmt.Sprintf("%d children for %s/%s", len(found), p.OS, p.Architecture))
	case isIndexType(found[0].MediaType):
		return Descriptor{}, ambiguous(m, "an index as a child")
	}
	return found[0], nil
}

func knownType(t string) bool {
	switch t {
	case TypeOCIManifest, TypeOCIIndex, TypeDockerManifest, TypeDockerList:
		return true
	}
	return false
}

// ambiguous returns the refusal of a manifest with more than one interpretation.
func ambiguous(m Manifest, found string) error {
	return &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: "manifest " + m.Digest.Short(),
		Found: found, Wanted: "a plain manifest or index",
	}
}
