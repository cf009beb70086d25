// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// StatusBranchPrefix is the prefix of status branches, before the cluster name.
const StatusBranchPrefix = "lockstep-status/"

// PublisherConfig declares a Publisher.
type PublisherConfig struct {
	// URL of the repository, as in Config.
	URL string
	// Cluster is the suffix of the branch refs/heads/lockstep-status/<Cluster>.
	// No other ref is written.
	Cluster string
	// Outbound is as in Config.
	Outbound outbound.Settings
	// Credentials for pushing, called before each connection.
	Credentials func(context.Context) (Credentials, error)
	// SigningKey returns an SSH private key in PEM and is called for each
	// commit; nil: commits aren't signed.
	SigningKey func(context.Context) ([]byte, error)
	// Name and Email of author and committer; defaults "Lockstep" and
	// "lockstep@<Cluster>".
	Name, Email string
	// Last is the hash of the last pushed commit, persisted over restarts; "" if
	// none.
	Last string
	// Timeout of one attempt; default 60 s.
	Timeout time.Duration
	// Attempts is the maximum number of pushes if races are lost; default 5.
	Attempts int
	// Backoff before the second attempt, doubled for each further one; default
	// 250 ms.
	Backoff time.Duration
	// AllowInsecure allows http and file URLs.
	AllowInsecure bool
	// Now is the clock; required.
	Now func() time.Time
}

// Publisher pushes status commits. It doesn't fetch: it needs only the hash of the
// parent. It is safe for concurrent use; calls wait for each other.
type Publisher struct {
	cfg    PublisherConfig
	remote remote
	ref    plumbing.ReferenceName

	mu      sync.Mutex
	last    plumbing.Hash // the last commit that the server confirmed
	pending built         // sent, but not confirmed
}

var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// NewPublisher checks cfg and returns its Publisher.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	u, err := checkURL(cfg.URL, cfg.AllowInsecure)
	if err != nil {
		return nil, err
	}
	if !clusterName.MatchString(cfg.Cluster) {
		return nil, refuse(ReasonStatusRefNotOurs, fmt.Sprintf("cluster %q is invalid for a status branch; use lower-case letters, digits and dashes", sanitize.Line(cfg.Cluster)))
	}
	if cfg.Now == nil {
		return nil, refuse(ReasonInvalid, "a publisher requires a clock")
	}
	var last plumbing.Hash
	if cfg.Last != "" {
		if last, err = parseHash(cfg.Last); err != nil {
			return nil, wrap(ReasonInvalid, "last status commit", err)
		}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Attempts <= 0 {
		cfg.Attempts = 5
	}
	if cfg.Backoff <= 0 {
		cfg.Backoff = 250 * time.Millisecond
	}
	if cfg.Name == "" {
		cfg.Name = "Lockstep"
	}
	if cfg.Email == "" {
		cfg.Email = "lockstep@" + cfg.Cluster
	}
	return &Publisher{
		cfg: cfg, last: last, ref: plumbing.ReferenceName("refs/heads/" + StatusBranchPrefix + cfg.Cluster),
		remote: remote{url: u, outbound: cfg.Outbound, credentials: cfg.Credentials, timeout: cfg.Timeout, maxSize: 1 << 20},
	}, nil
}

// errLostRace reports that another writer moved the branch.
var errLostRace = errors.New("the status branch was changed concurrently")

