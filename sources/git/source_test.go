// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

func TestFetchOverHTTPTransfersOnlyChanges(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"clusters/prod/a.yaml": "a: 1\n"})
	src := s.source(s.http(), c)

	snap := fetch(t, src, sources.Request{})
	if got, want := snap.Revision.String(), "main@sha1:"+first; got != want {
		t.Errorf("revision %s, want %s", got, want)
	}
	if got, err := snap.FS.ReadFile("clusters/prod/a.yaml"); err != nil || string(got) != "a: 1\n" {
		t.Errorf("a.yaml = %q, %v", got, err)
	}
	if snap.Signer != nil || snap.Subject != "a change" {
		t.Errorf("signer %v, subject %q", snap.Signer, snap.Subject)
	}

	before := s.requests.Load()
	if again := fetch(t, src, sources.Request{Accepted: snap.Revision}); again != snap {
		t.Error("an unmoved ref returned another snapshot")
	}
	if got := s.requests.Load() - before; got != 1 {
		t.Errorf("fetching an unmoved ref took %d requests, want 1", got)
	}

	second := s.commit(map[string]string{"b.yaml": "b: 1\n"})
	next := fetch(t, src, sources.Request{Accepted: snap.Revision})
	if next.Revision.Hash != second || next.Revision.Tree == snap.Revision.Tree {
		t.Errorf("after a push: %+v, want %s with another tree", next.Revision, second)
	}
	if old, err := src.At(t.Context(), snap.Revision); err != nil || old.Revision != snap.Revision {
		t.Errorf("At(first) = %v, %v", old, err)
	}
}

func TestFetchOverSSHRequiresAKnownHost(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"a.yaml": "a: 1\n"})
	url, cr := s.ssh()
	src := s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(cr); cfg.AllowInsecure = false })
	snap := fetch(t, src, sources.Request{})
	second := s.commit(map[string]string{"b.yaml": "b: 1\n"})
	if next := fetch(t, src, sources.Request{Accepted: snap.Revision}); snap.Revision.Hash != first || next.Revision.Hash != second {
		t.Errorf("revisions %s, %s, want %s, %s", snap.Revision, next.Revision, first, second)
	}

	stranger := cr
	host, _, _ := strings.Cut(string(cr.KnownHosts), " ")
	stranger.KnownHosts = []byte(host + " " + s.pub("id"))
	src = s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(stranger) })
	_, err := src.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonHostKey, "known_hosts")
	elsewhere := cr
	elsewhere.KnownHosts = []byte("git.example.com " + s.pub("id"))
	src = s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(elsewhere) })
	_, err = src.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonHostKey, "SHA256:", "is not in known_hosts")

	none := cr
	none.KnownHosts = nil
	src = s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(none) })
	_, err = src.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonInvalid, "known_hosts")

	src = s.source(strings.Replace(url, "fleet", "missing", 1), c, func(cfg *Config) { cfg.Credentials = creds(cr) })
	if _, err = src.Fetch(t.Context(), sources.Request{}); err == nil {
		t.Error("a missing repository was fetched")
	}
}

func TestARewindIsRejectedUnlessAcceptedOnce(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"a": "1"})
	second := s.commit(map[string]string{"a": "2"})
	src := s.source(s.http(), c)
	accepted := fetch(t, src, sources.Request{}).Revision

	s.run(s.work, "reset", "-q", "--hard", first)
	forced := s.commit(map[string]string{"a": "3"})
	_, err := src.Fetch(t.Context(), sources.Request{Accepted: accepted})
	wantReason(t, err, ReasonRewound, forced, second)
	var e *Error
	if asError(err, &e); e.Attempted().Hash != forced {
		t.Errorf("attempted %v, want %s", e.Attempted(), forced)
	}
	if old, err := src.At(t.Context(), accepted); err != nil || old.Revision.Hash != second {
		t.Errorf("the accepted revision isn't available after a rewind: %v", err)
	}
	_, err = src.Fetch(t.Context(), sources.Request{Accepted: accepted, AcceptRewind: first})
	wantReason(t, err, ReasonRewound)
	next := fetch(t, src, sources.Request{Accepted: accepted, AcceptRewind: forced})
	if next.Revision.Hash != forced {
		t.Errorf("the accepted rewind returned %s, want %s", next.Revision, forced)
	}
	s.run(s.work, "reset", "-q", "--hard", first)
	s.commit(map[string]string{"a": "4"})
	_, err = src.Fetch(t.Context(), sources.Request{Accepted: next.Revision, AcceptRewind: forced})
	wantReason(t, err, ReasonRewound)
}

