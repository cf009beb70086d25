// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// The following creates what the lockstep command never would: artifacts of
// arbitrary bytes, and signatures in the wrong place. It writes to the
// registry directly, as an attacker does.

// rawManifest is a manifest that is pushed unchanged.
type rawManifest struct {
	raw       []byte
	mediaType types.MediaType
}

// RawManifest and MediaType implement remote.Taggable.
func (m rawManifest) RawManifest() ([]byte, error)        { return m.raw, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return m.mediaType, nil }

// Archive packs files, with names unchanged and in order, into the archive of
// a release.
func Archive(files map[string]string) ([]byte, error) {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	packed := tar.NewWriter(zipped)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: file, Mode: 0o644, Size: int64(len(files[file])), Typeflag: tar.TypeReg}
		if err := packed.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %s: %w", file, err)
		}
		if _, err := io.WriteString(packed, files[file]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", file, err)
		}
	}
	if err := errors.Join(packed.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return out.Bytes(), nil
}

// PushArchive pushes an unsigned release artifact with an archive and returns
// its reference by digest.
func (w *Env) PushArchive(ctx context.Context, product, version string, archive []byte) (string, error) {
	repo, err := name.NewRepository(w.Reg.Host+"/"+product+"/release", name.Insecure)
	if err != nil {
		return "", fmt.Errorf("repository of %s: %w", product, err)
	}
	config := static.NewLayer([]byte("{}"), "application/vnd.oci.empty.v1+json")
	layer := static.NewLayer(archive, registry.TypeReleaseLayer)
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: map[string]string{
		verify.AnnotationProduct: product, verify.AnnotationVersion: version,
	}}
	for _, l := range []struct {
		layer v1.Layer
		add   func(v1.Descriptor)
	}{{config, func(d v1.Descriptor) { m.Config = d }}, {layer, func(d v1.Descriptor) { m.Layers = []v1.Descriptor{d} }}} {
		descriptor, err := describe(l.layer)
		if err != nil {
			return "", err
		}
		l.add(descriptor)
		if err := remote.WriteLayer(repo, l.layer, remote.WithContext(ctx)); err != nil {
			return "", fmt.Errorf("push a layer: %w", err)
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode the manifest: %w", err)
	}
	digest, err := pushRaw(ctx, repo, "", rawManifest{raw, m.MediaType})
	return repo.String() + "@" + digest, err
}

func describe(l v1.Layer) (v1.Descriptor, error) {
	digest, digestErr := l.Digest()
	size, sizeErr := l.Size()
	mediaType, typeErr := l.MediaType()
	if err := errors.Join(digestErr, sizeErr, typeErr); err != nil {
		return v1.Descriptor{}, fmt.Errorf("describe a layer: %w", err)
	}
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, nil
}

// pushRaw pushes a manifest with a tag or by digest, and returns its digest.
func pushRaw(ctx context.Context, repo name.Repository, tag string, m rawManifest) (string, error) {
	digest, _, err := v1.SHA256(bytes.NewReader(m.raw))
	if err != nil {
		return "", fmt.Errorf("digest of the manifest: %w", err)
	}
	var ref name.Reference = repo.Digest(digest.String())
	if tag != "" {
		ref = repo.Tag(tag)
	}
	if err := remote.Put(ref, m, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push %s: %w", ref, err)
	}
	return digest.String(), nil
}

// Layers returns the digests of a release's layers.
func (w *Env) Layers(ctx context.Context, ref string) ([]string, error) {
	parsed, err := name.NewDigest(ref, name.Insecure)
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	got, err := remote.Get(parsed, remote.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", ref, err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(got.Manifest, &m); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", ref, err)
	}
	out := make([]string, 0, len(m.Layers))
	for _, l := range m.Layers {
		out = append(out, l.Digest.String())
	}
	return out, nil
}

// CopyLegacySignature copies the signatures of one reference in cosign's tag
// scheme to another reference.
func (w *Env) CopyLegacySignature(ctx context.Context, from, to string) error {
	source, target, err := pair(from, to)
	if err != nil {
		return err
	}
	tag := func(d name.Digest) name.Tag {
		return d.Context().Tag(strings.Replace(d.DigestStr(), ":", "-", 1) + ".sig")
	}
	got, err := remote.Get(tag(source), remote.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("signature of %s: %w", from, err)
	}
	if err := remote.Tag(tag(target), got, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("signature of %s: %w", to, err)
	}
	return nil
}

// CopyBundle attaches the signature bundles of one reference to another one,
// changing only their subject.
func (w *Env) CopyBundle(ctx context.Context, from, to string) error {
	source, target, err := pair(from, to)
	if err != nil {
		return err
	}
	subject, err := remote.Get(target, remote.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("manifest of %s: %w", to, err)
	}
	index, err := remote.Referrers(source, remote.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("referrers of %s: %w", from, err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("referrers of %s: %w", from, err)
	}
	if len(list.Manifests) == 0 {
		return fmt.Errorf("nothing refers to %s", from)
	}
	for _, d := range list.Manifests {
		got, err := remote.Get(source.Context().Digest(d.Digest.String()), remote.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("referrer %s: %w", d.Digest, err)
		}
		var m map[string]any
		if err := json.Unmarshal(got.Manifest, &m); err != nil {
			return fmt.Errorf("referrer %s: %w", d.Digest, err)
		}
		m["subject"] = subject.Descriptor
		raw, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("referrer %s: %w", d.Digest, err)
		}
		if _, err := pushRaw(ctx, target.Context(), "", rawManifest{raw, got.MediaType}); err != nil {
			return err
		}
	}
	return nil
}

func pair(from, to string) (source, target name.Digest, err error) {
	source, fromErr := name.NewDigest(from, name.Insecure)
	target, toErr := name.NewDigest(to, name.Insecure)
	if err := errors.Join(fromErr, toErr); err != nil {
		return source, target, fmt.Errorf("references: %w", err)
	}
	return source, target, nil
}

// NewSigningKey creates an image-signing key that no trust document contains,
// and returns its path.
func (w *Env) NewSigningKey(file string) (string, error) {
	key, err := build.GenerateKey()
	if err != nil {
		return "", err
	}
	raw, err := key.PrivatePEM(nil)
	if err != nil {
		return "", err
	}
	path := w.Path(file)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return "", fmt.Errorf("write the key: %w", err)
	}
	return path, nil
}
