// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package git reads declared content from Git repositories and pushes status
// commits to them.
//
// A Source keeps a bare mirror of one declared ref on disk. A fetch takes one
// request if the ref hasn't moved. Fetched content is limited in size, checked as
// by git fsck --strict, verified against the authorities of the trust policy, and
// rejected if the ref no longer contains the accepted commit. A Publisher creates
// status commits and pushes them with a lease.
//
// The package uses the protocol implementation of go-git, but requests objects by
// their full names and ignores the Git and SSH configuration of the machine. It
// runs no program, except for file:// URLs, an insecure option, where go-git runs
// git.
package git

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blang/semver/v4"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// Config declares a Source.
type Config struct {
	// URL has scheme https or ssh; http and file only with AllowInsecure. It
	// must not contain a password.
	URL string
	// Ref is the ref to follow.
	Ref Ref
	// Path of the declared documents; "" means the root. The snapshot contains
	// the files outside it too, for kustomizations. Git LFS pointers are
	// rejected in it, and anywhere for YAML and JSON files.
	Path string
	// Dir is the directory of the mirror. Only one Source may use it at a time.
	Dir string
	// Outbound has the proxy and the certificate authorities for https, in addition to
	// those of the credentials.
	Outbound outbound.Settings
	// Credentials is called before each connection; nil for anonymous access.
	Credentials func(context.Context) (Credentials, error)
	// Authorities returns the keys that may sign revisions. Each Fetch calls it,
	// so that a policy change applies to a fetched commit too. nil disables
	// verification: snapshots have no Signer.
	Authorities func(context.Context) ([]Authority, error)
	// InitialCommit, if set, must be contained in the first revision.
	InitialCommit string
	// MaxSize limits the mirror, and thereby each transfer, in bytes; default
	// 1 GiB.
	MaxSize int64
	// Limits of a snapshot.
	Limits sources.Limits
	// Timeout of one call; default 60 s.
	Timeout time.Duration
	// AllowInsecure allows http and file URLs, an insecure option.
	AllowInsecure bool
	// Now is the clock; required.
	Now func() time.Time
}

// keepSnapshots is the number of cached snapshots: the current and the accepted
// one.
const keepSnapshots = 2

// cloneEvery is the minimum interval between two recreations of a mirror.
const cloneEvery = 10 * time.Minute

// Source follows one declared ref. It is safe for concurrent use; calls wait for
// each other.
type Source struct {
	cfg    Config
	remote remote

	mu        sync.Mutex
	closed    bool
	m         *mirror
	recent    []*sources.Snapshot // at most keepSnapshots, the newest last
	lastClone time.Time           // time of the last recreation of the mirror
}

var _ sources.Source = (*Source)(nil)

// New checks cfg and returns its Source, without fetching.
func New(cfg Config) (*Source, error) {
	u, err := checkURL(cfg.URL, cfg.AllowInsecure)
	if err != nil {
		return nil, err
	}
	if err := cfg.Ref.check(); err != nil {
		return nil, wrap(ReasonInvalid, "ref", err)
	}
	if cfg.Now == nil || cfg.Dir == "" {
		return nil, refuse(ReasonInvalid, "a Git source requires a clock and a directory for its mirror")
	}
	if cfg.Path = path.Clean("/" + cfg.Path)[1:]; cfg.Path != "" {
		if err := sources.CheckPath(cfg.Path); err != nil {
			return nil, wrap(ReasonInvalid, "path", err)
		}
	}
	if cfg.MaxSize <= 0 {
		cfg.MaxSize = 1 << 30
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = time.Minute
	}
	return &Source{cfg: cfg, remote: remote{url: u, outbound: cfg.Outbound, credentials: cfg.Credentials, timeout: cfg.Timeout, maxSize: cfg.MaxSize}}, nil
}

// Fetch implements sources.Source. Errors are *Error.
func (s *Source) Fetch(ctx context.Context, req sources.Request) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	found, err := s.refresh(ctx)
	if err != nil {
		return nil, classify("source", err)
	}
	rev := sources.Revision{Ref: found.label, Hash: found.commit.String()}
	snap, err := s.evaluate(ctx, rev, req)
	if errors.Is(err, errCorrupt) {
		if err = s.reclone(ctx, err); err == nil {
			snap, err = s.evaluate(ctx, rev, req)
		}
	}
	if err != nil {
		return nil, attempted(rev, classify("revision "+rev.String(), err))
	}
	return snap, nil
}

func attempted(rev sources.Revision, e *Error) *Error {
	out := *e
	out.attempted = rev
	return &out
}

