// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Content is the blob of an OS image, which is written to a slot.
type Content struct {
	// Digest of the content.
	Digest trust.Digest
	// Size in bytes.
	Size int64
}

// Destination is the destination of a blob: a file or a slot.
type Destination interface {
	io.WriterAt
	io.ReaderAt
}

// BlobOptions configure Blob.
type BlobOptions struct {
	// Have is the number of bytes in the destination from a previous attempt. They
	// are read back and included in the digest.
	Have int64
	// Attempts is the number of consecutive attempts without progress before Blob
	// fails; default 3.
	Attempts int
	// Progress is called after each write with the bytes written and the size.
	Progress func(done, total int64)
}

// chunk is the size of the copy buffer, in bytes.
const chunk = 1 << 20

// Describe returns digest and size of a signed OS image without fetching it.
func (f *Fetcher) Describe(ctx context.Context, s verify.Signed) (Content, error) {
	l, err := f.osLayer(ctx, s)
	return Content{Digest: l.Digest, Size: l.Size}, err
}

// osLayer returns the only layer of an OS image.
func (f *Fetcher) osLayer(ctx context.Context, s verify.Signed) (registry.Descriptor, error) {
	if s.Kind() != trust.KindNodeOS {
		return registry.Descriptor{}, fmt.Errorf("read OS image %s: verified as %q, must be verified as %s", s.Reference(), s.Kind(), trust.KindNodeOS)
	}
	m, err := f.manifest(ctx, s)
	switch {
	case err != nil:
		return registry.Descriptor{}, err
	case m.ArtifactType != registry.TypeOS || len(m.Layers) != 1 || m.Layers[0].MediaType != registry.TypeOSLayer:
		return registry.Descriptor{}, forbidden(s, "content other than an artifact of type "+registry.TypeOS+" with one layer of "+registry.TypeOSLayer)
	case m.Layers[0].Size > f.limits.Blob:
		return registry.Descriptor{}, tooLarge(s, "image size", f.limits.Blob)
	}
	return m.Layers[0], nil
}

// Blob writes a signed OS image to dst and verifies the digest of all bytes,
// including those of a previous attempt. After an error, dst contains an
// unverified prefix: callers must not use it, but may pass its length as Have. If
// the digest is wrong, the next attempt must start with Have 0. Callers sync dst.
func (f *Fetcher) Blob(ctx context.Context, s verify.Signed, dst Destination, o BlobOptions) (Content, error) {
	l, err := f.osLayer(ctx, s)
	if err != nil {
		return Content{}, err
	}
	if o.Attempts <= 0 {
		o.Attempts = 3
	}
	if o.Have < 0 || o.Have > l.Size {
		o.Have = 0
	}
	w := &blobWriter{dst: dst, size: l.Size, hash: sha256.New(), progress: o.Progress}
	if err := w.rehash(ctx, o.Have); err != nil {
		return Content{}, err
	}
	for tries := 0; w.done < l.Size; {
		before := w.done
		err := f.stream(ctx, s, l, w)
		if w.writeErr != nil {
			return Content{}, fmt.Errorf("write image %s: %w", l.Digest.Short(), w.writeErr)
		}
		if w.done > before {
			tries = 0
		}
		if tries++; err != nil && (ctx.Err() != nil || tries >= o.Attempts) {
			return Content{}, fetchFailed(s, fmt.Errorf("image %s: stopped at %d of %d bytes: %w", l.Digest.Short(), w.done, l.Size, err))
		}
	}
	if got := trust.DigestOfSum([sha256.Size]byte(w.hash.Sum(nil))); got != l.Digest {
		return Content{}, &trust.Refusal{
			Cause: trust.WrongDigest, Subject: s.Reference(), Found: "content with digest " + got.String(),
			Wanted: l.Digest.String(), Retry: true,
		}
	}
	return Content{Digest: l.Digest, Size: l.Size}, nil
}

// stream reads the blob from the writer's position to its end or the first error.
func (f *Fetcher) stream(ctx context.Context, s verify.Signed, l registry.Descriptor, w *blobWriter) error {
	in, err := f.registry.Blob(ctx, s.Repository(), l, w.done)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if in.Start < w.done { // the registry doesn't support ranges: skip the existing bytes
		if _, err := io.CopyN(io.Discard, in, w.done-in.Start); err != nil {
			return err
		}
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(in, l.Size-w.done), make([]byte, chunk))
	if err == nil && w.done < l.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// blobWriter writes sequentially and hashes the written bytes.
type blobWriter struct {
	dst        Destination
	done, size int64
	hash       hash.Hash
	progress   func(done, total int64)
	writeErr   error // error of the destination, not retried
}

// rehash hashes the bytes of a previous attempt.
func (w *blobWriter) rehash(ctx context.Context, have int64) error {
	buf := make([]byte, chunk)
	for w.done < have {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := w.dst.ReadAt(buf[:min(int64(len(buf)), have-w.done)], w.done)
		_, _ = w.hash.Write(buf[:n]) // a hash's Write never fails
		w.done += int64(n)
		if err != nil && w.done < have {
			return fmt.Errorf("read back %d bytes of a previous attempt: %w", have, err)
		}
	}
	return nil
}

// Write appends to the destination.
func (w *blobWriter) Write(b []byte) (int, error) {
	n, err := w.dst.WriteAt(b, w.done)
	_, _ = w.hash.Write(b[:n]) // a hash's Write never fails
	w.done += int64(n)
	if err != nil {
		w.writeErr = err
	}
	if w.progress != nil {
		w.progress(w.done, w.size)
	}
	return n, err
}