func TestADeletedRefKeepsTheAcceptedRevision(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	s.run(s.work, "push", "-q", "origin", "HEAD:refs/heads/deploy")
	src := s.source(s.http(), c, func(cfg *Config) { cfg.Ref = Ref{Branch: "deploy"} })
	accepted := fetch(t, src, sources.Request{}).Revision
	s.run(s.work, "push", "-q", "origin", ":refs/heads/deploy")
	_, err := src.Fetch(t.Context(), sources.Request{Accepted: accepted})
	wantReason(t, err, ReasonRefNotFound, "refs/heads/deploy")
	if snap, err := src.At(t.Context(), accepted); err != nil || snap.Revision != accepted {
		t.Errorf("At(accepted) = %v, %v", snap, err)
	}
}

func TestABranchIsPreferredToATagOfTheSameName(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	s.run(s.work, "tag", "main")
	s.run(s.work, "push", "-q", "origin", "refs/tags/main")
	s.run(s.work, "commit", "-q", "--allow-empty", "-m", "newer")
	s.run(s.work, "push", "-q", "origin", "HEAD:refs/heads/main")
	want := s.run(s.work, "rev-parse", "HEAD")
	if got := fetch(t, s.source(s.http(), c), sources.Request{}).Revision.Hash; got != want {
		t.Errorf("branch main is %s, want %s", got, want)
	}
}

func TestTagsAndRanges(t *testing.T) {
	s, c := newServer(t), &clock{}
	v1 := s.commit(map[string]string{"a": "1"})
	s.run(s.work, "tag", "-a", "-m", "one", "v1.0.0")
	v11 := s.commit(map[string]string{"a": "2"})
	s.run(s.work, "tag", "v1.1.0")
	s.run(s.work, "tag", "v2.0.0-rc.1")
	s.run(s.work, "push", "-q", "--tags", "origin")
	url := s.http()

	tagged := s.source(url, c, func(cfg *Config) { cfg.Ref = Ref{Tag: "v1.0.0"} })
	snap := fetch(t, tagged, sources.Request{})
	if snap.Revision.String() != "v1.0.0@sha1:"+v1 {
		t.Errorf("an annotated tag is %s, want its commit %s", snap.Revision, v1)
	}
	ranged := s.source(url, c, func(cfg *Config) { cfg.Ref = Ref{Semver: ">=1.0.0 <2.0.0"} })
	high := fetch(t, ranged, sources.Request{})
	if high.Revision.String() != "v1.1.0@sha1:"+v11 {
		t.Errorf("the range resolved to %s, want v1.1.0 at %s", high.Revision, v11)
	}
	pinned := s.source(url, c, func(cfg *Config) { cfg.Ref = Ref{Commit: v1} })
	if got := fetch(t, pinned, sources.Request{}).Revision.String(); got != "sha1:"+v1 {
		t.Errorf("a commit is %s, want %s", got, v1)
	}
	before := s.requests.Load()
	fetch(t, pinned, sources.Request{})
	if s.requests.Load() != before {
		t.Error("a commit in the mirror was requested from the server")
	}

	s.run(s.work, "push", "-q", "origin", ":refs/tags/v1.1.0")
	_, err := ranged.Fetch(t.Context(), sources.Request{Accepted: high.Revision})
	wantReason(t, err, ReasonRewound, "v1.0.0", "v1.1.0")

	s.run(s.work, "tag", "-f", "v1.0.0", v11)
	s.run(s.work, "push", "-q", "--force", "origin", "v1.0.0")
	_, err = tagged.Fetch(t.Context(), sources.Request{Accepted: snap.Revision})
	wantReason(t, err, ReasonTagMoved, v1, v11)
}

func TestBasicAuthenticationSucceedsAndFails(t *testing.T) {
	s, c := newServer(t), &clock{}
	want := s.commit(map[string]string{"a": "1"})
	s.git.Auth("me", "s3cr3t-pw")
	url := s.http()
	ok := s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(Credentials{Username: "me", Password: "s3cr3t-pw"}) })
	if got := fetch(t, ok, sources.Request{}).Revision.Hash; got != want {
		t.Errorf("revision %s, want %s", got, want)
	}
	bad := s.source(url, c, func(cfg *Config) { cfg.Credentials = creds(Credentials{Username: "me", Password: "wr0ng-pw"}) })
	_, err := bad.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonAuthFailed)
	if strings.Contains(err.Error(), "wr0ng-pw") {
		t.Errorf("the password is in the error: %v", err)
	}
}

func TestAnOutageIsReportedAndEnds(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	src := s.source(s.http(), c)
	accepted := fetch(t, src, sources.Request{}).Revision
	s.down.Store(true)
	_, err := src.Fetch(t.Context(), sources.Request{Accepted: accepted})
	wantReason(t, err, ReasonFetchFailed)
	if _, err := src.At(t.Context(), accepted); err != nil {
		t.Errorf("the accepted revision can't be read during an outage: %v", err)
	}
	s.down.Store(false)
	want := s.commit(map[string]string{"a": "2"})
	if got := fetch(t, src, sources.Request{Accepted: accepted}).Revision.Hash; got != want {
		t.Errorf("after the outage %s, want %s", got, want)
	}
}

