// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/sources"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata")

var now = time.Date(2026, 11, 29, 22, 14, 20, 0, time.UTC)

const sum = "sha256:41be000000000000000000000000000000000000000000000000000000000000"

func updating() Report {
	since := now.Add(-4*time.Minute - 10*time.Second)
	return Report{
		Cluster: "prod",
		Source: Source{
			Name:       "fleet",
			Revision:   sources.Revision{Ref: "main", Hash: "9f2c1ab000000000000000000000000000000000", Tree: sum},
			Signer:     &sources.Signer{Name: "admin-1", Fingerprint: "SHA256:Xk3Q", Format: "ssh"},
			Accepted:   since,
			CommitLink: CommitLink("ssh://git@github.com/platform/fleet.git", "9f2c1ab000000000000000000000000000000000"),
		},
		Releases: []Release{{
			Name: "platform", Current: "1.4.1", Desired: "1.4.2", Digest: sum, State: "Updating", Done: 312, Total: 862, Since: since,
			Signers:  []string{"release-2026", "ci"},
			Blocking: []Blocking{{Object: "Deployment web/api", Message: "2 of 3 replicas updated", Since: now.Add(-72 * time.Second)}},
			History: []History{
				{State: "Partial", Version: "1.4.2", Digest: sum, Revision: "main@sha1:9f2c1ab000000000000000000000000000000000", Verified: true, Evidence: []string{"release-2026 (ed25519 …9aQ)"}, Started: since},
				{State: "Completed", Version: "1.4.1", Digest: sum, Verified: true, Started: now.Add(-50 * time.Hour), Completed: now.Add(-49 * time.Hour)},
			},
		}},
		Pools: []Pool{{
			Name: "workers", Current: "2.0.3", Desired: "2.1.0", Digest: sum, State: "Updating", Updated: 12, Total: 40, Staged: 28, InFlight: 1, Held: 1, Since: since,
			Blocking: []Blocking{{Object: "node-13", Message: "PodDisruptionBudget web/api allows 0 disruptions", Since: now.Add(-3 * time.Minute)}},
		}},
		Conditions: []Condition{{Object: "ClusterRelease/platform", Type: "Progressing", Status: "True", Reason: "ManifestsApplied", Message: "run level 30", Since: since}},
	}
}

func complete() Report {
	r := updating()
	r.Releases[0].Current, r.Releases[0].State, r.Releases[0].Done, r.Releases[0].Blocking = "1.4.2", "Reconciling", 862, nil
	r.Pools[0].Current, r.Pools[0].State, r.Pools[0].Updated, r.Pools[0].InFlight, r.Pools[0].Held, r.Pools[0].Blocking = "2.1.0", "Complete", 40, 0, 0, nil
	r.Conditions = nil
	return r
}

func rejected() Report {
	r := complete()
	r.Source.Signer, r.Source.CommitLink = nil, ""
	r.Source.Attempted = sources.Revision{Ref: "main", Hash: "bad0000000000000000000000000000000000000"}
	r.Source.Reason, r.Source.Message = "Unsigned", "verify commit bad0000: no signature found"
	r.Insecure = []string{"http", "unsigned"}
	return r
}

