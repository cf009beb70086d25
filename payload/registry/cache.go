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

	"github.com/google/renameio/v2"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// Reader is what a Kept reads through; Client is one.
type Reader interface {
	Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error)
	Tagged(ctx context.Context, repo, tag string) ([]Manifest, error)
	Referrers(ctx context.Context, repo string, d trust.Digest) ([]Descriptor, error)
	Bytes(ctx context.Context, repo string, d Descriptor, limit int64) ([]byte, error)
	Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error)
}

// The limits of what is kept.
const (
	// maxKeptBlob is the largest blob that is kept: a release's, not an
	// operating system's.
	maxKeptBlob = 64 << 20
	// maxKept is how many bytes are kept in all; the ones that were used
	// longest ago go first.
	maxKept = 256 << 20
)

// Cache reads through to a registry and keeps on the disk what came, so that
// what was brought once can be brought again while the registry is away. Nothing
// is trusted for being kept: content is checked against its digest whenever it
// is read, and signatures are verified again by whoever asks.
//
// Only a failure to get an answer leads to what is kept: an answer of the
// registry, that it has nothing included, is passed on. It's safe for concurrent
// use by one process.
type Cache struct {
	inner Reader
	dir   string
	now   func() time.Time
	mu    sync.Mutex // guards the removal of old files
}

// NewCache keeps what comes from inner in a directory of its own.
func NewCache(inner Reader, dir string, now func() time.Time) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of kept content: %w", err)
	}
	return &Cache{inner: inner, dir: dir, now: now}, nil
}

// away reports whether an error means that the registry gave no answer.
func away(err error) bool {
	var limit *files.LimitError
	var refused *trust.Refusal
	return err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, context.Canceled) &&
		!errors.As(err, &limit) && !errors.As(err, &refused)
}

// Manifest implements Reader.
func (k *Cache) Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error) {
	m, err := k.inner.Manifest(ctx, repo, d)
	if err == nil {
		k.keepManifest(m)
		return m, nil
	}
	if away(err) {
		if kept, ok := k.manifest(d); ok {
			return kept, nil
		}
	}
	return m, err
}

