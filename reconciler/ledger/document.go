// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the one record of a cluster that says which node may be
// disrupted, by which attempt, under which fence; beside it the high-water
// marks of versions and what has failed where.
//
// The document is plain data with pure operations; Store reads it and writes
// it by compare-and-swap on the resourceVersion of one ConfigMap, so that of
// two leaders that plan on the same state one only can claim. Nobody but the
// rollout executor and the release recorder writes it. If it is lost, the
// rollout builds it up again from what Nodes and agents say before it claims
// anything; status is derived from it and never read back into it.
package ledger

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version is the format that this package writes. Readers accept Version-1 to
// Version+1.
const Version = 1

// Limits of a document; what would exceed them is refused by Encode, never cut
// silently.
const (
	// MaxBytes is the longest encoded document; a ConfigMap holds 1 MiB.
	MaxBytes = 900 << 10
	// MaxSlots is how many nodes may be in flight in a cluster.
	MaxSlots = 512
	// MaxPools is how many pools a document knows.
	MaxPools = 128
	// MaxMarks is how many products have a high-water mark.
	MaxMarks = 128
	// MaxHosts is how many failures, retries or hosts of a denial a pool keeps;
	// the oldest go first.
	MaxHosts = 100
	// MaxDenials is how many denied digests a pool keeps; the oldest go first.
	MaxDenials = 20
	// MaxCommitted is how many committed targets a pool remembers.
	MaxCommitted = 10
	// MaxDurations is how many attempt durations a pool remembers.
	MaxDurations = 10
)

// State is where an attempt on a host stands. The states before Claimed and
// Idle are never stored: they follow from what the agent reports.
type State string

// The states of a host in a rollout, in the order of a good run, then those of
// a bad one.
const (
	Idle        State = "Idle"
	Staging     State = "Staging"
	Claimed     State = "Claimed"
	Draining    State = "Draining"
	Drained     State = "Drained"
	Rebooting   State = "Rebooting"
	Verifying   State = "Verifying"
	Committing  State = "Committing"
	Releasing   State = "Releasing"
	Aborted     State = "Aborted"
	RollingBack State = "RollingBack"
	RolledBack  State = "RolledBack"
	Lost        State = "Lost"
	Quarantined State = "Quarantined"
)

// Document is everything the ledger says. The zero value is an empty ledger of
// no cluster.
type Document struct {
	// Version is the format that the writer used.
	Version int `json:"version"`
	// Fence is the newest one that was given out.
	Fence Fence `json:"fence"`
	// Slots are the nodes that may be disrupted now, by the UID of the Node.
	Slots map[string]Slot `json:"slots,omitempty"`
	// Pools are what is remembered of each pool, by the UID of the NodeOS.
	Pools map[string]Pool `json:"pools,omitempty"`
	// Marks are the highest completed versions, by product.
	Marks map[string]Mark `json:"marks,omitempty"`
	// extra holds the sections of a newer format, to be written back as read.
	extra map[string][]byte
}

// Fence orders the leaders of a cluster: agents refuse orders of a lower epoch
// and of another cluster.
type Fence struct {
	ClusterUID string `json:"clusterUID,omitempty"`
	Epoch      uint64 `json:"epoch"`
	// Holder names the process that acquired it. Agents don't see it: it
	// tells two leaders apart that came to the same epoch because the ledger
	// was lost in between.
	Holder string `json:"holder,omitempty"`
}

