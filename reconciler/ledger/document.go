// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger stores which nodes may be disrupted, by which attempt and
// under which fence, with the high-water marks of versions and the failures per
// host. There is one ledger per cluster.
//
// Document is plain data with pure methods. Store reads and writes it by
// compare-and-swap on the resourceVersion of one ConfigMap, so that only one of
// two leaders can claim a node. Only the rollout executor and the release
// controller write it. If the ledger is lost, a rollout restores its slots from
// Nodes and agents before it claims any. Status is derived from the ledger,
// never the reverse.
package ledger

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/backoff"
)

// Version is the format that this package writes. Readers accept Version-1 to
// Version+1.
const Version = 1

// Limits of a document. Encode rejects a document that exceeds MaxBytes,
// MaxSlots, MaxPools or MaxMarks; the lists of a pool drop their oldest entries.
const (
	// MaxBytes is the maximum size of an encoded document; a ConfigMap may have
	// 1 MiB.
	MaxBytes = 900 << 10
	// MaxSlots is the maximum number of nodes in flight in a cluster.
	MaxSlots = 512
	// MaxPools is the maximum number of pools.
	MaxPools = 128
	// MaxMarks is the maximum number of products with a high-water mark.
	MaxMarks = 128
	// MaxHosts is the maximum number of failures, retries, released slots and
	// hosts of a denial per pool.
	MaxHosts = 100
	// MaxDenials is the maximum number of denied digests per pool.
	MaxDenials = 20
	// MaxCommitted is the maximum number of committed targets per pool.
	MaxCommitted = 10
	// MaxDurations is the maximum number of attempt durations per pool.
	MaxDurations = 10
)

// State is the state of an attempt on a host. Idle and Staging are never
// stored: they are derived from the agent's reports.
type State string

// The states of a successful attempt, in order, then those of a failed one.
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

// Document is the content of the ledger. The zero value is an empty ledger
// without a cluster.
type Document struct {
	// Version is the format version of the writer.
	Version int `json:"version"`
	// Fence is the newest fence.
	Fence Fence `json:"fence"`
	// Slots are the nodes that may be disrupted, by the UID of the Node.
	Slots map[string]Slot `json:"slots,omitempty"`
	// Pools are the records of the pools, by the UID of the NodeOS.
	Pools map[string]Pool `json:"pools,omitempty"`
	// Marks are the highest completed versions, by product.
	Marks map[string]Mark `json:"marks,omitempty"`
	// extra are the sections of a newer format; they are written back unchanged.
	extra map[string][]byte
}

// Fence orders the leaders of a cluster: agents reject orders with a lower epoch
// or of another cluster.
type Fence struct {
	ClusterUID string `json:"clusterUID,omitempty"`
	Epoch      uint64 `json:"epoch"`
	// Holder names the process that acquired the fence. It isn't sent to agents:
	// it distinguishes leaders that have the same epoch because the ledger was
	// lost.
	Holder string `json:"holder,omitempty"`
}

// Image is an OS image by version and digest.
type Image struct {
	Version string `json:"version,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// Slot is the permission to disrupt one node for one attempt. It is written
// before and freed after every disruption.
type Slot struct {
	// Node is the node's name, for display; slots are keyed by the Node's UID.
	Node string `json:"node"`
	// Pool is the UID of the NodeOS, PoolName its name.
	Pool     string `json:"pool"`
	PoolName string `json:"poolName,omitempty"`
	// Attempt is the attempt's ID; orders and the cordoned-by annotation contain
	// it.
	Attempt string `json:"attempt"`
	// Epoch is that of the fence under which the slot was claimed.
	Epoch uint64 `json:"epoch"`
	// Target is the image that the attempt installs, Ref its reference.
	Target Image  `json:"target"`
	Ref    string `json:"ref,omitempty"`
	State  State  `json:"state"`
	// ClaimedAt is when the slot was claimed. Deadlines count from stored times,
	// so that restarts don't reset them.
	ClaimedAt time.Time `json:"claimedAt"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// ControlPlane marks control-plane nodes: only one may be in flight.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// PrevBootID and PrevDigest are the boot and the digest that ran before
	// activation.
	PrevBootID string `json:"prevBootID,omitempty"`
	PrevDigest string `json:"prevDigest,omitempty"`
	// ActivatedAt is when the Activate order was first permitted.
	ActivatedAt time.Time `json:"activatedAt,omitzero"`
	// AutoCommit makes the agent commit after its own checks.
	AutoCommit bool `json:"autoCommit,omitempty"`
	// TrialBootID is the boot under verification, VerifyingSince its start.
	TrialBootID    string    `json:"trialBootID,omitempty"`
	VerifyingSince time.Time `json:"verifyingSince,omitzero"`
	// HealthySince is since when all gates pass without interruption, as observed
	// by the leader of HealthyEpoch; another leader restarts the soak.
	HealthySince time.Time `json:"healthySince,omitzero"`
	HealthyEpoch uint64    `json:"healthyEpoch,omitempty"`
	// Reason and Message explain why the attempt failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Nonce is the host's rerun nonce at the claim.
	Nonce string `json:"nonce,omitempty"`
}

// Owner returns the value of the cordoned-by annotation for the slot. It
// contains the epoch of the claim, so that a delayed step of an earlier claim
// doesn't match.
func (s Slot) Owner() string { return s.Attempt + "." + strconv.FormatUint(s.Epoch, 10) }

// ParseOwner parses the result of Owner; the attempt is empty if it's invalid.
func ParseOwner(owner string) (attempt string, epoch uint64) {
	attempt, digits, ok := strings.Cut(owner, ".")
	epoch, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		return "", 0
	}
	return attempt, epoch
}

