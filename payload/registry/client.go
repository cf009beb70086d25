// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package registry reads content by digest from OCI registries and OCI layouts on
// disk, within limits, and restricts credentials to their hosts.
//
// It implements the OCI distribution specification 1.1 on top of the
// authentication of go-containerregistry, whose readers have no limits. It checks
// digests and formats, but no signatures: payload/verify does.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// ErrNotFound reports that the registry responded and doesn't have the content.
var ErrNotFound = errors.New("not found")

// maxSessions limits the cached sessions; all are dropped once it is reached.
const maxSessions = 256

// Options are set by flags of the process.
type Options struct {
	// AllowLoopback allows registries on loopback addresses, also over HTTP.
	AllowLoopback bool
	// AllowPlainHTTP allows HTTP for hosts with plainHTTP in the registries file.
	AllowPlainHTTP bool
	// AllowLayouts allows references to OCI layouts on disk: "oci:DIR".
	AllowLayouts bool
	// Outbound has the proxy, and the certificate authorities of hosts without ca in
	// the registries file.
	Outbound outbound.Settings
	// Now is the clock for connection deadlines.
	Now func() time.Time
	// UserAgent is the user agent of requests; the default is lockstep.
	UserAgent string
}

// Client reads from registries. It is safe for concurrent use. It caches
// connections and tokens until Close.
type Client struct {
	cfg  Config
	opts Options

	mu       sync.Mutex
	guards   map[string]*guard
	sessions map[string]http.RoundTripper
}

// New returns a client.
func New(cfg Config, opts Options) (*Client, error) {
	if opts.Now == nil {
		return nil, errors.New("create registry client: clock is required")
	}
	if opts.UserAgent == "" {
		opts.UserAgent = "lockstep"
	}
	return &Client{cfg: cfg, opts: opts, guards: map[string]*guard{}, sessions: map[string]http.RoundTripper{}}, nil
}

// Close drops idle connections and tokens.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.guards {
		for _, inner := range []http.RoundTripper{g.direct, g.proxied} {
			if t, ok := inner.(*http.Transport); ok {
				t.CloseIdleConnections()
			}
		}
	}
	clear(c.sessions)
}

// Manifest returns the manifest with the given digest, which is verified.
func (c *Client) Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error) {
	return c.manifest(ctx, repo, d.String(), d)
}

// Tagged returns the manifests of a tag: those of mirrors that differ, then that
// of the registry. Mirrors may be outdated. Tags must only be used to find
// signatures, which are verified on their own.
func (c *Client) Tagged(ctx context.Context, repo, tag string) ([]Manifest, error) {
	if _, ok := c.layout(repo); ok {
		m, err := c.manifest(ctx, repo, tag, "")
		return []Manifest{m}, err
	}
	locations, err := c.locations(repo)
	if err != nil {
		return nil, err
	}
	var out []Manifest
	for _, l := range locations {
		var m Manifest
		if m, err = c.manifestAt(ctx, l, tag, ""); err == nil {
			out = slices.DeleteFunc(out, func(o Manifest) bool { return o.Digest == m.Digest })
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read manifest %s of %s: %w", tag, repo, err)
	}
	return out, nil
}

// Resolve returns the current digest of a tag, for display. Rollouts require
// digests.
func (c *Client) Resolve(ctx context.Context, repo, tag string) (trust.Digest, error) {
	m, err := c.manifest(ctx, repo, tag, "")
	return m.Digest, err
}

// manifest returns the manifest of a digest or a tag. It skips locations that
// serve another digest than want.
func (c *Client) manifest(ctx context.Context, repo, reference string, want trust.Digest) (Manifest, error) {
	if dir, ok := c.layout(repo); ok {
		return dir.manifest(reference)
	}
	var out Manifest
	err := c.tryEach(ctx, repo, func(l location) (err error) {
		out, err = c.manifestAt(ctx, l, reference, want)
		return err
	})
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifest %s of %s: %w", reference, repo, err)
	}
	return out, nil
}

