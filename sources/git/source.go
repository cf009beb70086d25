// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package git reads declared content from Git repositories and writes status
// commits to them.
//
// A Source keeps a bare mirror of one declared ref on disk. A look at the
// remote costs one exchange; nothing is transferred when the ref hasn't moved.
// What comes is bounded, checked as git fsck --strict would, verified against
// the authorities that the trust policy names, and compared with what was
// accepted before: a ref that no longer contains the accepted commit is
// refused. A Publisher makes status commits and pushes them with a lease.
//
// The package speaks the wire protocol through go-git's parts but decides by
// itself which objects it asks for, so that no short name, no global state and
// no configuration of the machine takes part. It runs no program, except
// for file:// URLs, a door for development, where go-git runs git.
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

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// Config declares a Source.
type Config struct {
	// URL is https or ssh; http and file only with AllowInsecure. It holds no
	// password.
	URL string
	// Ref says what is followed.
	Ref Ref
	// Path is where the declared documents are; "" means the root. Files
	// outside it are part of the snapshot (a kustomization may use them), but
	// Git LFS pointers are refused inside it (and for YAML and JSON anywhere).
	Path string
	// Dir is a directory of this source's own for the mirror. Only one Source
	// may use it at a time.
	Dir string
	// Credentials is asked before each connection; nil for public
	// repositories.
	Credentials func(context.Context) (Credentials, error)
	// Authorities returns who may sign revisions; it's asked at each Fetch, so
	// that a change of policy judges the same commit again. nil means
	// unverified: snapshots then have no Signer.
	Authorities func(context.Context) ([]Authority, error)
	// InitialCommit, if set, must be contained in the first revision.
	InitialCommit string
	// MaxSize bounds the mirror and with it each transfer, in bytes; default
	// 1 GiB.
	MaxSize int64
	// Limits bound the files of a snapshot.
	Limits sources.Limits
	// Timeout of one call; default 60 s.
	Timeout time.Duration
	// AllowInsecure opens http and file URLs: a flag of the process.
	AllowInsecure bool
	// Now is the clock; required.
	Now func() time.Time
}

// keepSnapshots are kept in memory: what the ref names, and what was accepted
// where that's another one.
const keepSnapshots = 2

// cloneEvery is how often a mirror may be made anew.
const cloneEvery = 10 * time.Minute

// Source follows one declared ref. It's safe for concurrent use; calls wait
// for one another.
type Source struct {
	cfg    Config
	remote remote

	mu        sync.Mutex
	closed    bool
	m         *mirror
	recent    []*sources.Snapshot // what was built last, at most keepSnapshots
	lastClone time.Time           // when the mirror was last made anew
}

var _ sources.Source = (*Source)(nil)

