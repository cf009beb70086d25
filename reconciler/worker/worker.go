// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package worker holds the sync worker: the state machine that retrieves one
// release, applies it and keeps it applied.
//
// A pure core decides, in next; the loop of SyncWorker performs its actions
// and feeds back what happened. Retrieval, verification, load and
// preconditions run beside the apply in flight, so that a bad target never
// stops the good one: what is desired, accepted and applied are three fields.
//
// The package fetches, applies and reports nothing itself. PayloadRetriever,
// Preconditions, ResourceBuilder and StatusReporter are implemented by the
// caller.
package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

// Desired is the release that is asked for: what the retriever needs to
// verify, fetch and load it.
type Desired struct {
	payload.Identity
	// Signatures are digests of signature material to fetch first.
	Signatures []string
	// Revision of the source that asked; for a Path it is part of what is
	// asked for, for an Image it is only recorded.
	Revision string
	// Selection says which manifests of the payload are meant.
	Selection payload.Selection
	// Waivers name the blocking preconditions that are accepted.
	Waivers []string
}

// Equal reports whether d and other ask for the same content. Waivers and
// signatures help to accept content but don't change it.
func (d Desired) Equal(other Desired) bool {
	return d.Identity.Equal(other.Identity) && (d.Path == "" || d.Revision == other.Revision) && d.Selection.Equal(other.Selection)
}

// equal reports that nothing at all differs.
func (d Desired) identical(other Desired) bool {
	return d.Equal(other) && d.Revision == other.Revision &&
		slices.Equal(d.Signatures, other.Signatures) && slices.Equal(d.Waivers, other.Waivers)
}

// Override leaves one object of the payload to people: it is matched exactly
// and skipped in every state.
type Override struct {
	ID     payload.ObjectID
	Reason string
}

// PayloadInfo is a release that was retrieved, verified and loaded.
type PayloadInfo struct {
	// Payload is what was loaded.
	Payload *payload.Payload
	// Verified says that signatures satisfied the trust policy.
	Verified bool
	// Evidence is who signed, one line each, for the history.
	Evidence []string
}

// PayloadRetriever verifies, fetches and loads a release.
//
// While it works it may name its step with ReportStep. An error should carry
// Reason() string and Retriable() bool. It may be called anew before a call
// whose context ended has returned.
type PayloadRetriever interface {
	RetrievePayload(ctx context.Context, desired Desired) (PayloadInfo, error)
}

// Current is the release that the cluster has now, for the preconditions.
type Current struct {
	// Accepted is what is being applied, nil before the first.
	Accepted *payload.Payload
	// Applied is what was level last, nil before the first.
	Applied *payload.Payload
	// Overrides in force.
	Overrides []Override
}

// Preconditions gathers the facts about a release that was loaded and
// evaluates them: see package precondition.
type Preconditions interface {
	Check(ctx context.Context, desired Desired, target *payload.Payload, current Current) ([]precondition.Violation, error)
}

// ResourceBuilder changes the cluster. Its methods are called by several
// goroutines at once where not said otherwise. An error should be an
// *UpdateError or carry Reason() string and Retriable() bool.
type ResourceBuilder interface {
	// DryRun asks the server about the whole payload before its first write;
	// it runs beside the apply of another payload and changes nothing.
	DryRun(ctx context.Context, target *payload.Payload) error
	// Begin is called once before the first Apply of a payload in this
	// process, alone: the inventory becomes the union of old and new.
	Begin(ctx context.Context, target *payload.Payload) error
	// Apply makes one object as the manifest wants it and returns once the
	// write was answered. ctx ends when a new target pre-empts.
	Apply(ctx context.Context, manifest *payload.Manifest, state payload.State) (Written, error)
	// Await returns when an object that was applied is level, or with an error
	// when it failed or took too long; spent is how much of its time earlier
	// waits took. While it waits it says for what by ReportWaiting. The object
	// may be applied anew meanwhile. ctx ends when a new target pre-empts.
	Await(ctx context.Context, manifest *payload.Manifest, written Written, spent time.Duration) error
	// Prune deletes what the inventory holds and keep doesn't name; it is
	// called alone, only when all of keep was applied without an error.
	// Overridden objects are in keep.
	Prune(ctx context.Context, keep *payload.Payload) error
}

