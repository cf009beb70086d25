// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/gittestserver"

	"github.com/lockstep-dev/lockstep/sources/git"
)

func TestOneCommitFollowsAnOutageOfARealServer(t *testing.T) {
	server := gittestserver.NewGitServer(t.TempDir())
	bare := filepath.Join(server.Root(), "status.git")
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q", "--bare", bare)
	var down atomic.Bool
	server.AddHTTPMiddlewares(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if down.Load() {
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			next.ServeHTTP(rw, r)
		})
	})
	if err := server.StartHTTP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.StopHTTP)

	clock := now
	tick := func() time.Time { return clock }
	p, err := git.NewPublisher(git.PublisherConfig{URL: server.HTTPAddress() + "/status.git", Cluster: "prod", AllowInsecure: true, Now: tick, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var results []Result
	w, err := NewWriter(WriterConfig{Publisher: p, Now: tick, OnResult: func(r Result) { results = append(results, r) }}, "")
	if err != nil {
		t.Fatal(err)
	}
	step := func(done int) {
		t.Helper()
		w.Put(at(done))
		clock = clock.Add(time.Hour)
		w.step(t.Context())
	}
	step(0)
	down.Store(true)
	for done := 100; done < 800; done += 100 {
		step(done)
	}
	down.Store(false)
	step(800)

	if got := run("-C", bare, "rev-list", "--count", "refs/heads/lockstep-status/prod"); got != "2" {
		t.Errorf("%s commits, want one before and one after the outage", got)
	}
	if got := run("-C", bare, "log", "-1", "--format=%s|%(trailers:only,unfold)", "refs/heads/lockstep-status/prod"); !strings.HasPrefix(got, "status: prod at 1.4.2 (Progressing 61 %) [skip ci]|Lockstep-Source-Revision: main@sha1:9f2c1ab") {
		t.Errorf("the last commit is %q", got)
	}
	if last := results[len(results)-1]; last.Err != nil || last.Pushed.Revision.Ref != "lockstep-status/prod" || last.Pushed.Rewritten != "" {
		t.Errorf("result %+v", last)
	}
	if mid := results[1]; mid.Err == nil || mid.RetryAt.IsZero() {
		t.Errorf("during the outage: %+v, want an error and the time of the next attempt", mid)
	}
}