func (c *Client) manifestAt(ctx context.Context, l location, reference string, want trust.Digest) (Manifest, error) {
	accept := strings.Join([]string{TypeOCIManifest, TypeOCIIndex, TypeDockerManifest, TypeDockerList}, ", ")
	a, err := c.get(ctx, l, "manifests/"+reference, http.Header{"Accept": {accept}})
	if err != nil {
		return Manifest{}, err
	}
	defer drain(a.body)
	b, err := readAll(a.body, MaxManifest)
	if err != nil {
		return Manifest{}, err
	}
	if err := l.check(b, want); err != nil {
		return Manifest{}, err
	}
	return parseManifest(b, a.contentType)
}

// Referrers returns the referrers of a digest from the referrers API or, if the
// registry lacks it, from the fallback tag. An empty list isn't an error.
func (c *Client) Referrers(ctx context.Context, repo string, d trust.Digest) ([]Descriptor, error) {
	if dir, ok := c.layout(repo); ok {
		return dir.referrers(d)
	}
	locations, err := c.locations(repo)
	if err != nil {
		return nil, err
	}
	var out []Descriptor
	var failed error
	for _, l := range locations { // all, since a mirror may lack referrers
		found, err := c.referrersAt(ctx, l, d)
		if err != nil && !errors.Is(err, ErrNotFound) {
			failed = fmt.Errorf("list referrers of %s in %s: %w", d, repo, err)
			continue
		}
		for _, f := range found {
			if !slices.ContainsFunc(out, func(o Descriptor) bool { return o.Digest == f.Digest }) {
				out = append(out, f)
			}
		}
	}
	if len(out) == 0 {
		return nil, failed
	}
	return out, nil
}

func (c *Client) referrersAt(ctx context.Context, l location, d trust.Digest) ([]Descriptor, error) {
	h := http.Header{"Accept": {TypeOCIIndex}}
	a, err := c.get(ctx, l, "referrers/"+d.String(), h)
	if noReferrers(err) {
		a, err = c.get(ctx, l, "manifests/"+strings.Replace(d.String(), ":", "-", 1), h)
	}
	if err != nil {
		return nil, err
	}
	defer drain(a.body)
	b, err := readAll(a.body, MaxIndex)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(b, TypeOCIIndex)
	return m.Manifests, err
}

// noReferrers reports whether the error means that the registry lacks the
// referrers API.
func noReferrers(err error) bool {
	var s *statusError
	return errors.Is(err, ErrNotFound) || (errors.As(err, &s) &&
		(s.code == http.StatusBadRequest || s.code == http.StatusMethodNotAllowed || s.code == http.StatusNotAcceptable))
}