// Image is an OS image by version and digest.
type Image struct {
	Version string `json:"version,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// Slot is the permission to disrupt one node for one attempt. It's written
// before and freed after everything that disrupts.
type Slot struct {
	// Node is the name, for people; the key of the slot is the UID.
	Node string `json:"node"`
	// Pool is the UID of the NodeOS, PoolName its name.
	Pool     string `json:"pool"`
	PoolName string `json:"poolName,omitempty"`
	// Attempt identifies the try; agents and the cordon annotation carry it.
	Attempt string `json:"attempt"`
	// Epoch is that of the fence under which the slot was claimed.
	Epoch uint64 `json:"epoch"`
	// Target is what the attempt installs, Ref where it comes from.
	Target Image  `json:"target"`
	Ref    string `json:"ref,omitempty"`
	State  State  `json:"state"`
	// ClaimedAt is t0: deadlines count from stored times, never from a
	// process's memory.
	ClaimedAt time.Time `json:"claimedAt"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// ControlPlane marks nodes of which one only may be in flight.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// PrevBootID and PrevDigest are what ran when Activate was ordered.
	PrevBootID string `json:"prevBootID,omitempty"`
	PrevDigest string `json:"prevDigest,omitempty"`
	// ActivatedAt is when the order to boot the target was first allowed.
	ActivatedAt time.Time `json:"activatedAt,omitzero"`
	// AutoCommit says that the host was told to commit by its own checks.
	AutoCommit bool `json:"autoCommit,omitempty"`
	// TrialBootID is the boot under verification; VerifyingSince its start.
	TrialBootID    string    `json:"trialBootID,omitempty"`
	VerifyingSince time.Time `json:"verifyingSince,omitzero"`
	// HealthySince is when all gates first passed without a break, as seen by
	// the leader of HealthyEpoch; another leader starts the soak again.
	HealthySince time.Time `json:"healthySince,omitzero"`
	HealthyEpoch uint64    `json:"healthyEpoch,omitempty"`
	// Reason says in one word why a bad state was entered, Message in a line.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Nonce is the rerun nonce that stood on the host at the claim.
	Nonce string `json:"nonce,omitempty"`
}

// Owner is what the cordon of this slot carries: the attempt and the epoch of
// the claim, so that a late step of an older claim can't take it for its own.
func (s Slot) Owner() string { return s.Attempt + "." + strconv.FormatUint(s.Epoch, 10) }

// ParseOwner reads what Owner wrote; the attempt of anything else is empty.
func ParseOwner(owner string) (attempt string, epoch uint64) {
	attempt, digits, ok := strings.Cut(owner, ".")
	epoch, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		return "", 0
	}
	return attempt, epoch
}

// Pool is what must be remembered of a pool between two plans.
type Pool struct {
	Name string `json:"name"`
	// Since is when the pool was first planned under this ledger.
	Since time.Time `json:"since,omitzero"`
	// Target is the digest that the pool was planned for last, Round the
	// NodeOS' generation when it became the target; it only rises.
	Target string `json:"target,omitempty"`
	Round  int64  `json:"round,omitempty"`
	// Canary is how far the canary steps of the current target are.
	Canary Canary `json:"canary,omitzero"`
	// Failures are the failed hosts since the last resume.
	Failures []Failure `json:"failures,omitempty"`
	// Denied are digests that must not be tried again.
	Denied []Denial `json:"denied,omitempty"`
	// Retries hold hosts back after an aborted attempt.
	Retries []Retry `json:"retries,omitempty"`
	// Committed are the verified targets that healthy hosts have committed, or ran
	// when they were declared, newest last.
	Committed []Committed `json:"committed,omitempty"`
	// Durations are those of the last good attempts, claim to free.
	Durations []time.Duration `json:"durations,omitempty"`
	// Released are the owners of slots that were freed lately: a cordon that
	// carries one came late, from a leader that was stopped in between.
	Released []Released `json:"released,omitempty"`
	// Resumed is the value of the resume annotation that was acted on last.
	Resumed string `json:"resumed,omitempty"`
}

// Released is the owner of a freed slot.
type Released struct {
	NodeUID string    `json:"nodeUID"`
	Owner   string    `json:"owner"`
	At      time.Time `json:"at"`
}

// Canary is the progress through the canary steps of one target.
type Canary struct {
	Digest string `json:"digest,omitempty"`
	// Step is the index of the step that is being done; len(steps) is past all.
	Step int `json:"step,omitempty"`
	// Since is when the step's hosts were all updated and healthy.
	Since time.Time `json:"since,omitzero"`
}

