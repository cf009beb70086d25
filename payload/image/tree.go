// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/tree"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// whiteout is the name prefix of entries that delete an entry of a lower layer.
const whiteout = ".wh."

// Tree returns a signed release as a file system in memory: the verified files of
// a path in Git, the archive of a release artifact, or the release files in the
// layers of an OCI image.
//
// Only regular files and directories are supported. In an OCI image, later layers
// replace files of earlier ones, and entries outside the release are skipped.
func (f *Fetcher) Tree(ctx context.Context, s verify.Signed) (fs.FS, error) {
	if !s.IsZero() && s.Kind() != trust.KindRelease {
		return nil, fmt.Errorf("read release %s: verified as %q, must be verified as %s", s.Reference(), s.Kind(), trust.KindRelease)
	}
	if files, ok := s.Tree(); ok {
		return files, nil
	}
	m, err := f.manifest(ctx, s)
	if err != nil {
		return nil, err
	}
	b := tree.NewBuilder(f.limits.Tree)
	p := &puller{fetcher: f, signed: s, compressed: f.limits.Compressed, unpacked: f.limits.Unpacked}
	if m.ArtifactType == registry.TypeRelease || (len(m.Layers) == 1 && m.Layers[0].MediaType == registry.TypeReleaseLayer) {
		if len(m.Layers) != 1 || m.Layers[0].MediaType != registry.TypeReleaseLayer {
			return nil, forbidden(s, "a release without exactly one layer of "+registry.TypeReleaseLayer)
		}
		if err := p.layer(ctx, m.Layers[0], &artifact{b}); err != nil {
			return nil, err
		}
		return b.Tree(), nil
	}
	for _, l := range m.Layers {
		if err := p.layer(ctx, l, &overlay{builder: b, seen: map[string]bool{}}); err != nil {
			return nil, err
		}
	}
	return b.Tree(), nil
}

// sink receives the entries of an archive.
type sink interface {
	dir(name string) error
	file(name string, r io.Reader) error
	// accepts reports whether the entry is added; others are skipped.
	accepts(name string) bool
}

// artifact adds all entries of a release artifact. Duplicates are an error.
type artifact struct{ builder *tree.Builder }

func (a *artifact) accepts(string) bool                 { return true }
func (a *artifact) dir(name string) error               { return a.builder.Dir(name) }
func (a *artifact) file(name string, r io.Reader) error { return a.builder.File(name, r) }

// overlay adds the release files in one layer of an OCI image.
type overlay struct {
	builder *tree.Builder
	seen    map[string]bool // in this layer
}

// clean returns an entry's name without "./", which images of CVO have.
func clean(name string) string { return strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/") }

func (o *overlay) accepts(name string) bool {
	first, _, _ := strings.Cut(clean(name), "/")
	return first == "release-manifests" || first == "manifests" || first == "release-metadata" || first == "image-references"
}

func (o *overlay) dir(name string) error {
	if o.builder.Has(clean(name)) {
		return nil // layers may have the same directory
	}
	return o.builder.Dir(name)
}

func (o *overlay) file(name string, r io.Reader) error {
	p := clean(name)
	if o.seen[p] {
		return &tree.Error{Cause: trust.ForbiddenContent, Path: sanitize.Line(name), Text: "duplicate entry in a layer"}
	}
	o.seen[p] = true
	if base, ok := strings.CutPrefix(path.Base(p), whiteout); ok {
		if strings.HasPrefix(base, whiteout) {
			return &tree.Error{Cause: trust.ForbiddenContent, Path: sanitize.Line(name), Text: "opaque whiteouts aren't supported"}
		}
		o.builder.Remove(path.Join(path.Dir(p), base))
		return nil
	}
	o.builder.Remove(p)
	return o.builder.File(name, r)
}

// puller reads the layers of a tree within its limits.
type puller struct {
	fetcher              *Fetcher
	signed               verify.Signed
	compressed, unpacked int64 // remaining bytes
}

// layer unpacks a layer and verifies its digest and size. On an error, the caller
// discards the sink.
func (p *puller) layer(ctx context.Context, d registry.Descriptor, to sink) error {
	zipped, err := archiveType(d.MediaType)
	if err != nil {
		return forbidden(p.signed, err.Error())
	}
	if d.Size > p.compressed {
		return tooLarge(p.signed, "size of layer "+d.Digest.Short(), p.fetcher.limits.Compressed)
	}
	p.compressed -= d.Size
	s, err := p.fetcher.registry.Blob(ctx, p.signed.Repository(), d, 0)
	if err != nil {
		return fetchFailed(p.signed, err)
	}
	defer func() { _ = s.Close() }()
	in := &countedReader{r: io.LimitReader(s, d.Size+1), hash: sha256.New()}
	unpackErr := p.unpack(in, zipped, to)
	// The digest covers the whole layer. A wrong digest is reported before errors
	// of unpacking, which it may have caused.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return fetchFailed(p.signed, fmt.Errorf("layer %s: %w", d.Digest.Short(), err))
	}
	if got := in.digest(); got != d.Digest || in.n != d.Size {
		return fetchFailed(p.signed, fmt.Errorf("layer %s: registry served %d bytes with digest %s, must be %d bytes", d.Digest, in.n, got, d.Size))
	}
	return unpackErr
}

