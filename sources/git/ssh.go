// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// sshTransport is a transport.Transport over SSH. Unlike go-git's, it uses neither
// ssh_config nor an SSH agent, connects under its context, and limits the
// responses of the server.
type sshTransport struct {
	ctx         context.Context //nolint:containedctx // one transport serves one call; go-git's interface has no context here
	credentials Credentials
	timeout     time.Duration
}

// NewUploadPackSession implements transport.Transport.
func (t *sshTransport) NewUploadPackSession(ep *transport.Endpoint, _ transport.AuthMethod) (transport.UploadPackSession, error) {
	return t.open(transport.UploadPackServiceName, ep)
}

// NewReceivePackSession implements transport.Transport.
func (t *sshTransport) NewReceivePackSession(ep *transport.Endpoint, _ transport.AuthMethod) (transport.ReceivePackSession, error) {
	return t.open(transport.ReceivePackServiceName, ep)
}

func (t *sshTransport) open(service string, ep *transport.Endpoint) (_ *sshSession, err error) {
	port := ep.Port
	if port == 0 {
		port = 22
	}
	addr := net.JoinHostPort(strings.Trim(ep.Host, "[]"), strconv.Itoa(port))
	conf, err := t.credentials.sshConfig(ep.User, addr, t.timeout)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: t.timeout}).DialContext(t.ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// Closing the connection ends all reads below.
	stop := context.AfterFunc(t.ctx, func() { _ = conn.Close() })
	c, chans, reqs, err := ssh.NewClientConn(conn, addr, conf)
	if err != nil {
		stop()
		return nil, closing(conn, ctxError(t.ctx, err))
	}
	s := &sshSession{client: ssh.NewClient(c, chans, reqs), stop: stop, push: service == transport.ReceivePackServiceName}
	if err := s.start(service, ep.Path); err != nil {
		return nil, closing(s, err)
	}
	return s, nil
}

// ctxError returns the context's error instead of that of the closed connection.
func ctxError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// sshSession is one run of git-upload-pack or git-receive-pack.
type sshSession struct {
	client *ssh.Client
	run    *ssh.Session
	stop   func() bool
	in     io.WriteCloser
	out    io.Reader
	stderr *tail
	adv    *packp.AdvRefs
	push   bool
}

func (s *sshSession) start(service, path string) (err error) {
	if s.run, err = s.client.NewSession(); err != nil {
		return err
	}
	if s.in, err = s.run.StdinPipe(); err != nil {
		return err
	}
	if s.out, err = s.run.StdoutPipe(); err != nil {
		return err
	}
	s.stderr = &tail{}
	s.run.Stderr = s.stderr
	return s.run.Start(service + " " + quote(path))
}

// quote quotes s as one shell argument, like Git's sq_quote_buf.
func quote(s string) string {
	return "'" + strings.NewReplacer(`'`, `'\''`, `!`, `'\!'`).Replace(s) + "'"
}

// AdvertisedReferences implements transport.Session.
func (s *sshSession) AdvertisedReferences() (*packp.AdvRefs, error) {
	return nil, errors.New("want AdvertisedReferencesContext")
}

// AdvertisedReferencesContext implements transport.Session.
func (s *sshSession) AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error) {
	if s.adv != nil {
		return s.adv, nil
	}
	adv := packp.NewAdvRefs()
	err := adv.Decode(newLimitReader(s.out, maxRefs, "the list of references"))
	if err != nil && (!s.push || !errors.Is(err, packp.ErrEmptyAdvRefs)) {
		return nil, s.explain(ctx, err)
	}
	if !s.push && adv.IsEmpty() {
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(adv.Capabilities)
	s.adv = adv
	return adv, nil
}

// explain returns the cause of an invalid response.
func (s *sshSession) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, packp.ErrEmptyAdvRefs) {
		return transport.ErrEmptyRemoteRepository
	}
	if !errors.Is(err, packp.ErrEmptyInput) {
		return err
	}
	_ = s.run.Wait() // the standard error is complete after Wait
	output := s.stderr.String()
	for _, missing := range []string{"not found", "does not appear to be a git repository", "does not exist", "no such repository", "could not be found"} {
		if strings.Contains(strings.ToLower(output), missing) {
			return fmt.Errorf("%w: %s", transport.ErrRepositoryNotFound, sanitize.Line(output))
		}
	}
	return fmt.Errorf("the server closed the connection: %s", sanitize.Line(output))
}

// UploadPack implements transport.UploadPackSession.
func (s *sshSession) UploadPack(ctx context.Context, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if err := errors.Join(req.UploadRequest.Encode(s.in), req.UploadHaves.Encode(s.in, true)); err != nil {
		return nil, ctxError(ctx, err)
	}
	if err := pktline.NewEncoder(s.in).EncodeString("done\n"); err != nil {
		return nil, ctxError(ctx, err)
	}
	if err := s.in.Close(); err != nil {
		return nil, ctxError(ctx, err)
	}
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(io.NopCloser(s.out)); err != nil {
		return nil, ctxError(ctx, err)
	}
	return res, nil
}

// ReceivePack implements transport.ReceivePackSession.
func (s *sshSession) ReceivePack(ctx context.Context, req *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error) {
	if err := req.Encode(s.in); err != nil {
		return nil, ctxError(ctx, err)
	}
	if err := s.in.Close(); err != nil {
		return nil, ctxError(ctx, err)
	}
	var r io.Reader = newLimitReader(s.out, 1<<20, "the response")
	if req.Capabilities.Supports(capability.Sideband64k) {
		d := sideband.NewDemuxer(sideband.Sideband64k, r)
		d.Progress = req.Progress
		r = d
	}
	report := packp.NewReportStatus()
	if err := report.Decode(r); err != nil {
		return nil, ctxError(ctx, fmt.Errorf("%w %s", err, sanitize.Line(s.stderr.String())))
	}
	return report, report.Error()
}

// Close ends the run and the connection.
func (s *sshSession) Close() error {
	s.stop()
	if s.run != nil {
		_ = s.run.Close()
	}
	err := s.client.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