// Written is what an Apply left in the cluster.
type Written struct {
	// ResourceVersion of the answer; older states of the object say nothing.
	ResourceVersion string
	// Done says that there is nothing to wait for.
	Done bool
}

// StatusReporter hears of each change of the status. Report must not block
// and may be called by several goroutines at once.
type StatusReporter interface {
	Report(status SyncWorkerStatus)
}

// ConfigSyncWorker abstracts the worker for those who drive one.
type ConfigSyncWorker interface {
	// Start runs until ctx ends and everything it started has returned.
	Start(ctx context.Context, maxWorkers int)
	// Update asks for a release and returns the status at once.
	Update(generation int64, desired Desired, overrides []Override, state payload.State) *SyncWorkerStatus
	// Status returns a copy of the status.
	Status() *SyncWorkerStatus
	// StatusCh is a lossy trigger to read the latest status.
	StatusCh() <-chan SyncWorkerStatus
}

// Step is what the worker does for the desired release.
type Step string

// The steps in their order.
const (
	StepRetrievePayload    Step = "RetrievePayload"
	StepVerifyPayload      Step = "VerifyPayload"
	StepLoadPayload        Step = "LoadPayload"
	StepPreconditionChecks Step = "PreconditionChecks"
	StepDryRun             Step = "DryRun"
	StepPayloadLoaded      Step = "PayloadLoaded"
	StepApplyManifests     Step = "ApplyManifests"
	StepAwaitReady         Step = "AwaitReady"
	StepPruneObjects       Step = "PruneObjects"
	StepWatch              Step = "Watch"
)

// Release is a release that got as far as the field it stands in.
type Release struct {
	Desired
	// Product is the name in the payload's metadata.
	Product string
	// VersionHash is "sha256:<hex>" over the payload.
	VersionHash string
	// Verified says that signatures satisfied the trust policy.
	Verified bool
	// Evidence is who signed.
	Evidence []string
	// Checked says that the preconditions were evaluated by this process. Of a
	// release that it goes on with, nobody asks again: the two lists below are
	// empty then, whatever was found before.
	Checked bool
	// AcceptedRisks are the waived violations, one line each; Warnings those
	// that hold nothing back.
	AcceptedRisks, Warnings []string
}

// LoadStatus is how far the desired release got on its way to be accepted.
type LoadStatus struct {
	// Desired is the release that this is about.
	Desired Desired
	// Step reached or failed in.
	Step Step
	// Failure is why it wasn't accepted, nil while it may still be.
	Failure *UpdateError
	// Verified says that the release's signatures satisfied the trust policy,
	// by those in Evidence; also of a release that was refused afterwards.
	Verified bool
	Evidence []string
	// Violations are those found by the preconditions, waived ones included.
	Violations []precondition.Violation
	// Attempt counts from 1; RetryAt is the next one, zero if none is due.
	Attempt int
	RetryAt time.Time
	// LastTransition is when Step or Failure changed.
	LastTransition time.Time
}

// Blocking is an object that keeps the release from being level.
type Blocking struct {
	// Object is its identity, RunLevel and Component its place.
	Object    payload.ObjectID
	RunLevel  int
	Component string
	// Since is when the wait or the failure began.
	Since time.Time
	// Reason and Message are the object's own.
	Reason, Message string
	// Effect says whether it counts as failing.
	Effect Effect
	// Retriable says that it may go away without anybody's doing.
	Retriable bool
	// RetryAt is the next try, Deadline the end of the wait; zero if none.
	RetryAt, Deadline time.Time
}

