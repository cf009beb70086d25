// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/tasks"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// signedImages verifies OS images against the host's own trust document and fetches
// verified images; it doesn't trust the reconciler.
type signedImages struct {
	verifier *verify.Verifier
	fetcher  *image.Fetcher
	// dir contains the download of at most one image.
	dir string
}

var _ tasks.ImageSource = (*signedImages)(nil)

// Verify implements tasks.ImageSource: product and version are read from the bytes
// under the verified digest.
func (s *signedImages) Verify(ctx context.Context, ref nodeos.ImageRef) (tasks.Verified, error) {
	signed, err := s.verifier.OS(ctx, verify.Request{Image: ref.String()})
	if err != nil {
		return tasks.Verified{}, err
	}
	content, err := s.fetcher.Describe(ctx, signed)
	if err != nil {
		return tasks.Verified{}, err
	}
	return tasks.Verified{
		Image: nodeos.Image{
			Ref:     nodeos.ImageRef{Repository: ref.Repository, Digest: signed.Digest().String()},
			Product: signed.Product(), Version: signed.Version(),
			ContentDigest: content.Digest.String(), Size: content.Size,
		},
		Proof: signed,
	}, nil
}

// Fetch implements tasks.ImageSource. It resumes an interrupted download of the same
// image; the digest covers all bytes.
func (s *signedImages) Fetch(ctx context.Context, v tasks.Verified) (io.ReadCloser, error) {
	signed, ok := v.Proof.(verify.Signed)
	if !ok {
		return nil, fmt.Errorf("fetch %s: no proof of verification", v.Image.Ref)
	}
	path, err := s.file(v.Image.ContentDigest)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", v.Image.Ref, err)
	}
	if err := s.fill(ctx, signed, f); err != nil {
		return nil, errors.Join(fmt.Errorf("download %s: %w", v.Image.Ref, err), f.Close())
	}
	return &download{Reader: io.LimitReader(f, v.Image.Size), file: f}, nil
}

// file returns the download path of an image and removes downloads of other
// images.
func (s *signedImages) file(contentDigest string) (string, error) {
	if err := nodeos.ValidateDigest(contentDigest); err != nil {
		return "", err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", fmt.Errorf("create the download directory: %w", err)
	}
	name := contentDigest[len("sha256:"):]
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return "", fmt.Errorf("read the download directory: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() != name {
			if err := os.Remove(filepath.Join(s.dir, entry.Name())); err != nil {
				return "", fmt.Errorf("remove an old download: %w", err)
			}
		}
	}
	return filepath.Join(s.dir, name), nil
}

func (s *signedImages) fill(ctx context.Context, signed verify.Signed, f *os.File) error {
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := s.fetcher.Blob(ctx, signed, f, image.BlobOptions{Have: have}); err != nil {
		if ctx.Err() != nil {
			return err // the next attempt resumes the download
		}
		if have == 0 {
			return err
		}
		// The existing bytes may be corrupt: start again.
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := s.fetcher.Blob(ctx, signed, f, image.BlobOptions{}); err != nil {
			return err
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// download is an open image; closing it removes the file.
type download struct {
	io.Reader
	file *os.File
}

// Close implements io.Closer.
func (d *download) Close() error { return errors.Join(d.file.Close(), os.Remove(d.file.Name())) }