// Pool is the state of a pool that is kept between plans.
type Pool struct {
	Name string `json:"name"`
	// Since is when this ledger's record of the pool was created.
	Since time.Time `json:"since,omitzero"`
	// Target is the digest of the last plan's target. Round increases with each
	// change of the target: to the NodeOS's generation or by one.
	Target string `json:"target,omitempty"`
	Round  int64  `json:"round,omitempty"`
	// Canary is the progress of the current target's canary steps.
	Canary Canary `json:"canary,omitzero"`
	// Failures are the failed hosts since the last resume.
	Failures []Failure `json:"failures,omitempty"`
	// Denied are the digests that must not be retried.
	Denied []Denial `json:"denied,omitempty"`
	// Retries delay hosts after an aborted attempt.
	Retries []Retry `json:"retries,omitempty"`
	// Committed are the verified targets that healthy hosts have committed or
	// were installed with, newest last.
	Committed []Committed `json:"committed,omitempty"`
	// Durations are those of the last successful attempts, from claim to free.
	Durations []time.Duration `json:"durations,omitempty"`
	// Released are the owners of recently freed slots. A cordon with such an
	// owner was added late, by an earlier leader.
	Released []Released `json:"released,omitempty"`
	// Resumed is the last value of the resume annotation that was handled.
	Resumed string `json:"resumed,omitempty"`
}

// Released is the owner of a freed slot.
type Released struct {
	NodeUID string    `json:"nodeUID"`
	Owner   string    `json:"owner"`
	At      time.Time `json:"at"`
}

// Canary is the progress of one target's canary steps.
type Canary struct {
	Digest string `json:"digest,omitempty"`
	// Step is the index of the current step; the number of steps if all are done.
	Step int `json:"step,omitempty"`
	// Since is since when all hosts of the step are updated and healthy.
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

// Denial is a digest that must not be retried on the listed hosts.
type Denial struct {
	Digest string `json:"digest"`
	// Pool extends the denial to the whole pool.
	Pool  bool         `json:"pool,omitempty"`
	Hosts []DeniedHost `json:"hosts,omitempty"`
	Since time.Time    `json:"since"`
}

// DeniedHost is one host on which a digest failed.
type DeniedHost struct {
	NodeUID string    `json:"nodeUID"`
	Node    string    `json:"node"`
	BootID  string    `json:"bootID,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	At      time.Time `json:"at"`
	// Nonce is the host's rerun nonce at the failure; another value lifts the
	// denial.
	Nonce string `json:"nonce,omitempty"`
}

// Retry delays the next attempt of a host after an abort.
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

// Clone returns a deep copy of d.
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

// Clone returns a deep copy of p.
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

// SetSlot sets the slot of a node.
func (d *Document) SetSlot(nodeUID string, s Slot) {
	if d.Slots == nil {
		d.Slots = map[string]Slot{}
	}
	d.Slots[nodeUID] = s
}

// FreeSlot removes the slot of a node, if there is one.
func (d *Document) FreeSlot(nodeUID string) { delete(d.Slots, nodeUID) }

// SetPool sets the record of a pool.
func (d *Document) SetPool(uid string, p Pool) {
	if d.Pools == nil {
		d.Pools = map[string]Pool{}
	}
	d.Pools[uid] = p
}

// HasCommitted reports whether a healthy host of the pool has committed digest.
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

// Deny records that digest failed on host. Failures on poolAfter distinct hosts
// deny the digest in the whole pool, except for a digest that a healthy host of
// the pool has committed (trust boundary T6).
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

// AddDuration records the duration of a successful attempt.
func (p *Pool) AddDuration(d time.Duration) {
	p.Durations = newest(append(p.Durations, d), MaxDurations)
}

// AddRetry records an aborted attempt and returns when the host may be claimed
// again: after the backoff of its consecutive aborts.
func (p *Pool) AddRetry(r Retry, base, limit time.Duration, now time.Time) time.Time {
	i := slices.IndexFunc(p.Retries, func(x Retry) bool { return x.NodeUID == r.NodeUID })
	r.Count = 1
	if i >= 0 {
		if p.Retries[i].Digest == r.Digest {
			r.Count = p.Retries[i].Count + 1
		}
		p.Retries = slices.Delete(p.Retries, i, i+1)
	}
	r.NotBefore = now.Add(backoff.Delay(base, limit, r.Count-1))
	p.Retries = newest(append(p.Retries, r), MaxHosts)
	return r.NotBefore
}

// Retry returns the retry of the host for digest, if there is one.
func (p Pool) Retry(nodeUID, digest string) (Retry, bool) {
	i := slices.IndexFunc(p.Retries, func(x Retry) bool { return x.NodeUID == nodeUID && x.Digest == digest })
	if i < 0 {
		return Retry{}, false
	}
	return p.Retries[i], true
}

// AddReleased records that the slot of a node was freed, and drops records
// older than keep.
func (p *Pool) AddReleased(nodeUID, owner string, keep time.Duration, now time.Time) {
	p.Released = slices.DeleteFunc(p.Released, func(r Released) bool { return now.Sub(r.At) > keep })
	p.Released = newest(append(p.Released, Released{NodeUID: nodeUID, Owner: owner, At: now}), MaxHosts)
}

// HasReleased reports whether a slot of that owner was freed since a time.
func (p Pool) HasReleased(nodeUID, owner string, since time.Time) bool {
	return slices.ContainsFunc(p.Released, func(r Released) bool {
		return r.NodeUID == nodeUID && r.Owner == owner && !r.At.Before(since)
	})
}

// ClearRetry removes the retries of a host.
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

// newest returns the last limit entries of s.
func newest[T any](s []T, limit int) []T {
	if len(s) > limit {
		return slices.Delete(s, 0, len(s)-limit)
	}
	return s
}
