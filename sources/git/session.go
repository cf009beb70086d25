// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/file"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/lockstep-dev/lockstep/config/outbound"
)

// maxRefs bounds what a server may advertise, in bytes: about 150,000
// references.
const maxRefs = 16 << 20

// remote is a repository on a server, with its credentials and limits.
type remote struct {
	url         *url.URL
	outbound    outbound.Settings
	credentials func(context.Context) (Credentials, error)
	timeout     time.Duration
	maxSize     int64 // of one pack
}

// transport returns the transport, endpoint and authentication for the URL.
func (r *remote) transport(ctx context.Context) (transport.Transport, *transport.Endpoint, transport.AuthMethod, error) {
	var creds Credentials
	if r.credentials != nil {
		var err error
		if creds, err = r.credentials(ctx); err != nil {
			return nil, nil, nil, classify("credentials", err)
		}
	}
	ep, err := transport.NewEndpoint(r.url.String())
	if err != nil {
		return nil, nil, nil, refuse(ReasonInvalid, "url is invalid")
	}
	switch r.url.Scheme {
	case "ssh":
		return &sshTransport{ctx: ctx, credentials: creds, timeout: r.timeout}, ep, nil, nil
	case "file":
		return file.NewClient(transport.UploadPackServiceName, transport.ReceivePackServiceName), ep, nil, nil
	}
	client, err := creds.httpClient(r.outbound, r.maxSize)
	if err != nil {
		return nil, nil, nil, err
	}
	return githttp.NewClient(client), ep, creds.httpAuth(), nil
}

// upload opens a session for fetching and returns the advertised references.
func (r *remote) upload(ctx context.Context) (transport.UploadPackSession, *packp.AdvRefs, error) {
	t, ep, auth, err := r.transport(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.NewUploadPackSession(ep, auth)
	if err != nil {
		return nil, nil, classify("connect to "+r.host(), err)
	}
	adv, err := s.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, nil, closing(s, r.advertised(err))
	}
	if err := checkFormat(adv); err != nil {
		return nil, nil, closing(s, err)
	}
	return s, adv, nil
}

// receive opens a session for pushing.
func (r *remote) receive(ctx context.Context) (transport.ReceivePackSession, *packp.AdvRefs, error) {
	t, ep, auth, err := r.transport(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := t.NewReceivePackSession(ep, auth)
	if err != nil {
		return nil, nil, classify("connect to "+r.host(), err)
	}
	adv, err := s.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, nil, closing(s, r.advertised(err))
	}
	if err := checkFormat(adv); err != nil {
		return nil, nil, closing(s, err)
	}
	return s, adv, nil
}

func (r *remote) advertised(err error) error {
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return wrap(ReasonRefNotFound, "the repository has no commits", err)
	}
	if strings.Contains(err.Error(), "object-format") || isLongHash(err) {
		return sha256Repository()
	}
	return classify("list the references of "+r.host(), err)
}

// host returns the server for messages.
func (r *remote) host() string {
	if r.url.Scheme == "file" {
		return "a local directory"
	}
	return r.url.Host
}

// checkFormat rejects repositories with SHA-256 objects.
func checkFormat(adv *packp.AdvRefs) error {
	for _, format := range adv.Capabilities.Get("object-format") {
		if format != "sha1" {
			return sha256Repository()
		}
	}
	return nil
}

func sha256Repository() *Error {
	return refuse(ReasonObjectFormat, "the repository uses SHA-256 objects (git init --object-format=sha256), "+
		"which aren't supported; use a SHA-1 repository")
}

// isLongHash reports whether the decoder failed on an object name of 64 digits,
// whose second half it parses as a reference name.
func isLongHash(err error) bool {
	var unexpected *packp.ErrUnexpectedData
	if !errors.As(err, &unexpected) {
		return false
	}
	head, _, _ := strings.Cut(strings.TrimSpace(string(unexpected.Data)), " ")
	return len(head) == 64 && strings.Trim(head, "0123456789abcdef") == ""
}

// closing closes c and returns err.
func closing(c io.Closer, err error) error {
	_ = c.Close()
	return err
}

// limitReader fails, instead of ending, after left bytes.
type limitReader struct {
	r    io.Reader
	left int64
	what string
	max  int64
}

func newLimitReader(r io.Reader, limit int64, what string) *limitReader {
	return &limitReader{r: r, left: limit, what: what, max: limit}
}

func (l *limitReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, refuse(ReasonLimitExceeded, fmt.Sprintf("%s is larger than the limit of %d bytes (spec.maxSize)", l.what, l.max))
	}
	return n, err
}

// limitTransport limits the bodies of all responses.
type limitTransport struct {
	base  http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (t *limitTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, 4<<10), res.Body}
		return res, nil
	}
	limit, what := t.limit+maxRefs, "the pack"
	if req.Method == http.MethodGet {
		limit, what = maxRefs, "the server's list of references"
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{newLimitReader(res.Body, limit, what), res.Body}
	return res, nil
}
