// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// LayoutPrefix is the prefix of references to OCI layouts on disk.
const LayoutPrefix = "oci:"

// AnnotationRefName is the annotation for a tag in an entry of a layout's index.
const AnnotationRefName = "org.opencontainers.image.ref.name"

// layoutDir is an OCI image layout (image-spec 1.1, image-layout.md).
type layoutDir struct {
	dir     string
	allowed bool
}

// layout returns the layout of a repository with LayoutPrefix.
func (c *Client) layout(repo string) (layoutDir, bool) {
	dir, ok := strings.CutPrefix(repo, LayoutPrefix)
	return layoutDir{dir: dir, allowed: c.opts.AllowLayouts}, ok
}

// open opens a file in the layout. Symbolic links can't leave it.
func (l layoutDir) open(name string) (fs.File, error) {
	if !l.allowed {
		return nil, errors.New("OCI layouts on disk aren't enabled in this program")
	}
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("layout %s: %w", l.dir, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (l layoutDir) read(name string, limit int64) ([]byte, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAll(f, limit)
}

// index returns the entries of the layout's index.json.
func (l layoutDir) index() (Manifest, error) {
	var m Manifest
	b, err := l.read("index.json", MaxIndex)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("parse index.json of layout %s: %w", l.dir, err)
	}
	if len(m.Manifests) > maxDescriptors {
		return m, fmt.Errorf("layout %s has %d entries, at most %d are allowed", l.dir, len(m.Manifests), maxDescriptors)
	}
	return m, nil
}

// manifest returns a manifest by digest or by tag.
func (l layoutDir) manifest(reference string) (Manifest, error) {
	d, err := trust.ParseDigest(reference)
	if err != nil {
		if d, err = l.named(reference); err != nil {
			return Manifest{}, err
		}
	}
	b, err := l.read("blobs/sha256/"+d.Hex(), MaxManifest)
	if err != nil {
		return Manifest{}, err
	}
	m, err := parseManifest(b, "")
	if err == nil && m.Digest != d {
		err = fmt.Errorf("layout %s: blob %s has digest %s", l.dir, d, m.Digest)
	}
	return m, err
}

func (l layoutDir) named(tag string) (trust.Digest, error) {
	index, err := l.index()
	if err != nil {
		return "", err
	}
	for _, d := range index.Manifests {
		if d.Annotations[AnnotationRefName] == tag {
			return trust.ParseDigest(string(d.Digest))
		}
	}
	return "", fmt.Errorf("layout %s: tag %q: %w", l.dir, tag, ErrNotFound)
}

// referrers returns the manifests in the index whose subject is d.
func (l layoutDir) referrers(d trust.Digest) ([]Descriptor, error) {
	index, err := l.index()
	if err != nil {
		return nil, err
	}
	var out []Descriptor
	for _, e := range index.Manifests {
		m, err := l.manifest(string(e.Digest))
		if err != nil || m.Subject == nil || m.Subject.Digest != d {
			continue // unreadable manifests and those with another subject
		}
		e.ArtifactType = m.ArtifactType
		out = append(out, e)
	}
	return out, nil
}

func (l layoutDir) blob(d trust.Digest, offset int64) (*Stream, error) {
	f, err := l.open("blobs/sha256/" + d.Hex())
	if err != nil {
		return nil, err
	}
	if s, ok := f.(io.Seeker); ok && offset > 0 {
		if _, err := s.Seek(offset, io.SeekStart); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &Stream{ReadCloser: f, Start: offset}, nil
	}
	return &Stream{ReadCloser: f}, nil
}
