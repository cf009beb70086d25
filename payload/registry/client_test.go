// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// server is a registry, or a part of one, that records requests.
type server struct {
	host    string
	mu      sync.Mutex
	auth    []string
	paths   []string
	handler http.Handler
}

func serve(t *testing.T, handler http.Handler) *server {
	t.Helper()
	s := &server{handler: handler}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.host = strings.TrimPrefix(srv.URL, "http://")
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.auth = append(s.auth, r.Header.Get("Authorization"))
	s.paths = append(s.paths, r.URL.Path)
	s.mu.Unlock()
	s.handler.ServeHTTP(w, r)
}

// sawCredentials reports whether a request had basic credentials.
func (s *server) sawCredentials() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.auth, func(a string) bool { return strings.HasPrefix(a, "Basic") })
}

func newRegistry(t *testing.T) *server {
	t.Helper()
	return serve(t, ggcr.New(ggcr.WithReferrersSupport(true), ggcr.Logger(log.New(io.Discard, "", 0))))
}

// push pushes an image and returns the digests of the image and its layer.
func (s *server) push(t *testing.T, repo string) (image, layer trust.Digest) {
	t.Helper()
	img, err := random.Image(1<<10, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(s.host + "/" + repo + ":latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	l, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	return trust.Digest(d.String()), trust.Digest(l.String())
}

func client(t *testing.T, cfg Config, o Options) *Client {
	t.Helper()
	o.Now = time.Now
	c, err := New(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// withPassword returns a host with credentials.
func withPassword(t *testing.T, host string) Host {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Host{Host: host, Credentials: Credentials{Username: "robot", PasswordFile: file}}
}

func TestT8AddressesAreCheckedWhenDialled(t *testing.T) {
	s := newRegistry(t)
	d, _ := s.push(t, "a/b")
	_, port, _ := strings.Cut(s.host, ":")
	for name, tc := range map[string]struct {
		host string
		o    Options
		want string
	}{
		"loopback":          {s.host, Options{}, "loopback addresses require"},
		"loopback by name":  {"localhost:" + port, Options{}, "loopback addresses require"},
		"loopback, allowed": {s.host, Options{AllowLoopback: true}, ""},
		"metadata":          {"169.254.169.254:80", Options{AllowLoopback: true}, "aren't allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client(t, Config{}, tc.o).Manifest(t.Context(), tc.host+"/a/b", d)
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
	for address, ok := range map[string]bool{
		"169.254.169.254:443": false, "[fe80::1]:443": false, "[::ffff:169.254.169.254]:443": false, "[fd00:ec2::254]:80": false,
		"100.100.100.200:80": false, "168.63.129.16:80": false, "0.0.0.0:443": false, "127.0.0.1:443": false, "[::1]:443": false,
		"224.0.0.1:443": false, "10.0.0.1:443": true, "192.0.2.1:443": true, "nonsense": false,
	} {
		if err := (Options{}).checkAddress(address); (err == nil) != ok {
			t.Errorf("checkAddress(%s): %v", address, err)
		}
	}
}

// roundTripper responds to every request.
type roundTripper struct{ seen int }

func (r *roundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	r.seen++
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestT8PlainHTTPIsLimitedToMarkedHosts(t *testing.T) {
	c := client(t, Config{Registries: []Host{{Host: "plain.example.com", PlainHTTP: true}}}, Options{})
	allowed := client(t, c.cfg, Options{AllowPlainHTTP: true})
	for name, tc := range map[string]struct {
		client *Client
		url    string
		ok     bool
	}{
		"marked and allowed":   {allowed, "http://plain.example.com/v2/", true},
		"marked only":          {c, "http://plain.example.com/v2/", false},
		"allowed only":         {allowed, "http://other.example.com/v2/", false},
		"TLS":                  {c, "https://other.example.com/v2/", true},
		"another scheme":       {allowed, "ftp://plain.example.com/v2/", false},
		"loopback, no option":  {allowed, "http://127.0.0.1/v2/", false},
		"a name like loopback": {client(t, Config{}, Options{AllowLoopback: true}), "http://localhost.evil.example.com/v2/", false},
	} {
		inner := &roundTripper{}
		g := &guard{direct: inner, proxyFor: outbound.Settings{}.ProxyFor, host: "plain.example.com", allowsPlainHTTP: tc.client.allowsPlainHTTP}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tc.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.RoundTrip(req) //nolint:bodyclose // the response has no body
		if (err == nil) != tc.ok || (inner.seen == 1) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestT8CredentialsStayOnTheirHost(t *testing.T) {
	token := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"token":"t"}`)
	}))
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	open := serve(t, inner)
	d, _ := open.push(t, "a/b")
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://localhost:%s/token",service="x"`, port(token)))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	host := withPassword(t, s.host)
	_, err := client(t, Config{Registries: []Host{host}}, Options{AllowLoopback: true}).Manifest(t.Context(), s.host+"/a/b", d)
	if err == nil || !strings.Contains(err.Error(), "authHosts") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error is %v", err)
	}
	if len(token.auth) != 0 {
		t.Errorf("the other realm got requests: %q", token.auth)
	}
	host.AuthHosts = []string{"localhost:" + port(token)}
	if _, err := client(t, Config{Registries: []Host{host}}, Options{AllowLoopback: true}).Manifest(t.Context(), s.host+"/a/b", d); err != nil {
		t.Errorf("with the realm listed: %v", err)
	}
	if !token.sawCredentials() {
		t.Error("the listed realm got no credentials")
	}
}

func port(s *server) string {
	_, p, _ := strings.Cut(s.host, ":")
	return p
}

func TestT8RedirectsHaveNoCredentials(t *testing.T) {
	store := newRegistry(t)
	_, layer := store.push(t, "a/b")
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") == "":
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, "http://localhost:"+port(store)+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	c := client(t, Config{Registries: []Host{withPassword(t, s.host)}}, Options{AllowLoopback: true})
	store.auth = nil
	in, err := c.Blob(t.Context(), s.host+"/a/b", Descriptor{Digest: layer}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	if store.sawCredentials() || !s.sawCredentials() {
		t.Errorf("the store got %q, the registry %q", store.auth, s.auth)
	}
	via := &http.Request{URL: mustURL(t, "https://a.example.com/")}
	if err := checkRedirect(&http.Request{URL: mustURL(t, "http://a.example.com/")}, []*http.Request{via}); err == nil {
		t.Error("a redirect from https to http was allowed")
	}
	if err := checkRedirect(via, slices.Repeat([]*http.Request{via}, maxRedirects+1)); err == nil {
		t.Error("too many redirects were allowed")
	}
}

func TestMirrorsAreTriedFirstWithoutTrust(t *testing.T) {
	origin, mirror, empty := newRegistry(t), newRegistry(t), newRegistry(t)
	d, layer := origin.push(t, "a/b")
	lying := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", TypeOCIManifest)
		_, _ = io.WriteString(w, `{"layers":[]}`)
	}))
	for name, mirrors := range map[string][]string{
		"an empty one":                  {empty.host},
		"one that is unreachable":       {"127.0.0.1:1"},
		"one with a prefix":             {mirror.host + "/cache"},
		"one that serves other content": {lying.host},
		"all of them":                   {"127.0.0.1:1", empty.host, lying.host, mirror.host},
	} {
		t.Run(name, func(t *testing.T) {
			host := withPassword(t, origin.host)
			host.Mirrors = mirrors
			c := client(t, Config{Registries: []Host{host}}, Options{AllowLoopback: true})
			if m, err := c.Manifest(t.Context(), origin.host+"/a/b", d); err != nil || m.Digest != d {
				t.Errorf("manifest: %v", err)
			}
			if b, err := c.Bytes(t.Context(), origin.host+"/a/b", Descriptor{Digest: layer, Size: 4096}, 4096); err != nil || trust.DigestOf(b) != layer {
				t.Errorf("blob: %v", err)
			}
			if _, err := c.Manifest(t.Context(), origin.host+"/a/b", trust.DigestOf(nil)); !errors.Is(err, ErrNotFound) {
				t.Errorf("missing manifest: %v", err)
			}
		})
	}
	if empty.sawCredentials() || lying.sawCredentials() || mirror.sawCredentials() {
		t.Error("a mirror got the registry's credentials")
	}
	if !slices.Contains(mirror.paths, "/v2/cache/a/b/manifests/"+d.String()) {
		t.Errorf("the mirror's prefix wasn't used: %q", mirror.paths)
	}
	fullHost := Host{Host: "registry.example.com", Mirrors: []string{origin.host}}
	if _, err := client(t, Config{Registries: []Host{fullHost}}, Options{AllowLoopback: true}).Manifest(t.Context(), "registry.example.com/a/b", d); err != nil {
		t.Errorf("from a mirror while the registry is unreachable: %v", err)
	}
}

func TestT8ResponsesAreBounded(t *testing.T) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/v2/"):
		case strings.Contains(r.URL.Path, "/manifests/bad"):
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "\x1b[31mevil words")
		case strings.Contains(r.URL.Path, "/manifests/"):
			_, _ = io.WriteString(w, `{"x":"`+strings.Repeat("0", MaxManifest)+`"}`)
		default:
			_, _ = io.WriteString(w, strings.Repeat("0", 1<<20))
		}
	}))
	c := client(t, Config{}, Options{AllowLoopback: true})
	var limit *files.LimitError
	if _, err := c.Tagged(t.Context(), s.host+"/a/b", "x"); !errors.As(err, &limit) || limit.Reason() != "LimitExceeded" {
		t.Errorf("a large manifest: %v", err)
	}
	if _, err := c.Bytes(t.Context(), s.host+"/a/b", Descriptor{Digest: trust.DigestOf(nil), Size: 10}, 100); !errors.As(err, &limit) {
		t.Errorf("a blob larger than its descriptor: %v", err)
	}
	if _, err := c.Bytes(t.Context(), s.host+"/a/b", Descriptor{Digest: trust.DigestOf(nil), Size: 1000}, 100); !errors.As(err, &limit) {
		t.Errorf("a blob larger than allowed: %v", err)
	}
	if _, err := c.Tagged(t.Context(), s.host+"/a/b", "bad"); err == nil || strings.Contains(err.Error(), "evil") {
		t.Errorf("the error contains the registry's body: %v", err)
	}
}