// New checks cfg and returns its Source. Nothing is fetched yet.
func New(cfg Config) (*Source, error) {
	u, err := checkURL(cfg.URL, cfg.AllowInsecure)
	if err != nil {
		return nil, err
	}
	if err := cfg.Ref.check(); err != nil {
		return nil, wrap(ReasonInvalid, "ref", err)
	}
	if cfg.Now == nil || cfg.Dir == "" {
		return nil, refuse(ReasonInvalid, "a Git source needs a clock and a directory for its mirror")
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
	return &Source{cfg: cfg, remote: remote{url: u, credentials: cfg.Credentials, timeout: cfg.Timeout, maxSize: cfg.MaxSize}}, nil
}

// Fetch implements sources.Source. Errors are *Error.
func (s *Source) Fetch(ctx context.Context, req sources.Request) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	found, err := s.look(ctx)
	if err != nil {
		return nil, classify("source", err)
	}
	rev := sources.Revision{Ref: found.label, Hash: found.commit.String()}
	snap, err := s.judge(ctx, rev, req)
	if errors.Is(err, errCorrupt) {
		if err = s.reclone(ctx, err); err == nil {
			snap, err = s.judge(ctx, rev, req)
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

// At implements sources.Source: a revision from the mirror, or from the server
// where the mirror lacks it. It's verified like any other: a revision that
// status names is only a claim.
func (s *Source) At(ctx context.Context, rev sources.Revision) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	h, err := parseHash(rev.Hash)
	if err != nil {
		return nil, refuse(ReasonNotFound, fmt.Sprintf("revision %s names no commit", sanitize.Line(rev.String())))
	}
	if err := s.open(); err != nil {
		return nil, classify("mirror", err)
	}
	if !s.m.has(h) {
		if _, err := s.look(ctx); err != nil {
			return nil, classify("revision "+rev.String()+" isn't in the mirror", err)
		}
	}
	if !s.m.has(h) { // the ref was rewound and the mirror lost: ask for it by name
		_, err = s.sync(ctx, s.m, Ref{Commit: rev.Hash})
	}
	if err != nil || !s.m.has(h) {
		return nil, refuse(ReasonNotFound, fmt.Sprintf("revision %s is neither in the mirror nor in what the server declares now", rev))
	}
	snap, err := s.snapshot(ctx, rev, rev)
	if err != nil {
		return nil, attempted(rev, classify("revision "+rev.String(), err))
	}
	return snap, nil
}

func (s *Source) open() (err error) {
	if s.closed {
		return refuse(ReasonFetchFailed, "the source was closed, since its declaration changed; the next look reads it anew")
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

// look finds out what the server declares and makes sure that the mirror has
// it, by the cheapest way.
func (s *Source) look(ctx context.Context) (target, error) {
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

// isMirrorFault reports whether making the mirror anew could help: not where
// the network, the server's policy or a limit of ours is the cause.
func isMirrorFault(ctx context.Context, err error) bool {
	if ctx.Err() != nil || isNetwork(err) {
		return false
	}
	if _, ours := errors.AsType[*Error](err); ours {
		return false
	}
	if u, ok := errors.AsType[*plumbing.UnexpectedError](err); ok { // go-git's, which doesn't unwrap
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

// tidy makes the mirror anew when its packs have become many; a failure to do
// so is no failure to fetch.
func (s *Source) tidy(ctx context.Context) error {
	if _, packs, err := s.m.usage(); err != nil || packs <= maxPacks {
		return err
	}
	_ = s.reclone(ctx, errors.New("many packs"))
	return nil
}

// sync opens a session, resolves ref, and fetches into m what it lacks.
func (s *Source) sync(ctx context.Context, m *mirror, ref Ref) (_ target, err error) {
	session, adv, err := s.remote.upload(ctx)
	if err != nil {
		return target{}, err
	}
	defer func() { _ = session.Close() }() // what was read is checked by itself
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
		return target{}, refuse(ReasonRefNotFound, fmt.Sprintf("commit %s isn't on the server, or not reachable from its default branch", ref.Commit))
	}
	return found, err
}

// wantForCommit says what to ask for so that a commit comes: itself where the
// server allows that, else, if the declaration names no other ref, the default
// branch and its history.
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
		return plumbing.ZeroHash, refuse(ReasonRefNotFound, "the server neither gives single commits nor names a default branch; declare a branch or tag")
	}
	return *adv.Head, nil
}

// reclone makes the mirror anew beside the old one and swaps them, at most
// once in cloneEvery. cause is why, and what is returned when it may not.
func (s *Source) reclone(ctx context.Context, cause error) error {
	now := s.cfg.Now()
	if wait := cloneEvery - now.Sub(s.lastClone); !s.lastClone.IsZero() && wait > 0 {
		return fmt.Errorf("%w (the mirror was made anew %s ago; next time in %s)", cause, now.Sub(s.lastClone).Round(time.Second), wait.Round(time.Second))
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
		return errors.Join(fmt.Errorf("%w; making the mirror anew: %w", cause, err), os.RemoveAll(next))
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

// judge decides whether the revision that the ref names may be used, and
// returns its snapshot.
func (s *Source) judge(ctx context.Context, rev sources.Revision, req sources.Request) (*sources.Snapshot, error) {
	if req.Accepted.Hash != rev.Hash {
		if err := s.forward(rev, req); err != nil {
			return nil, err
		}
	}
	return s.snapshot(ctx, rev, req.Accepted)
}

// forward refuses what isn't ahead of the accepted revision.
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
		return nil // the declaration names another ref; that's not the repository's doing
	}
	ok, err := s.m.contains(head, plumbing.NewHash(acc.Hash))
	if err != nil || ok {
		return err
	}
	return refuse(ReasonRewound, fmt.Sprintf("%s is at %s, which doesn't contain the accepted commit %s (a force-push?); the accepted one stays. "+
		"Push the accepted commit again, or accept this one once: lockstep source accept-rewind %s", sanitize.Line(s.cfg.Ref.String()), rev.Hash, acc.Hash, rev.Hash))
}

func (s *Source) tagForward(rev, acc sources.Revision) error {
	if acc.Ref == rev.Ref {
		return refuse(ReasonTagMoved, fmt.Sprintf("tag %s was accepted at %s and now names %s; a release tag never moves. "+
			"Make a new tag, or accept this once: lockstep source accept-rewind %s", sanitize.Line(rev.Ref), acc.Hash, rev.Hash, rev.Hash))
	}
	was, err1 := semver.Parse(strings.TrimPrefix(acc.Ref, "v"))
	is, err2 := semver.Parse(strings.TrimPrefix(rev.Ref, "v"))
	if s.cfg.Ref.Semver != "" && err1 == nil && err2 == nil && is.LT(was) {
		return refuse(ReasonRewound, fmt.Sprintf("the highest tag in %q is now %s at %s; %s at %s was accepted and is gone. "+
			"Restore it, or accept this once: lockstep source accept-rewind %s", sanitize.Line(s.cfg.Ref.Semver), sanitize.Line(rev.Ref), rev.Hash, sanitize.Line(acc.Ref), acc.Hash, rev.Hash))
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
	return refuse(ReasonRewound, fmt.Sprintf("%s at %s doesn't contain verify.initialCommit %s: another repository, or another history",
		sanitize.Line(s.cfg.Ref.String()), head, s.cfg.InitialCommit))
}

// snapshot verifies a commit that is in the mirror and reads its tree.
// recorded is a revision with a tree sum to compare with, where it names the
// same commit.
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
		return nil, refuse(ReasonEquivocation, fmt.Sprintf("commit %s was accepted with tree %s and now has %s: two contents under one SHA-1 name", rev.Hash, recorded.Tree, sum))
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
		return nil, nil //nolint:nilnil // unverified is a state of its own, which Snapshot documents
	}
	list, err := s.cfg.Authorities(ctx)
	if err != nil {
		return nil, classify("authorities of the role git", err)
	}
	auth, err := parseAuthorities(list)
	if err != nil {
		return nil, wrap("PolicyMissing", "authorities of the role git", err)
	}
	signer, refused := auth.verify(c, s.cfg.Now())
	if refused != nil {
		return nil, refused
	}
	return signer, nil
}

// refusePointer refuses Git LFS pointers where content is expected.
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
	return refuse(ReasonLFSPointer, fmt.Sprintf("%s is a Git LFS pointer, not its content; LFS isn't followed: commit the file itself (git lfs migrate export)", sanitize.Line(name)))
}

// Close waits for the calls in flight; later ones fail. It's called before
// another Source uses the same directory.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.m, s.recent = true, nil, nil
	return nil
}
