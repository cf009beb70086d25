// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
)

// emptyConfig is the content of an empty config (image-spec 1.1, "Guidance for an
// Empty Descriptor").
const emptyConfig = "{}"

// manifest is an OCI image manifest.
type manifest struct {
	SchemaVersion int                   `json:"schemaVersion"`
	MediaType     string                `json:"mediaType"`
	ArtifactType  string                `json:"artifactType,omitempty"`
	Config        registry.Descriptor   `json:"config"`
	Layers        []registry.Descriptor `json:"layers"`
	Subject       *registry.Descriptor  `json:"subject,omitempty"`
	Annotations   map[string]string     `json:"annotations,omitempty"`
}

// blob is the content of a layer.
type blob struct {
	registry.Descriptor
	open func() (io.ReadCloser, error)
}

func bytesBlob(mediaType string, b []byte) blob {
	return blob{
		Descriptor: registry.Descriptor{MediaType: mediaType, Digest: trust.DigestOf(b), Size: int64(len(b))},
		open:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
	}
}

// readerBlob returns a blob that is opened for each use, and once here to compute
// its digest.
func readerBlob(mediaType string, open func() (io.ReadCloser, error)) (blob, error) {
	r, err := open()
	if err != nil {
		return blob{}, err
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err != nil {
		return blob{}, err
	}
	d := trust.DigestOfSum([sha256.Size]byte(h.Sum(nil)))
	return blob{Descriptor: registry.Descriptor{MediaType: mediaType, Digest: d, Size: n}, open: open}, nil
}

// artifact is an image that go-containerregistry can push.
type artifact struct {
	raw    []byte
	config []byte
	layers []blob
}

// newArtifact completes a manifest with its config and layers.
func newArtifact(m manifest, configType string, config []byte, layers []blob) (*artifact, error) {
	m.SchemaVersion, m.MediaType = 2, registry.TypeOCIManifest
	m.Config = bytesBlob(configType, config).Descriptor
	m.Layers = make([]registry.Descriptor, 0, len(layers))
	for _, l := range layers {
		m.Layers = append(m.Layers, l.Descriptor)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return &artifact{raw: raw, config: config, layers: layers}, nil
}

func (a *artifact) digest() trust.Digest { return trust.DigestOf(a.raw) }

func (a *artifact) image() (v1.Image, error) { return partial.CompressedToImage(core{a}) }

// core implements partial.CompressedImageCore.
type core struct{ a *artifact }

func (c core) RawManifest() ([]byte, error)        { return c.a.raw, nil }
func (c core) RawConfigFile() ([]byte, error)      { return c.a.config, nil }
func (c core) MediaType() (types.MediaType, error) { return registry.TypeOCIManifest, nil }

func (c core) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range c.a.layers {
		if l.Digest.String() == h.String() {
			return layer{l}, nil
		}
	}
	return nil, fmt.Errorf("layer %s not found", h)
}

// layer implements partial.CompressedLayer.
type layer struct{ b blob }

func (l layer) Digest() (v1.Hash, error)           { return v1.NewHash(l.b.Descriptor.Digest.String()) }
func (l layer) Compressed() (io.ReadCloser, error) { return l.b.open() }
func (l layer) Size() (int64, error)               { return l.b.Descriptor.Size, nil }

func (l layer) MediaType() (types.MediaType, error) {
	return types.MediaType(l.b.Descriptor.MediaType), nil
}

func (l layer) Descriptor() (*v1.Descriptor, error) {
	h, err := l.Digest()
	return &v1.Descriptor{MediaType: types.MediaType(l.b.Descriptor.MediaType), Digest: h, Size: l.b.Descriptor.Size}, err
}
