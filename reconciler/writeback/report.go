// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package writeback tells what happened where the desired state came from: it
// renders a Report as the files of the status branch and publishes them as a
// commit, once a meaningful change.
//
// Rendering is pure. The Writer is one goroutine that holds the latest report
// only: a dead Git server delays nobody, and after an outage one commit tells
// the present state. Nothing is read back from the status branch. Every string
// that others wrote passes package foreign; trailers are made of typed values
// alone.
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

// Report is how a cluster stands, as plain values. It must not be changed
// after it was handed over.
type Report struct {
	// Cluster is GitSource.spec.cluster.
	Cluster string
	// Source is where the desired state was read.
	Source Source
	// Releases and Pools, in any order.
	Releases []Release
	Pools    []Pool
	// Conditions that people should know of, of any object.
	Conditions []Condition
	// Insecure are the development doors that are open, in our own words; none
	// in production.
	Insecure []string
}

// Source says which revision is accepted and who signed it.
type Source struct {
	Name string
	// Revision is the accepted one.
	Revision sources.Revision
	// Signer was verified; nil: unverified.
	Signer *sources.Signer
	// Accepted is when.
	Accepted time.Time
	// Attempted is a newer revision that was refused, with the reason why;
	// zero if there is none.
	Attempted sources.Revision
	Reason    string
	// Message says more about the refusal.
	Message string
	// CommitLink is the URL of the accepted commit on the forge, or "".
	CommitLink string
}

// Blocking is what holds something up.
type Blocking struct {
	// Object as "Deployment web/api" or "node-13".
	Object string
	// Message says what is the matter with it.
	Message string
	Since   time.Time
}

// Release is a ClusterRelease.
type Release struct {
	Name string
	// Now is the version that is level, Wanted the declared one.
	Now, Wanted string
	// Digest of the wanted payload, "sha256:<hex>".
	Digest string
	// State as the sync worker says: Initial, Updating, Reconciling, Error; or
	// Paused, Refused, Waiting.
	State string
	// Done of Total manifests.
	Done, Total int
	Since       time.Time
	// Signers are the authorities that signed the wanted payload.
	Signers  []string
	Blocking []Blocking
	// History, newest first.
	History []History
}

// History is one version that ran, or was tried.
type History struct {
	State           string // Completed or Partial
	Version, Digest string
	// Revision of the source that asked for it.
	Revision           string
	Verified           bool
	Evidence           []string
	Started, Completed time.Time
}

// Pool is a NodeOS.
type Pool struct {
	Name        string
	Now, Wanted string
	Digest      string
	// State in one word: Level, Updating, Halted, Paused, Waiting, Refused.
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

// sorted returns r with everything in a stable order, without changing it.
func (r Report) sorted() Report {
	r.Releases = slices.SortedFunc(slices.Values(r.Releases), func(a, b Release) int { return strings.Compare(a.Name, b.Name) })
	r.Pools = slices.SortedFunc(slices.Values(r.Pools), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	r.Conditions = slices.SortedFunc(slices.Values(r.Conditions), func(a, b Condition) int {
		return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Type, b.Type))
	})
	return r
}

// progress is the whole report in percent, 100 when nothing is on its way:
// the mean over releases and pools that aren't level.
func (r Report) progress() int {
	sum, n := 0, 0
	add := func(done, total int) {
		if total > 0 {
			sum += 100 * min(done, total) / total
		}
		n++
	}
	for _, x := range r.Releases {
		if !x.level() {
			add(x.Done, x.Total)
		}
	}
	for _, x := range r.Pools {
		if !x.level() {
			add(x.Updated, x.Total)
		}
	}
	if n == 0 {
		return 100
	}
	return min(sum/n, 99)
}

func (x Release) level() bool {
	return x.Now != "" && x.Now == x.Wanted && x.State != "Error" && x.State != "Updating" && x.State != "Initial"
}

func (x Pool) level() bool { return x.Total == x.Updated && x.InFlight == 0 && x.Failed == 0 }

// phase is the report in one word.
func (r Report) phase() string {
	phase := "Complete"
	worse := func(state string, level bool) {
		switch {
		case state == "Error" || state == "Halted":
			phase = "Failing"
		case !level && phase == "Complete":
			phase = "Progressing"
		}
	}
	for _, x := range r.Releases {
		worse(x.State, x.level())
	}
	for _, x := range r.Pools {
		worse(x.State, x.level())
	}
	return phase
}

// Key identifies what is worth a commit: phases, not ticks. Two reports with
// the same key differ only in counts within a tenth, in times and in wording.
func (r Report) Key() string {
	r = r.sorted()
	var b strings.Builder
	write := func(parts ...any) { fmt.Fprintf(&b, "%q\n", fmt.Sprint(parts...)) }
	write(r.Cluster, "|", r.Source.Revision, "|", r.Source.Attempted, "|", r.Source.Reason, "|", r.Insecure)
	if s := r.Source.Signer; s != nil {
		write(s.Name, "|", s.Fingerprint)
	}
	for _, x := range r.Releases {
		write("release|", x.Name, "|", x.Now, "|", x.Wanted, "|", x.Digest, "|", x.State, "|", tenth(x.Done, x.Total), "|", x.Signers, "|", len(x.History))
		writeBlocking(write, x.Blocking)
	}
	for _, x := range r.Pools {
		write("pool|", x.Name, "|", x.Now, "|", x.Wanted, "|", x.Digest, "|", x.State, "|", tenth(x.Updated, x.Total), "|", x.Failed, "|", x.Held, "|", x.Total)
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
	// version is what may stand bare in Markdown, a subject or a trailer: it
	// holds nothing that a forge would make a link, a mention or emphasis of.
	versionForm = regexp.MustCompile(`^v?[0-9]+(\.[0-9]+){0,3}([-+][0-9A-Za-z][0-9A-Za-z.-]{0,40})?$`)
	wordForm    = regexp.MustCompile(`^[A-Z][A-Za-z]{0,40}$`)
	digestForm  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	clusterForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	refForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./_-]{0,100}$`)
	linkForm    = regexp.MustCompile(`^https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)+$`)
)

// word returns s if it's one CamelCase word, as states and reasons are.
func word(s string) string {
	if wordForm.MatchString(s) {
		return s
	}
	return "Unknown"
}