// Tagged implements Reader.
func (k *Cache) Tagged(ctx context.Context, repo, tag string) ([]Manifest, error) {
	list, err := k.inner.Tagged(ctx, repo, tag)
	name := listName("tag", repo, tag)
	if err == nil {
		digests := make([]trust.Digest, 0, len(list))
		for _, m := range list {
			k.keepManifest(m)
			digests = append(digests, m.Digest)
		}
		k.keepJSON(name, digests)
		return list, nil
	}
	var digests []trust.Digest
	if !away(err) || !k.json(name, &digests) {
		return list, err
	}
	var out []Manifest
	for _, d := range digests {
		if m, ok := k.manifest(d); ok {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

// Referrers implements Reader.
func (k *Cache) Referrers(ctx context.Context, repo string, d trust.Digest) ([]Descriptor, error) {
	list, err := k.inner.Referrers(ctx, repo, d)
	name := listName("referrers", repo, d.String())
	if err == nil {
		k.keepJSON(name, list)
		return list, nil
	}
	var kept []Descriptor
	if away(err) && k.json(name, &kept) {
		return kept, nil
	}
	return list, err
}

// Bytes implements Reader.
func (k *Cache) Bytes(ctx context.Context, repo string, d Descriptor, limit int64) ([]byte, error) {
	b, err := k.inner.Bytes(ctx, repo, d, limit)
	if err == nil {
		k.keep(d.Digest.Hex(), b)
		return b, nil
	}
	if away(err) {
		if kept, ok := k.content(d.Digest); ok && int64(len(kept)) <= limit {
			return kept, nil
		}
	}
	return b, err
}

// Blob implements Reader. A blob that is read from its beginning to its end is
// kept then.
func (k *Cache) Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error) {
	s, err := k.inner.Blob(ctx, repo, d, offset)
	if err == nil {
		if s.Start != 0 || d.Size > maxKeptBlob {
			return s, nil
		}
		return &Stream{ReadCloser: &keeper{ReadCloser: s.ReadCloser, k: k, digest: d.Digest, sum: sha256.New()}}, nil
	}
	if away(err) {
		if kept, ok := k.content(d.Digest); ok && offset <= int64(len(kept)) {
			return &Stream{ReadCloser: io.NopCloser(bytes.NewReader(kept[offset:])), Start: offset}, nil
		}
	}
	return s, err
}

// keeper gathers a stream and keeps it if it is whole and what it should be.
type keeper struct {
	io.ReadCloser
	k      *Cache
	digest trust.Digest
	sum    hash.Hash
	buf    bytes.Buffer
	over   bool
}

func (r *keeper) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if !r.over {
		_, _ = r.sum.Write(p[:n])
		_, _ = r.buf.Write(p[:n])
		if r.buf.Len() > maxKeptBlob {
			r.over = true
			r.buf.Reset()
		}
	}
	return n, err
}

// Close implements io.Closer.
func (r *keeper) Close() error {
	if !r.over && hex.EncodeToString(r.sum.Sum(nil)) == r.digest.Hex() {
		r.k.keep(r.digest.Hex(), r.buf.Bytes())
	}
	return r.ReadCloser.Close()
}

// keepManifest keeps a manifest with the type that it was served as, which its
// bytes need not say.
func (k *Cache) keepManifest(m Manifest) {
	k.keep(m.Digest.Hex(), m.Bytes)
	k.keep(m.Digest.Hex()+".type", []byte(m.Type))
}

// manifest returns a kept manifest.
func (k *Cache) manifest(d trust.Digest) (Manifest, bool) {
	b, ok := k.content(d)
	if !ok {
		return Manifest{}, false
	}
	served, err := os.ReadFile(filepath.Join(k.dir, d.Hex()+".type"))
	if err != nil {
		return Manifest{}, false
	}
	m, err := parseManifest(b, string(served))
	return m, err == nil
}

// content returns kept bytes, if they still are what their digest says.
func (k *Cache) content(d trust.Digest) ([]byte, bool) {
	if _, err := trust.ParseDigest(string(d)); err != nil {
		return nil, false
	}
	path := filepath.Join(k.dir, d.Hex())
	b, err := os.ReadFile(path)
	if err != nil || trust.DigestOf(b) != d {
		return nil, false
	}
	now := k.now()
	_ = os.Chtimes(path, now, now) // used now; a failure costs only the order of removal
	return b, true
}

// listName names what a registry said about a name or a digest.
func listName(kind, repo, of string) string {
	sum := sha256.Sum256([]byte(kind + "\n" + repo + "\n" + of))
	return hex.EncodeToString(sum[:]) + ".list"
}

func (k *Cache) keepJSON(name string, v any) {
	if b, err := json.Marshal(v); err == nil {
		k.keep(name, b)
	}
}

func (k *Cache) json(name string, v any) bool {
	b, err := os.ReadFile(filepath.Join(k.dir, name))
	return err == nil && json.Unmarshal(b, v) == nil
}

// keep writes a file. What can't be kept is only missing later: the directory
// may be lost at any time anyway.
func (k *Cache) keep(name string, b []byte) {
	path := filepath.Join(k.dir, name)
	if len(b) > maxKeptBlob {
		return
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
		now := k.now()
		_ = os.Chtimes(path, now, now)
		return
	}
	if err := renameio.WriteFile(path, b, 0o600); err == nil {
		k.tidy()
	}
}

// tidy removes what was used longest ago while there is too much.
func (k *Cache) tidy() {
	k.mu.Lock()
	defer k.mu.Unlock()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, f := range files {
		if total <= maxKept {
			return
		}
		if os.Remove(filepath.Join(k.dir, f.Name())) == nil {
			total -= f.Size()
		}
	}
}
