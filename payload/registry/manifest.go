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

// The media types of what Lockstep packs.
const (
	// TypeRelease is the artifact type of a release, TypeReleaseLayer that of
	// its one layer.
	TypeRelease      = "application/vnd.lockstep.release.v1"
	TypeReleaseLayer = "application/vnd.lockstep.release.content.v1.tar+gzip"
	// TypeOS is the artifact type of an OS image, TypeOSLayer that of the bytes
	// that are written to a slot.
	TypeOS      = "application/vnd.lockstep.os.v1"
	TypeOSLayer = "application/vnd.lockstep.os.image.v1"
)

// The limits of a manifest.
const (
	MaxManifest    = 1 << 20
	MaxIndex       = 4 << 20
	maxDescriptors = 4096
)

// Descriptor points to content by its digest.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Digest       trust.Digest      `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Platform     *Platform         `json:"platform,omitempty"`
}

// Platform is what an index says a child is for.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// Manifest is a manifest or an index; Manifests is filled for an index only.
type Manifest struct {
	// Digest is of Bytes, which are the manifest as it was served.
	Digest trust.Digest `json:"-"`
	Bytes  []byte       `json:"-"`
	// Type is the media type that header and body agree on.
	Type string `json:"-"`

	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Config       *Descriptor       `json:"config"`
	Layers       []Descriptor      `json:"layers"`
	Manifests    []Descriptor      `json:"manifests"`
	Subject      *Descriptor       `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

// IsIndex reports whether the manifest lists other manifests.
func (m Manifest) IsIndex() bool { return isIndexType(m.Type) }

func isIndexType(t string) bool { return t == TypeOCIIndex || t == TypeDockerList }

// parseManifest reads what a registry served as served (its Content-Type) and
// refuses whatever could mean two things.
func parseManifest(b []byte, served string) (Manifest, error) {
	m := Manifest{Digest: trust.DigestOf(b), Bytes: b}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("manifest %s isn't JSON: %w", m.Digest.Short(), err)
	}
	served, _, _ = strings.Cut(served, ";")
	served = strings.TrimSpace(served)
	m.Type = m.MediaType
	if m.Type == "" {
		m.Type = served
	}
	switch {
	case served != "" && served != m.Type && known(served):
		return m, confused(m, fmt.Sprintf("it's served as %s and says %s of itself", sanitize.Line(served), sanitize.Line(m.Type)))
	case !known(m.Type):
		return m, confused(m, "its media type is "+sanitize.Line(m.Type))
	case m.Manifests != nil && (m.Layers != nil || m.Config != nil):
		return m, confused(m, "it has both manifests and layers")
	case m.IsIndex() != (m.Manifests != nil):
		return m, confused(m, "its content isn't that of "+m.Type)
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

// check refuses descriptors that lead elsewhere or nowhere.
func (d Descriptor) check() error {
	if _, err := trust.ParseDigest(string(d.Digest)); err != nil {
		return fmt.Errorf("descriptor: %w", err)
	}
	switch {
	case d.Size < 0:
		return fmt.Errorf("descriptor %s has size %d", d.Digest.Short(), d.Size)
	case len(d.URLs) > 0:
		return fmt.Errorf("descriptor %s has urls: content comes from the registry only", d.Digest.Short())
	case strings.Contains(d.MediaType, "foreign") || strings.Contains(d.MediaType, "nondistributable"):
		return fmt.Errorf("descriptor %s is a foreign layer (%s)", d.Digest.Short(), sanitize.Line(d.MediaType))
	}
	return nil
}

// Child returns the one child of an index for a platform.
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
		return Descriptor{}, confused(m, fmt.Sprintf("it has %d children for %s/%s", len(found), p.OS, p.Architecture))
	case isIndexType(found[0].MediaType):
		return Descriptor{}, confused(m, "its child is an index again")
	}
	return found[0], nil
}

func known(t string) bool {
	switch t {
	case TypeOCIManifest, TypeOCIIndex, TypeDockerManifest, TypeDockerList:
		return true
	}
	return false
}

// confused is the refusal of content that can be read in more than one way.
func confused(m Manifest, found string) error {
	return &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: "manifest " + m.Digest.Short(),
		Found: found, Wanted: "one plain manifest or index",
	}
}
