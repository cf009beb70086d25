// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/tree"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

const ociLayer = "application/vnd.oci.image.layer.v1.tar+gzip"

func TestContentRequiresSigned(t *testing.T) {
	f := New(newFakeRegistry(), Limits{})
	if _, err := f.Tree(t.Context(), verify.Signed{}); !errors.Is(err, ErrNotSigned) {
		t.Errorf("Tree: %v", err)
	}
	if _, err := f.Blob(t.Context(), verify.Signed{}, &memory{}, BlobOptions{}); err == nil {
		t.Error("Blob accepted a zero Signed")
	}
}

func TestTreeOfAnArtifact(t *testing.T) {
	s := newFakeRegistry()
	a := archive(t, tarEntry{name: "release-manifests/", flag: tar.TypeDir}, fileEntry("release-manifests/a.yaml", "a"), fileEntry("release-manifests/release-metadata", "{}"))
	got, err := New(s, Limits{}).Tree(t.Context(), s.release(t, s.blob(registry.TypeReleaseLayer, a)))
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(got, "release-manifests/a.yaml", "release-manifests/release-metadata"); err != nil {
		t.Error(err)
	}
}

func TestTreeOfAnImageContainsTheReleaseOnly(t *testing.T) {
	s := newFakeRegistry()
	base := archive(t, fileEntry("./usr/bin/sh", "#!"), tarEntry{name: "bin", flag: tar.TypeSymlink, link: "usr/bin"},
		fileEntry("./release-manifests/a.yaml", "old"), fileEntry("./release-manifests/b.yaml", "gone"), fileEntry("manifests/c.yaml", "c"))
	top := archive(t, fileEntry("release-manifests/a.yaml", "new"), fileEntry("release-manifests/.wh.b.yaml", ""))
	m := s.manifest(registry.Manifest{
		Layers: []registry.Descriptor{s.blob(ociLayer, base), s.blob(ociLayer, top)}, Annotations: product("platform"),
	})
	got, err := New(s, Limits{}).Tree(t.Context(), s.signed(t, trust.KindRelease, m.Digest))
	if err != nil {
		t.Fatal(err)
	}
	files, ok := got.(*tree.Tree)
	if !ok || strings.Join(files.Files(), " ") != "manifests/c.yaml release-manifests/a.yaml" {
		t.Errorf("files are %q", files.Files())
	}
	if b, err := fs.ReadFile(got, "release-manifests/a.yaml"); err != nil || string(b) != "new" {
		t.Errorf("a.yaml is %q, %v", b, err)
	}
}

func TestT9RejectsArchives(t *testing.T) {
	for name, tc := range map[string]struct {
		entries []tarEntry
		limits  Limits
		reason  trust.Reason
	}{
		"with paths outside the tree": {[]tarEntry{fileEntry("../../etc/cron.d/x", "x")}, Limits{}, trust.ForbiddenContent},
		"with absolute paths":         {[]tarEntry{fileEntry("/etc/passwd", "x")}, Limits{}, trust.ForbiddenContent},
		"with symbolic links":         {[]tarEntry{{name: "a", flag: tar.TypeSymlink, link: "/etc"}}, Limits{}, trust.ForbiddenContent},
		"with hard links":             {[]tarEntry{fileEntry("a", "x"), {name: "b", flag: tar.TypeLink, link: "a"}}, Limits{}, trust.ForbiddenContent},
		"with devices":                {[]tarEntry{{name: "a", flag: tar.TypeBlock}}, Limits{}, trust.ForbiddenContent},
		"with pipes":                  {[]tarEntry{{name: "a", flag: tar.TypeFifo}}, Limits{}, trust.ForbiddenContent},
		"with duplicate files":        {[]tarEntry{fileEntry("a", "x"), fileEntry("a", "y")}, Limits{}, trust.ForbiddenContent},
		"with names in two cases": {
			[]tarEntry{fileEntry("release-manifests/a.yaml", "x"), fileEntry("Release-Manifests/a.yaml", "y")}, Limits{}, trust.ForbiddenContent,
		},
		"with too many entries":                      {[]tarEntry{fileEntry("a", "x"), fileEntry("b", "y"), fileEntry("c", "z")}, Limits{Tree: tree.Limits{Entries: 2}}, trust.LimitExceeded},
		"with too large files":                       {[]tarEntry{fileEntry("a", "0123456789")}, Limits{Tree: tree.Limits{Bytes: 9}}, trust.LimitExceeded},
		"above the unpacked size":                    {[]tarEntry{fileEntry("a", strings.Repeat("0", 1<<20))}, Limits{Unpacked: 1 << 16}, trust.LimitExceeded},
		"whose layer is too large":                   {[]tarEntry{fileEntry("a", "x")}, Limits{Compressed: 10}, trust.LimitExceeded},
		"above the unpacked size in skipped entries": {[]tarEntry{fileEntry("zeros", strings.Repeat("0", 1<<20))}, Limits{Unpacked: 1 << 16}, trust.LimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeRegistry()
			signed := s.release(t, s.blob(registry.TypeReleaseLayer, archive(t, tc.entries...)))
			got, err := New(s, tc.limits).Tree(t.Context(), signed)
			if trust.ReasonOf(err) != tc.reason || got != nil {
				t.Errorf("got %v, %v, want reason %s", got, err, tc.reason)
			}
		})
	}
}

