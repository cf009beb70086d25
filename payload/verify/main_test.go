// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// world is a registry with a release and an OS image, keys and a policy.
type world struct {
	t      testing.TB
	host   string
	client *registry.Client
	pub    *build.Publisher
	keys   map[string]*build.Key
	doc    *trust.Document
	// hits are the requests that the registry saw; mu guards them.
	mu   sync.Mutex
	hits []string
	// before, if not nil, may answer a request in the registry's place.
	before func(http.ResponseWriter, *http.Request) bool
}

// document is a policy with keys a, b and c for releases, and extra fields.
func document(tb testing.TB, keys map[string]*build.Key, threshold int, extra string) *trust.Document {
	tb.Helper()
	d, err := trust.Decode([]byte(documentText(tb, keys, threshold, extra)))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func documentText(tb testing.TB, keys map[string]*build.Key, threshold int, extra string) string {
	tb.Helper()
	var b strings.Builder
	b.WriteString("name: root\nversion: 1\nexpires: 2027-11-29T00:00:00Z\nclusters: [prod]\nkeys:\n")
	for _, name := range []string{"a", "b", "c", "os"} {
		pem, err := keys[name].PublicPEM()
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Fprintf(&b, "- name: %s\n  pem: |\n    %s\n", name, strings.ReplaceAll(strings.TrimSpace(string(pem)), "\n", "\n    "))
	}
	fmt.Fprintf(&b, `roles:
  root: {keys: [os], threshold: 1}
  release: {keys: [a, b, c], threshold: %d}
  os: {keys: [os], threshold: 1}
rules:
- {match: {kind: ClusterRelease, name: "*"}, product: platform, role: release}
- {match: {kind: NodeOS, name: "*"}, product: platform-os, role: os}
%s`, threshold, extra)
	return b.String()
}

func newWorld(tb testing.TB, options ...ggcr.Option) *world {
	tb.Helper()
	w := &world{t: tb, keys: map[string]*build.Key{}}
	inner := ggcr.New(append(options, ggcr.Logger(log.New(io.Discard, "", 0)))...)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.hits = append(w.hits, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
		if w.before == nil || !w.before(rw, r) {
			inner.ServeHTTP(rw, r)
		}
	}))
	tb.Cleanup(srv.Close)
	w.host = strings.TrimPrefix(srv.URL, "http://")
	for _, name := range []string{"a", "b", "c", "os", "stranger"} {
		k, err := build.GenerateKey()
		if err != nil {
			tb.Fatal(err)
		}
		w.keys[name] = k
	}
	w.doc = document(tb, w.keys, 1, "")
	client, err := registry.New(registry.Config{}, registry.Options{AllowLoopback: true, Now: time.Now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	w.client, w.pub = client, build.NewPublisher(client)
	return w
}

// windowed returns the world's policy with an end for key a.
func windowed(tb testing.TB, w *world, end time.Time) *trust.Document {
	tb.Helper()
	text := strings.Replace(documentText(tb, w.keys, 1, ""), "- name: a\n", "- name: a\n  notAfter: "+end.Format(time.RFC3339)+"\n", 1)
	d, err := trust.Decode([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// withGit returns the world's policy with a git role.
func withGit(tb testing.TB, w *world, extra string) *trust.Document {
	tb.Helper()
	text := strings.Replace(documentText(tb, w.keys, 1, extra), "roles:\n", gitKey+"roles:\n  git: {keys: [admin], threshold: 1}\n", 1)
	d, err := trust.Decode([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// verifier returns a verifier with the world's policy.
func (w *world) verifier(limits verify.Limits) *verify.Verifier {
	w.t.Helper()
	v, err := verify.New(verify.Config{
		Registry: w.client, Policy: func() *trust.Document { return w.doc }, Cluster: "prod",
		Now: func() time.Time { return now }, Limits: limits,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// release pushes a release of the product platform.
func (w *world) release(version string) build.Published {
	w.t.Helper()
	dir := w.t.TempDir()
	write(w.t, dir, "release.yaml", "product: platform\nversion: "+version+"\ncomponents: [{name: web, runLevel: 10}]\n")
	write(w.t, dir, "web/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {v: '"+version+"'}\n")
	r, err := build.Build(dir, "")
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := w.pub.PushRelease(w.t.Context(), w.host+"/acme/release", r)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// osImage pushes an OS image of the product platform-os.
func (w *world) osImage(version, content string) build.Published {
	w.t.Helper()
	dir := w.t.TempDir()
	write(w.t, dir, "os.img", content)
	id := build.Identity{Product: "platform-os", Version: version}
	p, err := w.pub.PushOS(w.t.Context(), w.host+"/acme/os", id, filepath.Join(dir, "os.img"))
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// sign signs a digest with a key in one or both formats.
func (w *world) sign(p build.Published, key string, formats ...build.Format) []trust.Digest {
	w.t.Helper()
	if len(formats) == 0 {
		formats = []build.Format{build.Legacy, build.Bundle}
	}
	out, err := w.pub.Sign(w.t.Context(), p.Repository, p.Digest, w.keys[key], formats)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// check verifies a release and returns the reason of the refusal, "" for none.
func (w *world) check(r verify.Request) (verify.Signed, trust.Reason, error) {
	w.t.Helper()
	s, err := w.verifier(verify.Limits{}).Release(w.t.Context(), r)
	if (err == nil) == s.IsZero() {
		w.t.Fatalf("Signed is zero: %v, with error %v", s.IsZero(), err)
	}
	return s, trust.ReasonOf(err), err
}

// want fails unless a release is refused for a reason, or accepted for "".
func (w *world) want(reason trust.Reason, r verify.Request) {
	w.t.Helper()
	if _, got, err := w.check(r); got != reason || (err == nil) != (reason == "") {
		w.t.Errorf("reason is %q, want %q: %v", got, reason, err)
	}
}

func write(tb testing.TB, dir, name, content string) {
	tb.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}
