// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// fakeRegistry is a registry in memory that accepts invalid content.
type fakeRegistry struct {
	manifests map[trust.Digest]registry.Manifest
	referrers []registry.Descriptor
	blobs     map[trust.Digest][]byte
	// noRanges ignores offsets. failAt, if greater than 0, breaks each stream
	// after that many bytes.
	noRanges bool
	failAt   int
	opened   []int64
}

func newFakeRegistry() *fakeRegistry {
	return &fakeRegistry{manifests: map[trust.Digest]registry.Manifest{}, blobs: map[trust.Digest][]byte{}}
}

func (s *fakeRegistry) Manifest(_ context.Context, _ string, d trust.Digest) (registry.Manifest, error) {
	m, ok := s.manifests[d]
	if !ok {
		return m, registry.ErrNotFound
	}
	return m, nil
}

func (s *fakeRegistry) Tagged(context.Context, string, string) ([]registry.Manifest, error) {
	return nil, registry.ErrNotFound
}

func (s *fakeRegistry) Referrers(context.Context, string, trust.Digest) ([]registry.Descriptor, error) {
	return s.referrers, nil
}

func (s *fakeRegistry) Bytes(_ context.Context, _ string, d registry.Descriptor, _ int64) ([]byte, error) {
	return s.blobs[d.Digest], nil
}

func (s *fakeRegistry) Blob(_ context.Context, _ string, d registry.Descriptor, offset int64) (*registry.Stream, error) {
	b, ok := s.blobs[d.Digest]
	if !ok {
		return nil, registry.ErrNotFound
	}
	s.opened = append(s.opened, offset)
	if s.noRanges {
		offset = 0
	}
	var r io.Reader = bytes.NewReader(b[offset:])
	if s.failAt > 0 {
		r = io.MultiReader(io.LimitReader(r, int64(s.failAt)), &brokenReader{})
	}
	return &registry.Stream{ReadCloser: io.NopCloser(r), Start: offset}, nil
}

type brokenReader struct{}

func (*brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// blob adds a blob.
func (s *fakeRegistry) blob(mediaType string, b []byte) registry.Descriptor {
	d := registry.Descriptor{MediaType: mediaType, Digest: trust.DigestOf(b), Size: int64(len(b))}
	s.blobs[d.Digest] = b
	return d
}

// manifest adds a manifest.
func (s *fakeRegistry) manifest(m registry.Manifest) registry.Descriptor {
	if m.Type == "" {
		m.Type = registry.TypeOCIManifest
	}
	raw, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	m.Bytes, m.Digest = raw, trust.DigestOf(raw)
	s.manifests[m.Digest] = m
	return registry.Descriptor{MediaType: m.Type, Digest: m.Digest, Size: int64(len(raw))}
}

// product returns the annotations of a product.
func product(name string) map[string]string {
	return map[string]string{verify.AnnotationProduct: name, verify.AnnotationVersion: "1.0.0"}
}

// signed signs a manifest and returns the verified result.
func (s *fakeRegistry) signed(t *testing.T, kind string, d trust.Digest) verify.Signed {
	t.Helper()
	k, err := build.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	pem, err := k.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := trust.Decode(fmt.Appendf(nil, `name: root
version: 1
expires: 2027-11-29T00:00:00Z
clusters: ["*"]
keys:
- name: k
  pem: %q
roles:
  root: {keys: [k], threshold: 1}
  release: {keys: [k], threshold: 1}
  os: {keys: [k], threshold: 1}
rules:
- {match: {kind: ClusterRelease, name: "*"}, product: platform, role: release}
- {match: {kind: NodeOS, name: "*"}, product: platform-os, role: os}
`, pem))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := build.MakeBundle(d, k)
	if err != nil {
		t.Fatal(err)
	}
	const bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	ref := s.manifest(registry.Manifest{ArtifactType: bundle, Layers: []registry.Descriptor{s.blob(bundle, raw)}})
	ref.ArtifactType = bundle
	s.referrers = []registry.Descriptor{ref}
	v, err := verify.New(verify.Config{
		Registry: s, Policy: func() *trust.Document { return doc },
		Now: func() time.Time { return time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) },
	})
	if err != nil {
		t.Fatal(err)
	}
	check := v.Release
	if kind == trust.KindNodeOS {
		check = v.OS
	}
	out, err := check(t.Context(), verify.Request{Image: "registry.example.com/acme/x@" + d.String()})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tarEntry is an entry of an archive.
type tarEntry struct {
	name string
	flag byte
	body string
	link string
}

func fileEntry(name, body string) tarEntry {
	return tarEntry{name: name, flag: tar.TypeReg, body: body}
}

// archive packs entries, valid or not.
func archive(t *testing.T, entries ...tarEntry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.flag, Size: int64(len(e.body)), Linkname: e.link, Mode: 0o644}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// release adds a release artifact with the given layers and verifies it.
func (s *fakeRegistry) release(t *testing.T, layers ...registry.Descriptor) verify.Signed {
	t.Helper()
	d := s.manifest(registry.Manifest{ArtifactType: registry.TypeRelease, Layers: layers, Annotations: product("platform")})
	return s.signed(t, trust.KindRelease, d.Digest)
}

// os adds an OS image and verifies it.
func (s *fakeRegistry) os(t *testing.T, content []byte) verify.Signed {
	t.Helper()
	l := s.blob(registry.TypeOSLayer, content)
	d := s.manifest(registry.Manifest{ArtifactType: registry.TypeOS, Layers: []registry.Descriptor{l}, Annotations: product("platform-os")})
	return s.signed(t, trust.KindNodeOS, d.Digest)
}

// memory is a destination in memory.
type memory struct {
	b    []byte
	fail bool
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if m.fail {
		return 0, io.ErrShortWrite
	}
	if n := int(off) + len(p); n > len(m.b) {
		m.b = append(m.b, make([]byte, n-len(m.b))...)
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// pattern returns n bytes that differ by position.
func pattern(n int) []byte {
	return slices.Repeat([]byte(strings.Repeat("0123456789abcdef", 7)+"\n"), n/113+1)[:n]
}
