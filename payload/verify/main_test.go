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

// env is a registry with keys and a policy.
type env struct {
	t      testing.TB
	host   string
	client *registry.Client
	pub    *build.Publisher
	keys   map[string]*build.Key
	doc    *trust.Document
	// requests that the registry received; mu guards them.
	mu       sync.Mutex
	requests []string
	// intercept, if not nil, may respond instead of the registry.
	intercept func(http.ResponseWriter, *http.Request) bool
}

// document returns a policy with keys a, b and c for releases, and extra fields.
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

func newEnv(tb testing.TB, options ...ggcr.Option) *env {
	tb.Helper()
	e := &env{t: tb, keys: map[string]*build.Key{}}
	inner := ggcr.New(append(options, ggcr.Logger(log.New(io.Discard, "", 0)))...)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.requests = append(e.requests, r.Method+" "+r.URL.Path)
		e.mu.Unlock()
		if e.intercept == nil || !e.intercept(rw, r) {
			inner.ServeHTTP(rw, r)
		}
	}))
	tb.Cleanup(srv.Close)
	e.host = strings.TrimPrefix(srv.URL, "http://")
	for _, name := range []string{"a", "b", "c", "os", "unknown"} {
		k, err := build.GenerateKey()
		if err != nil {
			tb.Fatal(err)
		}
		e.keys[name] = k
	}
	e.doc = document(tb, e.keys, 1, "")
	client, err := registry.New(registry.Config{}, registry.Options{AllowLoopback: true, Now: time.Now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	e.client, e.pub = client, build.NewPublisher(client)
	return e
}

// windowed returns the policy of e with an end of key a's validity.
func windowed(tb testing.TB, e *env, end time.Time) *trust.Document {
	tb.Helper()
	text := strings.Replace(documentText(tb, e.keys, 1, ""), "- name: a\n", "- name: a\n  notAfter: "+end.Format(time.RFC3339)+"\n", 1)
	d, err := trust.Decode([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// withGit returns the policy of e with a git role.
func withGit(tb testing.TB, e *env, extra string) *trust.Document {
	tb.Helper()
	text := strings.Replace(documentText(tb, e.keys, 1, extra), "roles:\n", gitKey+"roles:\n  git: {keys: [admin], threshold: 1}\n", 1)
	d, err := trust.Decode([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// verifier returns a verifier with the policy of e.
func (e *env) verifier(limits verify.Limits) *verify.Verifier {
	e.t.Helper()
	v, err := verify.New(verify.Config{
		Registry: e.client, Policy: func() *trust.Document { return e.doc }, Cluster: "prod",
		Now: func() time.Time { return now }, Limits: limits,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

// release pushes a release of the product platform.
func (e *env) release(version string) build.Published {
	e.t.Helper()
	dir := e.t.TempDir()
	write(e.t, dir, "release.yaml", "product: platform\nversion: "+version+"\ncomponents: [{name: web, runLevel: 10}]\n")
	write(e.t, dir, "web/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: web}\ndata: {v: '"+version+"'}\n")
	r, err := build.Build(dir, "")
	if err != nil {
		e.t.Fatal(err)
	}
	p, err := e.pub.PushRelease(e.t.Context(), e.host+"/acme/release", r)
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

// osImage pushes an OS image of the product platform-os.
func (e *env) osImage(version, content string) build.Published {
	e.t.Helper()
	dir := e.t.TempDir()
	write(e.t, dir, "os.img", content)
	id := build.Identity{Product: "platform-os", Version: version}
	p, err := e.pub.PushOS(e.t.Context(), e.host+"/acme/os", id, filepath.Join(dir, "os.img"))
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

// sign signs a digest with a key in one or both formats.
func (e *env) sign(p build.Published, key string, formats ...build.Format) []trust.Digest {
	e.t.Helper()
	if len(formats) == 0 {
		formats = []build.Format{build.Legacy, build.Bundle}
	}
	out, err := e.pub.Sign(e.t.Context(), p.Repository, p.Digest, e.keys[key], formats)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// check verifies a release and returns the reason of a refusal, or "".
func (e *env) check(r verify.Request) (verify.Signed, trust.Reason, error) {
	e.t.Helper()
	s, err := e.verifier(verify.Limits{}).Release(e.t.Context(), r)
	if (err == nil) == s.IsZero() {
		e.t.Fatalf("Signed is zero: %v, with error %v", s.IsZero(), err)
	}
	return s, trust.ReasonOf(err), err
}

// want fails unless a release is refused for the reason, or accepted for "".
func (e *env) want(reason trust.Reason, r verify.Request) {
	e.t.Helper()
	if _, got, err := e.check(r); got != reason || (err == nil) != (reason == "") {
		e.t.Errorf("reason is %q, want %q: %v", got, reason, err)
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
