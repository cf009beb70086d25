// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package worker implements the sync worker: the state machine that retrieves one
// release, applies it and keeps it applied.
//
// A pure core decides, in next; the loop of SyncWorker performs the actions and
// returns the results as events. Retrieval, verification, load and preconditions
// run in parallel to the sync, so that a rejected release never stops the accepted
// one: the desired, accepted and applied release are three fields.
//
// The caller implements PayloadRetriever, Preconditions, ResourceBuilder and
// StatusReporter.
//
// The type core is one state machine; its methods are the transitions and the
// parts of their result, which share its state.
package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Desired is a desired release: the input of the PayloadRetriever.
type Desired struct {
	payload.Identity
	// Signatures are digests of signature material to fetch first.
	Signatures []string
	// Revision is the declaring revision of the source. It identifies the content
	// of a Path; for an Image it is only recorded.
	Revision string
	// Selection selects the manifests of the payload.
	Selection payload.Selection
	// Waivers are digests of the waivers that Preconditions evaluates. A change of
	// them checks a rejected release again.
	Waivers []string
}

// Equal reports whether d and other have the same content, which doesn't depend on
// waivers and signatures.
func (d Desired) Equal(other Desired) bool {
	return d.Identity.Equal(other.Identity) && (d.Path == "" || d.Revision == other.Revision) && d.Selection.Equal(other.Selection)
}

// identical reports whether all fields are equal.
func (d Desired) identical(other Desired) bool {
	return d.Equal(other) && d.Revision == other.Revision &&
		slices.Equal(d.Signatures, other.Signatures) && slices.Equal(d.Waivers, other.Waivers)
}

// Override marks one object of the payload as unmanaged; it is skipped in every
// state.
type Override struct {
	ID     payload.ObjectID
	Reason string
}

// PayloadInfo is a retrieved, verified and loaded release.
type PayloadInfo struct {
	// Payload is the loaded payload, nil for one that was verified and rejected later.
	Payload  *payload.Payload
	verified bool
	evidence []string
}

// Retrieved returns the information about a release that satisfied the trust policy,
// and about its payload, nil before it is loaded. A payload of another digest isn't
// verified.
func Retrieved(signed verify.Signed, p *payload.Payload) PayloadInfo {
	info := PayloadInfo{Payload: p}
	if !signed.IsZero() && (p == nil || p.Digest == signed.Digest()) {
		info.verified, info.evidence = true, signed.Evidence().Lines()
	}
	return info
}

// Verified reports whether the signatures satisfy the trust policy. Only Retrieved,
// with a Signed, makes it true.
func (i PayloadInfo) Verified() bool { return i.verified }

// Evidence returns the verified signatures, one line each, for the history.
func (i PayloadInfo) Evidence() []string { return i.evidence }

// PayloadRetriever verifies, fetches and loads a release.
//
// An implementation can report its step with ReportStep. An error should have
// Reason() string and Retriable() bool. A call may start before an earlier call
// whose context ended has returned.
type PayloadRetriever interface {
	RetrievePayload(ctx context.Context, desired Desired) (PayloadInfo, error)
}

// Current is the current release of the cluster, for preconditions.
type Current struct {
	// Accepted is the payload being applied, nil before the first.
	Accepted *payload.Payload
	// Applied is the last complete payload, nil before the first.
	Applied *payload.Payload
	// Overrides are the active overrides.
	Overrides []Override
}

// Preconditions evaluates package precondition for a loaded release.
type Preconditions interface {
	Check(ctx context.Context, desired Desired, target *payload.Payload, current Current) ([]precondition.Violation, error)
}

// ResourceBuilder changes the cluster. Its methods are called concurrently unless
// noted otherwise. An error should be an *UpdateError or have Reason() string and
// Retriable() bool.
type ResourceBuilder interface {
	// DryRun validates the whole payload against the API server before its first
	// write. It runs in parallel to the apply of another payload.
	DryRun(ctx context.Context, target *payload.Payload) error
	// Begin is called once per payload and process, before the first Apply and not
	// concurrently: the inventory becomes the union of the old and the new payload.
	Begin(ctx context.Context, target *payload.Payload) error
	// Apply applies one manifest and returns the response of the server. ctx ends
	// when a new release pre-empts the sync.
	Apply(ctx context.Context, manifest *payload.Manifest, state payload.State) (Written, error)
	// Await returns nil once an applied object is ready, and an error if it failed
	// or timed out. spent is the part of its timeout that earlier waits used. While
	// it waits it reports the state with ReportWaiting. The object can be applied
	// again in the meantime. ctx ends when a new release pre-empts the sync.
	Await(ctx context.Context, manifest *payload.Manifest, written Written, spent time.Duration) error
	// Prune deletes the objects of the inventory that keep doesn't contain. It isn't
	// called concurrently, and only after all of keep was applied without an error.
	// keep includes unmanaged objects. Deletions that haven't ended don't delay the
	// release: Prune returns them, and is called again when Drifted reports one of
	// their objects.
	Prune(ctx context.Context, keep *payload.Payload) (Pruning, error)
}

