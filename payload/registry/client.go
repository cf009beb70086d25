// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package registry reads content by digest from OCI registries and from OCI
// layouts on the disk, within limits, and says where its credentials may go.
//
// It speaks the OCI distribution specification 1.1 itself, above the
// authentication of go-containerregistry, because that library's readers have
// no limits that a caller could set. It checks digests and shapes and no
// signatures: payload/verify does, and payload/image takes nothing else than
// what that made.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// ErrNotFound says that the registry answered and doesn't have the content.
var ErrNotFound = errors.New("not found")

// maxSessions bounds the cached authentications; above it all are dropped.
const maxSessions = 256

// Options are the doors and the surroundings that only the process may set.
type Options struct {
	// AllowLoopback lets registries be on this machine, over plain HTTP too.
	AllowLoopback bool
	// AllowPlainHTTP lets hosts that the registries file marks plainHTTP be.
	AllowPlainHTTP bool
	// AllowLayouts lets references name OCI layouts on the disk: "oci:DIR".
	AllowLayouts bool
	// Deny holds further networks that are never dialled.
	Deny []netip.Prefix
	// Proxy is as in http.Transport; nil: none, whatever the environment says.
	Proxy func(*http.Request) (*url.URL, error)
	// Now is the clock for deadlines of connections.
	Now func() time.Time
	// UserAgent names the program to registries.
	UserAgent string
}

// Client reads from registries. It's safe for concurrent use and keeps
// connections and tokens; Close drops them.
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
		return nil, errors.New("registry client: no clock")
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
		if t, ok := g.inner.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}
	clear(c.sessions)
}

// Manifest returns the manifest with this digest, checked against it.
func (c *Client) Manifest(ctx context.Context, repo string, d trust.Digest) (Manifest, error) {
	return c.manifest(ctx, repo, d.String(), d)
}

// Tagged returns the manifests that a tag names now: the registry's last, and
// before it those of mirrors that have another. Nothing that is trusted may
// come from a tag: it finds signatures, which stand for themselves, and a
// mirror's may be old.
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
		return nil, fmt.Errorf("manifest %s of %s: %w", tag, repo, err)
	}
	return out, nil
}

// Resolve returns the digest that a tag names now, for tools that show it to
// people; what is rolled out is declared by digest.
func (c *Client) Resolve(ctx context.Context, repo, tag string) (trust.Digest, error) {
	m, err := c.manifest(ctx, repo, tag, "")
	return m.Digest, err
}

// manifest returns what a digest or a tag names. A place that serves content
// with another digest than want is passed over as one that has nothing.
func (c *Client) manifest(ctx context.Context, repo, reference string, want trust.Digest) (Manifest, error) {
	if dir, ok := c.layout(repo); ok {
		return dir.manifest(reference)
	}
	var out Manifest
	err := c.each(ctx, repo, func(l location) (err error) {
		out, err = c.manifestAt(ctx, l, reference, want)
		return err
	})
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest %s of %s: %w", reference, repo, err)
	}
	return out, nil
}

// manifestAt asks one place.
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

// Referrers returns the descriptors of what refers to a digest, by the
// registry's API, or by the fallback tag where it has none. None is no error.
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
	for _, l := range locations { // all of them: a mirror may lack what the registry has
		found, err := c.referrersAt(ctx, l, d)
		if err != nil && !errors.Is(err, ErrNotFound) {
			failed = fmt.Errorf("referrers of %s in %s: %w", d, repo, err)
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

// referrersAt asks one place, by the API or by the fallback tag.
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

// noReferrers reports whether a registry seems not to know the referrers API.
func noReferrers(err error) bool {
	var s *statusError
	return errors.Is(err, ErrNotFound) || (errors.As(err, &s) &&
		(s.code == http.StatusBadRequest || s.code == http.StatusMethodNotAllowed || s.code == http.StatusNotAcceptable))
}

// Bytes returns a whole small blob, checked against its digest.
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
		err = c.each(ctx, repo, func(l location) error {
			a, err := c.get(ctx, l, "blobs/"+d.Digest.String(), identity())
			if err != nil {
				return err
			}
			return read(l, a.body)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s of %s: %w", d.Digest, repo, err)
	}
	return out, nil
}

// identity asks for bytes as they are: what is inflated on the way isn't
// counted.
func identity() http.Header { return http.Header{"Accept-Encoding": {"identity"}} }

// Blob streams a blob from offset on, of which d gives digest and size. The
// caller checks the digest and closes the stream. Start in the result is where
// the stream begins: 0 if the registry has no ranges.
func (c *Client) Blob(ctx context.Context, repo string, d Descriptor, offset int64) (*Stream, error) {
	if dir, ok := c.layout(repo); ok {
		return dir.blob(d.Digest, offset)
	}
	var out *Stream
	err := c.each(ctx, repo, func(l location) (err error) {
		out, err = c.blobAt(ctx, l, d, offset)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("blob %s of %s: %w", d.Digest, repo, err)
	}
	return out, nil
}

// blobAt asks one place, with a range if there's an offset. The range has an
// end, since some registries know no other; one that knows none at all is
// asked for everything.
func (c *Client) blobAt(ctx context.Context, l location, d Descriptor, offset int64) (*Stream, error) {
	h, path := identity(), "blobs/"+d.Digest.String()
	if offset > 0 && offset < d.Size {
		h.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, d.Size-1))
		a, err := c.get(ctx, l, path, h)
		switch {
		case err != nil && !noRanges(err):
			return nil, err
		case err == nil && a.starts(offset):
			return &Stream{ReadCloser: a.body, Start: offset}, nil
		case err == nil && !a.partial:
			return &Stream{ReadCloser: a.body}, nil
		case err == nil:
			_ = a.body.Close() // another part than was asked for
		}
		h.Del("Range")
	}
	a, err := c.get(ctx, l, path, h)
	if err != nil {
		return nil, err
	}
	return &Stream{ReadCloser: a.body}, nil
}

// noRanges reports whether a registry refuses the range rather than the blob.
func noRanges(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.code == http.StatusRequestedRangeNotSatisfiable || s.code == http.StatusBadRequest || s.code == http.StatusNotImplemented)
}

