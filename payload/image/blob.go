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

// Content is the one blob of an OS image: what is written to a slot.
type Content struct {
	// Digest is of the bytes themselves.
	Digest trust.Digest
	// Size is in bytes.
	Size int64
}

// Destination is where a blob is written: a file, a slot.
type Destination interface {
	io.WriterAt
	io.ReaderAt
}

// BlobOptions say how a blob is fetched.
type BlobOptions struct {
	// Have is how many bytes the destination holds from an earlier try. They
	// are read back and count for the digest, so that they needn't be trusted.
	Have int64
	// Attempts is how often in a row the stream may break without progress
	// before giving up; default 3.
	Attempts int
	// Progress is called with the bytes that are there, between writes.
	Progress func(done, total int64)
}

// chunk is how much is copied at a time.
const chunk = 1 << 20

// Describe returns what the blob of a signed OS image is, without fetching it.
func (f *Fetcher) Describe(ctx context.Context, s verify.Signed) (Content, error) {
	l, err := f.osLayer(ctx, s)
	return Content{Digest: l.Digest, Size: l.Size}, err
}

// osLayer returns the one layer of an OS image.
func (f *Fetcher) osLayer(ctx context.Context, s verify.Signed) (registry.Descriptor, error) {
	if s.Kind() != trust.KindNodeOS {
		return registry.Descriptor{}, fmt.Errorf("%s was verified as %q, an OS image must be verified as one", s.Reference(), s.Kind())
	}
	m, err := f.manifest(ctx, s)
	switch {
	case err != nil:
		return registry.Descriptor{}, err
	case m.ArtifactType != TypeOS || len(m.Layers) != 1 || m.Layers[0].MediaType != TypeOSLayer:
		return registry.Descriptor{}, forbidden(s, "no artifact of type "+TypeOS+" with one layer of "+TypeOSLayer)
	case m.Layers[0].Size > f.limits.Blob:
		return registry.Descriptor{}, tooLarge(s, "the image", f.limits.Blob)
	}
	return m.Layers[0], nil
}

// Blob writes the blob of a signed OS image to dst and returns it once its
// digest was found right over all bytes, those of an earlier try included.
// After an error dst holds a prefix of unknown worth: the caller must not use
// it, but may hand its length in as Have. If the digest is wrong, Have must be
// 0 the next time. dst isn't synced: that is the caller's.
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
		if w.broken != nil {
			return Content{}, fmt.Errorf("write image %s: %w", l.Digest.Short(), w.broken)
		}
		if w.done > before {
			tries = 0
		}
		if tries++; err != nil && (ctx.Err() != nil || tries >= o.Attempts) {
			return Content{}, failed(s, fmt.Errorf("image %s stopped at %d of %d bytes: %w", l.Digest.Short(), w.done, l.Size, err))
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

// stream reads from where the writer is to the end of the blob, or to the
// first error.
func (f *Fetcher) stream(ctx context.Context, s verify.Signed, l registry.Descriptor, w *blobWriter) error {
	in, err := f.registry.Blob(ctx, s.Repository(), l, w.done)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if in.Start < w.done { // the registry has no ranges: skip what is there
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

// blobWriter writes in order, hashing what it wrote.
type blobWriter struct {
	dst        Destination
	done, size int64
	hash       hash.Hash
	progress   func(done, total int64)
	broken     error // of the destination: trying again won't help
}

// rehash reads back what an earlier try left.
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
			return fmt.Errorf("read back %d bytes of an earlier try: %w", have, err)
		}
	}
	return nil
}

// Write writes at the end.
func (w *blobWriter) Write(b []byte) (int, error) {
	n, err := w.dst.WriteAt(b, w.done)
	_, _ = w.hash.Write(b[:n]) // a hash's Write never fails
	w.done += int64(n)
	if err != nil {
		w.broken = err
	}
	if w.progress != nil {
		w.progress(w.done, w.size)
	}
	return n, err
}