// archiveType reports whether a layer is compressed, and rejects layers other than
// tar archives.
func archiveType(mediaType string) (zipped bool, err error) {
	switch mediaType {
	case registry.TypeReleaseLayer, "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip":
		return true, nil
	case "application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar":
		return false, nil
	}
	return false, fmt.Errorf("a layer of media type %q", sanitize.Line(mediaType))
}

// unpack adds the entries of an archive to a sink.
func (p *puller) unpack(in io.Reader, zipped bool, to sink) error {
	if zipped {
		z, err := gzip.NewReader(in)
		if err != nil {
			return p.refuse(err)
		}
		defer func() { _ = z.Close() }()
		in = z
	}
	limited := &limitReader{r: in, left: &p.unpacked}
	t := tar.NewReader(limited)
	for {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return p.readTrailing(limited)
		case err != nil:
			return p.refuse(err)
		}
		if err := entry(h, t, to); err != nil {
			return p.refuse(err)
		}
	}
}

// readTrailing reads the content after the archive, which counts towards the limit.
func (p *puller) readTrailing(r io.Reader) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return p.refuse(err)
	}
	return nil
}

// entry adds one entry of an archive to a sink.
func entry(h *tar.Header, r io.Reader, to sink) error {
	if h.Typeflag == tar.TypeXGlobalHeader || !to.accepts(h.Name) {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return to.dir(h.Name)
	case tar.TypeReg:
		return to.file(h.Name, r)
	}
	return &tree.Error{
		Cause: trust.ForbiddenContent, Path: sanitize.Line(h.Name),
		Text: fmt.Sprintf("is %s; only regular files and directories are allowed", entryKind(h.Typeflag)),
	}
}

// entryKind describes the type of an entry.
func entryKind(flag byte) string {
	switch flag {
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a named pipe"
	}
	return fmt.Sprintf("of type %q", flag)
}

// errUnpacked reports that the unpacked size exceeds its limit.
var errUnpacked = errors.New("unpacked size exceeds the limit")

// refuse converts an error of unpacking to a refusal.
func (p *puller) refuse(err error) error {
	var t *tree.Error
	switch {
	case errors.Is(err, errUnpacked):
		return tooLarge(p.signed, "unpacked size", p.fetcher.limits.Unpacked)
	case errors.As(err, &t):
		return &trust.Refusal{Cause: t.Cause, Subject: p.signed.Reference(), Err: err}
	}
	return &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: p.signed.Reference(), Found: "an unreadable archive", Wanted: "a tar archive", Err: err,
	}
}

// limitReader limits the bytes read from all archives.
type limitReader struct {
	r    io.Reader
	left *int64
}

// Read fails once the limit is exceeded.
func (l *limitReader) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if *l.left -= int64(n); *l.left < 0 {
		return 0, errUnpacked
	}
	return n, err
}

// countedReader hashes and counts the bytes read.
type countedReader struct {
	r    io.Reader
	hash hash.Hash
	n    int64
}

func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	_, _ = c.hash.Write(b[:n]) // a hash's Write never fails
	c.n += int64(n)
	return n, err
}

func (c *countedReader) digest() trust.Digest {
	return trust.DigestOfSum([sha256.Size]byte(c.hash.Sum(nil)))
}
