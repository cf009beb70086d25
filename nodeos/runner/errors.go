// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// FenceError means that an order's fence is rejected. It contains the stored
// fence, so that a legitimate leader can raise its own above it.
type FenceError struct {
	// Stored is the highest accepted fence.
	Stored nodeos.Fence
	// Offered is the order's fence.
	Offered nodeos.Fence
	// Why is Stale, OtherCluster or Jump.
	Why string
}

// Error implements error.
func (e *FenceError) Error() string {
	switch e.Why {
	case "OtherCluster":
		return fmt.Sprintf("the order is from cluster %q, this host belongs to cluster %q", e.Offered.ClusterUID, e.Stored.ClusterUID)
	case "Jump":
		return fmt.Sprintf("fence epoch %d is more than %d above the stored %d; an administrator can reset the host's fence", e.Offered.Epoch, maxEpochJump, e.Stored.Epoch)
	default:
		return fmt.Sprintf("fence epoch %d is lower than the stored %d: another leader has taken over", e.Offered.Epoch, e.Stored.Epoch)
	}
}

// Reason is the condition reason.
func (e *FenceError) Reason() string { return "Fenced" }

// ConflictError means that an operation id is already used by another request.
type ConflictError struct {
	// ID is the operation id.
	ID string
	// StoredHash is the hash of the stored request.
	StoredHash string
	// OfferedHash is the hash of the rejected request.
	OfferedHash string
	// SameCaller means that both requests have the same caller.
	SameCaller bool
}

// Error implements error.
func (e *ConflictError) Error() string {
	who := "another caller"
	if e.SameCaller {
		who = "the same caller"
	}
	return fmt.Sprintf("operation id %s is already used by %s for request %s; this request is %s: use a new id", e.ID, who, e.StoredHash, e.OfferedHash)
}

// Reason is the condition reason.
func (e *ConflictError) Reason() string { return "OperationConflict" }

// RestartLimitError means that the last remote restart is too recent.
type RestartLimitError struct {
	// Last is the time of the last restart.
	Last time.Time
	// Interval is the minimum time between two remote restarts.
	Interval time.Duration
	// RetryAfter is the time until the next restart is allowed.
	RetryAfter time.Duration
}

// Error implements error.
func (e *RestartLimitError) Error() string {
	return fmt.Sprintf("the machine was restarted at %s; remote restarts are at least %s apart: retry in %s",
		e.Last.UTC().Format(time.RFC3339), e.Interval, e.RetryAfter.Round(time.Second))
}

// Reason is the condition reason.
func (e *RestartLimitError) Reason() string { return "RestartLimited" }