func TestLayoutsRequireTheirOption(t *testing.T) {
	if _, err := client(t, Config{}, Options{}).Manifest(t.Context(), "oci:"+t.TempDir(), trust.DigestOf(nil)); err == nil || !strings.Contains(err.Error(), "aren't enabled") {
		t.Errorf("got %v", err)
	}
	c := client(t, Config{}, Options{AllowLayouts: true})
	if _, err := c.Manifest(t.Context(), "oci:"+t.TempDir(), trust.DigestOf(nil)); !errors.Is(err, ErrNotFound) {
		t.Errorf("an empty layout: %v", err)
	}
}

func TestBlobsResumeWithOrWithoutRanges(t *testing.T) {
	content := strings.Repeat("0123456789", 1000)
	d := Descriptor{Digest: trust.DigestOf([]byte(content)), Size: int64(len(content))}
	peer := newRegistry(t)
	_, layer := peer.push(t, "a/b")
	ranges := map[string]http.HandlerFunc{
		"supported": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
		},
		"ignored": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) },
		"rejected": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			_, _ = io.WriteString(w, content)
		},
		"another range": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", "bytes 5-9/10000")
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = io.WriteString(w, content)
		},
	}
	for name, handler := range ranges {
		t.Run(name, func(t *testing.T) {
			s := serve(t, handler)
			c := client(t, Config{}, Options{AllowLoopback: true})
			for _, offset := range []int64{0, 1, 4321, 9999} {
				in, err := c.Blob(t.Context(), s.host+"/a/b", d, offset)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(in)
				if err != nil || string(b) != content[in.Start:] || in.Start > offset {
					t.Errorf("from %d: %d bytes from %d, %v", offset, len(b), in.Start, err)
				}
				if err := in.Close(); err != nil {
					t.Error(err)
				}
				if name == "supported" && in.Start != offset {
					t.Errorf("from %d: the range wasn't used", offset)
				}
			}
		})
	}
	c := client(t, Config{}, Options{AllowLoopback: true})
	whole, err := c.Bytes(t.Context(), peer.host+"/a/b", Descriptor{Digest: layer, Size: 4096}, 4096)
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.Blob(t.Context(), peer.host+"/a/b", Descriptor{Digest: layer, Size: int64(len(whole))}, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	if rest, err := io.ReadAll(in); err != nil || in.Start != 100 || string(rest) != string(whole[100:]) {
		t.Errorf("go-containerregistry's registry: %d bytes from %d, %v", len(rest), in.Start, err)
	}
}