// Publish pushes c on top of the branch's tip. It retries lost races on the new
// tip with backoff. Other errors are *Error, which the caller may retry;
// StatusPushDenied rarely resolves automatically.
func (p *Publisher) Publish(ctx context.Context, c sources.StatusCommit) (sources.Pushed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tree, err := buildTree(c.Files)
	if err != nil {
		return sources.Pushed{}, err
	}
	wait := p.cfg.Backoff
	for attempt := 1; ; attempt++ {
		pushed, err := p.attempt(ctx, c, tree)
		pushed.Attempts = attempt
		if err == nil {
			return pushed, nil
		}
		if !errors.Is(err, errLostRace) {
			return sources.Pushed{}, pushError(p.remote.host(), err)
		}
		if attempt == p.cfg.Attempts {
			return sources.Pushed{}, wrap(ReasonStatusPushFailed, fmt.Sprintf("push to %s lost %d races; check for other writers", p.ref.Short(), attempt), err)
		}
		if err := sleep(ctx, wait); err != nil {
			return sources.Pushed{}, wrap(ReasonStatusPushFailed, "push to "+p.ref.Short(), err)
		}
		wait = min(2*wait, 10*time.Second)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (p *Publisher) attempt(ctx context.Context, c sources.StatusCommit, tree builtTree) (_ sources.Pushed, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	session, adv, err := p.remote.receive(ctx)
	if err != nil {
		return sources.Pushed{}, err
	}
	defer func() { _ = session.Close() }() // the report has the result
	tip := adv.References[p.ref.String()]
	if p.pending.hash == tip && !tip.IsZero() { // the push succeeded, but its response was lost
		p.last = tip
		if p.pending.tree == tree.root {
			return p.pushed(tip, plumbing.ZeroHash), nil
		}
	}
	rewritten := plumbing.ZeroHash
	if !p.last.IsZero() && p.last != tip {
		rewritten = tip
		c.Trailers = append(slices.Clip(c.Trailers), sources.Trailer{Key: "Lockstep-Previous", Value: p.last.String()})
	}
	commit, err := p.build(ctx, c, tree, tip)
	if err != nil {
		return sources.Pushed{}, err
	}
	p.pending = commit
	if err := p.push(ctx, session, adv, tree, commit, tip); err != nil {
		return sources.Pushed{}, err
	}
	gone := !p.last.IsZero() && p.last != tip && tip.IsZero()
	p.last = commit.hash
	out := p.pushed(commit.hash, rewritten)
	if gone {
		out.Rewritten = "none"
	}
	return out, nil
}

func (p *Publisher) pushed(h, rewritten plumbing.Hash) sources.Pushed {
	out := sources.Pushed{Revision: sources.Revision{Ref: p.ref.Short(), Hash: h.String()}}
	if !rewritten.IsZero() {
		out.Rewritten = rewritten.String()
	}
	return out
}

// push sends one command with the observed tip as old value: the server updates
// the branch only if it hasn't moved.
func (p *Publisher) push(ctx context.Context, s transport.ReceivePackSession, adv *packp.AdvRefs, tree builtTree, c built, tip plumbing.Hash) error {
	req := packp.NewReferenceUpdateRequestFromCapabilities(adv.Capabilities)
	output := &tail{}
	req.Progress = output
	agent := "lockstep"
	var body bytes.Buffer
	if adv.Capabilities.Supports(capability.PushOptions) {
		// go-git writes options as key=value, which GitLab rejects for ci.skip.
		// So the option is written before the pack, as in the protocol, and the
		// capability is appended to the agent's name.
		agent += " " + capability.PushOptions.String()
		e := pktline.NewEncoder(&body)
		if err := errors.Join(e.EncodeString("ci.skip"), e.Flush()); err != nil {
			return err
		}
	}
	if err := req.Capabilities.Set(capability.Agent, agent); err != nil {
		return err
	}
	if adv.Capabilities.Supports(capability.Sideband64k) {
		if err := req.Capabilities.Set(capability.Sideband64k); err != nil {
			return err
		}
	}
	req.Commands = []*packp.Command{{Name: p.ref, Old: tip, New: c.hash}}
	if err := encodePack(&body, tree, c); err != nil {
		return err
	}
	req.Packfile = io.NopCloser(&body)
	report, err := s.ReceivePack(ctx, req)
	if report != nil {
		return judgeReport(report, output.String())
	}
	return err
}

func encodePack(w io.Writer, tree builtTree, c built) error {
	store := memory.NewStorage()
	hashes := make([]plumbing.Hash, 0, len(tree.objects)+1)
	for _, o := range append(slices.Clip(tree.objects), c.object) {
		h, err := store.SetEncodedObject(o)
		if err != nil {
			return err
		}
		hashes = append(hashes, h)
	}
	_, err := packfile.NewEncoder(w, store, false).Encode(hashes, 0)
	return err
}

// races are the responses of servers (git, GitHub, Gerrit) if the branch has
// moved or no longer contains the parent.
var races = []string{
	"non-fast-forward", "fetch first", "stale info", "failed to update ref", "cannot lock ref", "failed to lock",
	"reference already exists", "is at ", "object not found", "missing necessary objects", "incorrect old value",
}

// judgeReport returns the result of the command.
func judgeReport(report *packp.ReportStatus, output string) error {
	if report.UnpackStatus != "ok" {
		return fmt.Errorf("the server couldn't unpack the commit: %s", sanitize.Line(report.UnpackStatus))
	}
	for _, s := range report.CommandStatuses {
		if s.Error() == nil {
			continue
		}
		status := strings.ToLower(s.Status)
		for _, race := range races {
			if strings.Contains(status, race) {
				return fmt.Errorf("%w: %s", errLostRace, sanitize.Line(s.Status))
			}
		}
		return denied(s.Status + " " + output)
	}
	return nil
}

func denied(output string) *Error {
	return refuse(ReasonStatusPushDenied, fmt.Sprintf("the server rejects pushes to the status branch: %s. "+
		"Allow the push credentials to create and update refs/heads/%s*; retried hourly", sanitize.Line(output), StatusBranchPrefix))
}

// pushError adds the reason to an error that isn't a lost race.
func pushError(host string, err error) error {
	var own *Error
	text := strings.ToLower(err.Error())
	switch {
	case errors.As(err, &own) && own.reason != ReasonFetchFailed:
		return own
	case errors.Is(err, transport.ErrAuthorizationFailed), strings.Contains(text, "read only"), strings.Contains(text, "read-only"),
		strings.Contains(text, "permission denied"), strings.Contains(text, "denied to"), strings.Contains(text, "not allowed to push"):
		return denied(err.Error())
	}
	e := classify("push to "+host, err)
	if e.reason == ReasonFetchFailed || e.reason == ReasonRefNotFound {
		e = wrap(ReasonStatusPushFailed, "push to "+host, err)
	}
	return e
}

// Fingerprint returns the fingerprint of an SSH private key in PEM.
func Fingerprint(key []byte) (string, error) {
	signer, err := parseIdentity(key, "")
	if err != nil {
		return "", err
	}
	return ssh.FingerprintSHA256(signer.PublicKey()), nil
}
