// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// Limits of the lists in README.md; the page counts the omitted entries.
const (
	maxShown   = 50 // releases, pools, conditions
	maxBlocked = 10 // blocking objects of one release or pool
)

// Render returns the status commit for r at the time now. keep limits
// history.jsonl to its newest lines; 0 means 1000.
func Render(r Report, now time.Time, keep int) (sources.StatusCommit, error) {
	r = r.sorted()
	status, err := statusYAML(r, now)
	if err != nil {
		return sources.StatusCommit{}, fmt.Errorf("render status.yaml: %w", err)
	}
	history, err := historyLines(r, keep)
	if err != nil {
		return sources.StatusCommit{}, fmt.Errorf("render history.jsonl: %w", err)
	}
	return sources.StatusCommit{
		Subject:  subject(r),
		Trailers: trailers(r),
		Files: map[string][]byte{
			"README.md":     []byte(readme(r, now)),
			"status.yaml":   status,
			"history.jsonl": history,
		},
	}, nil
}

// subject is the first line of the commit.
func subject(r Report) string {
	at := ""
	if v := headline(r); v != "" {
		at = " at " + v
	}
	phase := r.phase()
	if phase != "Complete" {
		phase = fmt.Sprintf("%s %d %%", phase, r.progress())
	}
	return fmt.Sprintf("status: %s%s (%s) [skip ci]", cluster(r), at, phase)
}

func cluster(r Report) string {
	if clusterForm.MatchString(r.Cluster) {
		return r.Cluster
	}
	return "cluster"
}

// headline is the desired version of the first incomplete release, else of the
// first release, else of the first pool.
func headline(r Report) string {
	pick := ""
	for _, x := range r.Releases {
		if v := version(x.Desired); v != "" && (pick == "" || !x.complete()) {
			pick = v
			if !x.complete() {
				return pick
			}
		}
	}
	for _, x := range r.Pools {
		if pick == "" {
			pick = version(x.Desired)
		}
	}
	return pick
}

func version(s string) string {
	if versionForm.MatchString(s) && !strings.Contains(s, "www.") { // forges link it
		return s
	}
	return ""
}

// trailers contain typed values only.
func trailers(r Report) []sources.Trailer {
	var out []sources.Trailer
	add := func(key, value string) { out = append(out, sources.Trailer{Key: key, Value: value}) }
	if rev := revision(r.Source.Revision); rev != "" {
		add("Lockstep-Source-Revision", rev)
	}
	for _, x := range r.Releases[:min(maxShown, len(r.Releases))] {
		if digestForm.MatchString(x.Digest) {
			add("Lockstep-Release-Digest", x.Digest)
		}
	}
	seen := map[string]bool{} // several objects may have the same condition
	for _, c := range r.Conditions[:min(maxShown, len(r.Conditions))] {
		text := fmt.Sprintf("%s=%s %s", c.Type, c.Status, word(c.Reason))
		if !seen[text] && wordForm.MatchString(c.Type) && slices.Contains([]string{"True", "False", "Unknown"}, c.Status) {
			seen[text] = true
			add("Lockstep-Condition", text)
		}
	}
	if len(r.Insecure) > 0 {
		add("Lockstep-Insecure", "True")
	}
	return out
}

// revision returns a revision as a typed value, without a reference of an
// unusual form.
func revision(rev sources.Revision) string {
	if _, err := sources.ParseRevision(rev.String()); err != nil {
		return ""
	}
	if !refForm.MatchString(rev.Ref) {
		rev.Ref = ""
	}
	return rev.String()
}

// statusFormat is the version of status.yaml and history.jsonl.
const statusFormat = "status.lockstep.dev/v2"