func TestABusyServerDoesNotCauseAFullFetch(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	src := s.source(s.http(), c)
	accepted := fetch(t, src, sources.Request{}).Revision
	s.commit(map[string]string{"a": "2"})
	s.noPacks.Store(true)
	before := s.requests.Load()
	_, err := src.Fetch(t.Context(), sources.Request{Accepted: accepted})
	wantReason(t, err, ReasonFetchFailed)
	if got := s.requests.Load() - before; got != 2 {
		t.Errorf("%d requests, want one listing and one pack", got)
	}
}

func TestRestartReadsTheMirrorWithoutTheServer(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	dir := t.TempDir()
	url := s.http()
	in := func(cfg *Config) { cfg.Dir = dir }
	accepted := fetch(t, s.source(url, c, in), sources.Request{}).Revision
	s.down.Store(true)
	snap, err := s.source(url, c, in).At(t.Context(), accepted)
	if err != nil || snap.Revision != accepted {
		t.Fatalf("At after a restart = %v, %v", snap, err)
	}
	accepted.Tree = "sha256:" + strings.Repeat("0", 64)
	_, err = s.source(url, c, in).At(t.Context(), accepted)
	wantReason(t, err, ReasonEquivocation)
}

func TestADamagedMirrorIsRecreatedAtALimitedRate(t *testing.T) {
	s, c := newServer(t), &clock{}
	want := s.commit(map[string]string{"a": "1"})
	dir := t.TempDir()
	src := s.source(s.http(), c, func(cfg *Config) { cfg.Dir = dir })
	fetch(t, src, sources.Request{})
	damage := func() {
		t.Helper()
		packs, err := filepath.Glob(filepath.Join(dir, "mirror.git", "objects", "pack", "*.pack"))
		if err != nil || len(packs) == 0 {
			t.Fatal("no pack to damage", err)
		}
		for _, p := range packs {
			if err := os.Chmod(p, 0o600); err != nil {
				t.Fatal(err)
			}
			data := make([]byte, 200)
			if err := os.WriteFile(p, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		src.m, src.recent = nil, nil // as after a restart
	}
	damage()
	if got := fetch(t, src, sources.Request{}).Revision.Hash; got != want {
		t.Errorf("after damage %s, want %s", got, want)
	}
	damage()
	if _, err := src.Fetch(t.Context(), sources.Request{}); err == nil || !strings.Contains(err.Error(), "next attempt in") {
		t.Errorf("err = %v, want a delayed next attempt", err)
	}
	c.advance(cloneEvery)
	if got := fetch(t, src, sources.Request{}).Revision.Hash; got != want {
		t.Errorf("after ten minutes %s, want %s", got, want)
	}
}

func TestManyFetchesDontAccumulatePacks(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "0"})
	src := s.source(s.http(), c)
	rev := fetch(t, src, sources.Request{}).Revision
	for i := range maxPacks + 3 {
		s.commit(map[string]string{"a": strconv.Itoa(i)})
		rev = fetch(t, src, sources.Request{Accepted: rev}).Revision
	}
	if _, packs, err := src.m.usage(); err != nil || packs > maxPacks {
		t.Errorf("%d packs, %v; want at most %d", packs, err, maxPacks)
	}
}

func TestLimitsAreEnforced(t *testing.T) {
	s, c := newServer(t), &clock{}
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(i * i >> 3 * 7 % 251)
	}
	s.commit(map[string]string{"big": string(noise), "a.yaml": "x"})
	url := s.http()
	for name, change := range map[string]func(*Config){
		"the pack":    func(cfg *Config) { cfg.MaxSize = 1000 },
		"the files":   func(cfg *Config) { cfg.Limits.Files = 1 },
		"their bytes": func(cfg *Config) { cfg.Limits.Bytes = 100_000 },
	} {
		src := s.source(url, c, change)
		_, err := src.Fetch(t.Context(), sources.Request{})
		if reason(err) != ReasonLimitExceeded {
			t.Errorf("%s: err = %v (%s), want LimitExceeded", name, err, reason(err))
		}
		left, _ := filepath.Glob(filepath.Join(src.cfg.Dir, "mirror.git", "objects", "pack", "tmp_*"))
		if len(left) > 0 {
			t.Errorf("%s: %v remains", name, left)
		}
	}
}

