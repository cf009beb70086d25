// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// Reader reads from a registry. Client and Cache implement it.
type Reader interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error)
	Tagged(ctx context.Context, repo, tag string) ([]Manifest, error)
	Referrers(ctx context.Context, repo string, d trust.Digest) ([]Descriptor, error)
	Bytes(ctx context.Context, repo string, d Descriptor, limit int64) ([]byte, error)
	Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error)
}

// Limits of the cache, in bytes.
const (
	// maxCachedBlob is the maximum size of a cached blob: releases are cached, OS
	// images aren't.
	maxCachedBlob = 64 << 20
	// maxCachedBytes is the total size; the least recently used files are evicted
	// first.
	maxCachedBytes = 256 << 20
)

// Cache reads from a registry and caches the content on disk, so that it remains
// available while the registry is unreachable. Cached content isn't trusted: its
// digest is verified at each read, and callers verify signatures again.
//
// Content and ErrNotFound from the registry take precedence; the cache only serves
// requests that fail. It is safe for concurrent use in one process.
type Cache struct {
	inner Reader
	dir   string
	now   func() time.Time
	mu    sync.Mutex // guards eviction
}

// NewCache returns a cache of inner in dir, which it creates if absent. Processes
// must not share dir.
func NewCache(inner Reader, dir string, now func() time.Time) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create registry cache: %w", err)
	}
	return &Cache{inner: inner, dir: dir, now: now}, nil
}

// unreachable reports whether a request failed, so that the cache may serve it.
func unreachable(err error) bool {
	var limit *files.LimitError
	var refused *trust.Refusal
	return err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, context.Canceled) &&
		!errors.As(err, &limit) && !errors.As(err, &refused)
}

// Manifest implements Reader.
func (c *Cache) Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error) {
	m, err := c.inner.Manifest(ctx, repo, d)
	if err == nil {
		c.storeManifest(m)
		return m, nil
	}
	if unreachable(err) {
		if cached, ok := c.manifest(d); ok {
			return cached, nil
		}
	}
	return m, err
}