// Failure is one host on which a target failed.
type Failure struct {
	NodeUID string    `json:"nodeUID"`
	Node    string    `json:"node"`
	Digest  string    `json:"digest"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
}

// Denial says where a digest must not be tried again, and why.
type Denial struct {
	Digest string `json:"digest"`
	// Pool extends the denial from the hosts listed to the whole pool.
	Pool  bool         `json:"pool,omitempty"`
	Hosts []DeniedHost `json:"hosts,omitempty"`
	Since time.Time    `json:"since"`
}

// DeniedHost is one host that a digest failed on.
type DeniedHost struct {
	NodeUID string    `json:"nodeUID"`
	Node    string    `json:"node"`
	BootID  string    `json:"bootID,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
	// Nonce is the host's rerun nonce then; another one lifts the denial.
	Nonce string `json:"nonce,omitempty"`
}

// Retry holds one host back after an attempt was aborted.
type Retry struct {
	NodeUID   string    `json:"nodeUID"`
	Digest    string    `json:"digest"`
	Count     int       `json:"count"`
	NotBefore time.Time `json:"notBefore"`
	Reason    string    `json:"reason,omitempty"`
}

// Committed is a target that at least one healthy host has committed.
type Committed struct {
	Image
	Hosts int       `json:"hosts"`
	At    time.Time `json:"at"`
}

// Mark is the highest version of a product that has completed.
type Mark struct {
	Image
	At time.Time `json:"at"`
}

// Clone returns a copy that shares nothing with d.
func (d Document) Clone() Document {
	out := d
	out.Slots = maps.Clone(d.Slots)
	out.Marks = maps.Clone(d.Marks)
	out.extra = maps.Clone(d.extra)
	out.Pools = maps.Clone(d.Pools)
	for uid, p := range out.Pools {
		out.Pools[uid] = p.Clone()
	}
	return out
}

// Clone returns a copy that shares nothing with p.
func (p Pool) Clone() Pool {
	p.Failures = slices.Clone(p.Failures)
	p.Retries = slices.Clone(p.Retries)
	p.Committed = slices.Clone(p.Committed)
	p.Durations = slices.Clone(p.Durations)
	p.Released = slices.Clone(p.Released)
	p.Denied = slices.Clone(p.Denied)
	for i := range p.Denied {
		p.Denied[i].Hosts = slices.Clone(p.Denied[i].Hosts)
	}
	return p
}

// SetSlot puts s under the node's UID.
func (d *Document) SetSlot(nodeUID string, s Slot) {
	if d.Slots == nil {
		d.Slots = map[string]Slot{}
	}
	d.Slots[nodeUID] = s
}

// FreeSlot removes the slot of a node; freeing what's free changes nothing.
func (d *Document) FreeSlot(nodeUID string) { delete(d.Slots, nodeUID) }

// SetPool puts p under the pool's UID.
func (d *Document) SetPool(uid string, p Pool) {
	if d.Pools == nil {
		d.Pools = map[string]Pool{}
	}
	d.Pools[uid] = p
}

// HasCommitted says whether a healthy host of the pool has committed digest.
func (p Pool) HasCommitted(digest string) bool {
	return slices.ContainsFunc(p.Committed, func(c Committed) bool { return c.Digest == digest })
}

// Denial returns the denial of digest, if there is one.
func (p Pool) Denial(digest string) (Denial, bool) {
	i := slices.IndexFunc(p.Denied, func(d Denial) bool { return d.Digest == digest })
	if i < 0 {
		return Denial{}, false
	}
	return p.Denied[i], true
}

// AddCommitted records that a healthy host committed img.
func (p *Pool) AddCommitted(img Image, now time.Time) {
	if i := slices.IndexFunc(p.Committed, func(c Committed) bool { return c.Digest == img.Digest }); i >= 0 {
		c := p.Committed[i]
		c.Hosts, c.At = c.Hosts+1, now
		p.Committed = append(slices.Delete(p.Committed, i, i+1), c)
		return
	}
	p.Committed = newest(append(p.Committed, Committed{Image: img, Hosts: 1, At: now}), MaxCommitted)
}