func TestRejectedContent(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12\n"
	for name, tc := range map[string]struct {
		files map[string]string
		args  []string // of git update-index, to make what git add wouldn't
		want  string
	}{
		"an LFS pointer": {files: map[string]string{"x.yaml": pointer}, want: ReasonLFSPointer},
		"a submodule":    {args: []string{"--add", "--cacheinfo", "160000," + strings.Repeat("1", 40) + ",sub"}, want: ReasonInvalidTree},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newServer(t), &clock{}
			s.commit(map[string]string{"a": "1"})
			if tc.args != nil {
				s.run(s.work, append([]string{"update-index"}, tc.args...)...)
				s.run(s.work, "commit", "-q", "-m", "bad")
				s.run(s.work, "push", "-q", "origin", "HEAD")
			} else {
				s.commit(tc.files)
			}
			_, err := s.source(s.http(), c).Fetch(t.Context(), sources.Request{})
			wantReason(t, err, tc.want)
		})
	}
}

func TestSymlinksMustStayInTheSource(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"base/a.yaml": "a: 1\n"})
	if err := os.Symlink("base/a.yaml", filepath.Join(s.work, "l.yaml")); err != nil {
		t.Fatal(err)
	}
	s.commit(nil)
	url := s.http()
	snap := fetch(t, s.source(url, c), sources.Request{})
	if got, err := snap.FS.ReadFile("l.yaml"); err != nil || string(got) != "a: 1\n" {
		t.Errorf("l.yaml = %q, %v", got, err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(s.work, "evil")); err != nil {
		t.Fatal(err)
	}
	s.commit(nil)
	_, err := s.source(url, c).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonInvalidTree, "evil", "leaves the source")
}

func TestASHA256RepositoryIsReportedAsUnsupported(t *testing.T) {
	s, c := newServer(t, "--object-format=sha256"), &clock{}
	s.commit(map[string]string{"a": "1"})
	_, err := s.source(s.http(), c).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonObjectFormat)
}

func TestInitialCommitMustBeContained(t *testing.T) {
	s, c := newServer(t), &clock{}
	first := s.commit(map[string]string{"a": "1"})
	s.commit(map[string]string{"a": "2"})
	url := s.http()
	fetch(t, s.source(url, c, func(cfg *Config) { cfg.InitialCommit = first }), sources.Request{})
	_, err := s.source(url, c, func(cfg *Config) { cfg.InitialCommit = strings.Repeat("1", 40) }).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonRewound, "initialCommit")
}

func TestAClosedSourceReleasesItsMirror(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.commit(map[string]string{"a": "1"})
	dir := t.TempDir()
	url := s.http()
	in := func(cfg *Config) { cfg.Dir = dir }
	old := s.source(url, c, in)
	rev := fetch(t, old, sources.Request{}).Revision
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := old.At(t.Context(), rev)
	wantReason(t, err, ReasonFetchFailed, "closed")
	_, err = old.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonFetchFailed, "closed")
	fetch(t, s.source(url, c, in), sources.Request{Accepted: rev})
}

func TestConfigIsChecked(t *testing.T) {
	base := Config{URL: "https://example.com/x.git", Ref: Ref{Branch: "main"}, Dir: t.TempDir(), Now: func() time.Time { return epoch }}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"http":                  {func(c *Config) { c.URL = "http://example.com/x" }, ReasonInsecureTransport},
		"file":                  {func(c *Config) { c.URL = "file:///x" }, ReasonInsecureTransport},
		"git":                   {func(c *Config) { c.URL = "git://example.com/x" }, ReasonInvalid},
		"the scp form":          {func(c *Config) { c.URL = "git@example.com:x" }, ReasonInvalid},
		"a password in the URL": {func(c *Config) { c.URL = "https://u:p@example.com/x" }, ReasonInvalid},
		"no ref":                {func(c *Config) { c.Ref = Ref{} }, ReasonInvalid},
		"two refs":              {func(c *Config) { c.Ref.Tag = "v1" }, ReasonInvalid},
		"a pattern as ref":      {func(c *Config) { c.Ref = Ref{Branch: "*"} }, ReasonInvalid},
		"a ref outside refs":    {func(c *Config) { c.Ref = Ref{Name: "HEAD"} }, ReasonInvalid},
		"a status branch":       {func(c *Config) { c.Ref = Ref{Branch: "lockstep-status/prod"} }, ReasonInvalid},
		"a short commit":        {func(c *Config) { c.Ref = Ref{Commit: "abc"} }, ReasonInvalid},
		"a path into .git":      {func(c *Config) { c.Path = "a/.git" }, ReasonInvalid},
		"an invalid range":      {func(c *Config) { c.Ref = Ref{Semver: "one"} }, ReasonInvalid},
	} {
		cfg := base
		tc.change(&cfg)
		if _, err := New(cfg); reason(err) != tc.want {
			t.Errorf("%s: err = %v (%s), want %s", name, err, reason(err), tc.want)
		}
	}
	if _, err := New(base); err != nil {
		t.Errorf("a valid configuration: %v", err)
	}
}
