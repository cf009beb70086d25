// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// outage returns a registry that can be made unreachable.
func outage(t *testing.T) (s *server, down func(bool)) {
	t.Helper()
	var unavailable atomic.Bool
	inner := ggcr.New(ggcr.WithReferrersSupport(true))
	s = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if unavailable.Load() {
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	return s, unavailable.Store
}

// readImage reads an image as verification and fetching do.
func readImage(ctx context.Context, r Reader, repo string, d trust.Digest) (map[string]string, error) {
	out := map[string]string{}
	m, err := r.Manifest(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	out["manifest"] = string(m.Bytes) + m.Type
	tagged, err := r.Tagged(ctx, repo, "latest")
	if err != nil {
		return nil, err
	}
	out["tagged"] = tagged[0].Digest.String()
	referrers, err := r.Referrers(ctx, repo, d)
	if err != nil {
		return nil, err
	}
	out["referrers"] = strings.Repeat("x", len(referrers))
	small, err := r.Bytes(ctx, repo, *m.Config, 1<<20)
	if err != nil {
		return nil, err
	}
	out["config"] = string(small)
	s, err := r.Blob(ctx, repo, m.Layers[0], 0)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(s)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	out["layer"] = string(b)
	return out, s.Close()
}

func TestCachedContentIsAvailableWhileTheRegistryIsUnreachable(t *testing.T) {
	s, down := outage(t)
	d, layer := s.push(t, "p/release")
	repo := s.host + "/p/release"
	dir := t.TempDir()
	cached, err := NewCache(client(t, Config{}, Options{AllowLoopback: true}), dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	want, err := readImage(t.Context(), cached, repo, d)
	if err != nil {
		t.Fatal(err)
	}
	down(true)
	// Another process uses the same cache.
	again, err := NewCache(client(t, Config{}, Options{AllowLoopback: true}), dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readImage(t.Context(), again, repo, d)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("without the registry: %v (-want +got):\n%s", err, diff)
	}
	path := filepath.Join(dir, layer.Hex())
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(t.Context(), again, repo, d); err == nil {
		t.Error("cached content with a wrong digest was served")
	}
	other := trust.DigestOf([]byte("never seen"))
	if _, err := again.Manifest(t.Context(), repo, other); err == nil {
		t.Error("a manifest that isn't cached was served")
	}
}

func TestAResponseOfTheRegistryTakesPrecedence(t *testing.T) {
	s, _ := outage(t)
	d, _ := s.push(t, "p/release")
	cached, err := NewCache(client(t, Config{}, Options{AllowLoopback: true}), t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(t.Context(), cached, s.host+"/p/release", d); err != nil {
		t.Fatal(err)
	}
	if _, err := cached.Manifest(t.Context(), s.host+"/p/other", d); !errors.Is(err, ErrNotFound) {
		t.Errorf("Manifest of another repository = %v, want not found", err)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	at := time.Unix(1_700_000_000, 0)
	c, err := NewCache(nil, dir, func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	blob := make([]byte, 60<<20)
	var digests []trust.Digest
	for i := range 6 {
		blob[0] = byte(i)
		d := trust.DigestOf(blob)
		digests = append(digests, d)
		c.store(d.Hex(), blob)
		at = at.Add(time.Minute)
		if err := os.Chtimes(filepath.Join(dir, d.Hex()), at, at); err != nil {
			t.Fatal(err)
		}
	}
	var total int64
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > maxCachedBytes {
		t.Errorf("%d bytes are cached, at most %d are allowed", total, int64(maxCachedBytes))
	}
	if _, ok := c.content(digests[0]); ok {
		t.Error("the least recently used content wasn't evicted")
	}
	if _, ok := c.content(digests[len(digests)-1]); !ok {
		t.Error("the newest content was evicted")
	}
}