// WaitClock tells how much of the time that an object may take is spent.
type WaitClock struct {
	// Spent until the clock was looked at last.
	Spent time.Duration
	// Running is when that was; zero while the clock stands still.
	Running time.Time
}

// At is what is spent at a time.
func (c WaitClock) At(now time.Time) time.Duration {
	if c.Running.IsZero() || now.Before(c.Running) {
		return c.Spent
	}
	return c.Spent + now.Sub(c.Running)
}

// HistoryState is Partial or Completed.
type HistoryState string

// The states of a history entry.
const (
	HistoryPartial   HistoryState = "Partial"
	HistoryCompleted HistoryState = "Completed"
)

// HistoryFact is one release that was started here.
type HistoryFact struct {
	Release
	State HistoryState
	// Started is when it was first applied; Ended when it was level or
	// superseded, zero before.
	Started, Ended time.Time
}

// maxBlocking and maxHistory bound the lists of a status.
const (
	maxBlocking = 20
	maxHistory  = 100
)

// SyncWorkerStatus is the status of the worker at one time.
type SyncWorkerStatus struct {
	// Generation is that of the last Update.
	Generation int64

	// Step and Failure are those of the apply: Failure is nil when the last
	// pass over the accepted release met no error.
	Step    Step
	Failure *UpdateError

	// Done of Total manifests, Skipped ones included in Done: it reaches
	// Total when a pass ends well. Fraction is Done/Total.
	Done, Total, Skipped int
	Fraction             float32
	// RunLevel is the level that is being applied, -1 for none.
	RunLevel int
	// State decides order and waits of the pass.
	State payload.State
	// Attempt counts the passes since the last one that ended well.
	Attempt int
	// Completed counts the passes in a row that ended well.
	Completed int
	// Reconciling says that the accepted release is level and kept so;
	// Initial that no release was ever level.
	Reconciling, Initial bool
	// Paused says that nothing is applied until it is resumed.
	Paused bool
	// VersionHash of the accepted release.
	VersionHash string
	// LastProgress is when something last got further.
	LastProgress time.Time
	// NextSync is when the next pass is due, zero while one runs.
	NextSync time.Time

	// Desired is what is asked for, Load how far it got.
	Desired Desired
	Load    LoadStatus
	// Actual is the accepted release: verified, loaded, being applied.
	Actual Release
	// Verified is Actual's.
	Verified bool
	// Applied is the release that was level last.
	Applied Release
	// Blocking are at most 20 objects, the root cause first; BlockingTotal
	// counts what was cut.
	Blocking      []Blocking
	BlockingTotal int
	// Failed counts those of BlockingTotal that didn't apply or gave up; the
	// others are waited for.
	Failed int
	// History are the releases started by this process, newest first.
	History []HistoryFact
	// Waits are the clocks of the objects that aren't level yet, or of what is
	// ill since, for the next process.
	Waits map[payload.ObjectID]WaitClock
	// Warnings of the accepted payload's load.
	Warnings []string
	// Excluded counts its documents that the selection leaves out.
	Excluded int
	// EnabledCapabilities are those in force with it, ImplicitCapabilities
	// those of them that weren't asked for but can't be taken away.
	EnabledCapabilities, ImplicitCapabilities []string
	// DriftRepairs counts objects that were applied anew after a drift.
	DriftRepairs int
}

// DeepCopy returns a copy that shares nothing that may change.
func (s SyncWorkerStatus) DeepCopy() *SyncWorkerStatus {
	s.Blocking = slices.Clone(s.Blocking)
	s.History = slices.Clone(s.History)
	s.Load.Violations = slices.Clone(s.Load.Violations)
	s.Waits = maps.Clone(s.Waits)
	return &s
}

// SyncWork is what one pass has to do.
type SyncWork struct {
	Desired   Desired
	Overrides []Override
	State     payload.State

	// Attempt is the number of failed sync attempts of this work since the last
	// successful one.
	Attempt int
}