// Pruning are the deletions of objects of earlier releases that haven't ended.
type Pruning struct {
	// Leaving are the objects being deleted, at most 20; Total counts all of them.
	Leaving []Leaving
	Total   int
	// Waiting counts the objects that are deleted after these.
	Waiting int
	// Held is why other objects aren't deleted yet, "" for none: another release
	// claims them, or may claim them once it is loaded.
	Held string
}

// Leaving is an object that is being deleted.
type Leaving struct {
	Object payload.ObjectID
	// Since is when it was deleted.
	Since time.Time
	// Finalizers are those that remain; Content is what the API server reports about
	// the content of a namespace, or "".
	Finalizers []string
	Content    string
}

// Written is the result of Apply.
type Written struct {
	// ResourceVersion of the response; the health of older versions is ignored.
	ResourceVersion string
	// Outdated is a digest of the response's status if the apply changed the
	// object's specification, else "". A status with this digest may describe the
	// former specification.
	Outdated string
	// Done reports that there is nothing to await.
	Done bool
	// Deferred reports that nothing was sent, because the object had too many recent
	// requests. The builder reports drift once the next one may be sent.
	Deferred bool
}

// StatusReporter receives each change of the status. Report must not block and
// is called concurrently.
type StatusReporter interface {
	Report(status SyncWorkerStatus)
}

// ConfigSyncWorker is the interface of a SyncWorker for its callers.
type ConfigSyncWorker interface {
	// Start runs until ctx ends and everything it started has returned.
	Start(ctx context.Context, maxWorkers int)
	// Update sets the desired release and returns the status immediately.
	Update(generation int64, desired Desired, overrides []Override, state payload.State) *SyncWorkerStatus
	// Status returns a copy of the status.
	Status() *SyncWorkerStatus
	// StatusCh has the latest status after a change.
	StatusCh() <-chan SyncWorkerStatus
}

// Step is a step of loading or applying a release.
type Step string

// The steps in order.
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

// Release is a loaded release.
type Release struct {
	Desired
	// Product is the name in the payload's metadata.
	Product string
	// VersionHash is "sha256:<hex>" over the payload.
	VersionHash string
	// Verified reports whether the signatures satisfy the trust policy.
	Verified bool
	// Evidence are the verified signatures, one line each.
	Evidence []string
	// Checked reports whether this process evaluated the preconditions. It doesn't
	// for the release that it continues after a restart; AcceptedRisks and Warnings
	// are empty then.
	Checked bool
	// AcceptedRisks are the waived violations, Warnings the violations that don't
	// block, one line each.
	AcceptedRisks, Warnings []string
}

// LoadStatus is the progress of loading the desired release.
type LoadStatus struct {
	// Desired is the release being loaded.
	Desired Desired
	// Step is the current or failed step.
	Step Step
	// Failure is why the release is rejected, nil while it is being loaded.
	Failure *UpdateError
	// Verified reports whether the signatures satisfy the trust policy, with the
	// verified signatures in Evidence; also for a release that is rejected later.
	Verified bool
	Evidence []string
	// Violations are those of the preconditions, including waived ones.
	Violations []precondition.Violation
	// Attempt counts from 1; RetryAt is the next attempt, zero if none is due.
	Attempt int
	RetryAt time.Time
	// LastTransition is when Step or Failure changed.
	LastTransition time.Time
}

// Blocking is an object that blocks completion of the release.
type Blocking struct {
	// Object is its identity, RunLevel and Component its place in the payload.
	Object    payload.ObjectID
	RunLevel  int
	Component string
	// Since is when the wait or the failure started.
	Since time.Time
	// Reason and Message are the object's own.
	Reason, Message string
	// Effect is the severity.
	Effect Effect
	// Retriable marks transient problems.
	Retriable bool
	// RetryAt is the next attempt, Deadline the end of the wait; zero if none.
	RetryAt, Deadline time.Time
}

// WaitClock is the used part of an object's timeout.
type WaitClock struct {
	// Spent is the time used until Running.
	Spent time.Duration
	// Running is when the clock was last started, zero while it is stopped.
	Running time.Time
}

// At returns the time used at now.
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