func TestT8TamperedLayersAreRejected(t *testing.T) {
	s := newFakeRegistry()
	good := archive(t, fileEntry("a", "good"))
	l := s.blob(registry.TypeReleaseLayer, good)
	signed := s.release(t, l)
	for name, b := range map[string][]byte{
		"other content": archive(t, fileEntry("a", "evil")),
		"cut off":       good[:len(good)-4],
		"with a tail":   append(bytes.Clone(good), good...),
		"no archive":    []byte("<html>"),
		"empty":         nil,
	} {
		s.blobs[l.Digest] = b
		if _, err := New(s, Limits{}).Tree(t.Context(), signed); trust.ReasonOf(err) != trust.FetchFailed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestT8UnexpectedMediaTypesAreRejected(t *testing.T) {
	s := newFakeRegistry()
	a := archive(t, fileEntry("a", "x"))
	for name, layers := range map[string][]registry.Descriptor{
		"a release of two layers":     {s.blob(registry.TypeReleaseLayer, a), s.blob(registry.TypeReleaseLayer, a)},
		"a release without layers":    {},
		"a release of an image layer": {s.blob(ociLayer, a)},
		"a layer of another type":     {s.blob("application/zip", a)},
	} {
		if _, err := New(s, Limits{}).Tree(t.Context(), s.release(t, layers...)); trust.ReasonOf(err) != trust.ForbiddenContent {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := s.manifest(registry.Manifest{Layers: []registry.Descriptor{s.blob("application/vnd.oci.image.layer.v1.tar+zstd", a)}, Annotations: product("platform")})
	if _, err := New(s, Limits{}).Tree(t.Context(), s.signed(t, trust.KindRelease, m.Digest)); trust.ReasonOf(err) != trust.ForbiddenContent {
		t.Errorf("an unknown compression: %v", err)
	}
}

func TestT8AnIndexHasOneChildPerPlatform(t *testing.T) {
	s := newFakeRegistry()
	child := s.manifest(registry.Manifest{ArtifactType: registry.TypeRelease, Layers: []registry.Descriptor{s.blob(registry.TypeReleaseLayer, archive(t, fileEntry("a", "x")))}})
	f := New(s, Limits{})
	child.Platform = &f.platform
	other := s.manifest(registry.Manifest{ArtifactType: registry.TypeRelease})
	other.Platform = &f.platform
	lying := other
	lying.MediaType = registry.TypeDockerManifest
	for name, tc := range map[string]struct {
		children []registry.Descriptor
		reason   trust.Reason
	}{
		"one":                   {[]registry.Descriptor{child}, ""},
		"two":                   {[]registry.Descriptor{child, other}, trust.ForbiddenContent},
		"one with another type": {[]registry.Descriptor{lying}, trust.ForbiddenContent},
		"an index":              {[]registry.Descriptor{{MediaType: registry.TypeOCIIndex, Digest: child.Digest, Platform: &f.platform}}, trust.ForbiddenContent},
		"none for the platform": {[]registry.Descriptor{{MediaType: registry.TypeOCIManifest, Digest: child.Digest}}, "error"},
	} {
		m := s.manifest(registry.Manifest{Type: registry.TypeOCIIndex, Manifests: tc.children, Annotations: product("platform")})
		_, err := f.Tree(t.Context(), s.signed(t, trust.KindRelease, m.Digest))
		if got := trust.ReasonOf(err); got != tc.reason && (tc.reason != "error" || err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBlobIsWrittenCompletely(t *testing.T) {
	want := pattern(3<<20 + 17)
	for name, setup := range map[string]func(*fakeRegistry){
		"in one attempt":                func(*fakeRegistry) {},
		"over an unreliable connection": func(s *fakeRegistry) { s.failAt = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeRegistry()
			signed := s.os(t, want)
			setup(s)
			var dst memory
			var last int64
			got, err := New(s, Limits{}).Blob(t.Context(), signed, &dst, BlobOptions{Progress: func(done, _ int64) { last = done }})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dst.b, want) || got.Digest != trust.DigestOf(want) || got.Size != int64(len(want)) || last != got.Size {
				t.Errorf("got %+v, %d bytes, progress %d", got, len(dst.b), last)
			}
		})
	}
}

func TestBlobResumesAfterExistingBytes(t *testing.T) {
	want := pattern(2 << 20)
	for name, noRanges := range map[string]bool{"with ranges": false, "without ranges": true} {
		t.Run(name, func(t *testing.T) {
			s := newFakeRegistry()
			signed := s.os(t, want)
			s.noRanges, s.opened = noRanges, nil
			dst := memory{b: bytes.Clone(want[:1<<20])}
			if _, err := New(s, Limits{}).Blob(t.Context(), signed, &dst, BlobOptions{Have: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dst.b, want) || len(s.opened) != 1 || s.opened[0] != 1<<20 {
				t.Errorf("requested from %v", s.opened)
			}
		})
	}
}

func TestBlobVerifiesExistingBytes(t *testing.T) {
	want := pattern(1 << 20)
	s := newFakeRegistry()
	signed := s.os(t, want)
	dst := memory{b: bytes.Repeat([]byte("evil"), 100)}
	if _, err := New(s, Limits{}).Blob(t.Context(), signed, &dst, BlobOptions{Have: 400}); trust.ReasonOf(err) != trust.WrongDigest {
		t.Errorf("got %v", err)
	}
	if _, err := New(s, Limits{}).Blob(t.Context(), signed, &dst, BlobOptions{}); err != nil || !bytes.Equal(dst.b, want) {
		t.Errorf("from the beginning: %v", err)
	}
}

func TestBlobRefusals(t *testing.T) {
	s := newFakeRegistry()
	content := pattern(1 << 10)
	signed := s.os(t, content)
	describe := New(s, Limits{})
	if c, err := describe.Describe(t.Context(), signed); err != nil || c.Digest != trust.DigestOf(content) || c.Size != 1<<10 {
		t.Errorf("Describe: %+v, %v", c, err)
	}
	if _, err := New(s, Limits{Blob: 100}).Describe(t.Context(), signed); trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("too large: %v", err)
	}
	if _, err := describe.Blob(t.Context(), signed, &memory{fail: true}, BlobOptions{}); err == nil || trust.ReasonOf(err) != "" {
		t.Errorf("a destination that fails: %v", err)
	}
	s.failAt = -1
	s.blobs[trust.DigestOf(content)] = append([]byte("x"), content[1:]...)
	if _, err := describe.Blob(t.Context(), signed, &memory{}, BlobOptions{}); trust.ReasonOf(err) != trust.WrongDigest {
		t.Errorf("tampered: %v", err)
	}
	s.blobs[trust.DigestOf(content)] = content[:100]
	if _, err := describe.Blob(t.Context(), signed, &memory{}, BlobOptions{}); trust.ReasonOf(err) != trust.FetchFailed {
		t.Errorf("cut off: %v", err)
	}
	release := s.release(t, s.blob(registry.TypeReleaseLayer, archive(t, fileEntry("a", "x"))))
	if _, err := describe.Blob(t.Context(), release, &memory{}, BlobOptions{}); err == nil {
		t.Error("a release was accepted as an OS image")
	}
	if _, err := describe.Tree(t.Context(), signed); err == nil {
		t.Error("an OS image was accepted as a release")
	}
}