// Bytes returns a blob of at most limit bytes. Its digest is verified.
func (c *Client) Bytes(ctx context.Context, repo string, d Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, &files.LimitError{What: "blob " + d.Digest.Short(), Limit: limit, Value: d.Size}
	}
	var out []byte
	read := func(l location, in io.ReadCloser) error {
		defer func() { _ = in.Close() }()
		var err error
		if out, err = readAll(in, min(limit, d.Size)); err != nil {
			return err
		}
		return l.check(out, d.Digest)
	}
	var err error
	if dir, ok := c.layout(repo); ok {
		var s *Stream
		if s, err = dir.blob(d.Digest, 0); err == nil {
			err = read(location{}, s)
		}
	} else {
		err = c.tryEach(ctx, repo, func(l location) error {
			a, err := c.get(ctx, l, "blobs/"+d.Digest.String(), identityEncoding())
			if err != nil {
				return err
			}
			return read(l, a.body)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s of %s: %w", d.Digest, repo, err)
	}
	return out, nil
}

// identityEncoding requests content without compression, so that its size can be
// limited.
func identityEncoding() http.Header { return http.Header{"Accept-Encoding": {"identity"}} }

// Blob streams a blob from an offset. The stream starts at 0 if the registry
// doesn't support ranges. The caller verifies the digest and closes the stream.
func (c *Client) Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error) {
	if dir, ok := c.layout(repo); ok {
		return dir.blob(d.Digest, offset)
	}
	var out *Stream
	err := c.tryEach(ctx, repo, func(l location) (err error) {
		out, err = c.blobAt(ctx, l, d, offset)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read blob %s of %s: %w", d.Digest, repo, err)
	}
	return out, nil
}

// blobAt requests a blob from one location, with a range if offset isn't 0. The
// range has an end, which some registries require. If the registry doesn't
// support ranges, the whole blob is requested.
func (c *Client) blobAt(ctx context.Context, l location, d Descriptor, offset int64) (*Stream, error) {
	h, path := identityEncoding(), "blobs/"+d.Digest.String()
	if offset > 0 && offset < d.Size {
		h.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, d.Size-1))
		a, err := c.get(ctx, l, path, h)
		switch {
		case err != nil && !noRanges(err):
			return nil, err
		case err == nil && a.startsAt(offset):
			return &Stream{ReadCloser: a.body, Start: offset}, nil
		case err == nil && !a.partial:
			return &Stream{ReadCloser: a.body}, nil
		case err == nil:
			_ = a.body.Close() // another range than requested
		}
		h.Del("Range")
	}
	a, err := c.get(ctx, l, path, h)
	if err != nil {
		return nil, err
	}
	return &Stream{ReadCloser: a.body}, nil
}

// noRanges reports whether the error means that the registry doesn't support
// ranges.
func noRanges(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.code == http.StatusRequestedRangeNotSatisfiable || s.code == http.StatusBadRequest || s.code == http.StatusNotImplemented)
}

// Stream is the content of a blob from offset Start.
type Stream struct {
	io.ReadCloser
	Start int64
}

// readAll reads a response of at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := files.ReadAll(r, limit, "the response")
	if limited := (*files.LimitError)(nil); err != nil && !errors.As(err, &limited) {
		return nil, withoutURL(err)
	}
	return b, err
}

// drain reads a small rest of the body so that the connection can be reused, and
// closes it.
func drain(body io.ReadCloser) {
	const little = 4 << 10
	_, _ = io.CopyN(io.Discard, body, little) // on failure, the connection isn't reused
	_ = body.Close()
}

// location is the registry or a mirror of a repository.
type location struct{ repository name.Repository }

// check verifies the digest of content unless want is empty.
func (l location) check(b []byte, want trust.Digest) error {
	if got := trust.DigestOf(b); want != "" && got != want {
		return fmt.Errorf("registry %s served digest %s, must be %s", l.repository.RegistryStr(), got, want)
	}
	return nil
}

// tryEach calls f for the mirrors of a repository and then for the registry until
// it succeeds. The error is that of the registry.
func (c *Client) tryEach(ctx context.Context, repo string, f func(location) error) error {
	locations, err := c.locations(repo)
	if err != nil {
		return err
	}
	var before []string
	for i, l := range locations {
		err = f(l)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if i < len(locations)-1 {
			before = append(before, err.Error())
		}
	}
	if len(before) > 0 {
		return fmt.Errorf("%w (mirrors: %s)", err, strings.Join(before, "; "))
	}
	return err
}

func (c *Client) locations(repo string) ([]location, error) {
	origin, err := name.NewRepository(repo, name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("parse repository %q: %w", repo, err)
	}
	host := c.cfg.host(origin.RegistryStr())
	var out []location
	for _, m := range append(append([]string{}, host.Mirrors...), host.Host) {
		full := strings.TrimSuffix(m, "/") + "/" + origin.RepositoryStr()
		mirrorHost, _, _ := strings.Cut(m, "/")
		var opts []name.Option
		if c.allowsPlainHTTP(mirrorHost) {
			opts = append(opts, name.Insecure)
		}
		r, err := name.NewRepository(full, opts...)
		if err != nil {
			return nil, fmt.Errorf("parse repository %q: %w", full, err)
		}
		out = append(out, location{r})
	}
	return out, nil
}