// document is one document of status.yaml: a declared object, or the cluster.
type document struct {
	Format string `json:"format"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Status any    `json:"status"`
}

type clusterStatus struct {
	Phase      string            `json:"phase"`
	Progress   int               `json:"progressPercent"`
	Source     sourceStatus      `json:"source"`
	Insecure   []string          `json:"insecure,omitempty"`
	Conditions []conditionStatus `json:"conditions,omitempty"`
	Written    string            `json:"written"`
}

type sourceStatus struct {
	Name        string `json:"name,omitempty"`
	Revision    string `json:"revision,omitempty"`
	Tree        string `json:"tree,omitempty"`
	SignedBy    string `json:"signedBy,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Accepted    string `json:"accepted,omitempty"`
	Attempted   string `json:"attempted,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
}

type conditionStatus struct {
	Object  string `json:"object"`
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Since   string `json:"since,omitempty"`
}

type blockingStatus struct {
	Object  string `json:"object"`
	Message string `json:"message,omitempty"`
	Since   string `json:"since,omitempty"`
}

type releaseStatus struct {
	Current  string           `json:"current,omitempty"`
	Desired  string           `json:"desired,omitempty"`
	Digest   string           `json:"digest,omitempty"`
	State    string           `json:"state"`
	Done     int              `json:"done"`
	Total    int              `json:"total"`
	Since    string           `json:"since,omitempty"`
	SignedBy []string         `json:"signedBy,omitempty"`
	Blocking []blockingStatus `json:"blocking,omitempty"`
}

type poolStatus struct {
	Current  string           `json:"current,omitempty"`
	Desired  string           `json:"desired,omitempty"`
	Digest   string           `json:"digest,omitempty"`
	State    string           `json:"state"`
	Updated  int              `json:"updated"`
	Total    int              `json:"total"`
	Staged   int              `json:"staged,omitempty"`
	InFlight int              `json:"inFlight,omitempty"`
	Failed   int              `json:"failed,omitempty"`
	Held     int              `json:"held,omitempty"`
	Since    string           `json:"since,omitempty"`
	Blocking []blockingStatus `json:"blocking,omitempty"`
}

func statusYAML(r Report, now time.Time) ([]byte, error) {
	docs := []document{{Format: statusFormat, Kind: "Cluster", Name: cluster(r), Status: clusterStatus{
		Phase: r.phase(), Progress: r.progress(), Source: sourceOf(r.Source), Insecure: lines(r.Insecure),
		Conditions: conditionsOf(r.Conditions), Written: stamp(now),
	}}}
	for _, x := range r.Releases {
		docs = append(docs, document{Format: statusFormat, Kind: "ClusterRelease", Name: sanitize.Line(x.Name), Status: releaseStatus{
			Current: sanitize.Line(x.Current), Desired: sanitize.Line(x.Desired), Digest: sanitize.Line(x.Digest), State: word(x.State),
			Done: x.Done, Total: x.Total, Since: stamp(x.Since), SignedBy: lines(x.Signers), Blocking: blockingOf(x.Blocking),
		}})
	}
	for _, x := range r.Pools {
		docs = append(docs, document{Format: statusFormat, Kind: "NodeOS", Name: sanitize.Line(x.Name), Status: poolStatus{
			Current: sanitize.Line(x.Current), Desired: sanitize.Line(x.Desired), Digest: sanitize.Line(x.Digest), State: word(x.State),
			Updated: x.Updated, Total: x.Total, Staged: x.Staged, InFlight: x.InFlight, Failed: x.Failed, Held: x.Held,
			Since: stamp(x.Since), Blocking: blockingOf(x.Blocking),
		}})
	}
	var out bytes.Buffer
	for i, d := range docs {
		data, err := yaml.Marshal(d)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(data)
	}
	return out.Bytes(), nil
}

func sourceOf(s Source) sourceStatus {
	out := sourceStatus{
		Name: sanitize.Line(s.Name), Revision: sanitize.Line(s.Revision.String()), Tree: sanitize.Line(s.Revision.Tree), Accepted: stamp(s.Accepted),
	}
	if s.Signer != nil {
		out.SignedBy, out.Fingerprint = sanitize.Line(s.Signer.Name), sanitize.Line(s.Signer.Fingerprint)
	}
	if !s.Attempted.IsZero() && !s.Attempted.Same(s.Revision) {
		out.Attempted, out.Reason, out.Message = sanitize.Line(s.Attempted.String()), word(s.Reason), sanitize.Line(s.Message)
	}
	return out
}

func conditionsOf(list []Condition) []conditionStatus {
	var out []conditionStatus
	for _, c := range list[:min(len(list), 200)] {
		out = append(out, conditionStatus{
			Object: sanitize.Line(c.Object), Type: word(c.Type), Status: word(c.Status), Reason: word(c.Reason),
			Message: sanitize.Line(c.Message), Since: stamp(c.Since),
		})
	}
	return out
}

func blockingOf(list []Blocking) []blockingStatus {
	var out []blockingStatus
	for _, b := range list[:min(len(list), maxBlocked)] {
		out = append(out, blockingStatus{Object: sanitize.Line(b.Object), Message: sanitize.Line(b.Message), Since: stamp(b.Since)})
	}
	return out
}

func lines(list []string) []string {
	var out []string
	for _, s := range list[:min(len(list), maxShown)] {
		out = append(out, sanitize.Line(s))
	}
	return out
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// event is one line of history.jsonl. It comes from the history in the status
// of the releases, so that the file is never read back.
type event struct {
	Format    string   `json:"format"`
	Release   string   `json:"release"`
	State     string   `json:"state"`
	Version   string   `json:"version"`
	Digest    string   `json:"digest,omitempty"`
	Revision  string   `json:"revision,omitempty"`
	Verified  bool     `json:"verified"`
	Evidence  []string `json:"evidence,omitempty"`
	Started   string   `json:"started,omitempty"`
	Completed string   `json:"completed,omitempty"`

	at time.Time
}

// historyLines returns the history of all releases, oldest first.
func historyLines(r Report, keep int) ([]byte, error) {
	if keep <= 0 {
		keep = 1000
	}
	var all []event
	for _, x := range r.Releases {
		for _, h := range x.History {
			all = append(all, event{
				Format: statusFormat, Release: sanitize.Line(x.Name), State: word(h.State), Version: sanitize.Line(h.Version),
				Digest: sanitize.Line(h.Digest), Revision: sanitize.Line(h.Revision), Verified: h.Verified, Evidence: lines(h.Evidence),
				Started: stamp(h.Started), Completed: stamp(h.Completed), at: h.Started,
			})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int {
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.Release, b.Release))
	})
	all = all[max(0, len(all)-keep):]
	var out bytes.Buffer
	for _, e := range all {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		out.Write(append(data, '\n'))
	}
	return out.Bytes(), nil
}
