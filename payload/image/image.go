// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package image brings signed content by digest, within limits: Tree a release
// as a file system in memory, Blob an operating system image as a stream that
// can be resumed.
//
// It takes only verify.Signed. Everything below the signed digest is reached
// by digests in it, so that what was verified is what is opened. Nothing is
// written but to the destination that Blob is given.
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

// The media types of what Lockstep packs.
const (
	TypeRelease      = registry.TypeRelease
	TypeReleaseLayer = registry.TypeReleaseLayer
	TypeOS           = registry.TypeOS
	TypeOSLayer      = registry.TypeOSLayer
)

// Registry is where content comes from; registry.Client is one.
type Registry interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (registry.Manifest, error)
	Blob(ctx context.Context, repo string, d registry.Descriptor, offset int64) (*registry.Stream, error)
}

// Limits bound what is fetched. Zero fields take the defaults.
type Limits struct {
	// Compressed is how many bytes of layers are read from the registry for a
	// tree; default 64 MiB.
	Compressed int64
	// Unpacked is how many bytes the archives of a tree may unpack to,
	// skipped entries included; default 512 MiB, of which a release's own
	// files may be tree.DefaultBytes.
	Unpacked int64
	// Tree bounds what is kept.
	Tree tree.Limits
	// Blob is the largest OS image; default 16 GiB.
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

// Fetcher brings content. It's safe for concurrent use.
type Fetcher struct {
	registry Registry
	limits   Limits
	platform registry.Platform
}

// New returns a Fetcher that picks this machine's architecture where a signed
// index offers several.
func New(r Registry, l Limits) *Fetcher {
	return &Fetcher{registry: r, limits: l.withDefaults(), platform: registry.Platform{OS: "linux", Architecture: runtime.GOARCH}}
}

// ErrNotSigned says that the zero Signed was handed in.
var ErrNotSigned = errors.New("content wasn't verified")

// manifest returns the manifest under a signed digest; for an index its one
// child for our platform, found in the verified bytes.
func (f *Fetcher) manifest(ctx context.Context, s verify.Signed) (registry.Manifest, error) {
	if s.IsZero() {
		return registry.Manifest{}, ErrNotSigned
	}
	m, err := f.registry.Manifest(ctx, s.Repository(), s.Digest())
	if err != nil {
		return m, failed(s, err)
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
		return c, failed(s, err)
	}
	if c.IsIndex() || c.Type != child.MediaType {
		return c, forbidden(s, fmt.Sprintf("a child that its index calls %s and that is %s", sanitize.Line(child.MediaType), c.Type))
	}
	return c, nil
}

// forbidden refuses signed content for its form.
func forbidden(s verify.Signed, found string) error {
	return &trust.Refusal{
		Cause: trust.ForbiddenContent, Subject: s.Reference(), Found: found,
		Wanted: "content as `lockstep release build` or `lockstep os build` packs it",
	}
}

// tooLarge refuses signed content for its size.
func tooLarge(s verify.Signed, what string, limit int64) error {
	return &trust.Refusal{
		Cause: trust.LimitExceeded, Subject: s.Reference(), Found: what + " is larger than the limit",
		Wanted: fmt.Sprintf("at most %d bytes", limit),
	}
}

// failed wraps an error of fetching.
func failed(s verify.Signed, err error) error {
	if refused, ok := errors.AsType[*trust.Refusal](err); ok {
		return refused
	}
	return &trust.Refusal{
		Cause: trust.FetchFailed, Subject: s.Reference(), Found: "content that can't be fetched",
		Wanted: "an answer of the registry", Retry: true, Err: err,
	}
}
