// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package image fetches signed content by digest, within limits: Tree returns a
// release as a file system in memory, and Blob writes an OS image, with resume.
//
// It accepts only verify.Signed. All content is read by digests in the signed
// manifest. Nothing is written except to the destination of Blob.
package image

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/tree"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Registry provides content. registry.Client implements it.
type Registry interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (registry.Manifest, error)
	Blob(ctx context.Context, repo string, d registry.Descriptor, offset int64) (*registry.Stream, error)
}

// Limits of fetched content, in bytes. Zero fields mean the defaults.
type Limits struct {
	// Compressed is the total size of a tree's layers in the registry; default
	// 64 MiB.
	Compressed int64
	// Unpacked is the total size of a tree's unpacked archives, including skipped
	// entries; default 512 MiB.
	Unpacked int64
	// Tree limits the files of the release.
	Tree tree.Limits
	// Blob is the size of an OS image; default 16 GiB.
	Blob int64
}

func (l Limits) withDefaults() Limits {
	d := Limits{Compressed: 64 << 20, Unpacked: 512 << 20, Tree: l.Tree, Blob: 16 << 30}
	if l.Compressed > 0 {
		d.Compressed = l.Compressed
	}
	if l.Unpacked > 0 {
		d.Unpacked = l.Unpacked
	}
	if l.Blob > 0 {
		d.Blob = l.Blob
	}
	return d
}

// Fetcher fetches content. It is safe for concurrent use.
type Fetcher struct {
	registry Registry
	limits   Limits
	platform registry.Platform
}

// New returns a Fetcher that selects the architecture of this machine in indexes.
func New(r Registry, l Limits) *Fetcher {
	return &Fetcher{registry: r, limits: l.withDefaults(), platform: registry.Platform{OS: "linux", Architecture: runtime.GOARCH}}
}

// ErrNotSigned is returned for a zero Signed.
var ErrNotSigned = errors.New("content isn't verified")

// manifest returns the manifest of a signed digest, or the child for the platform
// if it is an index.
func (f *Fetcher) manifest(ctx context.Context, s verify.Signed) (registry.Manifest, error) {
	if s.IsZero() {
		return registry.Manifest{}, ErrNotSigned
	}
	m, err := f.registry.Manifest(ctx, s.Repository(), s.Digest())
	if err != nil {
		return m, fetchFailed(s, err)
	}
	if !m.IsIndex() {
		return m, nil
	}
	child, err := m.Child(f.platform)
	if err != nil {
		return m, err
	}
	c, err := f.registry.Manifest(ctx, s.Repository(), child.Digest)
	if err != nil {
		return c, fetchFailed(s, err)
	}
	if c.IsIndex() || c.Type != child.MediaType {
		return c, forbidden(s, fmt.Sprintf("a child with media type %s in its index and %s in its manifest", sanitize.Line(child.MediaType), c.Type))
	}
	return c, nil
}

// forbidden returns a refusal of signed content with an invalid format.
func forbidden(s verify.Signed, found string) error {
	return &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: s.Reference(), Found: found,
		Wanted: "content packed by `lockstep release build` or `lockstep os build`",
	}
}

// tooLarge returns a refusal of signed content above a size limit.
func tooLarge(s verify.Signed, what string, limit int64) error {
	return &trust.Refusal{
		Cause: trust.LimitExceeded, Subject: s.Reference(), Found: what + " above the limit",
		Wanted: fmt.Sprintf("at most %d bytes", limit),
	}
}

// fetchFailed returns a refusal for a fetch error.
func fetchFailed(s verify.Signed, err error) error {
	if refused, ok := errors.AsType[*trust.Refusal](err); ok {
		return refused
	}
	return &trust.Refusal{
		Cause: trust.FetchFailed, Subject: s.Reference(), Found: "a fetch error",
		Wanted: "the content from the registry", Retry: true, Err: err,
	}
}