// render renders r as one text, for golden files.
func render(tb testing.TB, r Report) string {
	tb.Helper()
	c, err := Render(r, now, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(c.Subject + "\n\n")
	for _, tr := range c.Trailers {
		b.WriteString(tr.Key + ": " + tr.Value + "\n")
	}
	for _, f := range []string{"README.md", "status.yaml", "history.jsonl"} {
		b.WriteString("\n==> " + f + "\n" + string(c.Files[f]))
	}
	return b.String()
}

func TestRenderGolden(t *testing.T) {
	for name, r := range map[string]Report{"updating": updating(), "complete": complete(), "rejected": rejected(), "empty": {Cluster: "new"}} {
		file := filepath.Join("testdata", name+".txt")
		got := render(t, r)
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSubjects(t *testing.T) {
	failing := updating()
	failing.Releases[0].State = "Error"
	hosts := complete()
	hosts.Releases, hosts.Pools[0].Updated = nil, 10
	for want, r := range map[string]Report{
		"status: prod at 1.4.2 (Progressing 33 %) [skip ci]": updating(),
		"status: prod at 1.4.2 (Complete) [skip ci]":         complete(),
		"status: prod at 1.4.2 (Failing 33 %) [skip ci]":     failing,
		"status: prod at 2.1.0 (Progressing 25 %) [skip ci]": hosts,
		"status: new (Complete) [skip ci]":                   {Cluster: "new"},
	} {
		c, err := Render(r, now, 0)
		if err != nil || c.Subject != want {
			t.Errorf("subject %q, %v, want %q", c.Subject, err, want)
		}
	}
}

func TestSmallChangesMakeNoCommit(t *testing.T) {
	base := updating().Key()
	for what, tc := range map[string]struct {
		change func(*Report)
		commit bool
	}{
		"one more manifest":       {func(r *Report) { r.Releases[0].Done++ }, false},
		"another order":           {func(r *Report) { r.Conditions = append(r.Conditions[:0:0], r.Conditions...) }, false},
		"another message":         {func(r *Report) { r.Releases[0].Blocking[0].Message = "3 of 3 replicas updated" }, false},
		"another time":            {func(r *Report) { r.Releases[0].Since = now }, false},
		"a tenth more":            {func(r *Report) { r.Releases[0].Done += 100 }, true},
		"another state":           {func(r *Report) { r.Releases[0].State = "Error" }, true},
		"another blocking object": {func(r *Report) { r.Releases[0].Blocking[0].Object = "Deployment web/db" }, true},
		"another condition":       {func(r *Report) { r.Conditions[0].Reason = "Waiting" }, true},
		"a rejected commit":       {func(r *Report) { r.Source.Attempted.Hash = "1" }, true},
		"a failed host":           {func(r *Report) { r.Pools[0].Failed = 1 }, true},
		"an insecure option":      {func(r *Report) { r.Insecure = []string{"http"} }, true},
	} {
		r := updating()
		tc.change(&r)
		if got := r.Key() != base; got != tc.commit {
			t.Errorf("%s: another key %v, want %v", what, got, tc.commit)
		}
	}
}

func TestHistoryIsBoundedToTheNewest(t *testing.T) {
	r := updating()
	c, err := Render(r, now, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.Files["history.jsonl"]); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"version":"1.4.2"`) {
		t.Errorf("history %q, want the newest line only", got)
	}
}

func TestCommitLinksOnlyToKnownForges(t *testing.T) {
	for url, want := range map[string]string{
		"https://github.com/a/b.git":                "https://github.com/a/b/commit/1",
		"ssh://git@gitlab.example.com:22/a/c/b.git": "https://gitlab.example.com/a/c/b/-/commit/1",
		"https://git.example.com/a/b":               "",
		"https://github.com/a)b/c":                  "",
		"file:///github.com/a":                      "",
	} {
		if got := CommitLink(url, "1"); got != want {
			t.Errorf("CommitLink(%q) = %q, want %q", url, got, want)
		}
	}
}

// outsideSpans replaces the code spans of a Markdown text by CODE. As in
// CommonMark, a run of backquotes ends at the next run of the same length.
func outsideSpans(s string) string {
	var out strings.Builder
	runs := regexp.MustCompile("`+")
	for {
		at := runs.FindStringIndex(s)
		if at == nil {
			return out.String() + s
		}
		out.WriteString(s[:at[0]])
		fence, rest := s[at[0]:at[1]], s[at[1]:]
		end := -1
		for _, m := range runs.FindAllStringIndex(rest, -1) {
			if m[1]-m[0] == len(fence) {
				end = m[1]
				break
			}
		}
		if end < 0 {
			out.WriteString(fence)
			s = rest
			continue
		}
		out.WriteString("CODE")
		s = rest[end:]
	}
}

func FuzzUntrustedStringsAreContained(f *testing.F) {
	for _, s := range []string{
		"x\nLockstep-Release-Digest: " + sum, "` | [a](https://evil.example.com) @org/team fixes #1", "![t](https://evil.example.com/t.png)",
		"\x1b]52;c;x\x07", "<img src=x>", "``", "a\\|b", "[skip ci]", "1.2.3-www.evil.example.com", "\u202e", "# head", "---",
	} {
		f.Add(s)
	}
	clean, err := Render(updating(), now, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := updating()
		r.Source.Revision.Ref, r.Source.Signer = s, &sources.Signer{Name: s, Fingerprint: s}
		r.Source.Attempted, r.Source.Reason, r.Source.Message, r.Source.CommitLink = sources.Revision{Ref: s, Hash: strings.Repeat("b", 40)}, s, s, "https://github.com/"+s
		x := &r.Releases[0]
		x.Name, x.Current, x.Desired, x.State, x.Signers = s, s, s, s, []string{s}
		x.Blocking = []Blocking{{Object: s, Message: s}}
		x.History = []History{{State: s, Version: s, Digest: s, Revision: s, Evidence: []string{s}}}
		r.Pools[0].Name, r.Pools[0].Current, r.Pools[0].State, r.Pools[0].Blocking = s, s, s, []Blocking{{Object: s, Message: s}}
		r.Conditions = []Condition{{Object: s, Type: "Ready", Status: "True", Reason: s, Message: s}}
		r.Insecure = []string{s}
		c, err := Render(r, now, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Trailers) != len(clean.Trailers)+1 { // Lockstep-Insecure
			t.Errorf("trailers %v", c.Trailers)
		}
		if strings.ContainsAny(c.Subject, "\n\r@`[") && !strings.HasSuffix(strings.Replace(c.Subject, " [skip ci]", "", 1), ")") {
			t.Errorf("subject %q", c.Subject)
		}
		page := string(c.Files["README.md"])
		if strings.ContainsAny(page, "\x1b\x00\r\u202e") {
			t.Errorf("page contains control characters: %q", page)
		}
		text := strings.Replace(outsideSpans(page), "("+r.Source.CommitLink+")", "(LINK)", 1)
		allowed := 0
		if linkForm.MatchString(r.Source.CommitLink) {
			allowed = 1
		}
		if strings.Count(text, "](") != allowed || strings.Contains(text, "![") || strings.Contains(text, "@") || strings.Contains(text, "www.") || strings.Contains(text, "://") ||
			strings.Count(text, "<") != strings.Count(text, "<details>")+strings.Count(text, "<summary>")+strings.Count(text, "</") {
			t.Errorf("the page has untrusted text outside of code spans: %q", text)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| CODE") && strings.Count(line, "|") != 6 && strings.Count(line, "|") != 7 {
				t.Errorf("a row has an unexpected number of cells: %q", line)
			}
		}
		for line := range bytes.Lines(c.Files["history.jsonl"]) {
			if !bytes.HasPrefix(line, []byte(`{"format":"status.lockstep.dev/v2"`)) || !bytes.HasSuffix(line, []byte("}\n")) {
				t.Errorf("history line %q", line)
			}
		}
	})
}

func TestAConditionOfSeveralObjectsIsOneTrailer(t *testing.T) {
	r := updating()
	again := r.Conditions[0]
	again.Object = "GitSource/fleet"
	once, err := Render(r, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Conditions = append(r.Conditions, again)
	twice, err := Render(r, now, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(once.Trailers, twice.Trailers); diff != "" {
		t.Errorf("trailers (-once +twice):\n%s", diff)
	}
}