// At implements sources.Source: it reads the revision from the mirror, or fetches
// it if the mirror lacks it. The revision is verified again, because status isn't
// trusted.
func (s *Source) At(ctx context.Context, rev sources.Revision) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	h, err := parseHash(rev.Hash)
	if err != nil {
		return nil, refuse(ReasonNotFound, fmt.Sprintf("revision %s has no commit", sanitize.Line(rev.String())))
	}
	if err := s.open(); err != nil {
		return nil, classify("mirror", err)
	}
	if !s.m.has(h) {
		if _, err := s.refresh(ctx); err != nil {
			return nil, classify("revision "+rev.String()+" isn't in the mirror", err)
		}
	}
	if !s.m.has(h) { // the ref was rewound and the mirror was lost: fetch by hash
		_, err = s.sync(ctx, s.m, Ref{Commit: rev.Hash})
	}
	if err != nil || !s.m.has(h) {
		return nil, refuse(ReasonNotFound, fmt.Sprintf("revision %s is neither in the mirror nor on the server", rev))
	}
	snap, err := s.snapshot(ctx, rev, rev)
	if err != nil {
		return nil, attempted(rev, classify("revision "+rev.String(), err))
	}
	return snap, nil
}

func (s *Source) open() (err error) {
	if s.closed {
		return refuse(ReasonFetchFailed, "the source was closed because its spec changed; retried automatically")
	}
	if s.m != nil {
		return nil
	}
	current, old := filepath.Join(s.cfg.Dir, "mirror.git"), filepath.Join(s.cfg.Dir, "mirror.old")
	if _, err := os.Stat(current); errors.Is(err, os.ErrNotExist) {
		if err := os.Rename(old, current); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(old), os.RemoveAll(filepath.Join(s.cfg.Dir, "mirror.new"))); err != nil {
		return err
	}
	s.m, err = openMirror(current)
	return err
}

// refresh resolves the ref on the server and fetches its commit if the mirror
// lacks it.
func (s *Source) refresh(ctx context.Context) (target, error) {
	if err := s.open(); err != nil {
		return target{}, err
	}
	if h := plumbing.NewHash(s.cfg.Ref.Commit); s.cfg.Ref.Commit != "" && s.m.has(h) {
		return target{object: h, commit: h}, nil
	}
	found, err := s.sync(ctx, s.m, s.cfg.Ref)
	if err == nil {
		return found, s.tidy(ctx)
	}
	if isMirrorFault(ctx, err) {
		if err := s.reclone(ctx, err); err != nil {
			return target{}, err
		}
		return s.sync(ctx, s.m, s.cfg.Ref)
	}
	return target{}, err
}

// isMirrorFault reports whether recreating the mirror may help: not if the cause
// is the network, the server or a limit.
func isMirrorFault(ctx context.Context, err error) bool {
	if ctx.Err() != nil || isNetwork(err) {
		return false
	}
	if _, ours := errors.AsType[*Error](err); ours {
		return false
	}
	if u, ok := errors.AsType[*plumbing.UnexpectedError](err); ok { // of go-git, without Unwrap
		if h, ok := u.Err.(*githttp.Err); ok && (h.StatusCode() >= 500 || h.StatusCode() == http.StatusTooManyRequests) { //nolint:errorlint // it's wrapped exactly once
			return false
		}
		if isNetwork(u.Err) {
			return false
		}
	}
	return !errors.Is(err, transport.ErrAuthenticationRequired) && !errors.Is(err, transport.ErrAuthorizationFailed) &&
		!errors.Is(err, transport.ErrRepositoryNotFound)
}

// tidy recreates a mirror with too many packs; a failure isn't reported.
func (s *Source) tidy(ctx context.Context) error {
	if _, packs, err := s.m.usage(); err != nil || packs <= maxPacks {
		return err
	}
	_ = s.reclone(ctx, errors.New("many packs"))
	return nil
}

// sync opens a session, resolves ref and fetches missing objects into m.
func (s *Source) sync(ctx context.Context, m *mirror, ref Ref) (_ target, err error) {
	session, adv, err := s.remote.upload(ctx)
	if err != nil {
		return target{}, err
	}
	defer func() { _ = session.Close() }() // the content is checked separately
	found, err := ref.resolve(adv)
	if err != nil {
		return target{}, err
	}
	want := found.object
	if ref.Commit != "" {
		if want, err = wantForCommit(want, adv, s.cfg.Ref.Commit != ""); err != nil {
			return target{}, err
		}
	}
	if !m.has(want) {
		if err := m.fetch(ctx, session, adv, want, s.cfg.MaxSize); err != nil {
			return target{}, fmt.Errorf("fetch %s: %w", sanitize.Line(ref.String()), err)
		}
	}
	if found.commit, err = m.peel(found.object); err != nil && ref.Commit != "" {
		return target{}, refuse(ReasonRefNotFound, fmt.Sprintf("commit %s isn't on the server, or isn't reachable from its default branch", ref.Commit))
	}
	return found, err
}