// Deny records that digest failed on host. The denial becomes one of the whole
// pool when poolAfter distinct hosts are on it, but never for a digest that a
// healthy host of the pool has committed: one liar can't speak for the fleet.
func (p *Pool) Deny(digest string, host DeniedHost, poolAfter int) {
	i := slices.IndexFunc(p.Denied, func(d Denial) bool { return d.Digest == digest })
	if i < 0 {
		p.Denied = newest(append(p.Denied, Denial{Digest: digest, Since: host.At}), MaxDenials)
		i = len(p.Denied) - 1
	}
	d := &p.Denied[i]
	if j := slices.IndexFunc(d.Hosts, func(h DeniedHost) bool { return h.NodeUID == host.NodeUID }); j >= 0 {
		d.Hosts[j] = host
	} else {
		d.Hosts = newest(append(d.Hosts, host), MaxHosts)
	}
	if len(d.Hosts) >= poolAfter && !p.HasCommitted(digest) {
		d.Pool = true
	}
	p.Failures = slices.DeleteFunc(p.Failures, func(f Failure) bool { return f.NodeUID == host.NodeUID && f.Digest == digest })
	p.Failures = newest(append(p.Failures, Failure{
		NodeUID: host.NodeUID, Node: host.Node, Digest: digest, Reason: host.Reason, At: host.At,
	}), MaxHosts)
}

// AddDuration records how long a good attempt lasted.
func (p *Pool) AddDuration(d time.Duration) {
	p.Durations = newest(append(p.Durations, d), MaxDurations)
}

// AddRetry records an aborted attempt and returns when the host may be claimed
// again: base, doubled with each abort in a row, at most limit.
func (p *Pool) AddRetry(r Retry, base, limit time.Duration, now time.Time) time.Time {
	i := slices.IndexFunc(p.Retries, func(x Retry) bool { return x.NodeUID == r.NodeUID })
	r.Count = 1
	if i >= 0 {
		if p.Retries[i].Digest == r.Digest {
			r.Count = p.Retries[i].Count + 1
		}
		p.Retries = slices.Delete(p.Retries, i, i+1)
	}
	wait := base
	for range r.Count - 1 {
		if wait *= 2; wait >= limit {
			break
		}
	}
	r.NotBefore = now.Add(min(wait, limit))
	p.Retries = newest(append(p.Retries, r), MaxHosts)
	return r.NotBefore
}

// Retry returns what holds the host back from digest, if anything does.
func (p Pool) Retry(nodeUID, digest string) (Retry, bool) {
	i := slices.IndexFunc(p.Retries, func(x Retry) bool { return x.NodeUID == nodeUID && x.Digest == digest })
	if i < 0 {
		return Retry{}, false
	}
	return p.Retries[i], true
}

// AddReleased remembers that the slot of a node was freed, for keep.
func (p *Pool) AddReleased(nodeUID, owner string, keep time.Duration, now time.Time) {
	p.Released = slices.DeleteFunc(p.Released, func(r Released) bool { return now.Sub(r.At) > keep })
	p.Released = newest(append(p.Released, Released{NodeUID: nodeUID, Owner: owner, At: now}), MaxHosts)
}

// HasReleased says whether a slot of that owner was freed since.
func (p Pool) HasReleased(nodeUID, owner string, since time.Time) bool {
	return slices.ContainsFunc(p.Released, func(r Released) bool {
		return r.NodeUID == nodeUID && r.Owner == owner && !r.At.Before(since)
	})
}

// ClearRetry drops what holds a host back.
func (p *Pool) ClearRetry(nodeUID string) {
	p.Retries = slices.DeleteFunc(p.Retries, func(x Retry) bool { return x.NodeUID == nodeUID })
}

// FailuresOf counts the distinct hosts on which digest failed since the last
// resume.
func (p Pool) FailuresOf(digest string) int {
	n := 0
	for _, f := range p.Failures {
		if f.Digest == digest {
			n++
		}
	}
	return n
}

// last keeps the newest limit entries of s.
func newest[T any](s []T, limit int) []T {
	if len(s) > limit {
		return slices.Delete(s, 0, len(s)-limit)
	}
	return s
}
