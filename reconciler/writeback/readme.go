// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// readme renders the page that a forge shows for the status branch: the summary,
// then blocking objects and conditions. Its only link is the accepted commit;
// untrusted strings are in code spans.
func readme(r Report, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %s\n\n", cluster(r), sentence(r))
	fmt.Fprintf(&b, "%s\n\n", strings.Join(facts(r, now), " · "))
	if len(r.Insecure) > 0 {
		fmt.Fprintf(&b, "**Insecure options, not for production:** %s\n\n", strings.Join(spans(r.Insecure), ", "))
	}
	if a := r.Source.Attempted; !a.IsZero() && !a.Same(r.Source.Revision) {
		fmt.Fprintf(&b, "**Rejected:** `%s` %s: %s\n\n", a.Short(), word(r.Source.Reason), span(r.Source.Message))
	}
	if len(r.Releases)+len(r.Pools) > 0 {
		table(&b, r)
	}
	blocking(&b, r, now)
	conditions(&b, r, now)
	history(&b, r)
	return b.String()
}

func sentence(r Report) string {
	v := headline(r)
	switch {
	case len(r.Releases)+len(r.Pools) == 0:
		return "no releases or pools declared"
	case r.phase() == "Failing":
		return strings.TrimSpace("failing to update to " + v)
	case r.phase() == "Progressing":
		return strings.TrimSpace("updating to " + v)
	case v != "":
		return "at " + v
	}
	return "complete"
}

func facts(r Report, now time.Time) []string {
	var out []string
	if r.phase() != "Complete" {
		out = append(out, fmt.Sprintf("%d %%", r.progress()))
	}
	if since := newest(r); !since.IsZero() {
		out = append(out, "since "+since.UTC().Format("2 Jan 15:04 UTC"))
	}
	if rev := r.Source.Revision; !rev.IsZero() {
		at := "`" + rev.Short() + "`"
		if linkForm.MatchString(r.Source.CommitLink) {
			at = "[" + rev.Short() + "](" + r.Source.CommitLink + ")"
		}
		out = append(out, "source "+at)
	}
	if s := r.Source.Signer; s != nil {
		out = append(out, "signed by "+span(s.Name)+" "+span(s.Fingerprint))
	} else {
		out = append(out, "not signed")
	}
	return append(out, "updated "+now.UTC().Format("15:04:05 UTC"))
}

// newest is the start of the current phase: the latest Since.
func newest(r Report) time.Time {
	var t time.Time
	for _, x := range r.Releases {
		if x.Since.After(t) {
			t = x.Since
		}
	}
	for _, x := range r.Pools {
		if x.Since.After(t) {
			t = x.Since
		}
	}
	return t
}

// span returns s as a code span. It replaces bars, because an untrusted
// backslash before an escaped bar would split a table cell.
func span(s string) string { return sanitize.Markdown(strings.ReplaceAll(s, "|", "¦")) }

func spans(list []string) []string {
	var out []string
	for _, s := range list[:min(len(list), maxShown)] {
		out = append(out, span(s))
	}
	return out
}

func table(b *strings.Builder, r Report) {
	b.WriteString("| | current | desired | state | |\n|---|---|---|---|---|\n")
	for _, x := range r.Releases[:min(maxShown, len(r.Releases))] {
		state := fmt.Sprintf("%s %d/%d", word(x.State), x.Done, x.Total)
		if x.complete() {
			state = "Complete"
		}
		row(b, x.Name, x.Current, x.Desired, state, bar(x.Done, x.Total, x.complete()))
	}
	for _, x := range r.Pools[:min(maxShown, len(r.Pools))] {
		state := fmt.Sprintf("%d of %d hosts", x.Updated, x.Total)
		if x.State != "Updating" && x.State != "Complete" {
			state = word(x.State) + " " + state
		}
		if x.Failed > 0 {
			state += fmt.Sprintf(", %d failed", x.Failed)
		}
		if x.Held > 0 {
			state += fmt.Sprintf(", %d held", x.Held)
		}
		row(b, x.Name, x.Current, x.Desired, state, bar(x.Updated, x.Total, x.complete()))
	}
	cut(b, len(r.Releases)+len(r.Pools)-min(maxShown, len(r.Releases))-min(maxShown, len(r.Pools)), "rows")
	b.WriteString("\n")
}