// Stream is the content of a blob from Start on.
type Stream struct {
	io.ReadCloser
	Start int64
}

// readAll reads an answer of at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := files.ReadAll(r, limit, "the answer")
	if limited := (*files.LimitError)(nil); err != nil && !errors.As(err, &limited) {
		return nil, plainError(err)
	}
	return b, err
}

// drain lets the connection be used again if little is left to read.
func drain(body io.ReadCloser) {
	const little = 4 << 10
	_, _ = io.CopyN(io.Discard, body, little) // a failure only costs the connection
	_ = body.Close()
}

// location is one place where a repository may be read.
type location struct{ repository name.Repository }

// check compares bytes with the digest that they should have, if one is known.
func (l location) check(b []byte, want trust.Digest) error {
	if got := trust.DigestOf(b); want != "" && got != want {
		return fmt.Errorf("registry %s served content with digest %s", l.repository.RegistryStr(), got)
	}
	return nil
}

// each tries the mirrors of a repository and then the registry itself until
// one succeeds. The error is ErrNotFound only if the registry itself says so.
func (c *Client) each(ctx context.Context, repo string, f func(location) error) error {
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
		return nil, fmt.Errorf("repository %q: %w", repo, err)
	}
	host := c.cfg.host(origin.RegistryStr())
	var out []location
	for _, m := range append(append([]string{}, host.Mirrors...), host.Host) {
		full := strings.TrimSuffix(m, "/") + "/" + origin.RepositoryStr()
		mirrorHost, _, _ := strings.Cut(m, "/")
		var opts []name.Option
		if c.plainAllowed(mirrorHost) {
			opts = append(opts, name.Insecure)
		}
		r, err := name.NewRepository(full, opts...)
		if err != nil {
			return nil, fmt.Errorf("repository %q: %w", full, err)
		}
		out = append(out, location{r})
	}
	return out, nil
}

// answer is content that a registry sends; whoever has it closes the body.
type answer struct {
	body        io.ReadCloser
	contentType string
	partial     bool
	span        string // Content-Range
}

// starts reports whether the answer is the part from offset on.
func (a answer) starts(offset int64) bool {
	return a.partial && strings.HasPrefix(a.span, fmt.Sprintf("bytes %d-", offset))
}

// get asks a registry and turns its answer into an error unless it's content.
// Bodies of errors are never shown: they're the registry's words.
func (c *Client) get(ctx context.Context, l location, path string, header http.Header) (answer, error) {
	rt, err := c.session(ctx, l.repository)
	if err != nil {
		return answer{}, err
	}
	reg := l.repository.Registry
	u := url.URL{Scheme: reg.Scheme(), Host: reg.RegistryStr(), Path: "/v2/" + l.repository.RepositoryStr() + "/" + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return answer{}, err
	}
	req.Header = header
	client := http.Client{Transport: rt, CheckRedirect: checkRedirect}
	resp, err := client.Do(req) //nolint:bodyclose // it is handed on in the answer
	if err != nil {
		return answer{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), plainError(err))
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return answer{
			body: resp.Body, contentType: resp.Header.Get("Content-Type"),
			partial: resp.StatusCode == http.StatusPartialContent, span: resp.Header.Get("Content-Range"),
		}, nil
	case http.StatusNotFound:
		drain(resp.Body)
		return answer{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), ErrNotFound)
	default:
		drain(resp.Body)
		return answer{}, fmt.Errorf("registry %s: %w", reg.RegistryStr(), &statusError{resp.StatusCode})
	}
}

// statusError is an answer that isn't content.
type statusError struct{ code int }

// Error names the status in words of ours.
func (e *statusError) Error() string {
	return fmt.Sprintf("it answers %d %s", e.code, http.StatusText(e.code))
}

// session returns a transport that is authenticated for pulling.
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
		return nil, fmt.Errorf("registry %s: %w", repo.RegistryStr(), withoutBody(plainError(err)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) >= maxSessions {
		clear(c.sessions)
	}
	c.sessions[key] = rt
	return rt, nil
}

// withoutBody drops the registry's own words from an error.
func withoutBody(err error) error {
	if t, ok := errors.AsType[*transport.Error](err); ok {
		return &statusError{t.StatusCode}
	}
	return err
}

// guard returns the transport of a host.
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

// PushTarget returns a repository and the options for go-containerregistry to
// write to it, through the same transport and credentials.
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
