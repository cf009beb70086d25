// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package writeback publishes the status of a cluster on the status branch of
// its source. A Reporter reads the declared objects into a Report and sends it
// to the Writer of each source, which renders it as files and commits them
// after each significant change.
//
// Rendering is pure. A Writer keeps the latest report only, so that a failing
// Git server blocks no caller and one commit follows an outage. Nothing is read
// back from the status branch. Untrusted strings pass package sanitize;
// trailers contain typed values only.
package writeback

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

// Report is the status of a cluster. It must not change after Put.
type Report struct {
	// Cluster is GitSource.spec.cluster.
	Cluster string
	// Source is the source of the desired state.
	Source Source
	// Releases and Pools, in any order.
	Releases []Release
	Pools    []Pool
	// Conditions are the conditions of all objects that report a problem.
	Conditions []Condition
	// Insecure are the active insecure options, as trusted text.
	Insecure []string
}

// Source is a GitSource with its accepted revision.
type Source struct {
	Name string
	// Revision is the accepted revision, Accepted the time of its acceptance.
	Revision sources.Revision
	Accepted time.Time
	// Signer is the verified signer, nil for an unverified revision.
	Signer *sources.Signer
	// Attempted is a newer, rejected revision, zero if there is none. Reason
	// and Message are those of the rejection.
	Attempted       sources.Revision
	Reason, Message string
	// CommitLink is the URL of the accepted commit on the forge, or "".
	CommitLink string
}

// Blocking is an object that blocks a release or a pool.
type Blocking struct {
	// Object as "Deployment web/api" or "node-13".
	Object  string
	Message string
	Since   time.Time
}

// Release is a ClusterRelease.
type Release struct {
	Name string
	// Current is the last complete version, Desired the declared version.
	Current, Desired string
	// Digest of the desired payload, "sha256:<hex>".
	Digest string
	// State is the worker's state, Initial, Updating, Reconciling or Error; or
	// Paused, Rejected or Waiting.
	State string
	// Done of Total manifests.
	Done, Total int
	Since       time.Time
	// Signers are the authorities that signed the desired payload.
	Signers  []string
	Blocking []Blocking
	// History, newest first.
	History []History
}

// History is one version that was applied or attempted.
type History struct {
	State           string // Completed or Partial
	Version, Digest string
	// Revision of the source that declared it.
	Revision           string
	Verified           bool
	Evidence           []string
	Started, Completed time.Time
}

// Pool is a NodeOS.
type Pool struct {
	Name             string
	Current, Desired string
	Digest           string
	// State is Complete, Updating, Halted, Paused, Waiting or Rejected.
	State string
	// Updated of Total hosts.
	Updated, Total, Staged, InFlight, Failed, Held int
	Since                                          time.Time
	Blocking                                       []Blocking
}

// Condition of an object.
type Condition struct {
	// Object as "ClusterRelease/platform".
	Object string
	// Type, Status and Reason as in Kubernetes.
	Type, Status, Reason string
	Message              string
	Since                time.Time
}

// sorted returns a copy of r in a stable order.
func (r Report) sorted() Report {
	r.Releases = slices.SortedFunc(slices.Values(r.Releases), func(a, b Release) int { return strings.Compare(a.Name, b.Name) })
	r.Pools = slices.SortedFunc(slices.Values(r.Pools), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	r.Conditions = slices.SortedFunc(slices.Values(r.Conditions), func(a, b Condition) int {
		return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Type, b.Type))
	})
	return r
}

// progress is the mean progress of the incomplete releases and pools in
// percent, 100 if all are complete.
func (r Report) progress() int {
	sum, n := 0, 0
	add := func(done, total int) {
		if total > 0 {
			sum += 100 * min(done, total) / total
		}
		n++
	}
	for _, x := range r.Releases {
		if !x.complete() {
			add(x.Done, x.Total)
		}
	}
	for _, x := range r.Pools {
		if !x.complete() {
			add(x.Updated, x.Total)
		}
	}
	if n == 0 {
		return 100
	}
	return min(sum/n, 99)
}

func (x Release) complete() bool {
	return x.Current != "" && x.Current == x.Desired && x.State != "Error" && x.State != "Updating" && x.State != "Initial"
}

func (x Pool) complete() bool { return x.Total == x.Updated && x.InFlight == 0 && x.Failed == 0 }

// phase is Complete, Progressing or Failing.
func (r Report) phase() string {
	phase := "Complete"
	worse := func(state string, complete bool) {
		switch {
		case state == "Error" || state == "Halted":
			phase = "Failing"
		case !complete && phase == "Complete":
			phase = "Progressing"
		}
	}
	for _, x := range r.Releases {
		worse(x.State, x.complete())
	}
	for _, x := range r.Pools {
		worse(x.State, x.complete())
	}
	return phase
}

// Key identifies the content that deserves a commit. Reports with the same key
// differ only in counts within a tenth, times and messages.
func (r Report) Key() string {
	r = r.sorted()
	var b strings.Builder
	write := func(parts ...any) { fmt.Fprintf(&b, "%q\n", fmt.Sprint(parts...)) }
	write(r.Cluster, "|", r.Source.Revision, "|", r.Source.Attempted, "|", r.Source.Reason, "|", r.Insecure)
	if s := r.Source.Signer; s != nil {
		write(s.Name, "|", s.Fingerprint)
	}
	for _, x := range r.Releases {
		write("release|", x.Name, "|", x.Current, "|", x.Desired, "|", x.Digest, "|", x.State, "|", tenth(x.Done, x.Total), "|", x.Signers, "|", len(x.History))
		writeBlocking(write, x.Blocking)
	}
	for _, x := range r.Pools {
		write("pool|", x.Name, "|", x.Current, "|", x.Desired, "|", x.Digest, "|", x.State, "|", tenth(x.Updated, x.Total), "|", x.Failed, "|", x.Held, "|", x.Total)
		writeBlocking(write, x.Blocking)
	}
	for _, c := range r.Conditions {
		write("condition|", c.Object, "|", c.Type, "|", c.Status, "|", c.Reason)
	}
	return b.String()
}

func writeBlocking(write func(...any), list []Blocking) {
	for _, b := range list {
		write("blocking|", b.Object)
	}
}

func tenth(done, total int) int {
	if total <= 0 {
		return 0
	}
	return 10 * min(done, total) / total
}

var (
	// versionForm is safe unquoted in Markdown, a subject or a trailer: it
	// contains nothing that a forge renders as a link, a mention or emphasis.
	versionForm = regexp.MustCompile(`^v?[0-9]+(\.[0-9]+){0,3}([-+][0-9A-Za-z][0-9A-Za-z.-]{0,40})?$`)
	wordForm    = regexp.MustCompile(`^[A-Z][A-Za-z]{0,40}$`)
	digestForm  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	clusterForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	refForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./_-]{0,100}$`)
	linkForm    = regexp.MustCompile(`^https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)+$`)
)

// word returns s if it is one CamelCase word, like a state or a reason, else
// "Unknown".
func word(s string) string {
	if wordForm.MatchString(s) {
		return s
	}
	return "Unknown"
}