func row(b *strings.Builder, name, current, desired, state, bar string) {
	shown := shownVersion(desired)
	if desired != current && shown != "" {
		shown = "**" + shown + "**"
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", span(name), shownVersion(current), shown, state, bar)
}

// shownVersion returns a well-formed version unquoted, else a code span.
func shownVersion(s string) string {
	if v := version(s); v != "" {
		return v
	}
	return span(s)
}

func bar(done, total int, complete bool) string {
	full := tenth(done, total)
	if complete {
		full = 10
	}
	full = max(0, min(full, 10))
	return strings.Repeat("▰", full) + strings.Repeat("▱", 10-full)
}

func blocking(b *strings.Builder, r Report, now time.Time) {
	var out []string
	more := 0
	add := func(list []Blocking) {
		for i, x := range list {
			if i >= maxBlocked || len(out) >= maxShown {
				more += len(list) - i
				return
			}
			item := span(x.Object)
			if x.Message != "" {
				item += ": " + span(x.Message)
			}
			if !x.Since.IsZero() {
				item += " for " + age(now.Sub(x.Since))
			}
			out = append(out, item)
		}
	}
	for _, x := range r.Releases {
		add(x.Blocking)
	}
	for _, x := range r.Pools {
		add(x.Blocking)
	}
	if len(out) == 0 {
		return
	}
	fmt.Fprintf(b, "**Blocking:** %s\n\n", strings.Join(out, " · "))
	cut(b, more, "blocking objects")
}

// conditions lists the conditions that report a problem.
func conditions(b *strings.Builder, r Report, now time.Time) {
	var out []string
	for _, c := range r.Conditions {
		if len(out) == maxShown {
			break
		}
		line := fmt.Sprintf("- %s %s=%s %s", span(c.Object), word(c.Type), word(c.Status), word(c.Reason))
		if c.Message != "" {
			line += ": " + span(c.Message)
		}
		if !c.Since.IsZero() {
			line += " for " + age(now.Sub(c.Since))
		}
		out = append(out, line)
	}
	if len(out) == 0 {
		return
	}
	fmt.Fprintf(b, "## Conditions\n\n%s\n\n", strings.Join(out, "\n"))
	cut(b, len(r.Conditions)-len(out), "conditions")
}

func history(b *strings.Builder, r Report) {
	n := 0
	var rows strings.Builder
	for _, x := range r.Releases {
		for i, h := range x.History {
			if i == 10 || n == maxShown {
				break
			}
			n++
			signed := "unverified"
			if h.Verified {
				signed = "verified"
			}
			fmt.Fprintf(&rows, "| %s | %s | %s | %s | %s | %s |\n", span(x.Name), shownVersion(h.Version), word(h.State), signed, stamp(h.Started), stamp(h.Completed))
		}
	}
	if n == 0 {
		return
	}
	b.WriteString("<details><summary>History</summary>\n\n| | version | state | signatures | started | completed |\n|---|---|---|---|---|---|\n")
	b.WriteString(rows.String())
	b.WriteString("\nComplete history: `history.jsonl`.\n\n</details>\n")
}

func cut(b *strings.Builder, n int, what string) {
	if n > 0 {
		fmt.Fprintf(b, "and %d more %s\n\n", n, what)
	}
}

// age formats a duration with two units at most.
func age(d time.Duration) string {
	d = max(0, d.Truncate(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// CommitLink returns the web page of a commit in the repository at an https or
// ssh URL, or "" for an unknown forge.
func CommitLink(repository, hash string) string {
	u, err := url.Parse(repository)
	if err != nil || (u.Scheme != "https" && u.Scheme != "ssh") {
		return ""
	}
	host := u.Hostname()
	between := "/commit/"
	switch {
	case strings.Contains(host, "gitlab"):
		between = "/-/commit/"
	case strings.Contains(host, "github"), strings.Contains(host, "gitea"), strings.Contains(host, "forgejo"), strings.Contains(host, "codeberg"):
	default:
		return ""
	}
	link := "https://" + host + strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), ".git") + between + hash
	if !linkForm.MatchString(link) {
		return ""
	}
	return link
}