// Tagged implements Reader.
func (c *Cache) Tagged(ctx context.Context, repo, tag string) ([]Manifest, error) {
	list, err := c.inner.Tagged(ctx, repo, tag)
	name := listName("tag", repo, tag)
	if err == nil {
		digests := make([]trust.Digest, 0, len(list))
		for _, m := range list {
			c.storeManifest(m)
			digests = append(digests, m.Digest)
		}
		c.storeJSON(name, digests)
		return list, nil
	}
	var digests []trust.Digest
	if !unreachable(err) || !c.json(name, &digests) {
		return list, err
	}
	var out []Manifest
	for _, d := range digests {
		if m, ok := c.manifest(d); ok {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// Referrers implements Reader.
func (c *Cache) Referrers(ctx context.Context, repo string, d trust.Digest) ([]Descriptor, error) {
	list, err := c.inner.Referrers(ctx, repo, d)
	name := listName("referrers", repo, d.String())
	if err == nil {
		c.storeJSON(name, list)
		return list, nil
	}
	var cached []Descriptor
	if unreachable(err) && c.json(name, &cached) {
		return cached, nil
	}
	return list, err
}

// Bytes implements Reader.
func (c *Cache) Bytes(ctx context.Context, repo string, d Descriptor, limit int64) ([]byte, error) {
	b, err := c.inner.Bytes(ctx, repo, d, limit)
	if err == nil {
		c.store(d.Digest.Hex(), b)
		return b, nil
	}
	if unreachable(err) {
		if cached, ok := c.content(d.Digest); ok && int64(len(cached)) <= limit {
			return cached, nil
		}
	}
	return b, err
}

// Blob implements Reader. A blob is cached once it has been read completely.
func (c *Cache) Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error) {
	s, err := c.inner.Blob(ctx, repo, d, offset)
	if err == nil {
		if s.Start != 0 || d.Size > maxCachedBlob {
			return s, nil
		}
		return &Stream{ReadCloser: &cachingReader{ReadCloser: s.ReadCloser, c: c, digest: d.Digest, sum: sha256.New()}}, nil
	}
	if unreachable(err) {
		if cached, ok := c.content(d.Digest); ok && offset <= int64(len(cached)) {
			return &Stream{ReadCloser: io.NopCloser(bytes.NewReader(cached[offset:])), Start: offset}, nil
		}
	}
	return s, err
}

// cachingReader collects a stream and caches it on Close if its digest is correct.
type cachingReader struct {
	io.ReadCloser
	c      *Cache
	digest trust.Digest
	sum    hash.Hash
	buf    bytes.Buffer
	over   bool
}

func (r *cachingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if !r.over {
		_, _ = r.sum.Write(p[:n])
		_, _ = r.buf.Write(p[:n])
		if r.buf.Len() > maxCachedBlob {
			r.over = true
			r.buf.Reset()
		}
	}
	return n, err
}

// Close implements io.Closer.
func (r *cachingReader) Close() error {
	if !r.over && trust.DigestOfSum([sha256.Size]byte(r.sum.Sum(nil))) == r.digest {
		r.c.store(r.digest.Hex(), r.buf.Bytes())
	}
	return r.ReadCloser.Close()
}

// storeManifest caches a manifest and its content type, which the manifest itself
// may not contain.
func (c *Cache) storeManifest(m Manifest) {
	c.store(m.Digest.Hex(), m.Bytes)
	c.store(m.Digest.Hex()+".type", []byte(m.Type))
}

func (c *Cache) manifest(d trust.Digest) (Manifest, bool) {
	b, ok := c.content(d)
	if !ok {
		return Manifest{}, false
	}
	served, err := files.Read(filepath.Join(c.dir, d.Hex()+".type"), maxCachedBlob)
	if err != nil {
		return Manifest{}, false
	}
	m, err := parseManifest(b, string(served))
	return m, err == nil
}

// content returns cached content if its digest is correct.
func (c *Cache) content(d trust.Digest) ([]byte, bool) {
	if _, err := trust.ParseDigest(string(d)); err != nil {
		return nil, false
	}
	path := filepath.Join(c.dir, d.Hex())
	b, err := files.Read(path, maxCachedBlob)
	if err != nil || trust.DigestOf(b) != d {
		return nil, false
	}
	now := c.now()
	_ = os.Chtimes(path, now, now) // mark as used; a failure only affects the order of eviction
	return b, true
}

// listName returns the file name of a cached list for a tag or a digest.
func listName(kind, repo, of string) string {
	sum := sha256.Sum256([]byte(kind + "\n" + repo + "\n" + of))
	return hex.EncodeToString(sum[:]) + ".list"
}

func (c *Cache) storeJSON(name string, v any) {
	if b, err := json.Marshal(v); err == nil {
		c.store(name, b)
	}
}

func (c *Cache) json(name string, v any) bool {
	b, err := files.Read(filepath.Join(c.dir, name), maxCachedBlob)
	return err == nil && json.Unmarshal(b, v) == nil
}

// store writes a file. Errors are ignored, since the cache may be lost at any
// time.
func (c *Cache) store(name string, b []byte) {
	path := filepath.Join(c.dir, name)
	if len(b) > maxCachedBlob {
		return
	}
	if have, err := files.Read(path, maxCachedBlob); err == nil && bytes.Equal(have, b) {
		now := c.now()
		_ = os.Chtimes(path, now, now)
		return
	}
	if err := files.Write(path, b, 0o600); err == nil {
		c.evict()
	}
}

// evict removes the least recently used files until the cache is within its limit.
func (c *Cache) evict() {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var infos []fs.FileInfo
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			infos = append(infos, info)
			total += info.Size()
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, f := range infos {
		if total <= maxCachedBytes {
			return
		}
		if os.Remove(filepath.Join(c.dir, f.Name())) == nil {
			total -= f.Size()
		}
	}
}
