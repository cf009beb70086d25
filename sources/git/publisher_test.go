// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/lockstep-dev/lockstep/sources"
)

const statusRef = "refs/heads/lockstep-status/prod"

func (s *server) publisher(url string, change ...func(*PublisherConfig)) *Publisher {
	s.t.Helper()
	cfg := PublisherConfig{
		URL: url, Cluster: "prod", AllowInsecure: true, Timeout: 20 * time.Second,
		Backoff: time.Millisecond, Now: (&clock{}).now,
	}
	for _, f := range change {
		f(&cfg)
	}
	p, err := NewPublisher(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func status(subject string) sources.StatusCommit {
	return sources.StatusCommit{
		Subject:  subject,
		Trailers: []sources.Trailer{{Key: "Lockstep-Source-Revision", Value: "main@sha1:abc"}},
		Files:    map[string][]byte{"README.md": []byte("# " + subject + "\n"), "status.yaml": []byte("a: 1\n")},
	}
}

func publish(t *testing.T, p *Publisher, c sources.StatusCommit) sources.Pushed {
	t.Helper()
	out, err := p.Publish(t.Context(), c)
	if err != nil {
		t.Fatalf("Publish: %v (%s)", err, reason(err))
	}
	return out
}

// hook installs a hook in the bare repository.
func (s *server) hook(name, script string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.bare, "hooks", name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

func TestStatusCommitsAreValidGitCommits(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	key := s.keygen("status")
	p := s.publisher(s.http(), func(c *PublisherConfig) {
		c.SigningKey = func(context.Context) ([]byte, error) { return key, nil }
	})
	first := publish(t, p, status("status: prod at 1.4.1 (Progressing 0 %) [skip ci]"))
	second := publish(t, p, status("status: prod at 1.4.2 (Completed) [skip ci]"))
	if second.Rewritten != "" || second.Attempts != 1 {
		t.Errorf("%+v, want one attempt and no rewrite", second)
	}
	if got := s.run(s.bare, "rev-parse", statusRef); got != second.Revision.Hash {
		t.Errorf("the branch is at %s, want %s", got, second.Revision.Hash)
	}
	if got := s.run(s.bare, "rev-list", statusRef); got != second.Revision.Hash+"\n"+first.Revision.Hash {
		t.Errorf("history %q, want only the two commits of an orphan branch", got)
	}
	if got := s.run(s.bare, "log", "-1", "--format=%s|%(trailers:key=Lockstep-Source-Revision,valueonly)|%an <%ae>", statusRef); got !=
		"status: prod at 1.4.2 (Completed) [skip ci]|main@sha1:abc\n|Lockstep <lockstep@prod>" {
		t.Errorf("log %q", got)
	}
	if got := s.run(s.bare, "show", statusRef+":README.md"); !strings.Contains(got, "1.4.2") {
		t.Errorf("README.md %q", got)
	}
	s.run(s.bare, "fsck", "--strict", "--no-dangling")
	allowed := filepath.Join(t.TempDir(), "allowed")
	if err := os.WriteFile(allowed, []byte("status "+s.pub("status")), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.run(s.bare, "-c", "gpg.ssh.allowedSignersFile="+allowed, "verify-commit", "-v", statusRef)
	if !strings.Contains(out, `Good "git" signature for status`) {
		t.Errorf("verify-commit: %s", out)
	}
}

func TestAPushOverSSHSendsThePushOption(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	s.run(s.bare, "config", "receive.advertisePushOptions", "true")
	file := filepath.Join(t.TempDir(), "options")
	s.hook("pre-receive", `echo "$GIT_PUSH_OPTION_COUNT $GIT_PUSH_OPTION_0" > `+file)
	url, cr := s.ssh()
	p := s.publisher(url, func(c *PublisherConfig) { c.Credentials = creds(cr) })
	out := publish(t, p, status("one"))
	if got := s.run(s.bare, "rev-parse", statusRef); got != out.Revision.Hash {
		t.Errorf("the branch is at %s, want %s", got, out.Revision.Hash)
	}
	if got := strings.TrimSpace(string(s.read(file))); got != "1 ci.skip" {
		t.Errorf("push options %q, want ci.skip", got)
	}
}

func TestAServerWithoutPushOptionsReceivesNone(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	s.run(s.bare, "config", "receive.advertisePushOptions", "false")
	publish(t, s.publisher(s.http()), status("one"))
}

func TestALostRaceIsRetriedOnTheNewTip(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	p := s.publisher(s.http())
	publish(t, p, status("one"))
	// Another writer moves the branch once during the push.
	other := s.run(s.work, "commit-tree", "-m", "other", "-p", "HEAD", "HEAD^{tree}")
	s.run(s.work, "push", "-q", "origin", other+":refs/keep/other")
	marker := filepath.Join(t.TempDir(), "done")
	s.hook("pre-receive", "test -e "+marker+" && exit 0\ntouch "+marker+"\n"+
		"unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\ngit update-ref "+statusRef+" "+other+"\n")
	out := publish(t, p, status("two"))
	if out.Attempts != 2 || out.Rewritten != other {
		t.Errorf("%+v, want a second attempt on top of %s", out, other)
	}
	if got := s.run(s.bare, "rev-parse", statusRef+"^"); got != other {
		t.Errorf("parent %s, want the new tip %s", got, other)
	}
}

func TestAnUnexpectedTipIsReported(t *testing.T) {
	s := newServer(t)
	main := s.commit(map[string]string{"a": "1"})
	url := s.http()
	p := s.publisher(url)
	ours := publish(t, p, status("one")).Revision.Hash
	s.run(s.work, "push", "-q", "--force", "origin", "HEAD:"+statusRef)
	out := publish(t, p, status("two"))
	if out.Rewritten != main {
		t.Errorf("rewritten %q, want %s", out.Rewritten, main)
	}
	trailer := func() string {
		return s.run(s.bare, "log", "-1", "--format=%(trailers:key=Lockstep-Previous,valueonly)", statusRef)
	}
	if got := trailer(); got != ours {
		t.Errorf("Lockstep-Previous %q, want the last pushed commit %s", got, ours)
	}
	publish(t, p, status("three"))
	if got := trailer(); got != "" {
		t.Errorf("Lockstep-Previous %q without a rewrite", got)
	}
	s.run(s.bare, "update-ref", "-d", statusRef)
	restarted := s.publisher(url, func(c *PublisherConfig) { c.Last = ours })
	if out := publish(t, restarted, status("four")); out.Rewritten != "none" || trailer() != ours {
		t.Errorf("after the branch was deleted: %+v, trailer %q", out, trailer())
	}
}

func TestAPushRejectedByPolicyIsDenied(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	s.hook("pre-receive", "echo 'branch is protected: ask ops' >&2; exit 1\n")
	url := s.http()
	_, err := s.publisher(url).Publish(t.Context(), status("one"))
	wantReason(t, err, ReasonStatusPushDenied, "branch is protected: ask ops", "refs/heads/lockstep-status/")
	s.git.ReadOnly(true)
	_, err = s.publisher(url).Publish(t.Context(), status("one"))
	wantReason(t, err, ReasonStatusPushDenied)
}

func TestALostResponseIsNotPushedAgain(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	p := s.publisher(s.http())
	c := status("one")
	sent := publish(t, p, c).Revision.Hash
	p.last, p.pending.hash = [20]byte{}, p.last // as if the answer hadn't come
	out := publish(t, p, c)
	if out.Revision.Hash != sent || s.run(s.bare, "rev-list", "--count", statusRef) != "1" {
		t.Errorf("the same content was pushed twice: %+v", out)
	}
}

func TestADeadServerFailsWithinTheTimeout(t *testing.T) {
	s := newServer(t)
	s.commit(map[string]string{"a": "1"})
	url := s.http()
	s.down.Store(true)
	_, err := s.publisher(url).Publish(t.Context(), status("one"))
	wantReason(t, err, ReasonStatusPushFailed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.publisher(url).Publish(ctx, status("one"))
	wantReason(t, err, ReasonStatusPushFailed)
}

func TestNoOtherRefCanBeWritten(t *testing.T) {
	for _, cluster := range []string{"", "../main", "a/b", "main:refs/heads/main", "A", "a b", strings.Repeat("a", 64), "-a", "a-"} {
		if _, err := NewPublisher(PublisherConfig{URL: "https://example.com/x", Cluster: cluster, Now: realNow}); reason(err) != ReasonStatusRefNotOurs {
			t.Errorf("cluster %q: err = %v", cluster, err)
		}
	}
}

func TestServerResponsesAreClassified(t *testing.T) {
	for answer, race := range map[string]bool{
		"failed to update ref": true, "cannot lock ref 'x': is at 1 but expected 2": true, "non-fast-forward": true,
		"fetch first": true, "missing necessary objects": true, "stale info": true,
		"pre-receive hook declined": false, "protected branch hook declined": false, "deny updating a hidden ref": false,
		"GH006: Protected branch update failed": false,
	} {
		err := judgeReport(&packp.ReportStatus{UnpackStatus: "ok", CommandStatuses: []*packp.CommandStatus{{ReferenceName: statusRef, Status: answer}}}, "")
		if got := strings.HasPrefix(err.Error(), errLostRace.Error()); got != race {
			t.Errorf("%q: lost race %v, want %v (%v)", answer, got, race, err)
		}
	}
}

func FuzzMessageContainsExactlyTheGivenTrailers(f *testing.F) {
	f.Add("subject\nLockstep-Release-Digest: x", "v\nLockstep-Condition: Available=True")
	f.Add("\u2028a", "\r\nb: c")
	f.Fuzz(func(t *testing.T, subject, value string) {
		text, err := message(sources.StatusCommit{Subject: subject, Trailers: []sources.Trailer{{Key: "Lockstep-Condition", Value: value}}})
		if err != nil {
			return
		}
		lines := strings.Split(text, "\n")
		if len(lines) != 4 || lines[1] != "" || lines[3] != "" || !strings.HasPrefix(lines[2], "Lockstep-Condition: ") {
			t.Errorf("message %q of subject %q and value %q", text, subject, value)
		}
	})
}