// wantForCommit returns the object to request for a commit: the commit if the
// server allows that, else the default branch if the spec declares the commit.
func wantForCommit(h plumbing.Hash, adv *packp.AdvRefs, declared bool) (plumbing.Hash, error) {
	caps := adv.Capabilities
	if caps.Supports(capability.AllowReachableSHA1InWant) || caps.Supports("allow-any-sha1-in-want") {
		return h, nil
	}
	for _, tip := range adv.References {
		if tip == h {
			return h, nil
		}
	}
	if adv.Head == nil || !declared {
		return plumbing.ZeroHash, refuse(ReasonRefNotFound, "the server supports neither requests for single commits nor a default branch; declare a branch or tag")
	}
	return *adv.Head, nil
}

// reclone recreates the mirror and swaps it with the old one, at most once in
// cloneEvery; otherwise it returns cause.
func (s *Source) reclone(ctx context.Context, cause error) error {
	now := s.cfg.Now()
	if wait := cloneEvery - now.Sub(s.lastClone); !s.lastClone.IsZero() && wait > 0 {
		return fmt.Errorf("%w (the mirror was recreated %s ago; next attempt in %s)", cause, now.Sub(s.lastClone).Round(time.Second), wait.Round(time.Second))
	}
	s.lastClone = now
	current, old, next := filepath.Join(s.cfg.Dir, "mirror.git"), filepath.Join(s.cfg.Dir, "mirror.old"), filepath.Join(s.cfg.Dir, "mirror.new")
	if err := errors.Join(os.RemoveAll(next), os.RemoveAll(old)); err != nil {
		return err
	}
	m, err := openMirror(next)
	if err != nil {
		return err
	}
	if _, err := s.sync(ctx, m, s.cfg.Ref); err != nil {
		return errors.Join(fmt.Errorf("%w; recreate the mirror: %w", cause, err), os.RemoveAll(next))
	}
	s.m = nil
	if err := os.Rename(current, old); err != nil {
		return err
	}
	if err := os.Rename(next, current); err != nil {
		return err
	}
	return s.open()
}

// evaluate checks the revision of the ref and returns its snapshot.
func (s *Source) evaluate(ctx context.Context, rev sources.Revision, req sources.Request) (*sources.Snapshot, error) {
	if req.Accepted.Hash != rev.Hash {
		if err := s.forward(rev, req); err != nil {
			return nil, err
		}
	}
	return s.snapshot(ctx, rev, req.Accepted)
}

// forward rejects a revision that doesn't follow the accepted one.
func (s *Source) forward(rev sources.Revision, req sources.Request) error {
	acc := req.Accepted
	head := plumbing.NewHash(rev.Hash)
	if acc.IsZero() {
		return s.containsInitial(head)
	}
	if req.AcceptRewind == rev.Hash || s.cfg.Ref.Commit != "" {
		return nil
	}
	if s.cfg.Ref.Tag != "" || s.cfg.Ref.Semver != "" {
		return s.tagForward(rev, acc)
	}
	if acc.Ref != rev.Ref {
		return nil // the spec was changed to another ref
	}
	ok, err := s.m.contains(head, plumbing.NewHash(acc.Hash))
	if err != nil || ok {
		return err
	}
	return refuse(ReasonRewound, fmt.Sprintf("%s is at %s, which doesn't contain the accepted commit %s (force-pushed?); the accepted revision is still reconciled. "+
		"Push the accepted commit again, or accept this one once: lockstep source accept-rewind %s", sanitize.Line(s.cfg.Ref.String()), rev.Hash, acc.Hash, rev.Hash))
}