// HistoryFact is a release started by this process.
type HistoryFact struct {
	Release
	State HistoryState
	// Started is when it was first applied, Ended when it completed or was
	// superseded, zero before.
	Started, Ended time.Time
}

// Limits of the lists of a status.
const (
	maxBlocking = 20
	maxHistory  = 100
)

// SyncWorkerStatus is the status of the worker at one time.
type SyncWorkerStatus struct {
	// Generation is that of the last Update.
	Generation int64

	// Step and Failure are those of the sync. Failure is nil if the last sync of the
	// accepted release had no error.
	Step    Step
	Failure *UpdateError

	// Done counts the applied and skipped manifests of Total; it reaches Total in a
	// successful sync. Fraction is Done/Total.
	Done, Total, Skipped int
	Fraction             float32
	// RunLevel is the run level being applied, -1 for none.
	RunLevel int
	// State determines order and waits of the sync.
	State payload.State
	// Attempt counts the sync attempts since the last successful one.
	Attempt int
	// Completed counts consecutive successful syncs.
	Completed int
	// Reconciling reports that the accepted release is complete, Initial that no
	// release has completed yet.
	Reconciling, Initial bool
	// Paused reports that nothing is applied until the worker is resumed.
	Paused bool
	// VersionHash of the accepted release.
	VersionHash string
	// LastProgress is the time of the last progress.
	LastProgress time.Time
	// NextSync is when the next sync is due, zero while one runs.
	NextSync time.Time

	// Desired is the desired release, Load its progress until it is accepted.
	Desired Desired
	Load    LoadStatus
	// Restore is the progress of loading the accepted release of an earlier process,
	// zero once any release is accepted. If that release is the desired one, it is
	// Load.
	Restore LoadStatus
	// Actual is the accepted release: verified, loaded, being applied.
	Actual Release
	// Applied is the last complete release.
	Applied Release
	// Blocking are at most 20 objects, the root cause first; BlockingTotal counts
	// all blocking objects.
	Blocking      []Blocking
	BlockingTotal int
	// Failed counts the objects of BlockingTotal that failed or timed out; the
	// others are still awaited.
	Failed int
	// History are the releases started by this process, newest first.
	History []HistoryFact
	// Waits are the clocks of objects that aren't ready or became unhealthy, for
	// the persisted state.
	Waits map[payload.ObjectID]WaitClock
	// Pruning are the deletions that haven't ended, nil before the first prune of
	// this process.
	Pruning *Pruning
	// Warnings of loading the accepted payload.
	Warnings []string
	// Excluded counts its excluded documents.
	Excluded int
	// EnabledCapabilities are its enabled capabilities, ImplicitCapabilities those
	// of them that aren't declared but can't be disabled.
	EnabledCapabilities, ImplicitCapabilities []string
	// DriftRepairs counts the objects applied again after drift.
	DriftRepairs int
}

// DeepCopy returns a copy that shares no mutable data. Errors are immutable.
func (s SyncWorkerStatus) DeepCopy() *SyncWorkerStatus {
	s.Desired = s.Desired.clone()
	s.Load, s.Restore = s.Load.clone(), s.Restore.clone()
	s.Actual, s.Applied = s.Actual.clone(), s.Applied.clone()
	s.Blocking = slices.Clone(s.Blocking)
	s.History = slices.Clone(s.History)
	for i := range s.History {
		s.History[i].Release = s.History[i].clone()
	}
	s.Waits = maps.Clone(s.Waits)
	s.Warnings = slices.Clone(s.Warnings)
	s.EnabledCapabilities, s.ImplicitCapabilities = slices.Clone(s.EnabledCapabilities), slices.Clone(s.ImplicitCapabilities)
	return &s
}

func (d Desired) clone() Desired {
	d.Signatures, d.Waivers = slices.Clone(d.Signatures), slices.Clone(d.Waivers)
	d.Selection.FeatureGates, d.Selection.Capabilities = slices.Clone(d.Selection.FeatureGates), slices.Clone(d.Selection.Capabilities)
	return d
}

func (r Release) clone() Release {
	r.Desired = r.Desired.clone()
	r.Evidence = slices.Clone(r.Evidence)
	r.AcceptedRisks, r.Warnings = slices.Clone(r.AcceptedRisks), slices.Clone(r.Warnings)
	return r
}

func (l LoadStatus) clone() LoadStatus {
	l.Desired = l.Desired.clone()
	l.Evidence, l.Violations = slices.Clone(l.Evidence), slices.Clone(l.Violations)
	return l
}

// SyncWork is the work of one sync.
type SyncWork struct {
	Desired   Desired
	Overrides []Override
	State     payload.State

	// Attempt is the number of failed sync attempts of this work since the last
	// successful one.
	Attempt int
}
