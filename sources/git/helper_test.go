// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/gittestserver"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/lockstep-dev/lockstep/sources"
)

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// clock is a clock that tests advance.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return epoch.Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// server is a Git server with one repository, and a work tree that pushes to it
// with git.
type server struct {
	t        *testing.T
	git      *gittestserver.GitServer
	bare     string
	work     string
	home     string
	requests atomic.Int64
	down     atomic.Bool
	noPacks  atomic.Bool // lists references, but serves no pack
}

func newServer(t *testing.T, initArgs ...string) *server {
	t.Helper()
	s := &server{t: t, home: t.TempDir()}
	g := gittestserver.NewGitServer(t.TempDir())
	s.git = g
	s.bare = filepath.Join(g.Root(), "fleet.git")
	s.work = filepath.Join(t.TempDir(), "work")
	s.run(".", append([]string{"init", "-q", "--bare", "-b", "main", s.bare}, initArgs...)...)
	s.run(".", append([]string{"init", "-q", "-b", "main", s.work}, initArgs...)...)
	s.run(s.work, "remote", "add", "origin", s.bare)
	return s
}

// run runs git without any configuration of the machine.
func (s *server) run(dir string, args ...string) string {
	s.t.Helper()
	out, err := s.try(dir, args...)
	if err != nil {
		s.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *server) try(dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "GIT_CONFIG_NOSYSTEM=1", "GNUPGHOME=" + filepath.Join(s.home, "gpg"),
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.com",
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// commit writes, commits and pushes files and returns the commit's hash.
func (s *server) commit(files map[string]string, args ...string) string {
	s.t.Helper()
	for name, data := range files {
		full := filepath.Join(s.work, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(data), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.run(s.work, "add", "-A")
	s.run(s.work, append([]string{"commit", "-q", "--allow-empty", "-m", "a change"}, args...)...)
	s.run(s.work, "push", "-q", "--force", "origin", "HEAD")
	return s.run(s.work, "rev-parse", "HEAD")
}

// http starts the server over HTTP and returns the repository's URL.
func (s *server) http() string {
	s.t.Helper()
	s.git.AddHTTPMiddlewares(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.requests.Add(1)
			if s.down.Load() || s.noPacks.Load() && r.Method == http.MethodPost {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	if err := s.git.StartHTTP(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.git.StopHTTP)
	return s.git.HTTPAddress() + "/fleet.git"
}

// ssh starts the server over SSH and returns the URL and working credentials.
func (s *server) ssh() (string, Credentials) {
	s.t.Helper()
	s.git.KeyDir(filepath.Join(s.t.TempDir(), "keys"))
	if err := s.git.ListenSSH(); err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = s.git.StartSSH() }()
	s.t.Cleanup(func() { _ = s.git.StopSSH() })
	addr := strings.TrimPrefix(s.git.SSHAddress(), "ssh://")
	addr = addr[strings.LastIndexByte(addr, '@')+1:]
	return "ssh://git@" + addr + "/fleet.git", Credentials{
		Identity: s.keygen("id"), KnownHosts: []byte(scan(s.t, addr) + "\n"),
	}
}

// scan returns the host key, like ssh-keyscan.
func scan(t *testing.T, addr string) string {
	t.Helper()
	var line string
	conf := &ssh.ClientConfig{User: "git", HostKeyCallback: func(host string, _ net.Addr, key ssh.PublicKey) error {
		line = knownhosts.Line([]string{host}, key)
		return errors.New("seen")
	}}
	if c, err := ssh.Dial("tcp", addr, conf); err == nil {
		_ = c.Close()
	}
	if line == "" {
		t.Fatalf("no host key at %s", addr)
	}
	return line
}

// keygen creates an ed25519 key and returns the private key; s.pub(name) returns
// the public one.
func (s *server) keygen(name string) []byte {
	s.t.Helper()
	file := filepath.Join(s.home, name)
	out, err := exec.CommandContext(s.t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ssh-keygen: %v %s", err, out)
	}
	return s.read(file)
}

func (s *server) pub(name string) string { return string(s.read(filepath.Join(s.home, name+".pub"))) }

func (s *server) read(file string) []byte {
	s.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// sshSign configures the work tree to sign commits with the SSH key name.
func (s *server) sshSign(name string) {
	s.keygen(name)
	s.run(s.work, "config", "gpg.format", "ssh")
	s.run(s.work, "config", "user.signingkey", filepath.Join(s.home, name))
}

// source returns a Source of the main branch at url.
func (s *server) source(url string, c *clock, change ...func(*Config)) *Source {
	s.t.Helper()
	cfg := Config{URL: url, Ref: Ref{Branch: "main"}, Dir: s.t.TempDir(), AllowInsecure: true, Now: c.now, Timeout: 20 * time.Second}
	for _, f := range change {
		f(&cfg)
	}
	src, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return src
}

func fetch(t *testing.T, src *Source, req sources.Request) *sources.Snapshot {
	t.Helper()
	snap, err := src.Fetch(t.Context(), req)
	if err != nil {
		t.Fatalf("Fetch: %v (%s)", err, reason(err))
	}
	return snap
}

func reason(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason()
	}
	return ""
}

// wantReason fails unless err has the reason and contains all parts.
func wantReason(t *testing.T, err error, want string, parts ...string) {
	t.Helper()
	if reason(err) != want {
		t.Fatalf("err = %v (%q), want reason %s", err, reason(err), want)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q doesn't contain %q", err, p)
		}
	}
}

func creds(c Credentials) func(context.Context) (Credentials, error) {
	return func(context.Context) (Credentials, error) { return c, nil }
}

func signedBy(list ...Authority) func(context.Context) ([]Authority, error) {
	return func(context.Context) ([]Authority, error) { return list, nil }
}

func asError(err error, target **Error) {
	if !errors.As(err, target) {
		*target = &Error{}
	}
}

func realNow() time.Time { return time.Now() }