func (s *Source) tagForward(rev, acc sources.Revision) error {
	if acc.Ref == rev.Ref {
		return refuse(ReasonTagMoved, fmt.Sprintf("tag %s was accepted at %s and now points to %s; release tags must not move. "+
			"Create a new tag, or accept this one once: lockstep source accept-rewind %s", sanitize.Line(rev.Ref), acc.Hash, rev.Hash, rev.Hash))
	}
	was, err1 := semver.Parse(strings.TrimPrefix(acc.Ref, "v"))
	is, err2 := semver.Parse(strings.TrimPrefix(rev.Ref, "v"))
	if s.cfg.Ref.Semver != "" && err1 == nil && err2 == nil && is.LT(was) {
		return refuse(ReasonRewound, fmt.Sprintf("the highest tag in %q is now %s at %s; the accepted tag %s at %s doesn't exist. "+
			"Restore it, or accept this one once: lockstep source accept-rewind %s", sanitize.Line(s.cfg.Ref.Semver), sanitize.Line(rev.Ref), rev.Hash, sanitize.Line(acc.Ref), acc.Hash, rev.Hash))
	}
	return nil
}

func (s *Source) containsInitial(head plumbing.Hash) error {
	if s.cfg.InitialCommit == "" {
		return nil
	}
	ok, err := s.m.contains(head, plumbing.NewHash(s.cfg.InitialCommit))
	if err != nil || ok {
		return err
	}
	return refuse(ReasonRewound, fmt.Sprintf("%s at %s doesn't contain verify.initialCommit %s: check spec.url and the history",
		sanitize.Line(s.cfg.Ref.String()), head, s.cfg.InitialCommit))
}

// snapshot verifies a commit in the mirror and reads its tree. If recorded is the
// same commit, it compares their tree sums.
func (s *Source) snapshot(ctx context.Context, rev, recorded sources.Revision) (*sources.Snapshot, error) {
	h := plumbing.NewHash(rev.Hash)
	c, err := s.m.commit(h)
	if err != nil {
		return nil, err
	}
	signer, err := s.verify(ctx, c)
	if err != nil {
		return nil, err
	}
	snap := s.cached(rev.Hash)
	if snap == nil {
		tree, err := s.m.tree(c.tree, s.cfg.Limits, s.refusePointer)
		if err != nil {
			return nil, err
		}
		snap = &sources.Snapshot{FS: tree, Subject: c.subject, Time: c.when}
	}
	if sum := snap.FS.Sum(); recorded.Hash == rev.Hash && recorded.Tree != "" && recorded.Tree != sum {
		return nil, refuse(ReasonEquivocation, fmt.Sprintf("commit %s was accepted with tree %s and now has %s: two contents for one SHA-1", rev.Hash, recorded.Tree, sum))
	}
	rev.Tree = snap.FS.Sum()
	if snap.Revision != rev || !sameSigner(snap.Signer, signer) {
		next := *snap
		next.Revision, next.Signer = rev, signer
		snap = &next
	}
	s.recent = slices.DeleteFunc(s.recent, func(o *sources.Snapshot) bool { return o.Revision.Hash == rev.Hash })
	s.recent = append(s.recent[max(0, len(s.recent)+1-keepSnapshots):], snap)
	return snap, nil
}

func (s *Source) cached(hash string) *sources.Snapshot {
	i := slices.IndexFunc(s.recent, func(o *sources.Snapshot) bool { return o.Revision.Hash == hash })
	if i < 0 {
		return nil
	}
	return s.recent[i]
}

func sameSigner(a, b *sources.Signer) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func (s *Source) verify(ctx context.Context, c *commit) (*sources.Signer, error) {
	if s.cfg.Authorities == nil {
		return nil, nil //nolint:nilnil // nil means unverified, as Snapshot documents
	}
	list, err := s.cfg.Authorities(ctx)
	if err != nil {
		return nil, classify("load authorities of role git", err)
	}
	auth, err := parseAuthorities(list)
	if err != nil {
		return nil, wrap("PolicyMissing", "load authorities of role git", err)
	}
	signer, refused := auth.verify(c, s.cfg.Now())
	if refused != nil {
		return nil, refused
	}
	return signer, nil
}

// refusePointer rejects Git LFS pointers in declared content.
func (s *Source) refusePointer(name string, data []byte) error {
	if !sources.IsLFSPointer(data) {
		return nil
	}
	inside := s.cfg.Path == "" || strings.HasPrefix(name, s.cfg.Path+"/")
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		inside = true
	}
	if !inside {
		return nil
	}
	return refuse(ReasonLFSPointer, fmt.Sprintf("%s is a Git LFS pointer; LFS isn't supported: commit the file itself (git lfs migrate export)", sanitize.Line(name)))
}

// Close waits for running calls; later ones fail. Call it before another Source
// uses the same directory.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.m, s.recent = true, nil, nil
	return nil
}