// response is a response with content. The receiver closes the body.
type response struct {
	body        io.ReadCloser
	contentType string
	partial     bool
	span        string // Content-Range
}

// startsAt reports whether the response is the range from offset.
func (a response) startsAt(offset int64) bool {
	return a.partial && strings.HasPrefix(a.span, fmt.Sprintf("bytes %d-", offset))
}

// get sends a request and returns an error unless the response has content. It
// drops the bodies of error responses, which are untrusted.
func (c *Client) get(ctx context.Context, l location, path string, header http.Header) (response, error) {
	rt, err := c.session(ctx, l.repository)
	if err != nil {
		return response{}, err
	}
	reg := l.repository.Registry
	u := url.URL{Scheme: reg.Scheme(), Host: reg.RegistryStr(), Path: "/v2/" + l.repository.RepositoryStr() + "/" + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return response{}, err
	}
	req.Header = header
	client := http.Client{Transport: rt, CheckRedirect: checkRedirect}
	resp, err := client.Do(req) //nolint:bodyclose // the receiver of the response closes it
	if err != nil {
		return response{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), withoutURL(err))
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return response{
			body: resp.Body, contentType: resp.Header.Get("Content-Type"),
			partial: resp.StatusCode == http.StatusPartialContent, span: resp.Header.Get("Content-Range"),
		}, nil
	case http.StatusNotFound:
		drain(resp.Body)
		return response{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), ErrNotFound)
	default:
		drain(resp.Body)
		return response{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), &statusError{resp.StatusCode})
	}
}

// statusError is a response with an error status.
type statusError struct{ code int }

// Error returns the status without text from the registry.
func (e *statusError) Error() string {
	return fmt.Sprintf("status %d %s", e.code, http.StatusText(e.code))
}

// session returns a transport with authentication for pulls.
func (c *Client) session(ctx context.Context, repo name.Repository) (http.RoundTripper, error) {
	key := repo.Name()
	c.mu.Lock()
	rt, ok := c.sessions[key]
	c.mu.Unlock()
	if ok {
		return rt, nil
	}
	g, err := c.guard(repo.RegistryStr())
	if err != nil {
		return nil, err
	}
	auth := c.cfg.host(repo.RegistryStr()).authenticator()
	base := transport.NewUserAgent(g, c.opts.UserAgent)
	rt, err = transport.NewWithContext(ctx, repo.Registry, auth, base, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", repo.RegistryStr(), withoutBody(withoutURL(err)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) >= maxSessions {
		clear(c.sessions)
	}
	c.sessions[key] = rt
	return rt, nil
}

// withoutBody removes text from the registry from an error.
func withoutBody(err error) error {
	if t, ok := errors.AsType[*transport.Error](err); ok {
		return &statusError{t.StatusCode}
	}
	return err
}

// guard returns the transport for a host.
func (c *Client) guard(host string) (*guard, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.guards[host]; ok {
		return g, nil
	}
	g, err := c.newGuard(c.cfg.host(host))
	if err != nil {
		return nil, err
	}
	c.guards[host] = g
	return g, nil
}

// PushTarget returns a repository and the options with which go-containerregistry
// pushes to it, with the same transport and credentials.
func (c *Client) PushTarget(ctx context.Context, repo string) (name.Repository, []remote.Option, error) {
	locations, err := c.locations(repo)
	if err != nil {
		return name.Repository{}, nil, err
	}
	r := locations[len(locations)-1].repository
	g, err := c.guard(r.RegistryStr())
	if err != nil {
		return name.Repository{}, nil, err
	}
	return r, []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(g), remote.WithUserAgent(c.opts.UserAgent),
		remote.WithAuth(c.cfg.host(r.RegistryStr()).authenticator()),
	}, nil
}
